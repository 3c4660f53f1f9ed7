import dataclasses
import json
from pathlib import Path

import pytest
import torch

from equipoise.diagnosis.fix.applied import as_remedy
from equipoise.diagnosis.record import SCHEMA_VERSION, Checkup
from equipoise.records import from_plain, to_plain
from equipoise.records.codec import write_json
from equipoise.report.checkup.store import JSON_NAME, load, save
from support.report_examples import CHECKUPS, page_of


@pytest.mark.parametrize("name", CHECKUPS)
def test_round_trip(tmp_path, name):
    """And two renderings are equal."""
    checkup = CHECKUPS[name]()
    page = save(checkup, tmp_path / "new" / "folder")
    stored = load(page.parent / JSON_NAME)
    assert page.read_text(encoding="utf-8") == page_of(name)
    assert to_plain(stored) == to_plain(load(page.parent)) == to_plain(checkup)


def test_a_file_name_is_no_folder(interrupted, tmp_path):
    with pytest.raises(ValueError, match="is the name of a file"):
        interrupted.save(tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_nothing_else_is_left_behind(tmp_path, interrupted):
    interrupted.save(tmp_path)
    interrupted.save(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]


def test_a_recommended_remedy_is_written_for_apply(tmp_path, deep):
    deep.save(tmp_path)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["fix.py", "remedy.json", "report.html", "report.json"]
    assert as_remedy(tmp_path / "remedy.json") == deep.fix.best
    names = {}
    exec((tmp_path / "fix.py").read_text(encoding="utf-8"), names)
    model = names["wrap"](lambda: torch.nn.Sequential(torch.nn.BatchNorm1d(2)))()
    assert model[0].bias.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("section", ["preconditioning", "fix", "smoothness", "second_order"])
def test_reports_of_releases_without_a_section_can_be_read(deep, section):
    plain = to_plain(deep)
    del plain[section]
    assert not getattr(from_plain(Checkup, plain), section)


class TestClearErrors:
    @pytest.mark.parametrize("name", ["x" * 400, "/proc/self/mem"])
    def test_what_cannot_be_read_is_named(self, name):
        if name.startswith("/") and not Path(name).exists():
            pytest.skip("a file of Linux")
        with pytest.raises(ValueError, match=rf"cannot read {name[:50]}.*: .*\. Name a folder"):
            load(name)

    def test_no_such_folder(self, tmp_path):
        with pytest.raises(ValueError, match="nowhere does not exist"):
            load(tmp_path / "nowhere")

    def test_empty_folder(self, tmp_path):
        with pytest.raises(ValueError, match=r"holds no report\.json.*run the check-up first"):
            load(tmp_path)

    @pytest.mark.parametrize("content", [b"{", b"", b"\xff\xfe", b"[" * 100_000])
    def test_broken_json(self, tmp_path, content):
        (tmp_path / "report.json").write_bytes(content)
        with pytest.raises(ValueError, match="is not valid JSON"):
            load(tmp_path)

    @pytest.mark.parametrize("content", ["[]", "{}", "3", "null"])
    def test_another_kind_of_json(self, tmp_path, content):
        (tmp_path / "report.json").write_text(content)
        with pytest.raises(ValueError, match="is not a check-up"):
            load(tmp_path)

    @pytest.mark.parametrize(
        ("schema", "remedy"),
        [
            (SCHEMA_VERSION + 1, "Upgrade equipoise"),
            (0, "Run the check-up again"),
            ("x", "Run"),
        ],
    )
    def test_another_schema(self, tmp_path, deep, schema, remedy):
        newer = dataclasses.replace(deep, schema=schema, equipoise="9.9")
        write_json(tmp_path / JSON_NAME, newer)
        with pytest.raises(
            ValueError, match=rf"schema version {schema!r}.*9\.9.*{remedy}"
        ) as error:
            load(tmp_path)
        assert f"reads version {SCHEMA_VERSION}" in str(error.value)

    def test_missing_fields(self, tmp_path, deep):
        data = tmp_path / JSON_NAME
        content = to_plain(deep)
        del content["findings"]
        data.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=r"is not a whole check-up: .*findings.* again"):
            load(data)
