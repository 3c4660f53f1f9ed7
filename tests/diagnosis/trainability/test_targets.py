"""How far targets lie from where steps can bring the outputs."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise import diagnosis
from equipoise.diagnosis.trainability.judge import REASONS
from equipoise.diagnosis.trainability.targets import burden
from equipoise.instrument.recording.tracer import trace

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
Y = torch.tanh(X[:, :1])


def layers(act, width=32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, width), act, nn.Linear(width, 1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps, self.head = nn.LSTM(1, 32, batch_first=True), nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.steps(x[..., None])[0][:, -1])


def of(model, scale=1.0, off=0.0, loss=F.mse_loss):
    batch = X, Y / Y.std() * scale + off
    return burden(trace(model, batch, lambda model, batch: loss(model(batch[0]), batch[1])))


@pytest.mark.parametrize("act", [nn.ReLU(), nn.Tanh(), nn.BatchNorm1d(32)])
def test_targets_nearby_are_none(act):
    assert of(layers(act)) == of(layers(act), scale=30.0) == of(layers(act), off=9.0) == 0


@pytest.mark.parametrize(
    ("act", "far"), [(nn.ReLU(), 40), (nn.Tanh(), 15), (nn.BatchNorm1d(32), 15)]
)
def test_a_mean_far_away_counts_by_its_standard_deviations(act, far):
    """Tenfold costs as much again, as long as the layer reaches it."""
    losses = [of(layers(act), scale=0.1, off=0.1 * far * by) for by in (0.7, 10, 100)]
    assert losses[0] == 0
    assert losses[1:] == pytest.approx([3.5 * math.log(10), 3.5 * math.log(100)], abs=0.3)


@pytest.mark.parametrize("model", [layers(nn.Tanh()), layers(nn.LayerNorm(32)), Recurrent()])
def test_bounded_numbers_reach_only_so_far(model):
    assert of(model, scale=1e4) == pytest.approx(3.5 * math.log(1e4 / (0.3 * 24 * 33)), abs=0.2)
    assert of(layers(nn.ReLU()), scale=1e4) == 0


def test_outputs_far_away_are_no_targets():
    model = layers(nn.ReLU())
    nn.init.constant_(model[-1].bias, 1e4)
    assert of(model) == 0


def test_classes_are_no_targets_of_an_error():
    model, batch = layers(nn.ReLU()), (X, torch.zeros(64, dtype=torch.long))
    graph = trace(model, batch, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))
    assert burden(graph) == 0


def test_the_forecast_knows_them():
    near, far = (
        diagnosis.trainability(layers(nn.ReLU()), (X, Y + off), batch_size=64, depth=False)
        for off in (0.0, 1e3)
    )
    assert near.probability > 0.9 > 0.2 > far.probability
    assert far.reason == REASONS["targets"]
    assert far.outside == ("targets",)
