"""Measures of how good an answer is, taken for losses as they are."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.diagnosis.mistakes.losses.metrics import metric_as_loss
from support.model_state import differences, fingerprint
from support.traced_passes import traced_pass

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(16, 6, generator=GENERATOR)
Y = torch.randn(16, 8, generator=GENERATOR)
MASK = (Y > 0).float()
LABELS = MASK[:, :4].long()


def net(outputs=8):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, outputs))


def signal_to_error(output, target):
    e, t = (x - x.mean(-1, keepdim=True) for x in (output, target))
    part = (e * t).sum(-1, keepdim=True) * t / t.square().sum(-1, keepdim=True)
    return 10 * torch.log10(part.square().sum(-1) / (e - part).square().sum(-1)).mean()


def correlation(output, target):
    return F.cosine_similarity(output - output.mean(0), target - target.mean(0), dim=0).mean()


def explained(output, target):
    return 1 - (output - target).square().mean() / target.var()


def dice(output, target):
    p = output.sigmoid()
    return (2 * (p * target).sum() + 1) / (p.sum() + target.sum() + 1)


def overlap(output, target):
    p = output.sigmoid().flatten()
    both = (p * target.flatten()).sum()
    return both / (p.sum() + target.sum() - both)


def dice_of_classes(output, target):
    p, hot = output.view(-1, 2, 4).softmax(1), F.one_hot(target, 2).permute(0, 2, 1).float()
    return (2 * (p * hot).sum() / (p + hot).sum()).mean()


MEASURES = {
    "signal to error": (signal_to_error, Y),
    "correlation": (correlation, Y),
    "explained variance": (explained, Y),
    "dice": (dice, MASK),
    "overlap": (overlap, MASK),
    "dice of classes": (dice_of_classes, LABELS),
}


def found(loss, target):
    model = net()
    before = fingerprint(model)
    finding = metric_as_loss(traced_pass(model, (X, target), loss))
    assert differences(before, fingerprint(model)) == []
    return finding and finding.severity


@pytest.mark.parametrize("name", MEASURES)
def test_a_measure_is_no_loss_and_minus_it_is(name):
    measure, target = MEASURES[name]
    assert found(lambda m, b: measure(m(b[0]), b[1]), target) == "critical"
    assert found(lambda m, b: -measure(m(b[0]), b[1]), target) is None
    assert found(lambda m, b: 1 - measure(m(b[0]), b[1]), target) is None


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (lambda m, b: F.mse_loss(m(b[0]), b[1]), Y),
        (lambda m, b: F.mse_loss(-m(b[0]), b[1]), Y),
        (lambda m, b: (m(b[0]) + b[1]).square().mean(), Y),
        (lambda m, b: F.binary_cross_entropy_with_logits(m(b[0]), b[1]), MASK),
        (lambda m, b: F.poisson_nll_loss(m(b[0]), b[1]), MASK * 9),
        (lambda m, b: F.relu(1 - m(b[0]) * b[1]).mean(), 2 * MASK - 1),
        (lambda m, b: -(m(b[0]).log_softmax(1) * b[1]).mean(), MASK),
    ],
)
def test_errors_and_likelihoods(loss, target):
    """Also where outputs are to be minus the targets."""
    assert found(loss, target) is None


@pytest.mark.parametrize(
    "loss",
    [
        lambda z, t: -(z.log_softmax(1) * t).sum(1).mean(),
        lambda z, t: (-t * z.log_softmax(1)).sum(1).mean(),
        lambda z, t: (t * -z.softmax(1).log()).sum(1).mean(),
        lambda z, t: -(t * F.logsigmoid(z) + (1 - t) * F.logsigmoid(-z)).mean(),
    ],
)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_targets_of_logarithms_are_probabilities(loss, smoothing):
    """Also mixed and smoothed ones, of which minus the product with another grows."""
    target = (1 - smoothing) * F.one_hot(LABELS.sum(1), 8).float()
    target = 0.7 * target + 0.3 * target.roll(3, 0) + smoothing / 8
    assert found(lambda m, b: loss(m(b[0]), b[1]), target) is None
    assert found(lambda m, b: -loss(m(b[0]), b[1]), target) == "critical"


def test_what_the_model_is_given_is_no_target():
    """As coordinates that weigh a residual."""
    loss = lambda m, b: (m(b[0])[:, :6] * b[0]).square().mean()  # noqa: E731
    assert found(loss, Y) is None
