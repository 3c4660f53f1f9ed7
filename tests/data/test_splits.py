"""Training and test sets are disjoint, scaled to [0, 1], and standardised by the former alone."""

from __future__ import annotations

import gzip
import struct

import pytest
import torch

from equipoise.data import DataNotFoundError, Split, split
from equipoise.data.images.cifar import cifar_images
from equipoise.data.images.mnist import fashion_mnist_images, mnist_images


@pytest.fixture
def folder(tmp_path):
    for stem, count, value in (("train", 6, 255), ("t10k", 3, 51)):
        images = struct.pack(">IIII", 0x803, count, 2, 2) + bytes([0, value] * (2 * count))
        labels = struct.pack(">II", 0x801, count) + bytes(range(count))
        (tmp_path / f"{stem}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (tmp_path / f"{stem}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    return tmp_path


def test_digits_are_split_without_overlap():
    digits = split("digits")
    assert len(digits.train) + len(digits.test) == 1797
    assert digits.train.inputs.min() == 0
    assert digits.test.inputs.max() == 1
    train = {x.numpy().tobytes() for x in digits.train.inputs}
    assert not train & {x.numpy().tobytes() for x in digits.test.inputs}


@pytest.mark.parametrize("name", ["fashion-mnist", "mnist"])
def test_both_sets_are_read_from_a_folder(folder, name):
    found = split(name, data_dir=folder)
    assert (len(found.train), len(found.test)) == (6, 3)
    assert found.train.inputs.max() == 1
    assert found.test.inputs.max() == pytest.approx(0.2)


def test_the_environment_variable_names_a_folder(folder, monkeypatch):
    monkeypatch.setenv("EQUIPOISE_DATA", str(folder))
    assert len(split("fashion-mnist").train) == 6
    monkeypatch.setenv("EQUIPOISE_DATA", str(folder / "nowhere"))
    with pytest.raises(DataNotFoundError):
        split("mnist")


def test_test_files_are_asked_for_by_name(folder):
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    assert len(mnist_images("train", folder)[0]) == 6
    with pytest.raises(DataNotFoundError, match="t10k-images-idx3-ubyte"):
        mnist_images("test", folder)
    with pytest.raises(DataNotFoundError, match="t10k-images"):
        fashion_mnist_images("test", folder, debian=folder / "nowhere")


def test_cifar_needs_its_archive(tmp_path):
    with pytest.raises(DataNotFoundError, match=r"cifar-10-python\.tar\.gz"):
        cifar_images("cifar10", "test", tmp_path)


def test_a_set_without_a_test_part_is_refused():
    with pytest.raises(ValueError, match="'random:3:2' has no training and test set"):
        split("random:3:2")


class TestStandardised:
    def test_both_are_scaled_by_the_training_set(self):
        digits = split("digits")
        found = digits.standardised(eps=(0.0, 0.0), pixels=False)
        x, moved = digits.train.inputs, (digits.test.inputs - digits.train.inputs.mean())
        assert float(found.train.inputs.std(correction=0)) == pytest.approx(1, abs=1e-5)
        torch.testing.assert_close(found.test.inputs, moved / x.std(correction=0))

    def test_blank_pixels_stay_finite(self):
        found = split("digits").standardised()
        assert torch.isfinite(found.train.inputs).all()
        assert float(found.test.inputs.abs().max()) < 30

    def test_without_eps_they_are_infinite(self):
        assert not torch.isfinite(split("digits").standardised(eps=(0.0, 0.0)).train.inputs).all()

    def test_labels_are_kept(self):
        digits = split("digits")
        assert isinstance(digits.standardised(), Split)
        assert torch.equal(digits.standardised().test.targets, digits.test.targets)
