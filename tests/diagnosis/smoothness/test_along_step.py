"""One measurement is what copies of the model find, one step of the optimiser at a time."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from equipoise.diagnosis.smoothness.along_step import measure_along_step
from equipoise.training import cross_entropy
from support.diagnosis_examples import DIGITS, normalised


def batch(size=16):
    (found,) = DIGITS.batches(size, 1, torch.Generator().manual_seed(1))
    return found


def gradient(model, at):
    loss = cross_entropy(model, at)
    return loss.item(), torch.autograd.grad(loss, tuple(model.parameters()))


def length(tensors):
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors))


def step(model, at, optimizer):
    optimizer.zero_grad()
    cross_entropy(model, at).backward()
    optimizer.step()


def test_it_is_what_deep_copies_find():
    model, at, steps = normalised().double(), batch(), (0.1, 0.4)
    at = at[0].double(), at[1]
    found = measure_along_step(model, cross_entropy, at, steps=steps)
    loss, g = gradient(copy.deepcopy(model), at)
    ratios = []
    for i, eta in enumerate(steps):
        moved = copy.deepcopy(model)
        with torch.no_grad():
            for parameter, d in zip(moved.parameters(), g, strict=True):
                parameter -= eta * d
        there, change = gradient(moved, at)
        difference = length([a - b for a, b in zip(change, g, strict=True)])
        assert found.losses[i] == pytest.approx(there, rel=1e-10)
        assert found.gradient_changes[i] == pytest.approx(difference, rel=1e-10)
        ratios.append(difference / (eta * length(g)))
    assert found.loss == pytest.approx(loss)
    assert found.beta == pytest.approx(max(ratios), rel=1e-10)
    assert math.isnan(found.shift_cosine)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_it_lies_along_the_optimisers_own_step(kind):
    """At η = rate the loss is the one after a real step, from the state it has by then."""
    model, at = normalised(), batch()
    optimizer = kind(model.parameters(), lr=0.003)
    for _ in range(3):
        step(model, at, optimizer)
    found = measure_along_step(
        model, cross_entropy, at, steps=(0.0015, 0.003), optimizer=optimizer
    )
    plain = measure_along_step(model, cross_entropy, at, steps=(0.0015, 0.003))
    before = copy.deepcopy(optimizer.state_dict()["state"])
    step(model, at, optimizer)
    after = cross_entropy(copy.deepcopy(model), at).item()
    assert found.losses[1] == pytest.approx(after, rel=1e-4)
    assert plain.losses[1] != pytest.approx(after, rel=1e-2)
    assert before[0]["step"] == 3  # the measurement's own steps were taken back


def test_momentum_has_a_step_of_its_own():
    model, at = normalised(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step(model, at, optimizer)
    found = measure_along_step(model, cross_entropy, at, steps=(0.01,), optimizer=optimizer)
    step(model, at, optimizer)
    after = cross_entropy(copy.deepcopy(model), at).item()
    assert found.losses[0] == pytest.approx(after, rel=1e-4)


def test_shift_is_measured_over_layers_with_weights():
    model, at = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert math.isnan(
        measure_along_step(
            model, cross_entropy, at, steps=(0.1,), optimizer=optimizer
        ).shift_cosine
    )
    model = normalised()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    still = measure_along_step(model, cross_entropy, at, steps=(0.1,), optimizer=optimizer)
    assert still.shift_cosine == pytest.approx(1, abs=1e-3)


def test_weights_that_are_shared_are_no_obstacle():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10))
    model[2].weight = model[1].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = measure_along_step(model, cross_entropy, batch(), steps=(0.1,), optimizer=optimizer)
    assert math.isfinite(found.shift_cosine)


def test_steps_lost_in_rounding_are_left_out():
    steps = (1e-8, 1e-4, 1.0)
    at = batch()
    assert measure_along_step(normalised(), cross_entropy, at, steps=steps).steps == steps[1:]
    wide = measure_along_step(
        normalised().double(), cross_entropy, (at[0].double(), at[1]), steps=steps
    )
    assert wide.steps == steps


def test_a_zero_gradient_keeps_all_points():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ReLU())
    nn.init.constant_(model[1].bias, -1e4)
    found = measure_along_step(model, cross_entropy, batch(), steps=(0.1, 1.0))
    assert found.gradient_norm == 0
    assert math.isnan(found.beta)
    assert math.isnan(found.reliable_step)
    assert found.loss_band == (found.loss, found.loss)
