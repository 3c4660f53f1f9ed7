"""Preconditioners that watch a model do not count the passes of probes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from equipoise import BNP, probes


def prepared():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bnp = BNP(model).attach(optimizer)
    x = torch.randn(16, 5)
    model(x).square().mean().backward()
    return model, optimizer, bnp, x


def loss(model, x):
    return model(x + 3).square().mean()


PROBES = {
    "gradient_growth": lambda m, x: probes.gradient_growth(m, loss, [x], replicates=1),
    "landscape": lambda m, x: probes.landscape(m, loss, x, steps=[0.1]),
    "hessian": lambda m, x: probes.hessian(m, loss, x),
    "conditioning": lambda m, x: probes.conditioning(m, x, forward=loss),
    "activations": lambda m, x: probes.activations(m, x, forward=loss),
    "covariate_shift": lambda m, x: probes.covariate_shift(m, loss, x, 0.1),
}


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_between_backward_and_step_changes_nothing(name):
    model, optimizer, bnp, x = prepared()
    PROBES[name](model, x)
    optimizer.step()
    twin, other, untouched, _ = prepared()
    other.step()
    for found, expected in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(found, expected)
    assert str(bnp.report()) == str(untouched.report())


def test_the_users_own_pass_is_counted():
    """The twin: the same pass outside a probe is training."""
    model, optimizer, bnp, x = prepared()
    loss(model, x).backward()
    optimizer.step()
    twin, other, untouched, _ = prepared()
    other.step()
    assert not torch.equal(next(model.parameters()), next(twin.parameters()))
    assert str(bnp.report()) != str(untouched.report())
