"""Verbs leave random states and what classes share as they were, also where they train copies."""

import random
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.diagnosis.fix.measure import FixOptions

DATA = torch.randn(128, 20), torch.randint(0, 5, (128,))
RACE = FixOptions("starts", steps=6, arms=1, seeds=2, rates=(0.01, 0.1))


class Noisy(nn.Module):
    """Draws from every global generator, and counts the calls of all its kind."""

    calls = 0

    def __init__(self):
        super().__init__()
        width = 16 + np.random.randint(1)  # noqa: NPY002
        self.net = nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 5))

    def forward(self, x):
        Noisy.calls += 1
        shift = float(torch.rand(())) + np.random.rand() + random.random()  # noqa: NPY002
        return self.net(x + 1e-3 * shift)


VERBS = {
    "checkup": eq.checkup,
    "checkup with preconditioning": partial(eq.checkup, preconditioning=True, hessian=True),
    "checkup with smoothness": partial(eq.checkup, smoothness=True),
    "measure": eq.measure,
    "measure with the Hessian": partial(eq.measure, training=None, hessian=True),
    "predict": eq.predict,
    "fix": partial(eq.fix, options=RACE),
    "assert_trainable": partial(eq.assert_trainable, at_least=0.0),
}


def states():
    """Of PyTorch, NumPy and Python, and the calls."""
    _, keys, place, *_ = np.random.get_state()  # noqa: NPY002
    numpy = keys.tolist(), place
    return torch.get_rng_state().tolist(), numpy, random.getstate(), Noisy.calls


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
@pytest.mark.parametrize("given", [Noisy, "module"])
def test_nothing_is_left(verb, given):
    model = Noisy() if given == "module" else given
    before = states()
    verb(model, DATA)
    assert states() == before


def test_a_pass_alone_leaves_all_of_it():
    """The twin."""
    before = states()
    Noisy()(DATA[0])
    assert all(now != then for now, then in zip(states(), before, strict=True))


def test_trainings_that_draw_from_numpy_are_the_same_again():
    first, second = (eq.fix(Noisy, DATA, RACE) for _ in range(2))
    assert [(arm.name, arm.curve) for arm in first.arms] == [
        (arm.name, arm.curve) for arm in second.arms
    ]
