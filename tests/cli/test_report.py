"""``equipoise report`` shows a stored check-up again."""

import json
import shutil

import pytest


@pytest.fixture
def stored(equipoise, folder):
    arguments = ("--seeds", 2, "--batches", 1, "--batch-size", 16, "--out", "kept")
    assert equipoise("checkup", "nets.py:build", *arguments).code == 0
    return folder / "kept"


def test_the_page_is_rendered_anew_and_the_numbers_stay(equipoise, stored):
    before = (stored / "report.json").read_bytes()
    page = (stored / "report.html").read_bytes()
    (stored / "report.html").unlink()
    done = equipoise("report", "kept")
    assert done.code == 0
    assert "nets.py:build" in done.out
    assert (stored / "report.json").read_bytes() == before
    assert (stored / "report.html").read_bytes() == page


def test_nothing_is_computed(equipoise, stored, monkeypatch):
    def fail(*args, **keywords):
        pytest.fail("computed again")

    for name in ("diagnosis.checkup.checkup", "probes.gradient_growth", "theory.explosion_rate"):
        monkeypatch.setattr(f"equipoise.{name}", fail)
    assert equipoise("report", "kept").code == 0


def test_json_is_that_of_the_file(equipoise, stored):
    done = equipoise("report", "kept", "--json")
    assert done.json == json.loads((stored / "report.json").read_text("utf-8"))


def test_the_file_itself_may_be_named(equipoise, stored):
    assert equipoise("report", "kept/report.json").code == 0


def test_a_file_of_another_name_leaves_its_neighbours_alone(equipoise, stored):
    shutil.copy(stored / "report.json", stored / "old.json")
    changed = json.loads((stored / "report.json").read_text("utf-8"))
    changed["target"] = "the new one"
    (stored / "report.json").write_text(json.dumps(changed))
    assert equipoise("report", "kept/old.json").code == 0
    assert json.loads((stored / "report.json").read_text("utf-8"))["target"] == "the new one"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "holds no report.json"),
        ("{", "is not valid JSON"),
        ("[]", "is not a check-up"),
        ('{"schema": 1}', "Run the check-up again to write it in the new form"),
        ('{"schema": 999}', "Upgrade equipoise"),
        ('{"schema": 2}', "is not a whole check-up: Checkup lacks the fields"),
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
