"""Losses refuse shapes that do not fit."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.training.losses import cross_entropy, mean_squared_error

identity = nn.Identity()


def test_cross_entropy_is_that_of_torch():
    logits, targets = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0])
    found = cross_entropy(identity, (logits, targets))
    torch.testing.assert_close(found, F.cross_entropy(logits, targets))


def test_too_few_logits_name_the_class():
    with pytest.raises(ValueError, match="have class 3, but the model returned only 3 logits"):
        cross_entropy(identity, (torch.zeros(2, 3), torch.tensor([0, 3])))


def test_no_number_is_read_back():
    """Reading one would wait for an accelerator at every step; tensors of `meta` have none."""
    logits, targets = torch.zeros(2, 3, device="meta"), torch.zeros(2, 5, device="meta").argmax(1)
    assert cross_entropy(identity, (logits, targets)).shape == ()


def test_outputs_that_are_no_tensor():
    with pytest.raises(ValueError, match="the model returned tuple, and cross-entropy needs"):
        cross_entropy(lambda x: (x, x), (torch.zeros(2, 3), torch.tensor([0, 1])))


def test_squared_error_reshapes_a_last_dimension_of_one():
    x, y = torch.randn(5, 1), torch.randn(5)
    found = mean_squared_error(identity, (x, y))
    torch.testing.assert_close(found, (x[:, 0] - y).square().mean())


def test_squared_error_never_broadcasts():
    with pytest.raises(
        ValueError, match=r"returned shape \(5, 2\), the targets have shape \(5,\)"
    ):
        mean_squared_error(identity, (torch.zeros(5, 2), torch.zeros(5)))


@pytest.mark.parametrize(
    ("output", "targets"),
    [((32, 3, 8, 8), (32, 8, 8, 3)), ((3, 2), (2, 3))],
    ids=str,
)
def test_squared_error_refuses_another_layout(output, targets):
    with pytest.raises(ValueError, match="the order of the axes differs, permute the targets"):
        mean_squared_error(identity, (torch.zeros(output), torch.zeros(targets)))


@pytest.mark.parametrize(
    ("output", "targets"), [((4, 2, 3), (4, 6, 1, 1)), ((6,), (3, 4)), ((8, 3), (4, 6))], ids=str
)
def test_other_shapes_are_no_order_of_axes(output, targets):
    with pytest.raises(ValueError, match=r"needs them to be the same\.$"):
        mean_squared_error(identity, (torch.zeros(output), torch.zeros(targets)))


@pytest.mark.parametrize(
    ("output", "targets"),
    [
        ((5,), (5, 1)),
        ((5, 1), (1, 5)),
        ((5, 1, 4), (5, 4)),
        ((5, 12), (5, 3, 2, 2)),
        ((20,), (5, 4)),  # tokens in a row
        ((20, 3), (5, 4, 3)),
        ((5, 4, 3), (20, 3)),
    ],
    ids=str,
)
def test_squared_error_takes_axes_of_one_and_flattened_images(output, targets):
    x, y = torch.randn(output), torch.randn(targets)
    found = mean_squared_error(identity, (x, y))
    torch.testing.assert_close(found, (x.flatten() - y.flatten()).square().mean())


def test_an_unknown_class_is_named_and_is_the_cause_of_nothing_else():
    for target, words in ((9, "class 9, but the model returned only 2"), (-1, "ignore_index=-1")):
        with pytest.raises(ValueError, match=words) as raised:
            cross_entropy(identity, (torch.zeros(3, 2), torch.tensor([-100, 0, target])))
        assert isinstance(raised.value.__cause__, IndexError)
