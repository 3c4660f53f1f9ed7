"""The digits that scikit-learn bundles, read from its file."""

import pytest
from sklearn.datasets import load_digits

from equipoise.data.images import digits
from equipoise.data.images.digits import digits_images


def test_they_are_scikit_learns_to_the_bit():
    images, labels = digits_images()
    bundle = load_digits()
    assert (images.squeeze(1).numpy() == bundle.images).all()
    assert (labels.numpy() == bundle.target).all()


def test_what_is_done_to_them_is_not_done_to_the_next():
    for numbers in digits_images():
        numbers.zero_()
    assert all(numbers.any() for numbers in digits_images())


def test_without_them_it_is_said_where_they_come_from(monkeypatch):
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install scikit-learn"):
        digits_images()
