"""Copies of models that keep computed tensors."""

import copy

import pytest
import torch
from torch import nn

from equipoise.instrument.copies import copied, take_over
from support.probe_models import with_old_weight_norm


class Keeps(nn.Module):
    """Keeps the last output, and a list of all, with their graphs."""

    def __init__(self):
        super().__init__()
        self.layer, self.all = nn.Linear(3, 2), []

    def forward(self, x):
        self.last = self.layer(x)
        self.all.append(self.last)
        return self.last


def test_computed_tensors_are_copied_by_their_values():
    model = Keeps()
    output = model(torch.ones(4, 3))
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(model)
    twin = copied(model)
    assert twin.last is twin.all[0]
    assert twin.last is not output
    assert torch.equal(twin.last, output)
    assert not twin.last.requires_grad
    assert output.requires_grad
    assert twin.layer.weight.requires_grad
    assert twin.layer.weight is not model.layer.weight


def test_a_weight_that_a_hook_computes_follows_the_copys_own():
    model = with_old_weight_norm()
    twin, x = copied(model), torch.ones(2, 6)
    assert torch.equal(twin(x), model(x))
    with torch.no_grad():
        twin[0].weight_g.zero_()
    assert not torch.equal(twin(x), model(x))
    twin(x).sum().backward()
    assert twin[0].weight_v.grad is not None
    assert model[0].weight_v.grad is None


def test_what_stands_in_for_an_object():
    model = Keeps()
    model.trainer = object()
    assert copied(model, {id(model.trainer): None}).trainer is None


class StandardisesFirst(nn.Module):
    """Chooses its scale by the first batch, and notes that in an attribute."""

    def __init__(self):
        super().__init__()
        self.scale, self.is_chosen = nn.Parameter(torch.tensor(torch.nan)), False

    def forward(self, x):
        if not self.is_chosen:
            self.scale.data, self.is_chosen = 1 / x.std(), True
        return self.scale * x


@pytest.mark.parametrize(
    "replace", [take_over, lambda m, other: m.load_state_dict(other.state_dict())]
)
def test_a_model_that_takes_over_starts_anew(replace):
    """Weights alone leave it with what its first batch was to choose."""
    model, x = nn.Sequential(StandardisesFirst(), nn.Linear(2, 1)), torch.randn(9, 2)
    assert torch.isfinite(model(x)).all()
    replace(model, nn.Sequential(StandardisesFirst(), nn.Linear(2, 1)))
    assert bool(torch.isfinite(model(x)).all()) == (replace is take_over)
