"""Many settings at once have the numbers that each has alone."""

import numpy as np
import pytest
import torch

from equipoise.theory import Setting
from equipoise.theory.batch_norm.fixed_point.solve import solve, solve_by_quadrature
from equipoise.theory.batch_norm.fixed_point.sweep import solve_all


def assert_same(settings, alike):
    found = solve_all(settings)
    for setting, ours in zip(settings, found, strict=True):
        for one, many in zip(solve(setting).numbers, ours.numbers, strict=True):
            assert abs(one.value - many.value) <= one.error + many.error
            assert many.error <= 1e-9 * max(1, abs(many.value))
    # What is solved alone is cached; rows that two rules do not resolve are solved alone.
    together = [
        ours is not solve_by_quadrature(s) for s, ours in zip(settings, found, strict=True)
    ]
    if not alike:
        assert not any(together)
    elif settings[0].eps:
        assert all(together)
    else:
        assert sum(together) >= 2


@pytest.mark.parametrize("name", ["tanh", "gelu", "hardtanh", "relu6"])
def test_batch_sizes_gammas_and_betas(name):
    assert_same(
        [
            Setting(name, B, gamma=gamma, beta=beta, bias_variance=0.1)
            for B, gamma, beta in ((32, 1.0, 0.0), (57, 0.4, 0.3), (900, 2.5, -1.0), (10**5, 1, 1))
        ],
        alike=True,
    )


@pytest.mark.parametrize(
    ("activation", "options"),
    [
        ("tanh", {"eps": 1e-30}),  # no more than 0
        ("alpha_relu(1.5)", {"beta": 0.3}),
        (lambda x: torch.tanh(40 * x), {}),  # steep
    ],
)
def test_others_are_solved_one_by_one(activation, options):
    assert_same([Setting(activation, B, **options) for B in (32, 64, 128, 256)], alike=False)


@pytest.mark.parametrize("name", ["tanh", "relu", "gelu", "hardtanh", "leaky_relu(0.1)"])
@pytest.mark.parametrize("batch_size", [4, 16, 300])
def test_eps_and_variances_share_their_nodes(name, batch_size):
    """From PyTorch's ε to beyond the critical one, where κ is 0."""
    assert_same(
        [
            Setting(name, batch_size, beta=0.2, eps=eps, weight_variance=2.0, bias_variance=b)
            for eps in (1e-5, 1e-4, 2e-4, 0.01, 0.3, 0.5, 1.0, 3.0)
            for b in (0.0, 0.4)
        ],
        alike=True,
    )


def test_an_eps_far_away_does_not_move_the_others():
    """Circles serve the least Bε/κ, whose density reaches farthest, and the largest."""
    assert_same(
        [Setting("alpha_relu(1.5)", 4, gamma=1e4, eps=eps) for eps in (1e-19, 1e10, 3e10, 6e10)],
        alike=True,
    )
    variances = ((1e-5, 1.0), (1e-3, 1.0), (0.01, 1.0), (1e9, 1e-6))
    assert_same(
        [Setting("relu", 8, beta=-1.0, eps=e, weight_variance=w) for e, w in variances], alike=True
    )


def test_an_eps_that_is_refused_is_refused_by_itself():
    """Beside three that are solved, a fourth has the message that it has alone."""
    settings = [Setting("tanh", 8, eps=eps) for eps in (1e-3, 2e-3, 3e-3)]
    flat = Setting("relu", 8, gamma=0.01, beta=-9.0, eps=1e-3)
    with pytest.raises(ValueError, match="relu is constant to float64 precision"):
        solve_all([*settings, *([flat] * 4)])
    assert len(solve_all(settings)) == 3


def test_a_row_that_needs_more_does_not_spoil_the_others():
    """Only samples beyond twelve standard deviations reach the kink of the second."""
    settings = [Setting("relu6", 706, gamma=0.193, beta=beta) for beta in (0.1, -2.3, 0.2, 0.3)]
    found = solve_all(settings)
    assert found[1] is solve(settings[1])
    assert all(found[i] is not solve(settings[i]) for i in (0, 2, 3))
    assert found[1].q.value < 1e-38 < found[0].q.value


def test_no_signal_is_refused_as_alone():
    settings = [Setting("relu", 64, gamma=0.01, beta=beta) for beta in (-9.0, 1.0, 2.0, 3.0)]
    with pytest.raises(ValueError, match="no signal passes"):
        solve_all(settings)


def test_closed_forms_are_kept():
    assert {s.q.method for s in solve_all([Setting("relu", B) for B in range(32, 40)])} == {
        "closed form"
    }


def test_none_is_none():
    assert solve_all([]) == []
    assert np.isfinite(solve_all([Setting("tanh", 8)])[0].rate.value)


def test_repetitions_change_nothing():
    settings = [
        Setting("relu", B, beta=0.2, eps=eps) for B in range(20, 30) for eps in (1e-5, 0.01)
    ]
    assert solve_all([*settings, *settings])[: len(settings)] == solve_all(settings)
