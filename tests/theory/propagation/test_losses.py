"""Gradients of losses on drawn logits."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from equipoise.instrument.recording.tracer import trace
from equipoise.theory.propagation import losses
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.layout import Atom, Layout
from equipoise.theory.propagation.values.covariances import from_covariance, measured
from support.what_if_models import cross_entropy, predicted, vectors


def started(found):
    return next(site for site in found.sites if site.is_start)


def squared(model, batch):
    return F.mse_loss(model(batch[0]), torch.ones(len(batch[0]), 8))


def drawn_start(model, loss, gain):
    return started(predicted(model, vectors(), loss).what_if(gain=gain)).gradient


class TestKnownLosses:
    """The mean square of an element of the gradient, in closed form."""

    def test_squared_error(self):
        model = nn.Linear(16, 8)
        q = started(predicted(model, vectors(), squared).what_if(gain=3.0)).second_moment
        expected = 4 * (q + 1) / (16 * 8) ** 2
        assert drawn_start(model, squared, 3.0) == pytest.approx(expected, rel=0.05)

    def test_cross_entropy_of_small_logits(self):
        model = nn.Linear(16, 8, bias=False)
        expected = (1 - 1 / 8) / 8 / 16**2
        assert drawn_start(model, cross_entropy, 1e-4) == pytest.approx(expected, rel=1e-3)

    def test_cross_entropy_of_large_logits(self):
        """One class has all the chance, the wrong one 7 times in 8: |p - y|² is 2."""
        model = nn.Linear(16, 8, bias=False)
        expected = 2 * (7 / 8) / 8 / 16**2
        assert drawn_start(model, cross_entropy, 1e4) == pytest.approx(expected, rel=0.1)

    def test_which_the_measured_gradient_is_not(self):
        model = nn.Linear(16, 8, bias=False)
        found = started(predicted(model, vectors(), cross_entropy)).gradient
        assert found != pytest.approx(drawn_start(model, cross_entropy, 1e4), rel=0.3)


class TestSumsOverFeatures:
    """A loss may add up over features first: theory reaches what lies before it."""

    @pytest.mark.parametrize(
        "loss",
        [
            lambda y: (y - 1).square().sum(1).mean(),
            lambda y: (y - 1).square().mean(1).mean(),
            lambda y: (y - 1).norm(dim=1).mean(),
            lambda y: (y - 1).square().sum(1).sqrt().mean(),
            lambda y: F.cosine_similarity(y, torch.ones_like(y)).mean(),
            lambda y: (y.sigmoid().sum(1) / (1 + y.square().sum(1))).mean(),
        ],
    )
    def test_gradients_are_those_measured(self, loss):
        model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))
        found = predicted(model, vectors(), lambda model, batch: loss(model(batch[0])))
        assert len(found.weights) == 2
        for weight in found.weights:
            assert weight.gradient == pytest.approx(weight.measured_gradient, rel=0.5)

    def test_within_the_model_the_width_makes_them_small(self):
        """As in a layer norm that is written out: theory goes through, not from there on."""

        class Centred(nn.Module):
            def forward(self, x):
                return (x - x.mean(-1, keepdim=True)) / x.var(-1, keepdim=True).sqrt()

        model = nn.Sequential(nn.Linear(16, 64), Centred(), nn.ReLU(), nn.Linear(64, 8))
        found = predicted(model, vectors(), cross_entropy)
        (first, _) = sorted(found.weights, key=lambda weight: weight.name)
        assert first.gradient == pytest.approx(first.measured_gradient, rel=0.3)


@pytest.fixture(scope="module")
def real():
    """Mean gradient over 100 layers with weights of three times PyTorch's size, and its error."""
    found = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(100):
            model = nn.Linear(16, 8, bias=False)
            nn.init.normal_(model.weight, std=0.75)
            x = model(vectors()[0]).detach().requires_grad_()
            F.cross_entropy(x, vectors()[1]).backward()
            found.append(float(x.grad.square().mean()))
    return np.mean(found), np.std(found) / 10


class TestSimulation:
    def test_cross_entropy(self, real):
        mean, error = real
        model = nn.Linear(16, 8, bias=False)
        signs = torch.randn(8, 16, generator=torch.Generator().manual_seed(0)).sign()
        model.weight.data = 0.25 * signs
        found = drawn_start(model, cross_entropy, 3.0)
        assert found == pytest.approx(mean, abs=4 * error + 0.03 * mean)

    def test_smaller_weights_have_another(self, real):
        mean, error = real
        model = nn.Linear(16, 8)
        assert abs(drawn_start(model, cross_entropy, 0.1) - mean) > 10 * error


class TestDraws:
    """Six samples of two positions and 4000 features."""

    @pytest.fixture
    def layout(self):
        sample, place, feature = (
            Atom.new(*a) for a in (("sample", 6), ("position", 2), ("feature", 4000))
        )
        return Layout(((sample,), (feature,), (place,)))

    @pytest.mark.parametrize("across", [0.3, -0.15])
    def test_have_the_moments(self, layout, across):
        same = np.array([[1.0, 0.5], [0.5, 2.0]])
        diff = across * np.array([[1.0, 0.2], [0.2, 1.0]])
        law = from_covariance(
            layout, layout.with_role("position"), Exchangeable(same, diff, 6), np.zeros(2)
        )
        found = losses._draw(law, np.random.default_rng(1))
        assert found.shape == layout.shape
        again = measured(torch.from_numpy(found), layout).covariance
        assert again.same == pytest.approx(same, abs=0.05)
        assert again.diff == pytest.approx(diff, abs=0.05)


class TestAverages:
    @pytest.mark.parametrize(
        ("loss", "expected"),
        [
            (cross_entropy, True),
            (squared, True),
            (lambda model, batch: model(batch[0]).sum(), False),
            (lambda model, batch: model(batch[0]).mean(1).sum(), False),
            (
                lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="sum"),
                False,
            ),
        ],
    )
    def test_are_told_from_sums(self, loss, expected):
        assert losses.is_mean(trace(nn.Linear(16, 8), vectors(), loss)) is expected


def test_two_outputs_start_both():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(16, 32)
            self.first, self.second = nn.Linear(32, 8), nn.Linear(32, 1)

        def forward(self, x):
            h = torch.tanh(self.body(x))
            return self.first(h), self.second(h)

    def loss(model, batch):
        logits, values = model(batch[0])
        return F.cross_entropy(logits, batch[1]) + values.square().mean()

    found = predicted(Two(), vectors(), loss)
    answer = found.what_if(gain={"body": 1.0})
    starts = {site.module for site in answer.sites if site.is_start}
    assert "first" in starts
    assert len([s for s in answer.sites if s.is_start]) == 2
    ours, theirs = (next(s for s in f.sites if s.operation == "tanh") for f in (answer, found))
    assert ours.gradient == pytest.approx(theirs.gradient, rel=0.4)
