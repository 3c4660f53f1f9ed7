"""Condition numbers, what P gains, and the rate of gradient descent."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from equipoise.preconditioners.hessian.blocks import HessianBlock, hessian_block
from equipoise.preconditioners.hessian.conditions import block_conditions, condition
from equipoise.preconditioners.hessian.preconditioner import extended, preconditioner
from support.convolutions import random, seeded


@st.composite
def features(draw):
    """Matrices H of full rank with shifts and scales over decades."""
    n = draw(st.integers(1, 6))
    rows = draw(st.integers(n + 1, 12))
    decade = st.floats(-1.5, 1.5)
    scale = 10 ** torch.tensor(draw(st.lists(decade, min_size=n, max_size=n))).double()
    shift = torch.tensor(draw(st.lists(st.floats(-20, 20), min_size=n, max_size=n))).double()
    return random(rows, n, seed=draw(st.integers(0, 2**20))) * scale + shift


class TestCondition:
    """Singular values that rounding explains are not counted; the others carry its error."""

    @pytest.mark.parametrize("size", [2, 5, 8])
    def test_hilbert_matrices_against_forty_digits(self, size):
        with mp.workdps(40):
            values = mp.svd_r(mp.hilbert(size), compute_uv=False)
            exact = float(values[0] / values[size - 1])
        index = torch.arange(size).double()
        found = condition(1 / (index + index[:, None] + 1))
        assert found.full_column_rank
        assert abs(found.value - exact) <= found.error
        assert found.error < 1e-3 * exact

    def test_error_covers_storing_the_matrix_in_float32(self):
        matrix = random(9, 6) @ torch.diag(10 ** torch.linspace(0, -3, 6).double())
        found = condition(matrix.float(), rounding=torch.finfo(torch.float32).eps)
        assert 0 < abs(found.value - condition(matrix).value) <= found.error

    def test_a_null_space_is_reported_and_left_out(self):
        found = condition(random(9, 3) @ random(3, 6, seed=1))
        assert (found.rank, found.full_column_rank, found.shape) == (3, False, (9, 6))
        assert found.value < 1e3

    def test_a_cruder_type_hides_small_singular_values(self):
        matrix = torch.diag(torch.tensor([1.0, 1e-7]))
        assert condition(matrix).rank == 2
        assert condition(matrix, rounding=1e-6).rank == 1
        assert condition(matrix, terms=2**30).rank == 1

    def test_zero_has_no_condition_number(self):
        found = condition(torch.zeros(3, 2))
        assert math.isnan(found.value)
        assert found.rank == 0

    @pytest.mark.parametrize("bad", [torch.ones(3), torch.tensor([[math.nan]])])
    def test_anything_but_a_matrix_of_numbers_is_refused(self, bad):
        with pytest.raises(ValueError, match="finite"):
            condition(bad)


def network_block(scale=1.0, shift=0.0):
    """First layer of a network on features scale ⊙ h + shift, with compensating weights."""
    model = seeded(nn.Sequential(nn.Linear(4, 6), nn.Softplus(), nn.Linear(6, 3)))
    x, y = random(40, 4) * torch.tensor([1.0, 2.0, 3.0, 4.0]) + 1, torch.arange(40) % 3
    scale = torch.as_tensor(scale).double().expand(4)
    with torch.no_grad():
        model[0].weight /= scale
        model[0].bias -= model[0].weight.sum(1) * shift
    return hessian_block(model[0], lambda: F.cross_entropy(model(scale * x + shift), y))


class TestBlockConditions:
    """What P does to ĤᵀSĤ, and what it cannot do."""

    def test_invariance_to_affine_features(self):
        """The same function in other units: S and the preconditioned block do not change."""
        scale = torch.tensor([0.01, 1.0, 10.0, 100.0])
        plain, other = (block_conditions(network_block(*args)) for args in ((), (scale, 3.0)))
        for name in ("preconditioned", "normalised", "curvature"):
            one, two = getattr(plain, name), getattr(other, name)
            assert abs(one.value - two.value) <= 1e-8 * one.value
            assert one.rank == two.rank
        assert other.raw.value > 1e3 * plain.raw.value

    def test_eps_breaks_invariance_to_scales_and_its_absolute_part_to_a_common_factor(self):
        def conditioned(scale, eps):
            block = network_block(scale)
            return block_conditions(block, preconditioner(block.statistics(), eps=eps))

        scale = torch.tensor([0.01, 1.0, 10.0, 100.0])
        value = conditioned(1.0, (1e-2, 0.0)).preconditioned.value
        assert_close(conditioned(50.0, (1e-2, 0.0)).preconditioned.value, value, rtol=1e-9, atol=0)
        assert conditioned(1e-3, (1e-2, 1e-4)).preconditioned.value > 2 * value
        assert conditioned(scale, (1e-2, 0.0)).preconditioned.value > 2 * value

    @settings(max_examples=50, deadline=None, derandomize=True)
    @given(features(), st.integers(0, 2**20))
    def test_bounds_hold_for_definite_curvature(self, H, seed):
        curvature = random(len(H), seed=seed).abs().add(0.01).view(-1, 1, 1)
        found = block_conditions(HessianBlock(extended(H), curvature, True, 2.3e-16))
        assert found.positive
        assert found.raw.value - found.raw.error <= found.product_bound
        if found.comparable:
            slack = 1 + found.raw.error / found.raw.value
            assert found.gain <= found.largest_gain * slack

    def test_kappa_of_d_does_not_bound_the_gain(self):
        """Of one feature far from zero D is the identity, and all gain is the centring's."""
        H = torch.tensor([[99.0], [101.0]]).double()
        block = HessianBlock(extended(H), torch.ones(2, 1, 1).double(), True, 2.3e-16)
        found = block_conditions(block)
        assert_close(found.promised_gain, 1.0)
        assert found.comparable
        assert_close(found.gain, found.largest_gain, rtol=1e-6, atol=0)
        assert found.gain > 1e8

    def test_fewer_rows_than_columns_are_not_comparable(self):
        layer, x = seeded(nn.Linear(10, 2)), random(6, 10) + 1
        found = block_conditions(hessian_block(layer, lambda: layer(x).square().mean()))
        assert found.features.rank == found.raw.rank == 6
        assert not found.comparable

    def test_smooth_activations_make_curvature_indefinite(self):
        model, x = (
            seeded(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))),
            random(40, 3),
        )
        block = hessian_block(model[0], lambda: (model(x) - random(40, 1, seed=9)).square().mean())
        found = block_conditions(block)
        assert 0 < found.negative < 40
        assert not found.positive
