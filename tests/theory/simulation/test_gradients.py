"""Random networks of finite width agree with theory, in standard errors.

Finite width biases rates by O(1/width). Measured at widths 150 and 300 with 40 to 60 networks,
the relative bias times width is about 1, up to 5 near the critical ε and 8 for GELU, whose fixed
point is close to unstable: hence ``BIAS``.
"""

import math
import warnings

import numpy as np
import pytest
import torch

from equipoise.theory import (
    UnstableFixedPointWarning,
    bsb1_fixed_point,
    explosion_rate,
    simulate_networks,
)
from equipoise.theory.simulation.gradients import simulate_explosion_rate

WIDTH, NETWORKS, BIAS = 600, 8, 8.0

CASES = [
    ("identity", 16, {}),
    ("relu", 8, {}),
    ("relu", 32, {"eps": 1e-3, "beta": 0.5}),
    ("tanh", 12, {"gamma": 1.5}),
    ("tanh", 8, {"eps": 0.3, "weight_variance": 0.7}),
    ("gelu", 16, {"beta": -0.5, "bias_variance": 0.4}),
    ("hardtanh", 6, {"eps": 0.05}),
    ("leaky_relu(0.2)", 10, {"gamma": -2.0, "beta": 0.3}),
]


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def z_score(simulated, predicted):
    bias = BIAS * abs(predicted) / WIDTH
    return (simulated.value - predicted) / math.hypot(simulated.error, bias)


@pytest.fixture(scope="module")
def simulations():
    return [
        simulate_explosion_rate(
            name, B, width=WIDTH, depth=12, networks=NETWORKS, generator=seeded(i), **options
        )
        for i, (name, B, options) in enumerate(CASES)
    ]


def test_rates_agree_with_theory(simulations):
    z = []
    for (name, B, options), simulated in zip(CASES, simulations, strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnstableFixedPointWarning)
            z.append(z_score(simulated, explosion_rate(name, B, **options).value))
        assert 0 < simulated.error < 0.03 * simulated.value
    assert np.abs(z).max() < 4, z
    assert np.sqrt(np.mean(np.square(z))) < 1.6, z


def test_a_wrong_theory_does_not(simulations):
    """The infinite-batch rate π/(π - 1) of ReLU is not that of B = 8."""
    assert CASES[1][:2] == ("relu", 8)
    assert abs(z_score(simulations[1], math.pi / (math.pi - 1))) > 5


def test_neither_does_a_theory_without_eps(simulations):
    assert CASES[4][:2] == ("tanh", 8)
    assert abs(z_score(simulations[4], explosion_rate("tanh", 8).value)) > 5


@pytest.mark.parametrize(
    ("name", "B", "options"),
    [
        ("relu", 8, {}),
        ("tanh", 8, {"eps": 0.3, "gamma": 1.5, "beta": 0.4}),
        ("gelu", 16, {"weight_variance": 1.7, "bias_variance": 0.4}),
    ],
)
def test_covariances_settle_at_the_fixed_point(name, B, options):
    run = simulate_networks(
        name, B, width=WIDTH, depth=16, networks=12, generator=seeded(7), **options
    )
    point = bsb1_fixed_point(name, B, **options)
    for samples, exact in (
        (run.second_moments, point.q.value),
        (run.correlations, point.c.value),
    ):
        per_network = samples[:, 8:].mean(1)
        error = per_network.std(ddof=1) / math.sqrt(12)
        assert abs(per_network.mean() - exact) < 4 * math.hypot(error, BIAS / WIDTH)
    other = bsb1_fixed_point(name, B, **(options | {"beta": 1.0})).c.value
    assert abs(run.correlations[:, 8:].mean() - other) > 5 * math.hypot(error, BIAS / WIDTH)


def test_inputs_are_independent_samples():
    run = simulate_networks("identity", 8, width=400, depth=3, networks=4, generator=seeded(0))
    assert run.second_moments[:, 0] == pytest.approx(1, abs=0.1)
    assert abs(run.correlations[:, 0]).max() < 0.05
    assert run.correlations[:, 1:].mean() == pytest.approx(-1 / 7, abs=0.02)


def test_gradients_are_those_of_the_written_network():
    """A network of two layers, written out: the ratio of its gradients' norms."""
    width, B = 16, 5
    run = simulate_networks(
        "tanh", B, width=width, depth=2, networks=1, generator=seeded(3), dtype=torch.float64
    )
    generator = seeded(3)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def block(h):
        return torch.tanh((h - h.mean(0)) / h.std(0, unbiased=False))

    x = normal(1, B, width)[0]
    first, second = (normal(1, width, width)[0] / width**0.5 for _ in range(2))
    h1 = (x @ first).requires_grad_()
    h2 = block(h1) @ second
    top = block(h2)
    (top * normal(1, B, width)[0]).sum().backward(inputs=[h1])
    assert run.log_gradients[0, 0] == pytest.approx(h1.grad.square().sum().log().item(), rel=1e-10)
    assert run.second_moments[0, 1] == pytest.approx(h2.square().mean().item(), rel=1e-10)


SMALL = {"width": 32, "depth": 5, "networks": 3}


class TestRandomness:
    def test_the_same_generator_reproduces(self):
        a, b, c = (simulate_networks("relu", 6, generator=seeded(s), **SMALL) for s in (5, 5, 6))
        assert (a.log_gradients == b.log_gradients).all()
        assert (a.correlations == b.correlations).all()
        assert (a.log_gradients != c.log_gradients).all()

    def test_by_default_it_is_reproducible_too(self):
        first, second = (simulate_explosion_rate("relu", 6, **SMALL) for _ in range(2))
        assert first == second

    def test_the_global_random_state_is_unchanged(self):
        state, legacy = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        simulate_explosion_rate("relu", 6, **SMALL)
        assert (torch.random.get_rng_state() == state).all()
        assert (np.random.get_state()[1] == legacy).all()  # noqa: NPY002

    def test_networks_differ(self):
        run = simulate_networks("relu", 6, **SMALL)
        assert len(np.unique(run.log_gradients[:, 0])) == 3


def test_shapes_and_modes():
    with torch.no_grad():
        run = simulate_networks("relu", 6, width=16, depth=4, networks=3)
    assert run.log_gradients.shape == run.second_moments.shape == run.correlations.shape == (3, 4)
    with torch.inference_mode():
        assert simulate_explosion_rate("gelu", 6, width=16, depth=4, networks=2).error > 0


@pytest.mark.parametrize(
    "options",
    [{"width": 0}, {"depth": 0}, {"networks": -1}, {"depth": 3}, {"networks": 1}],
    ids=str,
)
def test_too_little_to_simulate_is_refused(options):
    (value,) = options.values()
    with pytest.raises(ValueError, match=str(value)):
        simulate_explosion_rate("relu", 8, **({"width": 16} | options))
