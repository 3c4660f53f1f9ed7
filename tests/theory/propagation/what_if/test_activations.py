"""Which operations are activations, and which are gates or belong to the loss."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from equipoise.instrument.recording.tracer import trace
from equipoise.theory.propagation.propagate import propagate
from equipoise.theory.propagation.what_if.activations import with_activation
from support.what_if_models import projected, vectors


class Gated(nn.Module):
    """A hidden layer multiplied by a gate, in front of a last layer."""

    def __init__(self, act, gate=None, width=16):
        super().__init__()
        self.up, self.gate, self.down = (
            nn.Linear(width, 32),
            nn.Linear(width, 32),
            nn.Linear(32, 8),
        )
        self.act, self.shut = act, gate

    def forward(self, x):
        h = self.act(self.up(x))
        return self.down(h * self.shut(self.gate(x)) if self.shut else h)


class Residual(nn.Module):
    """An activation in front of a sum, which is no part of a formula."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.down(x + torch.tanh(self.up(x)))


def gelu_of_gpt2(x):
    return 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.045 * x**3)))


def swish(x):
    return x * torch.sigmoid(1.7 * x)


class Swish(nn.Module):
    def forward(self, x):
        return swish(x)


def names(model, activation, loss=projected):
    graph = with_activation(trace(model, vectors(), loss), activation)
    return [n.name for n in graph.nodes if n.name in {"relu", "silu", "sigmoid", "gelu", "tanh"}]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Gated(F.relu), ["gelu"]),
        (Gated(torch.relu_), ["gelu"]),
        (Gated(F.silu, gate=lambda x: x), ["gelu"]),
        (Gated(torch.sigmoid), ["gelu"]),
        (Gated(F.relu, gate=torch.sigmoid), ["gelu", "sigmoid"]),
        (Gated(F.relu, gate=lambda x: torch.sigmoid(x).view(-1, 32)), ["gelu", "sigmoid"]),
        (nn.Sequential(Gated(F.relu), nn.Sigmoid()), ["gelu", "sigmoid"]),
        (nn.Sequential(Gated(F.relu), Gated(gelu_of_gpt2, width=8)), ["gelu", "gelu"]),
        (nn.Sequential(Gated(F.relu), Gated(swish, width=8)), ["gelu", "gelu"]),
        (nn.Sequential(Gated(F.relu), nn.Sequential(Swish(), nn.Linear(8, 8))), ["gelu", "gelu"]),
        (nn.Sequential(Gated(F.relu), Residual()), ["gelu", "gelu"]),
    ],
)
def test_gates_and_outputs_stay(model, expected):
    assert names(model, "gelu") == expected


def test_a_formula_is_predicted_as_what_stands_in_its_place():
    """Its other operations are gone, and the moments are those of the model with the function."""
    torch.manual_seed(0)
    graph = trace(Gated(gelu_of_gpt2), vectors(), projected)
    torch.manual_seed(0)
    twin = propagate(trace(Gated(F.relu), vectors(), projected))
    changed = propagate(with_activation(graph, "relu"))
    features = [
        [(s.operation, s.second_moment) for s in found.sites if s.operation in ("addmm", "relu")]
        for found in (changed, twin)
    ]
    assert [name for name, _ in features[0]] == ["addmm", "relu", "addmm"]
    assert features[0] == [(name, pytest.approx(moment)) for name, moment in features[1]]
    assert not {"tanh", "pow", "detach"} & {s.operation for s in changed.sites}


@pytest.mark.parametrize(
    "activation", ["gelu", nn.GELU(), F.gelu], ids=["name", "module", "function"]
)
def test_what_pytorch_has_is_one_operation(activation):
    assert names(Gated(F.relu), activation) == ["gelu"]


def test_functions_of_a_users_own_are_not_taken_for_pytorchs():
    def gelu(x):
        return torch.tanh(x) / 2

    assert names(Gated(F.relu), gelu) == ["tanh"]


def test_activations_of_data_stay():
    """They are no functions of random features."""
    model = nn.Sequential(nn.ReLU(), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    assert names(model, "gelu") == ["relu", "gelu"]
