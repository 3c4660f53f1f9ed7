"""Rotations of pairs and Fourier transforms against measurement, and what is refused."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.instrument.recording.tracer import trace
from equipoise.theory.propagation.propagate import propagate
from equipoise.theory.propagation.sites import of_model
from support.modules import Apply

C, LENGTH, SAMPLES = 64, 8, 16


def rotated(x):
    """Pairs of features, turned by angles of their own at each position."""
    angles = torch.outer(torch.arange(LENGTH), 0.3 ** torch.arange(0.0, 4.0, 4 / (C // 2)))
    pairs = torch.view_as_complex(x.unflatten(2, (-1, 2)))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(2)


class LongConvolution(nn.Module):
    """A filter of every feature's own, over all positions before."""

    def __init__(self):
        super().__init__()
        decay = torch.exp(-torch.arange(LENGTH) / 4)
        self.filter = nn.Parameter(torch.randn(C, LENGTH) * decay)

    def forward(self, x):
        twice = 2 * LENGTH
        spectrum = torch.fft.rfft(x.mT, n=twice) * torch.fft.rfft(self.filter, n=twice)
        return torch.fft.irfft(spectrum, n=twice)[..., :LENGTH].mT


class GlobalFilter(nn.Module):
    """A product with a parameter for each frequency."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(LENGTH // 2 + 1, C, 2))

    def forward(self, x):
        filters = torch.view_as_complex(self.weight)
        return torch.fft.irfft(
            torch.fft.rfft(x, dim=1, norm="ortho") * filters, dim=1, norm="ortho"
        )


MIDDLES = {
    "rotation": lambda: Apply(rotated),
    "long convolution": LongConvolution,
    "global filter": GlobalFilter,
}


def traced(make, seed, between=nn.Tanh):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(C, C), between(), make(), nn.Linear(C, C))
    x = torch.randn(SAMPLES, LENGTH, C) + torch.randn(SAMPLES, 1, C)
    return trace(model, (x, torch.randn(SAMPLES, LENGTH, C)), lambda m, b: (m(b[0]) * b[1]).sum())


def found_in(make, seed):
    return of_model(propagate(traced(make, seed)).sites)


@pytest.mark.parametrize("name", MIDDLES)
def test_moments_and_gradients(name):
    sites = [found_in(MIDDLES[name], seed) for seed in range(2)]
    assert all(site.is_predicted for own in sites for site in own)
    for own in zip(*sites, strict=True):
        moments = [math.log(s.second_moment / s.measured_second_moment) for s in own]
        assert np.mean(moments) == pytest.approx(0, abs=0.12)
        gradients = [math.log(s.gradient / s.measured_gradient) for s in own if s.gradient]
        assert np.mean(gradients or 0) == pytest.approx(0, abs=0.12)


def test_rotations_make_positions_less_alike():
    """By the cosine of the angle between them, on average over pairs."""
    before, after = (
        next(site for site in found_in(MIDDLES["rotation"], 0) if site.operation == name)
        for name in ("tanh", "view_as_real")
    )
    angles = 0.3 ** np.arange(0, 4, 4 / (C // 2)) * np.arange(LENGTH)[:, None]
    cosines = np.cos(angles[:, None] - angles).mean(2)
    others = ~np.eye(LENGTH, dtype=bool)
    expected = before.row_correlation * cosines[others].mean()
    assert after.row_correlation == pytest.approx(expected, rel=0.05)
    assert after.row_correlation < 0.8 * before.row_correlation


REFUSED = {
    "over features": (
        lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real,
        "a Fourier transform over features, which mixes without weights",
    ),
    "of two": (
        lambda x: torch.fft.irfft(
            torch.fft.rfft(x, dim=1) * torch.fft.rfft(x.cos(), dim=1), dim=1
        ),
        "complex numbers and something random beside them",
    ),
    "a sum of frequencies": (
        lambda x: x * torch.fft.rfft(x, dim=1).sum(1, keepdim=True).real,
        "sum of complex numbers",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("error")
def test_what_is_not_followed_is_named(name):
    """The way forward goes on from what was measured."""
    function, reason = REFUSED[name]
    sites = found_in(lambda: Apply(function), 0)
    assert reason in {site.reason for site in sites}
    assert sites[-1].is_predicted
