"""Theory and simulation over more than a hundred settings, in standard errors."""

import numpy as np
import pytest
import torch

from equipoise.theory import Setting
from equipoise.theory.batch_norm.fixed_point.solve import solve_by_quadrature
from equipoise.theory.simulation.spectra import sample_spectra

SETTINGS = [
    ("identity", {}),
    ("relu", {}),
    ("tanh", {}),
    ("gelu", {}),
    ("abs", {}),
    ("elu", {"weight_variance": 2.0}),
    ("hardtanh", {"beta": 0.3}),
    ("alpha_relu(1.5)", {}),
    ("silu", {"gamma": 0.5, "beta": -0.4}),
    ("tanh", {"eps": 0.1}),
    ("relu", {"eps": 0.1}),
    ("identity", {"eps": 0.5}),
    ("tanh", {"eps": 1e-3, "gamma": 2.0, "beta": 0.3}),
    ("relu", {"eps": 0.2, "weight_variance": 2.0}),
    ("gelu", {"eps": 0.05}),
]
BATCHES = (4, 5, 6, 8, 11, 16, 33)
# Identity at ε = 0 has constants for traces; z-scores of rounding errors mean nothing.
SMALLEST_ERROR = 1e-9


def twins(name, batch_size, options, generator):
    """Pairs of an exact number and its simulated twin."""
    setting = Setting(name, batch_size, **options)
    exact = solve_by_quadrature(setting)
    sampled = sample_spectra(setting, samples=3000, generator=generator)
    back, forth = sampled.backward, sampled.forward
    return list(
        zip(
            (*exact.backward, *exact.forward[1:], exact.cross_rate, exact.kappa),
            (back.G, back.L, back.M, forth.L, forth.M, sampled.cross_batch, sampled.kappa),
            strict=True,
        )
    )


@pytest.fixture(scope="module")
def scores():
    """z of 7 numbers in 105 settings, ``[105, 7]``; nan where nothing is random."""
    generator = torch.Generator().manual_seed(11)
    rows = [
        [
            (twin.value - exact.value) / twin.error if twin.error > SMALLEST_ERROR else np.nan
            for exact, twin in twins(name, batch_size, options, generator)
        ]
        for name, options in SETTINGS
        for batch_size in BATCHES
    ]
    return np.array(rows)


def test_more_than_a_hundred_settings(scores):
    assert len(scores) >= 100
    assert np.isfinite(scores).mean() > 0.9


def test_scores_are_those_of_chance(scores):
    """Root mean square within 1 ± 0.15, none beyond 4.5."""
    known = scores[np.isfinite(scores)]
    assert abs(np.sqrt((known**2).mean()) - 1) < 0.15
    assert np.abs(known).max() < 4.5


def test_each_number_is_unbiased(scores):
    means = np.nanmean(scores, axis=0)
    assert np.abs(means * np.sqrt(len(scores))).max() < 4


def test_a_wrong_eps_is_detected():
    generator = torch.Generator().manual_seed(5)
    right = solve_by_quadrature(Setting("tanh", 8, eps=0.1))
    sampled = sample_spectra("tanh", 8, eps=0.12, samples=20_000, generator=generator)
    assert abs(sampled.backward.G.value - right.rate.value) > 5 * sampled.backward.G.error
