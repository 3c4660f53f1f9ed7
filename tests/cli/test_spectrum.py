"""``equipoise theory --spectrum``: every eigenvalue, for people, Markdown and machines."""

import json

import pytest

from equipoise import cli
from equipoise.theory import backward_spectrum, forward_spectrum

ARGUMENTS = ["theory", "--spectrum", "--activation", "relu", "gelu", "--batch-size", "8", "64"]


def printed(capsys, *extra):
    assert cli.main([*ARGUMENTS, *extra]) == 0
    return capsys.readouterr().out


def test_the_table_fits_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = printed(capsys)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in text
    row = next(line.split() for line in lines if line.split()[:2] == ["relu", "8"])
    spectrum = backward_spectrum("relu", 8)
    assert row[2:5] == [f"{part.value:.4g}" for part in (spectrum.G, spectrum.L, spectrum.M)]
    assert row[-1] == "yes"
    assert "λ↑_G" not in text  # 0 in every row at ε = 0


def test_with_eps_there_is_one_more_column(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert "λ↑_G" in printed(capsys, "--eps", "0.1")


def test_markdown_prints_every_certain_digit(capsys):
    lines = printed(capsys, "--markdown").splitlines()
    assert len(lines) == 2 + 4
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    exact = forward_spectrum("relu", 8).L
    assert abs(float(cells[8]) - exact.value) <= 1e-12
    assert len(cells[8].split(".")[1]) >= 12


def test_json_holds_estimates(capsys):
    rows = json.loads(printed(capsys, "--json"))
    assert [(row["activation"], row["batch_size"]) for row in rows] == [
        ("relu", 8),
        ("relu", 64),
        ("gelu", 8),
        ("gelu", 64),
    ]
    assert rows[0]["backward"][0]["value"] == backward_spectrum("relu", 8).G.value
    assert rows[3]["stable"] is False


def test_markdown_alone_is_refused(capsys):
    assert cli.main(["theory", "--markdown"]) == 2
    assert "add --spectrum" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--batch-size", "3"], ["--activation", "rulu"]])
def test_bad_input_is_one_line(arguments, capsys):
    assert cli.main(["theory", "--spectrum", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
