"""A file is replaced completely or not at all."""

import pytest

from equipoise.files import refuse_file_name, replacing


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


def test_a_folder_that_is_called_like_a_page_stays_one(tmp_path):
    folder = tmp_path / "report.html"
    with pytest.raises(ValueError, match=r"is the name of a file, .* Name one, such as 'report'"):
        refuse_file_name(folder)
    folder.mkdir()
    refuse_file_name(folder)
    refuse_file_name(tmp_path / "v1.2")
