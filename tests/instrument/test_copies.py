"""Copies of models that keep computed tensors."""

import copy

import pytest
import torch
from torch import nn

from equipoise.instrument.copies import copied
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
