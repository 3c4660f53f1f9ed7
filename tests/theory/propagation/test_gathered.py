"""Chosen rows have what rows have on average, and give it back."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.instrument.recording.tracer import trace
from equipoise.theory.propagation.propagate import propagate
from equipoise.theory.propagation.sites import of_model

C, SAMPLES, LENGTH = 64, 8, 6
ROWS = SAMPLES * LENGTH


class Chosen(nn.Module):
    """An expert, or edges of a graph, that see some rows."""

    def __init__(self, choose):
        super().__init__()
        self.before, self.after = nn.Linear(C, C), nn.Linear(C, C)
        self.choose = choose

    def forward(self, x):
        return self.after(self.choose(torch.relu(self.before(x))))


HALF = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))[: ROWS // 2]
EDGES = torch.randint(ROWS, (3 * ROWS,), generator=torch.Generator().manual_seed(0))
MASK = torch.zeros(ROWS, dtype=torch.bool).index_fill(0, HALF, 1).view(SAMPLES, LENGTH)
WAYS = {
    "some tokens": lambda x: x.flatten(0, 1)[HALF],
    "ends of edges": lambda x: x.flatten(0, 1)[EDGES],
    "a mask": lambda x: x[MASK],
}


def ratios(choose, layer):
    """Logarithms of predicted over measured moments and gradients, of a layer."""
    found = []
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(SAMPLES, LENGTH, C) + torch.randn(SAMPLES, 1, C)
        loss = lambda model, x: (model(x) * weights(len(model(x)))).sum()  # noqa: E731
        sites = of_model(propagate(trace(Chosen(choose), x, loss)).sites)
        (site, *_) = (s for s in sites if s.module == layer and s.operation == "addmm")
        assert all(site.is_predicted for site in sites)
        measured = site.measured_second_moment, site.measured_gradient
        found.append(np.log([site.second_moment, site.gradient]) - np.log(measured))
    return np.mean(found, 0)


def weights(rows):
    return torch.randn(rows, C, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", WAYS)
def test_moments_before_and_behind(name):
    assert np.abs(ratios(WAYS[name], "before")).max() < 0.1


def test_samples_are_those_that_were_chosen():
    x = torch.randn(SAMPLES, LENGTH, C)
    x = x + 2 * torch.randn(SAMPLES, 1, C)  # tokens of a sample are alike
    graph = trace(Chosen(WAYS["a mask"]), x, lambda model, x: model(x).sum())
    *_, last = of_model(propagate(graph).sites)
    assert last.correlation == pytest.approx(last.measured_correlation, abs=0.05)


@pytest.mark.parametrize(
    "choose",
    [lambda x: x[:, :, HALF], lambda x: x[:, torch.arange(3)]],
    ids=["features", "tokens"],
)
def test_others_are_refused(choose):
    found = propagate(trace(Chosen(choose), torch.randn(SAMPLES, LENGTH, C), squares))
    reason = "elements that are chosen by number, and are no rows of the batch"
    assert reason in {site.reason for site in found.sites}


def squares(model, x):
    hidden = model.choose(torch.relu(model.before(x)))
    return hidden.square().mean() * math.pi
