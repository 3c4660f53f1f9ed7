"""A file is replaced completely or not at all."""

import pytest

from equipoise.files import replacing


def test_a_draft_becomes_the_file(tmp_path):
    path = tmp_path / "folder" / "a.txt"
    with replacing(path) as draft:
        draft.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_a_block_that_fails_leaves_the_old_file_alone(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def block():
        with replacing(path) as draft:
            draft.write_text("half a")
            raise error

    with pytest.raises(error):
        block()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_names_the_file_and_not_its_draft(tmp_path):
    path = tmp_path / "a.txt"
    path.mkdir()
    with pytest.raises(OSError, match="directory") as caught, replacing(path) as draft:
        draft.write_text("new")
    assert caught.value.filename == str(path)


def test_an_error_about_another_file_names_that(tmp_path):
    other = tmp_path / "other"
    with pytest.raises(FileNotFoundError) as caught, replacing(tmp_path / "a.txt"):
        other.read_text()
    assert caught.value.filename == str(other)
