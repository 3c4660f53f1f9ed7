"""Warnings point to a line that the user can change."""

import functools
import warnings

import pytest
import torch
from torch import nn

from equipoise.numerics.options import named_options
from equipoise.records.warn import warn_user

warned = functools.partial(pytest.warns, UserWarning, match="too few samples")


def test_the_line_is_the_caller_s_behind_a_decorator_of_the_library():
    with warned() as caught:
        named_options(warn_user)("too few samples")
    assert caught[0].filename == __file__


def test_and_behind_a_framework_that_calls_a_hook():
    layer = nn.Identity()
    layer.register_forward_hook(named_options(lambda *_: warn_user("too few samples")))
    with warned() as caught:
        layer(torch.ones(1))
    assert caught[0].filename == __file__


def test_a_constant_level_points_elsewhere():
    """The twin: what the decorator counts for."""

    def direct(text):
        warnings.warn(text, stacklevel=2)

    with warned() as caught:
        named_options(direct)("too few samples")
    assert caught[0].filename != __file__
