"""Criteria are told from losses of a model by the names of their arguments."""

import pytest
from torch import nn
from torch.nn import functional as F

from equipoise.instrument.criteria import is_criterion


class OfModel(nn.Module):
    def forward(self, model, batch):
        return model(batch).sum()


class OfOutput(nn.Module):
    def forward(self, y_hat, y):
        return (y_hat - y).sum()


@pytest.mark.parametrize("given", [nn.MSELoss(), OfOutput(), F.mse_loss, lambda a, target: a])
def test_criteria(given):
    assert is_criterion(given)


@pytest.mark.parametrize(
    "given", [OfModel(), lambda m, y: m(y), lambda net, data: net, lambda a: a, None, sum]
)
def test_others(given):
    assert not is_criterion(given)
