"""RUN at the edges: zeros, rank one, ties, masks, centred features, scale, and bad input."""

import pytest
import torch
from torch.testing import assert_close

from equipoise.pooling.run.direction import leading_direction
from equipoise.pooling.run.factor import run_factor
from equipoise.pooling.run.inputs import gaussian_start
from equipoise.pooling.run.layer import RUN
from equipoise.pooling.run.matrix import (
    epsilon_from_eta,
    eta_from_epsilon,
    run_matrix,
    run_symmetric,
)
from support.cases import each
from support.tensors import random

plain_or_not = pytest.mark.parametrize("plain", [False, True], ids=["custom", "plain"])
every_word = pytest.mark.parametrize("start", ["mean", "ones"])


def both_ways(F, start, *, G=None, **options):
    """F_K and the gradient ∂⟨G, F_K⟩/∂F; by default G is random."""
    F = F.clone().requires_grad_()
    updated = run_factor(F, start, **options)
    G = random(*F.shape, seed=9).to(F) if G is None else G
    (gradient,) = torch.autograd.grad(updated, F, G)
    return updated.detach(), gradient, G


@plain_or_not
class TestSkippedUpdates:
    """Where there is no direction, F_K = F and the gradient is G."""

    @every_word
    @pytest.mark.parametrize("steps", [1, 2])
    def test_a_zero_sample(self, plain, start, steps):
        F = random(3, 7, 5)
        F[1] = 0
        updated, gradient, G = both_ways(F, start, num_steps=steps, plain=plain)
        assert torch.equal(updated[1], F[1])
        assert torch.equal(gradient[1], G[1])
        alone = both_ways(F[::2], start, G=G[::2], num_steps=steps, plain=plain)
        assert_close((updated[::2], gradient[::2]), alone[:2])
        assert not torch.equal(gradient[0], G[0])

    @each("steps", [1, 2, 3])
    def test_a_start_orthogonal_to_every_position(self, plain, steps):
        F = torch.tensor([[1.0, 2.0, 0.0], [3.0, -1.0, 0.0]])
        start = torch.tensor([0.0, 0.0, 1.0])
        updated, gradient, G = both_ways(F, start, num_steps=steps, plain=plain)
        assert torch.equal(updated, F)
        assert torch.equal(gradient, G)

    def test_a_start_of_zeros(self, plain):
        F = random(7, 5)
        updated, gradient, G = both_ways(F, torch.zeros(5), plain=plain)
        assert torch.equal(updated, F)
        assert torch.equal(gradient, G)

    def test_a_mean_of_zero_without_a_step(self, plain):
        F = random(7, 5)
        F -= F.mean(0)
        updated, gradient, G = both_ways(F, "mean", num_steps=0, plain=plain)
        assert torch.equal(updated, F)
        assert torch.equal(gradient, G)


@pytest.mark.parametrize("function", [run_symmetric, run_matrix])
def test_a_zero_matrix(function):
    """Its update is skipped; that of the other matrix is not."""
    B = torch.stack([torch.zeros(5, 5).double(), torch.eye(5).double()]).requires_grad_()
    G = random(2, 5, 5)
    updated = function(B, "ones")
    (gradient,) = torch.autograd.grad(updated, B, G)
    assert torch.equal(updated[0], B[0])
    assert torch.equal(gradient[0], G[0])
    assert not torch.allclose(gradient[1], G[1])


@plain_or_not
class TestRankOne:
    """F_K = (1 − η) F and B_K = (1 − ε) B for any start and K ≥ 1."""

    @each("steps", [1, 2, 5])
    @each("size", [(1, 5), (6, 1), (6, 5), (1, 1)])
    def test_the_whole_matrix_shrinks(self, size, steps, plain):
        F = random(size[0], 1) @ random(1, size[1], seed=1)
        updated, gradient, _ = both_ways(F, "ones", eta=0.3, num_steps=steps, plain=plain)
        assert_close(updated, 0.7 * F)
        assert gradient.isfinite().all()
        B = F.mT @ F
        assert_close(run_matrix(B, "ones", epsilon=0.3, num_steps=steps), 0.7 * B)
        assert_close(run_symmetric(B, "ones", eta=0.3, num_steps=steps), 0.49 * B)


@plain_or_not
def test_a_repeated_top_eigenvalue(plain):
    """F = I: the direction is the start's, and the gradient is finite."""
    updated, gradient, _ = both_ways(torch.eye(4), torch.eye(4)[1], eta=1.0, plain=plain)
    assert torch.equal(updated, torch.diag(torch.tensor([1.0, 0.0, 1.0, 1.0])))
    assert gradient.isfinite().all()


@plain_or_not
@every_word
class TestPositionsThatDoNotCount:
    def test_rows_of_zeros_have_no_effect(self, start, plain):
        F = random(2, 7, 5)
        padded = torch.cat([F, torch.zeros(2, 3, 5)], 1)
        updated, gradient, G = both_ways(padded, start, plain=plain)
        alone = both_ways(F, start, G=G[:, :7], plain=plain)
        assert torch.equal(updated[:, 7:], padded[:, 7:])
        assert_close((updated[:, :7], gradient[:, :7]), alone[:2])

    def test_masked_rows_have_no_effect_whatever_they_hold(self, start, plain):
        F, mask = random(2, 7, 5), torch.tensor([True, True, False, True, True, False, True])
        spoilt = F.masked_fill(~mask[:, None], torch.nan)
        updated, gradient, G = both_ways(spoilt, start, mask=mask, plain=plain)
        alone = both_ways(F[:, mask], start, G=G[:, mask], plain=plain)
        assert_close((updated[:, mask], gradient[:, mask]), alone[:2])
        assert (updated[:, ~mask] == 0).all()
        assert (gradient[:, ~mask] == 0).all()

    def test_a_mask_per_sample(self, start, plain):
        F, mask = random(2, 7, 5), torch.rand(2, 7) < 0.6
        updated = run_factor(F, start, mask=mask, plain=plain)
        alone = run_factor(F[1], start, mask=mask[1], plain=plain)
        assert_close(updated[1], alone)

    def test_a_sample_without_positions_is_a_zero_sample(self, start, plain):
        F, mask = random(2, 7, 5), torch.tensor([[True], [False]])
        updated, gradient, _ = both_ways(F, start, mask=mask, plain=plain)
        assert (updated[1] == 0).all()
        assert (gradient[1] == 0).all()
        assert_close(updated[0], run_factor(F[0], start))


@plain_or_not
@every_word
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_sample_that_is_not_finite_has_no_effect_on_others(bad, start, plain):
    """Bit for bit."""
    F = random(3, 300, 20).float()
    good = both_ways(F, start, plain=plain)
    F[1, 4, 2] = bad
    spoilt = both_ways(F, start, plain=plain)
    for mine, theirs in zip(good[:2], spoilt[:2], strict=True):
        assert torch.equal(mine[::2], theirs[::2])
    assert not spoilt[0][1].isfinite().all()


def test_no_positions():
    assert run_factor(torch.zeros(2, 0, 5), "ones").shape == (2, 0, 5)
    assert run_factor(torch.zeros(0, 4, 5), "mean").shape == (0, 4, 5)
    with pytest.raises(ValueError, match="must have a position"):
        leading_direction(torch.zeros(2, 0, 5), "ones")


class TestCentredFeatures:
    """Their sum is rounding error: an arbitrary direction with a huge derivative."""

    @pytest.fixture
    def features(self):
        F = random(3, 50, 5)
        F[:2] -= F[:2].mean(1, keepdim=True)
        return F

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @plain_or_not
    def test_use_the_given_fallback(self, features, plain, dtype):
        fallback = random(5, seed=1).to(dtype)
        found = both_ways(features.to(dtype), "mean", fallback=fallback, plain=plain)
        given = both_ways(features.to(dtype), fallback, plain=plain)
        for mine, theirs in zip(found[:2], given[:2], strict=True):
            assert_close(mine[:2], theirs[:2])
            assert not torch.allclose(mine[2], theirs[2])

    def test_have_a_fallback_by_default(self, features):
        updated, gradient, _ = both_ways(features, "mean")
        assert (torch.linalg.matrix_norm(updated - features) > 0.1).all()
        assert gradient.abs().amax() < 20

    def test_without_the_fallback_gradients_are_huge(self, features):
        F = features[0].requires_grad_()
        updated = run_factor(F, F.sum(0), num_steps=1)
        (gradient,) = torch.autograd.grad(updated, F, random(*F.shape, seed=9))
        assert gradient.abs().amax() > 1e6


class TestScale:
    """Float32 over thirty orders of magnitude, forwards and back."""

    @plain_or_not
    @pytest.mark.parametrize("power", [-1, 0, 1])
    @pytest.mark.parametrize("scale", [1e-15, 1e15])
    def test_agrees_with_float64(self, scale, power, plain):
        """G scales like the power: 1 for a squared loss, −1 for one that ignores scale."""
        F, v = (random(2, 196, 64).relu() * scale).float(), random(64, seed=1).float()
        G = (random(*F.shape, seed=2) * scale**power).float()
        options = {"num_steps": 6, "plain": plain}
        found = both_ways(F, v, G=G, **options)
        exact = both_ways(F.double(), v.double(), G=G.double(), **options)
        for mine, theirs in zip(found[:2], exact[:2], strict=True):
            error = (mine - theirs).norm() / theirs.norm()
            assert error < 3e-7

    @pytest.mark.parametrize("scale", [1e-15, 1e15])
    def test_the_unscaled_recurrence_does_not(self, scale):
        F, v = (random(196, 64).relu() * scale).float(), random(64, seed=1).float()
        for _ in range(6):
            v = F.mT @ (F @ v)
        assert not (v / (v @ v)).isfinite().all()

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_costs_two_roundings(self, dtype):
        """One of the features, one of the result."""
        F, v = random(2, 196, 64).relu(), random(64, seed=1)
        rounding = (F.to(dtype) - F).norm() / F.norm()
        found = both_ways(F.to(dtype), v)
        exact = both_ways(F, v)
        for mine, theirs in zip(found[:2], exact[:2], strict=True):
            assert mine.dtype == dtype
            assert (mine - theirs).norm() / theirs.norm() < 2.5 * rounding


F = torch.ones(2, 3, 4)
B = torch.ones(2, 4, 4)


class TestBadInput:
    @pytest.mark.parametrize("eta", [-0.1, 1.1, 2.0, float("nan")])
    def test_strength_out_of_range(self, eta):
        for call in (
            lambda: run_factor(F, "ones", eta=eta),
            lambda: run_symmetric(B, "ones", eta=eta),
            lambda: run_matrix(B, "ones", eta=eta),
            lambda: epsilon_from_eta(eta),
        ):
            with pytest.raises(ValueError, match=r"eta must be a number in \[0, 1\]; got"):
                call()

    def test_extended_strength_out_of_range(self):
        with pytest.raises(ValueError, match=r"eta must be a number in \[0, 2\]; got 2.5"):
            run_factor(F, "ones", eta=2.5, extended_range=True)

    @pytest.mark.parametrize("epsilon", [-0.1, 1.1])
    def test_epsilon_out_of_range(self, epsilon):
        for call in (
            lambda: run_matrix(B, "ones", epsilon=epsilon),
            lambda: eta_from_epsilon(epsilon),
        ):
            with pytest.raises(ValueError, match="no real eta exists"):
                call()

    def test_two_strengths(self):
        with pytest.raises(ValueError, match="not both"):
            run_matrix(B, "ones", eta=0.5, epsilon=0.75)

    @pytest.mark.parametrize("start", [torch.ones(4), "ones"], ids=["tensor", "ones"])
    def test_no_step(self, start):
        for function, x in ((run_factor, F), (run_symmetric, B), (run_matrix, B)):
            with pytest.raises(ValueError, match="num_steps must be at least 1; got 0"):
                function(x, start, num_steps=0)

    def test_fewer_than_no_step(self):
        with pytest.raises(ValueError, match="got -1"):
            run_factor(F, "mean", num_steps=-1)

    def test_unknown_word(self):
        with pytest.raises(TypeError, match=r"'gaussian'.*gaussian_start\(num_features"):
            run_factor(F, "gaussian")

    def test_mean_of_a_matrix(self):
        with pytest.raises(ValueError, match="pass them to run_factor"):
            run_symmetric(B, "mean")

    @pytest.mark.parametrize("shape", [(3,), (1,), (3, 4), (2, 2, 4)])
    def test_start_of_another_shape(self, shape):
        with pytest.raises(ValueError, match=r"start must have shape \[4\] or \[2, 4\]"):
            run_factor(F, torch.ones(shape))

    def test_maps_are_not_rows_of_channels(self):
        with pytest.raises(ValueError, match=r"\[2, 4, 7, 7\]. For maps .* use RUNPool\(4\)"):
            RUN(4)(torch.ones(2, 4, 7, 7))

    def test_start_on_another_device(self):
        with pytest.raises(ValueError, match="start is on meta, the features are on cpu"):
            run_factor(F, torch.ones(4, device="meta"))

    def test_fallback_without_use(self):
        with pytest.raises(ValueError, match="start='mean'"):
            run_factor(F, "ones", fallback=torch.ones(4))

    def test_mask_of_another_type(self):
        with pytest.raises(TypeError, match=r"Use mask.bool\(\)"):
            run_factor(F, "ones", mask=torch.ones(2, 3))

    def test_mask_of_another_shape(self):
        with pytest.raises(ValueError, match=r"positions \(2, 3\)"):
            run_factor(F, "ones", mask=torch.ones(3, 2, dtype=torch.bool))

    def test_integers(self):
        with pytest.raises(TypeError, match=r"Use .float\(\)"):
            run_factor(F.long(), "ones")
        with pytest.raises(TypeError, match="start must be floating point"):
            run_factor(F, torch.ones(4, dtype=torch.long))

    @pytest.mark.parametrize("shape", [(4,), (3, 0)])
    def test_no_matrix(self, shape):
        with pytest.raises(ValueError, match="D at least 1"):
            run_factor(torch.ones(shape), "ones")

    def test_features_for_a_matrix(self):
        with pytest.raises(ValueError, match="use run_factor"):
            run_symmetric(F, "ones")

    def test_no_channels(self):
        with pytest.raises(
            ValueError, match="num_features must be a whole number of at least 1; got 0"
        ):
            gaussian_start(0, torch.Generator())
