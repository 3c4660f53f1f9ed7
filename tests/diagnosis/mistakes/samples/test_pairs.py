"""Similarities of samples in which each competes with itself."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import equipoise as eq
from equipoise.diagnosis.mistakes.samples.pairs import of_pairs
from support.traced_passes import traced_pass

X = torch.randn(8, 12, generator=torch.Generator().manual_seed(0))
PARTNERS = torch.arange(16).roll(8)


def similarities(model, x, temperature=0.5):
    views = torch.cat([x, x + 0.1])
    z = F.normalize(model(views), dim=1)
    return z @ z.T / temperature


def severities(loss):
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8))
    return [finding.severity for finding in of_pairs(traced_pass(model, X, loss))]


@pytest.mark.parametrize("temperature", [0.05, 0.5, 5.0])
def test_simclr_without_its_mask(temperature):
    def loss(model, x):
        return F.cross_entropy(similarities(model, x, temperature), PARTNERS)

    assert severities(loss) == ["warning"]


@pytest.mark.parametrize("fill", [-math.inf, -1e9])
def test_simclr(fill):
    def loss(model, x):
        own = torch.eye(16, dtype=torch.bool)
        return F.cross_entropy(similarities(model, x).masked_fill(own, fill), PARTNERS)

    assert severities(loss) == []


def test_simclr_with_the_diagonal_cut_out():
    def loss(model, x):
        own = torch.eye(16, dtype=torch.bool)
        logits = similarities(model, x)[~own].reshape(16, 15)
        return F.cross_entropy(logits, (PARTNERS - (torch.arange(16) < PARTNERS).long()))

    assert severities(loss) == []


def test_partners_on_the_diagonal():
    """As in CLIP, where rows are images, and columns texts."""

    def loss(model, x):
        first, second = (F.normalize(model(one), dim=1) for one in (x, x + 0.1))
        return F.cross_entropy(first @ second.T / 0.1, torch.arange(8))

    assert severities(loss) == []


def test_as_many_classes_as_samples():
    def loss(model, x):
        return F.cross_entropy(model(x), torch.arange(8).roll(1))

    assert severities(loss) == []


def test_similarities_of_vectors_of_any_length():
    """The largest of a row may be that with another, which is longer."""

    def loss(model, x):
        z = model(torch.cat([x, 3 * x]))
        return F.cross_entropy(z @ z.T, PARTNERS)

    assert severities(loss) == []


def test_a_checkup_says_so():
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8))
    report = eq.checkup(
        model, X, loss_fn=lambda m, x: F.cross_entropy(similarities(m, x), PARTNERS)
    )
    assert "Samples compete with themselves" in [one.title for one in report.findings]
