"""What one step of a layer's weights does to its output, against simulated layers."""

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.instrument.recording.tracer import trace
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.propagate import propagate
from equipoise.theory.propagation.sites import Step
from equipoise.theory.propagation.steps import step

SAMPLES, INPUTS, RUNS = 6, 48, 1500
K = Exchangeable(np.array([[1.0, 0.5], [0.5, 1.4]]), np.array([[0.4, 0.2], [0.2, 0.3]]), SAMPLES)
PI = Exchangeable(np.array([[0.8, 0.3], [0.3, 0.6]]), np.array([[-0.1, 0.1], [0.1, 0.2]]), SAMPLES)
ALIKE = Exchangeable(np.full((2, 2), 0.5), np.full((2, 2), 0.5), SAMPLES)


def projected(model, batch):
    x, direction = batch
    return (model(x) * direction).mean()


def dense(pairs):
    eye = np.eye(pairs.samples)
    return np.kron(eye, pairs.same - pairs.diff) + np.kron(np.ones_like(eye), pairs.diff)


def drawn(pairs, count, generator):
    """Rows with these second moments, of shape ``[RUNS, rows, count]``."""
    values, vectors = torch.linalg.eigh(torch.from_numpy(dense(pairs)))
    root = vectors * values.clamp_min(0).sqrt()
    noise = torch.randn(RUNS, len(root), count, generator=generator, dtype=torch.float64)
    return root @ noise


def simulated(gradient, rule):
    """Mean squared change of the outputs over η², and its standard error."""
    generator = torch.Generator().manual_seed(0)
    x, g = drawn(K, INPUTS, generator), drawn(gradient, 4, generator)
    weight = x.mT @ g
    weight = weight.sign() if rule == "sign" else weight
    change = (x @ weight).square().mean((1, 2))
    return float(change.mean()), float(change.std()) / RUNS**0.5


@pytest.mark.parametrize("gradient", [PI, ALIKE], ids=["of full rank", "alike in all rows"])
def test_a_step_of_sgd(gradient):
    found, error = simulated(gradient, "sgd")
    assert step(K * INPUTS, gradient, INPUTS).sgd == pytest.approx(found, abs=4 * error)


@pytest.mark.parametrize("gradient", [PI, ALIKE], ids=["of full rank", "alike in all rows"])
def test_a_first_step_of_adam(gradient):
    found, error = simulated(gradient, "sign")
    assert step(K * INPUTS, gradient, INPUTS).sign == pytest.approx(found, abs=4 * error)


def test_the_ratio_of_means_is_not_the_mean_ratio():
    kernel = K * INPUTS
    moved = (kernel @ PI).dot(kernel) / kernel.rows
    ratio = 2 * INPUTS / np.pi * moved / PI.dot(kernel) + kernel.mean_diagonal
    found, error = simulated(PI, "sign")
    assert abs(ratio - found) > 10 * error


@pytest.mark.parametrize("rule", ["sgd", "sign"])
def test_without_pairs_of_rows_both_are_wrong(rule):
    alone = Exchangeable(np.diag(np.diagonal(ALIKE.same)), np.zeros((2, 2)), SAMPLES)
    found, error = simulated(ALIKE, rule)
    assert abs(getattr(step(K * INPUTS, alone, INPUTS), rule) - found) > 10 * error


@pytest.mark.parametrize("rule", ["sgd", "sign"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_traced_network(rule, bias):
    """The hidden layer's own change; the loss has a gradient that does not depend on it."""
    predicted, found = [], []
    for seed in range(4):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(1024, 256), nn.Tanh(), nn.Linear(256, 256, bias=bias), nn.Linear(256, 512)
        )
        batch = torch.randn(16, 1024), torch.randn(16, 512)
        weights = propagate(trace(model, batch, projected), steps=True).weights
        (moved,) = (weight.step for weight in weights if weight.name == "2.weight")
        predicted.append(getattr(moved, rule))
        inputs = model[:2](batch[0]).detach()
        projected(model, batch).backward()
        changes = [p.grad.sign() if rule == "sign" else p.grad for p in model[2].parameters()]
        found.append(float(nn.functional.linear(inputs, *changes).square().mean()))
    assert np.mean(predicted) == pytest.approx(np.mean(found), rel=0.1)


def test_without_a_gradient_there_is_no_step():
    nothing = Exchangeable(np.zeros((2, 2)), np.zeros((2, 2)), SAMPLES)
    assert step(K * INPUTS, nothing, INPUTS) == Step(0.0, 0.0)


def test_weights_of_zero_and_shared_weights_have_no_step():
    shared = nn.Linear(32, 32)
    model = nn.Sequential(nn.Linear(8, 32), shared, shared, nn.Linear(32, 4))
    nn.init.zeros_(model[3].weight)
    graph = trace(model, torch.randn(9, 8), lambda model, x: model(x).square().mean())
    steps = {weight.name: weight.step for weight in propagate(graph, steps=True).weights}
    assert steps["1.weight"] is None
    assert steps["3.weight"] is None
    assert all(weight.step is None for weight in propagate(graph).weights)
