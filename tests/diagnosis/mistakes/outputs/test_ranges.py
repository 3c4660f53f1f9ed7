"""Outputs outside of the range that operations of the loss are made for."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.diagnosis.mistakes.outputs.ranges import of_ranges
from support.traced_passes import traced_pass

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(16, 6, generator=GENERATOR)
Y = (torch.rand(16, 8, generator=GENERATOR) < 0.3).float()
DIVIDES = ("critical", "The loss divides by what outputs can make zero")
TWICE = ("warning", "Sigmoid of what was squashed before")
HINGE = ("warning", "A hinge that no output can satisfy")


def layers(*end):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8), *end)


def found(loss, *end, **options):
    model = layers(*end)
    given = traced_pass(
        model, (X, Y), lambda model, batch: loss(model(batch[0]), batch[1]), **options
    )
    return [(one.severity, one.title) for one in of_ranges(given)]


def dice(p, y):
    return (1 - (2 * (p * y).sum(1) + 1) / (p.sum(1) + y.sum(1) + 1)).mean()


def jaccard(p, y):
    both = (p * y).sum()
    return 1 - (both + 1) / (p.sum() + y.sum() - both + 1)


def tversky(p, y):
    both = (p * y).sum(1)
    missed, false = ((1 - p) * y).sum(1), (p * (1 - y)).sum(1)
    return (1 - (both + 1) / (both + 0.7 * missed + 0.3 * false + 1)).mean()


@pytest.mark.parametrize("loss", [dice, jaccard, tversky])
def test_losses_of_overlap_take_probabilities(loss):
    assert found(lambda z, y: loss(z.sigmoid(), y)) == []
    assert found(loss, nn.Sigmoid()) == []
    assert found(lambda z, y: loss(z.softmax(1), y)) == []
    assert found(loss) == [DIVIDES]
    assert found(lambda z, y: loss(z, y) + F.binary_cross_entropy_with_logits(z, y)) == [DIVIDES]


def test_and_take_them_once():
    assert found(lambda z, y: dice(z.sigmoid(), y), nn.Sigmoid()) == [TWICE]
    assert found(lambda z, y: dice(F.logsigmoid(z).exp(), y), nn.Sigmoid()) == [TWICE]
    assert found(lambda z, y: dice(F.logsigmoid(z).exp(), y)) == []
    assert found(lambda z, y: dice((9 * z).sigmoid(), y), nn.Sigmoid()) == []


def hinge(z, y):
    return F.relu(1 - z * (2 * y - 1)).mean()


def sorted_hinge(z, y):
    errors, order = (1 - z * (2 * y - 1)).flatten().sort(descending=True)
    return (F.relu(errors) * y.flatten()[order].cumsum(0)).mean()


@pytest.mark.parametrize("loss", [hinge, sorted_hinge])
def test_hinges_take_numbers_of_both_signs(loss):
    assert found(loss) == []
    assert found(loss, nn.Tanh()) == []
    assert found(loss, nn.Sigmoid()) == [HINGE]


def by_hand(z, y):
    """Huber's loss."""
    errors = (z - y).abs()
    small = errors.clamp(max=1.0)
    return (0.5 * small.square() + errors - small).mean()


@pytest.mark.parametrize(
    "loss",
    [
        by_hand,
        lambda z, y: F.relu((z - 10 * y - 1).abs() - 0.1).mean(),
        lambda z, y: ((z - 50).abs() - 0.1).clamp(min=0).mean(),
        lambda z, y: ((y - z) / (0.1 + F.softplus(z)).clamp(max=5)).square().mean(),
    ],
)
def test_errors_that_are_cut_off_are_no_hinges(loss):
    assert found(loss) == []


def pulled_apart(z, y):
    """Margins of distances, which outputs for all samples alike do not keep."""
    z = F.normalize(z)
    return F.relu(1 + (z - z.roll(1, 0)).norm(dim=1) - (z - z.roll(2, 0)).norm(dim=1)).mean()


def test_hinges_of_pairs_take_differences_of_outputs():
    def ranked(model, batch):
        score = model(batch)[:, 0]
        return F.relu(1 - (score[:8][:, None] - score[8:])).mean()

    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    assert of_ranges(traced_pass(model, X, ranked)) == []


def test_margins_of_distances_are_no_hinges_of_outputs():
    assert found(pulled_apart) == []


def likelihood(variance):
    def loss(z, y):
        mean, scale = z.chunk(2, 1)
        v = variance(scale)
        return ((y[:, :4] - mean).square() / v + v.log()).mean()

    return loss


@pytest.mark.parametrize("variance", [torch.exp, F.softplus, torch.square])
def test_positive_variances(variance):
    assert found(likelihood(lambda v: variance(v) + 1e-3)) == []


def test_variances_that_may_be_negative():
    assert [title for _, title in found(likelihood(lambda v: v + 2))] == [
        "The loss divides by what outputs can make zero",
        "The logarithm of what may be negative",
    ]


def projected(scale):
    """Points that a homography moves."""

    def loss(z, y):
        x, w = z.chunk(2, 1)
        return (x / (1 + scale * w * y[:, :4]) - y[:, 4:]).abs().mean()

    return loss


def test_divisors_that_outputs_hardly_move():
    assert found(projected(0.1)) == []
    assert [title for _, title in found(projected(1.0))] == [DIVIDES[1]]


def test_what_is_not_judged():
    assert found(F.mse_loss) == []
    assert found(dice, assumed=True) == []
