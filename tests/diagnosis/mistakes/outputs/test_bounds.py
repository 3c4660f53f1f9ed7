"""Logits that differ by little, and those with a temperature that lets them differ."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.diagnosis.mistakes.outputs.fit import of_fit
from support.traced_passes import traced_pass

GENERATOR = torch.Generator().manual_seed(0)
X, V = torch.randn(2, 16, 6, generator=GENERATOR)
SELF = torch.eye(16, dtype=torch.bool)
COSINES = "Cosines before cross-entropy"
UNIFORM = "The softmax stays nearly uniform, whatever the weights"


class Net(nn.Module):
    """Features of both views, and a scale that may be learnt."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 8), nn.Linear(8, 16, bias=False)
        self.scale = nn.Parameter(torch.tensor(scale).log())

    def forward(self, x):
        return self.layer(x)


def found(logits, scale=1.0, model=None):
    """Of a loss that compares the features of the first view with those of the second."""

    def loss(model, batch):
        a, b = (model(x) for x in batch)
        return F.cross_entropy(logits(model, a, b), torch.arange(len(a)))

    return of_fit(traced_pass(model or Net(scale), (X, V), loss))


def titles(logits, **options):
    return [one.title for one in found(logits, **options)]


def cosines(a, b):
    return F.normalize(a, dim=1) @ F.normalize(b, dim=1).T


@pytest.mark.parametrize(
    "form",
    [
        lambda x, s: x * s,
        lambda x, s: s * x,
        lambda x, s: x / (1 / s),
        lambda x, s: x * torch.tensor(s),
        lambda x, s: (x + 1) * s,
        lambda x, s: (x * s).masked_fill(SELF, -1e9),
        lambda x, s: x.masked_fill(SELF, -math.inf) * s,
        lambda x, s: torch.where(SELF, -1e9, x * s),
        lambda x, s: x * s + torch.zeros(16, 16).masked_fill(SELF, -1e9),
        lambda x, s: torch.cat([x * s, x.T * s], 1),
    ],
)
class TestScales:
    """As many numbers as cosines are multiplied by decide, however it is written."""

    def test_a_small_one_leaves_the_softmax_uniform(self, form):
        (one,) = found(lambda _, a, b: form(cosines(a, b), 0.002))
        assert (one.severity, one.title) == ("critical", UNIFORM)

    def test_one_is_a_warning(self, form):
        (one,) = found(lambda _, a, b: form(cosines(a, b), 1.0))
        assert (one.severity, one.title) == ("warning", COSINES)

    @pytest.mark.parametrize("scale", [2.0, 1 / 0.07])
    def test_a_temperature_is_none(self, form, scale):
        assert found(lambda _, a, b: form(cosines(a, b), scale)) == []


@pytest.mark.parametrize("mask", [False, True])
def test_the_least_loss_is_that_of_the_best_logits(mask):
    def logits(_, a, b):
        scaled = 0.5 * cosines(a, b)
        return scaled.masked_fill(SELF.roll(1, 1), -1e9) if mask else scaled

    best = torch.full((16, 16), -0.5).masked_fill(SELF, 0.5)
    if mask:
        best[SELF.roll(1, 1)] = -math.inf
    (one,) = found(logits)
    least = float(F.cross_entropy(best, torch.arange(16)))
    assert f"cannot come below {least:.2f}" in one.detail


def test_products_that_are_summed_by_hand():
    def logits(_, a, b):
        return F.cosine_similarity(a[:, None], b[None], dim=-1)

    assert titles(logits) == [COSINES]
    assert titles(lambda *given: logits(*given) / 0.1) == []


@pytest.mark.parametrize("scale", [1.0, 1 / 0.07])
def test_a_scale_that_is_learnt_is_none(scale):
    """As CLIP's, which starts at 1 / 0.07."""
    assert found(lambda m, a, b: cosines(a, b) * m.scale.exp(), scale=scale) == []


def test_weights_that_merely_start_at_length_1_are_none():
    model = Net()
    with torch.no_grad():
        model.head.weight.copy_(F.normalize(model.head.weight))
    assert found(lambda m, a, b: m.head(F.normalize(a, dim=1)), model=model) == []


def test_masks_of_moderate_numbers_are_none():
    assert found(lambda _, a, b: cosines(a, b).masked_fill(SELF, -5.0)) == []
    assert found(lambda _, a, b: cosines(a, b) + torch.randn(16, 16)) == []


def test_activations_that_are_scaled():
    def logits(scale):
        return lambda m, a, b: scale * m.head(a).tanh()

    assert titles(logits(0.01)) == [UNIFORM]
    assert titles(logits(0.5)) == ["Tanh before cross-entropy"]
    assert titles(logits(5.0)) == []


def test_outputs_that_are_scaled_down():
    title = "Logits are scaled down to nothing"
    assert titles(lambda m, a, b: m.head(a) / 1000) == [title]
    assert titles(lambda m, a, b: (m.head(a) * 0.001).view(16, 16)) == [title]
    assert titles(lambda m, a, b: m.head(a) / 16) == []
    assert titles(lambda m, a, b: m.head(1000 * a) / 1000) == []  # which need it
    assert titles(lambda m, a, b: m.scale * m.head(a) / 1000 + m.head(b)) == []
