"""Sums over taps against matrices, one for each tap."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.instrument.recording.tracer import trace
from equipoise.theory.propagation.propagate import propagate
from equipoise.theory.propagation.rules import convolution
from equipoise.theory.propagation.rules.windows import Window

# Inputs, outputs, kernel, stride, padding, dilation.
WINDOWS = {
    "padding": Window((4, 5), (4, 5), (3, 3), (1, 1), (1, 1), (1, 1)),
    "stride and dilation": Window((7, 6), (3, 2), (3, 2), (2, 3), (1, 0), (1, 2)),
    "one tap": Window((4, 3), (4, 3), (1, 1), (1, 1), (0, 0), (1, 1)),
    "one tap at other places": Window((3,), (3,), (1,), (2,), (1,), (1,)),
    "borders wider than the map": Window((2,), (6,), (5,), (1,), (4,), (1,)),
    "three dimensions": Window((3, 2, 3), (2, 2, 3), (2, 3, 1), (1, 1, 1), (0, 1, 0), (1, 1, 1)),
}


def taps(window):
    """0–1 matrices ``[outputs, inputs]``, one for each tap."""
    axes = []
    for n, m, k, s, a, d in zip(
        window.inputs,
        window.outputs,
        window.kernel,
        window.stride,
        window.padding,
        window.dilation,
        strict=True,
    ):
        read = np.arange(m)[:, None] * s - a
        axes.append([(read + tap * d == np.arange(n)).astype(float) for tap in range(k)])
    for matrices in itertools.product(*axes):
        whole = np.ones((1, 1))
        for matrix in matrices:
            whole = np.kron(whole, matrix)
        yield whole


def drawn(*shape):
    return np.random.default_rng(0).standard_normal(shape)


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
class TestWindow:
    def test_both_positions_are_read_by_one_tap(self, window):
        pairs = drawn(*[np.prod(window.inputs)] * 2)
        expected = sum(tap @ pairs @ tap.T for tap in taps(window))
        np.testing.assert_allclose(window.gathered(pairs), expected, atol=1e-12)

    def test_the_way_back_is_the_transpose(self, window):
        pairs = drawn(*[np.prod(window.outputs)] * 2)
        expected = sum(tap.T @ pairs @ tap for tap in taps(window))
        np.testing.assert_allclose(window.scattered(pairs), expected, atol=1e-12)

    def test_members_are_the_inputs_of_all_taps(self, window):
        np.testing.assert_array_equal(window.members(), sum(taps(window)))

    def test_what_each_tap_reads(self, window):
        values = drawn(2, *window.inputs)
        found = window.read(values).reshape(2, np.prod(window.outputs), -1)
        flat = values.reshape(2, -1)
        expected = np.stack([flat @ tap.T for tap in taps(window)], 2)
        np.testing.assert_array_equal(found, expected)


def test_taps_that_read_different_inputs_have_nothing_in_common():
    """The product of two sums over taps is something else."""
    window = WINDOWS["padding"]
    pairs, members = np.eye(20), window.members()
    assert abs(members @ pairs @ members.T - window.gathered(pairs)).max() > 1


class TestLargePatches:
    """Of many channels, some stand for all."""

    @staticmethod
    def prediction():
        torch.manual_seed(0)
        x = torch.randn(4, 128, 6, 6) * torch.linspace(0.5, 1.5, 128)[:, None, None]
        model = nn.Sequential(nn.Conv2d(128, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 1))
        found = propagate(trace(model, x, lambda model, x: model(x).square().mean()))
        return [site.second_moment for site in found.sites if site.module]

    def test_some_channels_do(self, monkeypatch):
        exact, sizes = self.prediction(), []
        moments = convolution.second_moments
        monkeypatch.setattr(convolution, "_LARGE", 4 * 36 * 9 * 32)
        monkeypatch.setattr(
            convolution, "second_moments", lambda a, n: sizes.append(a.shape) or moments(a, n)
        )
        assert self.prediction() == pytest.approx(exact, rel=0.1)
        assert sizes == [(4, 36, 9 * 32)]

    def test_those_of_images_are_all_taken(self, monkeypatch):
        exact = self.prediction()
        monkeypatch.setattr(convolution, "_LARGE", 4 * 36 * 9 * 32)
        monkeypatch.setattr(convolution, "_FEWEST_CHANNELS", 128)
        assert self.prediction() == pytest.approx(exact, rel=1e-4)
