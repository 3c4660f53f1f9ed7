"""``equipoise report`` shows a stored check-up again."""

import json

import pytest

from equipoise.report.checkup.markdown import markdown
from equipoise.report.checkup.store import save
from support.report_examples import interrupted_checkup


def test_the_page_is_rendered_anew_and_the_numbers_stay(equipoise, folder):
    arguments = ("--seeds", 1, "--batches", 1, "--batch-size", 16, "--out", "kept")
    assert equipoise("checkup", "nets.py:build", *arguments).code == 0
    page, numbers = folder / "kept" / "report.html", folder / "kept" / "report.json"
    before = page.read_bytes(), numbers.read_bytes()
    page.unlink()
    done = equipoise("report", "kept")
    assert done.code == 0
    assert "nets.py:build" in done.out
    assert (page.read_bytes(), numbers.read_bytes()) == before


@pytest.fixture
def stored(folder):
    """A report that is quick to render; its exit code is that of an interrupted check-up."""
    save(interrupted_checkup(), folder / "kept")
    return folder / "kept"


def test_nothing_is_computed(equipoise, stored, monkeypatch):
    def fail(*args, **keywords):
        pytest.fail("computed again")

    for name in ("diagnosis.checkup.checkup", "probes.gradient_growth", "theory.explosion_rate"):
        monkeypatch.setattr(f"equipoise.{name}", fail)
    assert equipoise("report", "kept").code == 130


def test_the_folder_of_a_checkup_is_looked_in_and_markdown_is_printed(equipoise, stored):
    stored.rename(stored.with_name("equipoise-report"))
    done = equipoise("report", "--markdown")
    assert done.code == 130
    assert done.out == f"{markdown(interrupted_checkup())}\n"
    assert done.err == "Report: equipoise-report/report.html\n"


@pytest.mark.parametrize("path", ["kept", "kept/report.json"])
def test_json_is_that_of_the_file(equipoise, stored, path):
    done = equipoise("report", path, "--json")
    assert done.json == json.loads((stored / "report.json").read_text("utf-8"))


def test_a_file_of_another_name_leaves_its_neighbours_alone(equipoise, stored):
    changed = json.loads((stored / "report.json").read_text("utf-8"))
    changed["target"] = "the old one"
    (stored / "old.json").write_text(json.dumps(changed))
    before = {path: path.read_bytes() for path in stored.glob("report.*")}
    assert "the old one" in equipoise("report", "kept/old.json").out
    assert "the old one" in (stored / "old.html").read_text("utf-8")
    assert {path: path.read_bytes() for path in stored.glob("report.*")} == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "holds no report.json"),
        ("{", "is not valid JSON"),
        ("[]", "is not a check-up"),
        ('{"schema": 1}', "Run the check-up again to write it in the new form"),
        ('{"schema": 999}', "Upgrade equipoise"),
        ('{"schema": 5}', "is not a whole check-up: Checkup lacks the fields"),
    ],
)
def test_broken_reports_are_one_line_and_exit_code_two(equipoise, folder, content, message):
    (folder / "broken").mkdir()
    if content is not None:
        (folder / "broken" / "report.json").write_text(content)
    done = equipoise("report", "broken")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert message in done.err


def test_a_folder_that_does_not_exist(equipoise):
    done = equipoise("report", "nowhere")
    assert done.code == 2
    assert "nowhere does not exist" in done.err
