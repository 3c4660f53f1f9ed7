import dataclasses
import json

import pytest

from equipoise.diagnosis.record import SCHEMA_VERSION
from equipoise.report.checkup.page import render_checkup
from equipoise.report.checkup.store import JSON_NAME, load, save


def test_round_trip(tmp_path, deep, interrupted):
    for checkup in (deep, interrupted):
        page = save(checkup, tmp_path / "new" / "folder")
        assert load(page.parent / JSON_NAME) == load(page.parent) == checkup
        assert page.read_text(encoding="utf-8") == render_checkup(checkup)


def test_round_trip_of_what_is_not_finite(tmp_path, hostile):
    page = save(hostile, tmp_path)
    assert render_checkup(load(tmp_path)) == page.read_text(encoding="utf-8")
    assert load(tmp_path).findings == hostile.findings


def test_nothing_else_is_left_behind(tmp_path, deep):
    deep.save(tmp_path)
    deep.save(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]


class TestClearErrors:
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
        save(newer, tmp_path)
        with pytest.raises(
            ValueError, match=rf"schema version {schema!r}.*9\.9.*{remedy}"
        ) as error:
            load(tmp_path)
        assert f"reads version {SCHEMA_VERSION}" in str(error.value)

    def test_missing_fields(self, tmp_path, deep):
        save(deep, tmp_path)
        data = tmp_path / JSON_NAME
        content = json.loads(data.read_text())
        del content["findings"]
        data.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=r"is not a whole check-up: .*findings.* again"):
            load(data)
