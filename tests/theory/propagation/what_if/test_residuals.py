"""Which sums are residual, and which of their parts is the branch."""

import pytest
import torch
from torch import nn

from equipoise.instrument.recording.tracer import trace
from equipoise.theory.propagation.what_if.residuals import with_residual_scale
from support.what_if_models import projected, vectors


class Model(nn.Module):
    """Two hidden layers that a function puts together, in front of a last layer."""

    def __init__(self, combine):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.third, self.last = nn.Linear(16, 16), nn.Linear(16, 8)
        self.bias = nn.Parameter(torch.ones(16))
        self.combine = combine

    def forward(self, x):
        return self.last(self.combine(self, torch.tanh(self.first(x))))


def added_in_place(model, x):
    branch = model.second(x)
    branch += x
    return branch


BRANCHES = {
    "branch last": lambda m, x: x + m.second(x),
    "branch first": lambda m, x: m.second(x) + x,
    "in place": added_in_place,
    "projected": lambda m, x: m.third(x) + m.second(torch.relu(m.second(x))),
}
OTHERS = {
    "two of a kind": lambda m, x: m.second(x) + m.third(x),
    "a parameter": lambda m, x: x + m.bias,
    "a number": lambda m, x: x + 1,
    "without weights": lambda m, x: x + torch.relu(x),
}


def scaled(combine):
    """Where the scale of every sum that is scaled is, and the layer before its branch."""
    torch.manual_seed(0)
    graph = with_residual_scale(trace(Model(combine), vectors(), projected), 0.3)
    sums = [n for n in graph.nodes if n.name == "add" and n.keywords.get("alpha") == 0.3]
    return [graph.nodes[n.arguments[1].node].module for n in sums]


@pytest.mark.parametrize("combine", BRANCHES.values(), ids=BRANCHES)
def test_the_branch_is_what_has_more_weights(combine):
    assert scaled(combine) == ["second"]


@pytest.mark.parametrize("combine", OTHERS.values(), ids=OTHERS)
def test_other_sums_are_not_residual(combine):
    with pytest.raises(ValueError, match="no branch to a stream"):
        scaled(combine)


def test_a_sum_behind_the_last_weights_is_not_residual():
    class Outputs(Model):
        def forward(self, x):
            return x[:, :8] + self.last(torch.tanh(self.first(x)))

    with pytest.raises(ValueError, match="no branch to a stream"):
        with_residual_scale(trace(Outputs(None), vectors(), projected), 0.3)
