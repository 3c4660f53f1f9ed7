"""Folders of photographs: found where they are, and clear errors where they are not."""

from __future__ import annotations

import pytest

from equipoise.data import DataNotFoundError
from equipoise_papers import image_folders


def test_a_missing_set_says_what_to_do(tmp_path):
    with pytest.raises(DataNotFoundError, match="one folder of images per class"):
        image_folders.image_folder("cub", tmp_path)


def test_a_set_is_found(tmp_path):
    for part in ("train", "test"):
        (tmp_path / "cub" / part / "wren").mkdir(parents=True)
    assert image_folders.image_folder("cub", tmp_path) == tmp_path / "cub"


def test_a_missing_torchvision_is_one_clear_error(monkeypatch):
    def refuse(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(image_folders.importlib, "import_module", refuse)
    with pytest.raises(ValueError, match="pip install torchvision pillow"):
        image_folders.torchvision()
