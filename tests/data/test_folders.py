"""Where data are looked for, and the message when they are not there."""

import pytest

from equipoise.data import DataNotFoundError, find_folder
from equipoise.data.folders import cache_dir


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Folder given by hand, folder of the environment variable, and cache."""
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "own"))
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "given", tmp_path / "own", tmp_path / "cache"


def put(place):
    for part in ("train", "test"):
        (place / "birds" / part).mkdir(parents=True)
    return place / "birds"


def find(**options):
    return find_folder("birds", holding=("train", "test"), remedy="Get it.", **options)


class TestFindFolder:
    def test_own_folder_before_cache(self, places):
        _, own, cache = places
        assert put(cache) == find()
        assert put(own) == find()

    def test_a_given_folder_takes_the_place_of_the_variable(self, places):
        given, own, cache = places
        put(own)
        with pytest.raises(DataNotFoundError):
            find(data_dir=given)
        assert put(cache) == find(data_dir=given)
        assert put(given) == find(data_dir=given)

    def test_a_folder_that_lacks_a_part_is_passed_over(self, places):
        _, own, cache = places
        (own / "birds" / "train").mkdir(parents=True)
        assert put(cache) == find()

    def test_the_message_says_where_and_what_to_do(self, places):
        _, own, cache = places
        with pytest.raises(DataNotFoundError) as caught:
            find()
        assert str(caught.value) == (
            "birds was not found: looked for folders train and test in "
            f"{own / 'birds'}, {cache / 'birds'}. Get it."
        )

    def test_without_the_variable(self, places, monkeypatch):
        _, own, cache = places
        monkeypatch.delenv("EQUIPOISE_DATA")
        put(own)
        with pytest.raises(DataNotFoundError, match=f"in {cache / 'birds'}. Get it."):
            find()


class TestCacheDir:
    def test_own_variable_first(self, monkeypatch, tmp_path):
        monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "own"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert cache_dir() == tmp_path / "own"

    def test_then_the_desktop_standard(self, monkeypatch, tmp_path):
        monkeypatch.delenv("EQUIPOISE_CACHE", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert cache_dir() == tmp_path / "xdg" / "equipoise"

    def test_then_home(self, monkeypatch, tmp_path):
        monkeypatch.delenv("EQUIPOISE_CACHE", raising=False)
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert cache_dir() == tmp_path / ".cache" / "equipoise"
