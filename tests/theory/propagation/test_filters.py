"""Norms behind filters of few weights against closed forms and simulation."""

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.instrument.recording.tracer import trace
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.filters import Filters, read_by_taps
from equipoise.theory.propagation.propagate import propagate
from equipoise.theory.propagation.rules.windows import Window

CHANNELS, SIDE, SAMPLES = 128, 8, 16


@pytest.mark.parametrize("taps", [3, 9, 49])
class TestEqualTaps:
    """S is a chi-squared number of n degrees: E[1/S] = 1/(n - 2)."""

    def test_one_feature_each(self, taps):
        found = Filters(np.ones(taps), 1).divided(1.0, 0.0)
        assert found == pytest.approx((taps / (taps - 2), (taps - 2) / taps), rel=1e-9)

    def test_features_are_further_taps(self, taps):
        assert Filters(np.ones(taps), 4).divided(2.0, 0.1) == pytest.approx(
            Filters(np.ones(4 * taps), 1).divided(2.0, 0.1), rel=1e-9
        )

    def test_a_large_epsilon_hides_how_filters_differ(self, taps):
        assert Filters(np.ones(taps), 1).divided(1.0, 1e4) == pytest.approx((1, 1), abs=1e-3)


@pytest.mark.parametrize("eps", [0.0, 0.3])
def test_unequal_taps(eps):
    values = np.array([3.0, 1.0, 0.5, 0.2, 0.2, 0.1, 0.1])
    k = np.random.default_rng(0).standard_normal((400_000, 7))
    size = k**2 @ values / values.sum()
    gains, squares = (1 + eps) / (size + eps), (k**2).mean(1)
    found = Filters(values, 1).divided(1.0, eps)
    noise = gains.std() / len(gains) ** 0.5
    assert found[0] == pytest.approx(gains.mean(), abs=5 * noise)
    assert found[1] == pytest.approx((squares * gains).mean() / gains.mean(), rel=0.01)


def test_what_taps_read_is_centred_over_the_batch():
    """M of every pair of taps, from single maps with a border of zeros."""
    window = Window((5,), (3,), (3,), (2,), (1,), (1,))
    x = np.random.default_rng(1).standard_normal((4, 5))
    patches = np.stack([np.pad(x, ((0, 0), (1, 1)))[:, i : i + 3] for i in (0, 2, 4)], 1)
    rows = patches.reshape(-1, 3) - patches.reshape(-1, 3).mean(0)
    products = np.einsum("np,mq->nmpq", x, x)
    same = np.einsum("nnpq->pq", products) / 4
    diff = (products.sum((0, 1)) - 4 * same) / 12
    found = read_by_taps(Exchangeable(same, diff, 4), window.places())
    np.testing.assert_allclose(found, rows.T @ rows / len(rows), atol=1e-12)


@pytest.mark.parametrize("rows", [300, 3000])
@pytest.mark.parametrize("decay", [0.0, 1.0])
def test_of_many_taps_some_rows_tell_as_much_as_all(rows, decay):
    generator = np.random.default_rng(0)
    turned, _ = np.linalg.qr(generator.standard_normal((600, 600)))
    read = generator.standard_normal((rows, 600)) * np.arange(1, 601) ** (-decay / 2) @ turned
    every = Filters.of(np.cov(read, rowvar=False, bias=True), 1, of_data=True)
    some = Filters.of_rows(read)
    assert np.count_nonzero(some.values) <= 512 < np.count_nonzero(every.values) or rows < 512
    assert some.divided(2.0, 1e-5) == pytest.approx(every.divided(2.0, 1e-5), rel=0.005)


def separable(kernel, *, positive):
    """A depthwise convolution between two of single pixels, with batch norm behind each."""
    first = [nn.Conv2d(3, CHANNELS, 1), nn.BatchNorm2d(CHANNELS)]
    depthwise = nn.Conv2d(CHANNELS, CHANNELS, kernel, padding=kernel // 2, groups=CHANNELS)
    nn.init.normal_(depthwise.weight)
    return nn.Sequential(
        *first,
        nn.ReLU() if positive else nn.Identity(),
        depthwise,
        nn.BatchNorm2d(CHANNELS),
        nn.Conv2d(CHANNELS, CHANNELS, 1),
    )


def projected(model, batch):
    """A loss whose gradient does not depend on the outputs."""
    x, weights = batch
    return (model(x) * weights).sum()


def ratios(kernel, *, positive, networks=8):
    """Gradients of the depthwise convolution's output and input, predicted over measured."""
    found = []
    for seed in range(networks):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model, x = separable(kernel, positive=positive), torch.randn(SAMPLES, 3, SIDE, SIDE)
            weights = torch.randn(SAMPLES, CHANNELS, SIDE, SIDE)
            graph = trace(model, (x, weights), projected)
        sites = {(s.module, s.operation): s for s in propagate(graph).sites}
        places = ("3", "convolution"), ("1", "native_batch_norm")
        sizes = [(sites[place].gradient, sites[place].measured_gradient) for place in places]
        found.append([predicted / measured for predicted, measured in sizes])
    return np.array(found)


@pytest.mark.parametrize("positive", [False, True], ids=["centred", "rectified"])
@pytest.mark.parametrize("kernel", [3, 7])
class TestDepthwise:
    """Every channel is divided by the size of its own kernel."""

    def test_gradients_are_those_of_single_kernels(self, kernel, positive):
        found = ratios(kernel, positive=positive)
        noise = found.std(0, ddof=1) / len(found) ** 0.5
        assert (abs(found.mean(0) - 1) < 4 * noise + 0.03).all()

    def test_not_of_the_average_kernel(self, kernel, positive, monkeypatch):
        monkeypatch.setattr(Filters, "divided", lambda *_: (1.0, 1.0))
        output, _ = ratios(kernel, positive=positive, networks=4).mean(0)
        assert output < 0.97
