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


def test_outputs_that_are_no_tensor():
    with pytest.raises(ValueError, match="the model returned tuple, and cross-entropy needs"):
        cross_entropy(lambda x: (x, x), (torch.zeros(2, 3), torch.tensor([0, 1])))


def test_squared_error_reshapes_a_last_dimension_of_one():
    x, y = torch.randn(5, 1), torch.randn(5)
    found = mean_squared_error(identity, (x, y))
    torch.testing.assert_close(found, (x[:, 0] - y).square().mean())


def test_squared_error_never_broadcasts():
    with pytest.raises(ValueError, match=r"returned shape \(5, 2\), the targets have \(5,\)"):
        mean_squared_error(identity, (torch.zeros(5, 2), torch.zeros(5)))
