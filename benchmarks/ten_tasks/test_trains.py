"""Task 4: a test suite that fails for a model that cannot train."""

import pytest

import equipoise as eq
from nets import chain


def test_the_shallow_one_trains():
    eq.assert_trainable(lambda: chain(4, norm=True), "digits")


def test_the_deep_one_does_not():
    with pytest.raises(AssertionError, match="the model trains with a probability of"):
        eq.assert_trainable(lambda: chain(100, norm=True), "digits")
