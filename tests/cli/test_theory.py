"""``equipoise theory`` prints predictions, and with ``--spectrum`` every eigenvalue."""

import pytest

from equipoise import theory
from equipoise.theory import backward_spectrum, forward_spectrum


def test_json_holds_every_combination(equipoise):
    done = equipoise("theory", "--activation", "identity", "relu", "--batch-size", 8, 64, "--json")
    assert done.code == 0
    rows = [(row["activation"], row["batch_size"]) for row in done.json]
    assert rows == [("identity", 8), ("identity", 64), ("relu", 8), ("relu", 64)]
    for row in done.json[:2]:
        B = row["batch_size"]
        assert row["rate"]["value"] == pytest.approx((B - 2) / (B - 3), rel=1e-12)


def test_the_table_shows_the_same(equipoise):
    done = equipoise("theory", "--activation", "identity", "gelu", "--batch-size", 64)
    assert done.code == 0
    assert "×1.016" in done.out
    gelu = next(line for line in done.out.splitlines() if line.strip().startswith("gelu"))
    assert " no " in f"{gelu} "


def test_options_reach_the_theory(equipoise):
    options = ("--eps", 0.3, "--gamma", 0.7, "--beta", 0.2, "--weight-variance", 1.5)
    done = equipoise("theory", "--activation", "tanh", "--batch-size", 16, *options, "--json")
    (row,) = done.json
    expected = theory.explosion_rate("tanh", 16, eps=0.3, gamma=0.7, beta=0.2, weight_variance=1.5)
    assert row["rate"]["value"] == pytest.approx(expected.value)
    assert (row["eps"], row["gamma"], row["beta"], row["weight_variance"]) == (0.3, 0.7, 0.2, 1.5)


def test_negative_numbers_are_arguments(equipoise):
    arguments = ("--activation", "relu", "--batch-size", 8, "--beta", "-0.5", "--json")
    assert equipoise("theory", *arguments).json[0]["beta"] == -0.5


def test_activations_may_have_numbers(equipoise):
    names = ["leaky_relu(0.2)", "alpha_relu(1.5)"]
    done = equipoise("theory", "--activation", *names, "--batch-size", 8, "--json")
    assert [row["activation"] for row in done.json] == names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--activation", "rellu"), "unknown activation 'rellu'"),
        (("--batch-size", 3), "batch_size must be at least 4, got 3"),
        (("--gamma", 0), "gamma must not be 0"),
        (("--eps", -1), "eps must be a number in [0, inf)"),
        (("--eps", "nan"), "eps must be a number in [0, inf); got nan"),
        (("--weight-variance", 0), "weight_variance must not be 0"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(equipoise, arguments, message):
    done = equipoise("theory", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert message in done.err


SPECTRUM = (
    *("theory", "--spectrum"),
    *("--activation", "relu", "gelu", "--batch-size", 8, 64),
)


class TestSpectrum:
    """For people, Markdown and machines."""

    def test_the_table_fits_a_terminal(self, equipoise, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        text = equipoise(*SPECTRUM).out
        lines = text.splitlines()
        assert max(map(len, lines)) <= 80
        assert "…" not in text
        row = next(line.split() for line in lines if line.split()[:2] == ["relu", "8"])
        spectrum = backward_spectrum("relu", 8)
        assert row[2:5] == [f"{part.value:.4g}" for part in (spectrum.G, spectrum.L, spectrum.M)]
        assert row[-1] == "yes"
        assert "λ↑_G" not in text  # 0 in every row at ε = 0

    def test_with_eps_there_is_one_more_column(self, equipoise, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        assert "λ↑_G" in equipoise(*SPECTRUM, "--eps", 0.1).out

    def test_markdown_prints_every_certain_digit(self, equipoise):
        lines = equipoise(*SPECTRUM, "--markdown").out.splitlines()
        assert len(lines) == 2 + 4
        cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
        exact = forward_spectrum("relu", 8).L
        assert abs(float(cells[8]) - exact.value) <= 1e-12
        assert len(cells[8].split(".")[1]) >= 12

    def test_json_holds_estimates(self, equipoise):
        rows = equipoise(*SPECTRUM, "--json").json
        combinations = [("relu", 8), ("relu", 64), ("gelu", 8), ("gelu", 64)]
        assert [(row["activation"], row["batch_size"]) for row in rows] == combinations
        assert rows[0]["backward"][0]["value"] == backward_spectrum("relu", 8).G.value
        assert rows[3]["stable"] is False

    def test_markdown_alone_is_refused(self, equipoise):
        done = equipoise("theory", "--markdown")
        assert done.code == 2
        assert "add --spectrum" in done.err

    @pytest.mark.parametrize("arguments", [("--batch-size", 3), ("--activation", "rulu")])
    def test_bad_input_is_one_line(self, equipoise, arguments):
        done = equipoise("theory", "--spectrum", *arguments)
        assert (done.code, done.err.count("\n")) == (2, 1)
