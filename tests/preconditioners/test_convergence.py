"""Theorem 4 where it applies and where it does not, rates, norms, and what P gains."""

import math

import pytest
import torch
from hypothesis import find, given, settings
from hypothesis import strategies as st
from mpmath import mp
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from equipoise.preconditioners.convergence import (
    block_conditions,
    condition,
    local_rate,
    norm_estimate,
    norm_ratio,
    theorem_4,
)
from equipoise.preconditioners.hessian_blocks import (
    HessianBlock,
    column_statistics,
    extended,
    hessian_block,
    im2col,
    preconditioner,
)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def seeded(module, seed=1):
    generator = torch.Generator().manual_seed(seed)
    module.double()
    with torch.no_grad():
        for p in module.parameters():
            p.normal_(generator=generator).mul_(0.5)
    return module


@st.composite
def features(draw, *, full_rank):
    """Matrices H with shifts and scales over decades, with N ≥ n + 1 rows or fewer."""
    n = draw(st.integers(1, 6))
    rows = draw(st.integers(n + 1, 12) if full_rank else st.integers(2, max(n, 2)))
    n = n if full_rank else max(n, 2)
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
    def test_what_is_not_a_matrix_of_numbers_is_refused(self, bad):
        with pytest.raises(ValueError, match="finite"):
            condition(bad)


class TestTheorem4:
    """κ(ĤU) ≤ κ(Ĥ) and κ(Ĝ) ≤ √(n+1) κ(ĤUD₀), given full column rank."""

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(features(full_rank=True), st.integers(0, 2**20))
    def test_no_violation_with_full_rank(self, H, seed):
        decades = 2 * random(H.shape[1] + 1, seed=seed)
        check = theorem_4(H, scaling=10**decades)
        assert check.applies
        assert check.centring_holds
        assert check.scaling_holds

    def test_violations_without(self):
        """Fewer rows than columns: hypothesis finds a counterexample at once."""
        H = find(
            features(full_rank=False),
            lambda H: theorem_4(H).centred.value > 1.1 * theorem_4(H).raw.value,
            settings=settings(max_examples=2000, derandomize=True, database=None),
        )
        check = theorem_4(H)
        assert not check.applies
        assert not check.centring_holds

    @settings(max_examples=100, deadline=None, derandomize=True)
    @given(features(full_rank=True))
    def test_strict_improvement_where_it_is_promised(self, H):
        check = theorem_4(H)
        assert check.strict
        assert check.centred.value < check.raw.value

    def test_no_strict_improvement_for_centred_features(self):
        H = random(9, 3)
        check = theorem_4(torch.cat([H, -H]))
        assert not check.strict
        assert_close(check.raw.value, check.centred.value)

    def test_a_mean_orthogonal_to_the_principal_component_is_not_promised(self):
        """It helps only if the small singular value rises."""
        long, short = torch.tensor([[3.0, -3.0, 0.0, 0.0], [0.0, 0.0, 0.5, -0.5]]).double()
        assert not theorem_4(torch.stack([3 * long, short + 2], 1)).strict
        assert theorem_4(torch.stack([3 * long + 2, short], 1)).strict

    def test_equal_columns_are_not_the_best_scaling(self):
        """So the factor √(n+1) is needed: some D₀ does better than D."""
        H = random(8, 3) + 2 * random(8, 1, seed=1)
        best = 1 / torch.cat([torch.ones(1).double(), H.std(0, correction=0)])
        for seed in range(200):
            change = torch.exp(0.2 * random(4, seed=seed))
            best = min(
                best, best * change, key=lambda d: theorem_4(H, scaling=d).alternative.value
            )
        check = theorem_4(H, scaling=best)
        assert check.scaling_holds
        assert check.normalised.value > 1.02 * check.alternative.value

    def test_a_singular_scaling_beats_any_bound(self):
        """D₀ with zeros leaves one column, of condition 1: D₀ must be nonsingular."""
        H = random(8, 2) @ torch.tensor([[1.0, 1.0], [0.0, 1e-3]]).double()
        single = condition(extended(H) * torch.tensor([1.0, 0.0, 0.0]))
        assert theorem_4(H).normalised.value > math.sqrt(3) * single.value
        with pytest.raises(ValueError, match="without a zero"):
            theorem_4(H, scaling=torch.tensor([1.0, 0.0, 0.0]))

    @settings(max_examples=50, deadline=None, derandomize=True)
    @given(features(full_rank=True), st.floats(-1, 1), st.floats(-5, 5))
    def test_normalised_features_forget_scales_and_shifts(self, H, decade, shift):
        before, after = theorem_4(H), theorem_4(H * 10**decade + shift)
        assert_close(before.normalised.value, after.normalised.value, rtol=1e-6, atol=0)

    def test_raw_features_do_not(self):
        H = random(20, 3)
        assert theorem_4(100 * H + 7).raw.value > 50 * theorem_4(H).raw.value


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

    def test_eps_breaks_it_for_scales_but_only_its_absolute_part_for_a_common_factor(self):
        def conditioned(scale, eps):
            block = network_block(scale)
            return block_conditions(block, preconditioner(block.statistics(), eps=eps))

        scale = torch.tensor([0.01, 1.0, 10.0, 100.0])
        value = conditioned(1.0, (1e-2, 0.0)).preconditioned.value
        assert_close(conditioned(50.0, (1e-2, 0.0)).preconditioned.value, value, rtol=1e-9, atol=0)
        assert conditioned(1e-3, (1e-2, 1e-4)).preconditioned.value > 2 * value
        assert conditioned(scale, (1e-2, 0.0)).preconditioned.value > 2 * value

    @settings(max_examples=50, deadline=None, derandomize=True)
    @given(features(full_rank=True), st.integers(0, 2**20))
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


class TestLocalRate:
    """r = max |1 - αλ| over nonzero eigenvalues, on quadratics where it is exact."""

    def test_error_of_a_quadratic_shrinks_by_the_rate(self):
        factor = random(3, 5)
        hessian, x = factor.T @ factor, random(5, seed=1)
        found = local_rate(hessian, 0.15)
        flat = torch.linalg.eigh(hessian).eigenvectors[:, :2]
        errors = []
        for _ in range(101):
            x = x - 0.15 * hessian @ x
            errors.append((x - flat @ (flat.T @ x)).norm())
        assert found.converges
        assert found.flat == 2
        assert_close(float(errors[100] / errors[99]), found.rate, rtol=1e-6, atol=0)

    def test_too_long_a_step_diverges(self):
        found = local_rate(torch.diag(torch.tensor([4.0, 1.0])), 0.51)
        assert not found.converges
        assert_close(found.rate, 1.04, rtol=1e-12, atol=0)

    def test_the_best_step_gives_the_textbook_rate(self):
        hessian = torch.diag(torch.tensor([9.0, 2.0, 1.0, 0.0]))
        best = local_rate(hessian, 1.0).best_learning_rate
        assert_close(local_rate(hessian, best).rate, (9 - 1) / (9 + 1))
        rates = [local_rate(hessian, best * f).rate for f in (0.99, 1.01)]
        assert min(rates) > (9 - 1) / (9 + 1)

    def test_a_saddle_never_converges(self):
        found = local_rate(torch.diag(torch.tensor([1.0, -0.1])), 0.5)
        assert not found.converges
        assert math.isnan(found.best_learning_rate)

    def test_senseless_input_is_refused(self):
        with pytest.raises(ValueError, match="positive"):
            local_rate(torch.eye(2), 0.0)
        with pytest.raises(ValueError, match="zero"):
            local_rate(torch.zeros(2, 2), 0.1)


class TestNorms:
    """‖Ĝ‖ ≈ q√N for independent Gaussian entries, and not for correlated ones."""

    @pytest.mark.parametrize(("samples", "n"), [(500, 20), (60, 100), (6, 784), (512, 512)])
    def test_gaussian_features(self, samples, n):
        H = random(samples, n)
        G = preconditioner(column_statistics(H)).normalise(extended(H))
        limit = (1 + math.sqrt(n / samples)) / math.sqrt(norm_estimate(n, samples))
        assert 1 <= norm_ratio(G, samples) < 2.1
        # Largest singular value of a random matrix; its fluctuations are of order N^(-2/3).
        assert abs(norm_ratio(G, samples) - limit) < 3 * samples ** (-2 / 3)

    def test_correlated_features_exceed_it(self):
        H = random(512, 1) + 0.3 * random(512, 100, seed=1)
        G = preconditioner(column_statistics(H)).normalise(extended(H))
        assert norm_ratio(G, 512) > 8

    def test_convolutions_exceed_their_estimate(self):
        """Taps share entries, and neighbouring positions of images are alike."""
        conv = nn.Conv2d(4, 2, 3, padding=1)
        x = F.interpolate(random(8, 4, 4, 4), size=16, mode="bilinear") + 1
        H = im2col(conv, x)
        G = preconditioner(column_statistics(H)).normalise(extended(H))
        assert norm_ratio(G, 8) > 5

    @pytest.mark.parametrize(
        ("arguments", "positions", "expected"),
        [((60, 60), 1, 1.0), ((784, 1), 1, 784.0), ((288, 2), 49, 144.0), ((288, 128), 49, 7.0)],
    )
    def test_estimate(self, arguments, positions, expected):
        assert norm_estimate(*arguments, positions=positions) == expected

    def test_senseless_sizes_are_refused(self):
        with pytest.raises(ValueError, match="positive"):
            norm_estimate(0, 3)
        with pytest.raises(ValueError, match="multiple"):
            norm_ratio(torch.ones(5, 2), 2)
