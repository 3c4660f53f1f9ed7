"""RUN's three forms: what they compute, and the identities that hold at every K."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from equipoise.pooling.run.direction import leading_direction
from equipoise.pooling.run.factor import run_factor
from equipoise.pooling.run.inputs import gaussian_start
from equipoise.pooling.run.matrix import (
    epsilon_from_eta,
    eta_from_epsilon,
    run_matrix,
    run_symmetric,
)
from reference import run as reference
from support.tensors import random

EXACT = {"rtol": 1e-12, "atol": 1e-12}
ETA = 0.6
SIZES = {"tall": (9, 5), "wide": (4, 7), "one position": (1, 5), "one channel": (6, 1)}
every_size = pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
every_step = pytest.mark.parametrize("steps", [1, 2, 3])
plain_or_not = pytest.mark.parametrize("plain", [False, True], ids=["custom", "plain"])


def orthogonal(size, seed=7):
    return torch.linalg.qr(random(size, size, seed=seed)).Q


def gram(features):
    return features.mT @ features


def trace(matrices):
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)


def transcribed(function, matrices, start, *args):
    """A transcription, applied sample by sample; the start is shared."""
    v0 = start.numpy()[:, None]
    return torch.from_numpy(np.stack([function(m, v0, *args) for m in matrices.numpy()]))


@every_size
@every_step
class TestTranscriptions:
    """Against the formulas as written, without rescaling."""

    @plain_or_not
    def test_factor_form(self, size, steps, plain):
        F, v = random(3, *size), random(size[1], seed=1)
        expected = transcribed(reference.factor, F, v, ETA, steps)
        assert_close(run_factor(F, v, eta=ETA, num_steps=steps, plain=plain), expected, **EXACT)

    def test_the_word_ones(self, size, steps):
        F = random(3, *size)
        expected = transcribed(reference.factor, F, torch.ones(size[1]).double(), ETA, steps)
        assert_close(run_factor(F, "ones", eta=ETA, num_steps=steps), expected, **EXACT)

    @plain_or_not
    def test_the_word_mean(self, size, steps, plain):
        F = random(3, *size)
        expected = [reference.factor(f, reference.mean(f), ETA, steps) for f in F.numpy()]
        found = run_factor(F, "mean", eta=ETA, num_steps=steps, plain=plain)
        assert_close(found, torch.from_numpy(np.stack(expected)), **EXACT)

    def test_symmetric_form(self, size, steps):
        F, v = random(3, *size), random(size[1], seed=1)
        expected = transcribed(reference.symmetric, F, v, ETA, steps)
        found = run_symmetric(gram(F), v, eta=ETA, num_steps=steps)
        assert_close(found, expected, **EXACT)
        given = run_factor(F, v, eta=ETA, num_steps=steps)
        assert_close(found, gram(given), **EXACT)

    def test_matrix_form(self, size, steps):
        B, v = gram(random(3, *size)), random(size[1], seed=1)
        expected = transcribed(reference.matrix, B, v, 0.7, steps)
        assert_close(run_matrix(B, v, epsilon=0.7, num_steps=steps), expected, **EXACT)


def test_the_mean_start_needs_no_step():
    F = random(9, 5)
    expected = reference.factor(F.numpy(), reference.mean(F.numpy()), ETA, 0)
    assert_close(run_factor(F, "mean", eta=ETA, num_steps=0), torch.from_numpy(expected), **EXACT)


class TestThreeForms:
    """How the forms relate at finite K, where v̂ is no eigenvector."""

    F, v = random(2, 9, 5), random(5, seed=1)

    @pytest.mark.parametrize("eta", [0.0, 0.3, 0.5, 1.0])
    @every_step
    def test_traces_agree_with_the_identity(self, eta, steps):
        """tr C_K = tr B_K = tr B − ε ρ."""
        B, epsilon = gram(self.F), epsilon_from_eta(eta)
        options = {"eta": eta, "num_steps": steps}
        rho = leading_direction(self.F, self.v, num_steps=steps).rayleigh
        factor = run_factor(self.F, self.v, **options).square().sum((-2, -1))
        assert_close(factor, trace(B) - epsilon * rho, **EXACT)
        assert_close(trace(run_symmetric(B, self.v, **options)), factor, **EXACT)
        assert_close(trace(run_matrix(B, self.v, **options)), factor, **EXACT)

    def test_they_differ_by_the_residual(self):
        """‖C_K − B_K‖ = η √(1 + (1 − η)²) ‖Bv̂ − ρv̂‖, which is far from 0 at K = 1."""
        B, options = gram(self.F), {"eta": ETA, "num_steps": 1}
        found = leading_direction(self.F, self.v, num_steps=1)
        residual = found.residual * found.rayleigh
        distance = run_symmetric(B, self.v, **options) - run_matrix(B, self.v, **options)
        expected = ETA * math.hypot(1, 1 - ETA) * residual
        assert_close(torch.linalg.matrix_norm(distance), expected, **EXACT)
        assert (expected > 0.1).all()

    def test_they_agree_at_an_eigenvector(self):
        B = gram(self.F[0])
        v = torch.linalg.eigh(B).eigenvectors[:, -1]
        assert_close(run_symmetric(B, v, eta=ETA), run_matrix(B, v, eta=ETA), **EXACT)

    def test_the_matrix_form_is_neither_symmetric_nor_semi_definite(self):
        matrix = run_matrix(gram(self.F), self.v, epsilon=1.0, num_steps=1)
        assert ((matrix - matrix.mT).abs().amax((-2, -1)) > 0.1).all()
        assert (torch.linalg.eigvalsh((matrix + matrix.mT) / 2)[:, 0] < -1e-3).all()

    def test_the_symmetric_form_is_both(self):
        matrix = run_symmetric(gram(self.F), self.v, eta=1.0, num_steps=1)
        assert_close(matrix, matrix.mT, **EXACT)
        assert (torch.linalg.eigvalsh(matrix)[:, 0] > -1e-12).all()


class TestStrength:
    @pytest.mark.parametrize("eta", [0.0, 1e-9, 0.5, 0.75, 1.0])
    def test_conversions_are_inverse(self, eta):
        assert math.isclose(eta_from_epsilon(epsilon_from_eta(eta)), eta, rel_tol=1e-7)
        assert epsilon_from_eta(eta) == pytest.approx(1 - (1 - eta) ** 2, abs=1e-15)

    def test_small_strengths_keep_their_digits(self):
        """1 − √(1 − ε) as written has no digit left at 1e-17."""
        assert eta_from_epsilon(1e-17) == 5e-18
        assert 1 - math.sqrt(1 - 1e-17) == 0

    def test_the_default_is_a_half(self):
        B, v = gram(random(9, 5)), random(5)
        assert torch.equal(run_matrix(B, v), run_matrix(B, v, epsilon=0.75))

    def test_zero_changes_nothing_and_one_removes(self):
        F, v = random(9, 5), random(5)
        assert torch.equal(run_factor(F, v, eta=0.0), F)
        direction = leading_direction(F, v).direction
        assert (run_factor(F, v, eta=1.0) @ direction).abs().max() < 1e-12

    def test_above_one_the_sign_flips(self):
        """I − (2 − η)P = (I − 2P)(I − ηP): same singular values; 2 is a reflection."""
        F, v = random(9, 5), random(5)
        options = {"num_steps": 1, "extended_range": True}
        values = {
            eta: torch.linalg.svdvals(run_factor(F, v, eta=eta, **options))
            for eta in (0.0, 0.4, 1.6, 2.0)
        }
        assert_close(values[0.4], values[1.6], **EXACT)
        assert_close(values[0.0], values[2.0], **EXACT)
        assert (values[0.4] - values[0.0]).abs().max() > 0.1


class TestExactProperties:
    """At finite K and any η."""

    F, v, Q = random(9, 5), random(5, seed=1), orthogonal(5)

    @every_step
    def test_rotated_channels(self, steps):
        """RUN(FQ; Qᵀv_0) = RUN(F; v_0) Q."""
        options = {"eta": ETA, "num_steps": steps}
        rotated = run_factor(self.F @ self.Q, self.Q.mT @ self.v, **options)
        assert_close(rotated, run_factor(self.F, self.v, **options) @ self.Q, **EXACT)

    def test_the_mean_start_rotates_by_itself(self):
        rotated = run_factor(self.F @ self.Q, "mean", num_steps=1)
        assert_close(rotated, run_factor(self.F, "mean", num_steps=1) @ self.Q, **EXACT)

    def test_a_fixed_start_does_not(self):
        rotated = run_factor(self.F @ self.Q, self.v, num_steps=1)
        plain = run_factor(self.F, self.v, num_steps=1) @ self.Q
        assert (rotated - plain).abs().max() > 0.1

    def test_rotated_positions(self):
        Q = orthogonal(9)
        assert_close(run_factor(Q @ self.F, self.v), Q @ run_factor(self.F, self.v), **EXACT)

    @pytest.mark.parametrize("start", ["mean", "ones"])
    def test_permuted_positions(self, start):
        order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
        assert_close(run_factor(self.F[order], start), run_factor(self.F, start)[order], **EXACT)

    @pytest.mark.parametrize("factor", [1e-100, -3.0, 1e100])
    def test_scaled_features_and_start(self, factor):
        """RUN(cF; dv_0) = c RUN(F; v_0)."""
        expected = factor * run_factor(self.F, self.v)
        assert_close(run_factor(factor * self.F, -self.v / factor), expected, **EXACT)

    def test_more_steps_find_the_leading_eigenvector(self):
        top = torch.linalg.eigh(gram(self.F)).eigenvectors[:, -1]
        cosines = [
            float((leading_direction(self.F, self.v, num_steps=k).direction @ top).abs())
            for k in (1, 2, 60)
        ]
        assert cosines[0] < cosines[1] < cosines[2]
        assert cosines[2] == pytest.approx(1, abs=1e-12)


class TestShapes:
    def test_leading_dimensions_are_independent_samples(self):
        F, v = random(2, 3, 9, 5), random(5)
        expected = torch.stack([torch.stack([run_factor(f, v) for f in row]) for row in F])
        assert_close(run_factor(F, v), expected, **EXACT)
        assert_close(run_symmetric(gram(F), v)[1, 2], run_symmetric(gram(F[1, 2]), v), **EXACT)
        assert_close(run_matrix(gram(F), v)[1, 2], run_matrix(gram(F[1, 2]), v), **EXACT)

    def test_a_start_per_sample(self):
        F, v = random(2, 3, 9, 5), random(2, 3, 5, seed=1)
        assert_close(run_factor(F, v)[1, 2], run_factor(F[1, 2], v[1, 2]), **EXACT)
        shared_over_rows = run_factor(F, v[:, :1])
        assert_close(shared_over_rows[1, 2], run_factor(F[1, 2], v[1, 0]), **EXACT)

    def test_channel_first_maps_are_read_in_place(self):
        """No copy: the layout of the output is the map's."""
        images = random(2, 5, 3, 4)
        F = images.flatten(2).mT
        updated = run_factor(F, "ones")
        assert F.data_ptr() == images.data_ptr()
        assert updated.stride() == F.stride()
        assert_close(updated, run_factor(F.contiguous(), "ones"), **EXACT)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_the_type_is_kept(self, dtype):
        F = random(2, 9, 5).to(dtype)
        assert run_factor(F, "mean").dtype == dtype
        assert run_symmetric(gram(F), "ones").dtype == dtype
        assert run_matrix(gram(F), random(5)).dtype == dtype


class TestGaussianStart:
    def test_draws_from_its_generator_alone(self):
        before = torch.random.get_rng_state()
        draws = [gaussian_start(6, torch.Generator().manual_seed(s)) for s in (0, 0, 1)]
        assert torch.equal(torch.random.get_rng_state(), before)
        assert torch.equal(draws[0], draws[1])
        assert not torch.equal(draws[0], draws[2])

    def test_is_standard_normal(self):
        draws = gaussian_start(100_000, torch.Generator().manual_seed(0))
        error = 1 / math.sqrt(len(draws))
        assert abs(float(draws.mean())) < 4 * error
        assert abs(float(draws.var()) - 1) < 4 * math.sqrt(2) * error

    def test_evaluations_are_equal_bit_by_bit(self):
        F, v = random(2, 9, 5), gaussian_start(5, torch.Generator().manual_seed(0))
        before = torch.random.get_rng_state()
        assert torch.equal(run_factor(F, v), run_factor(F, v))
        assert torch.equal(torch.random.get_rng_state(), before)


class TestDiagnostics:
    """ρ, the residual and the share against their definitions."""

    def test_agree_with_the_matrix(self):
        F, v = random(2, 3, 9, 5), random(5)
        found = leading_direction(F, v, num_steps=1)
        B, d = gram(F), found.direction[..., None]
        rho = (d.mT @ B @ d)[..., 0, 0]
        assert_close(found.rayleigh, rho, **EXACT)
        assert_close(found.share, rho / trace(B), **EXACT)
        expected = torch.linalg.vector_norm(B @ d - rho[..., None, None] * d, dim=(-2, -1)) / rho
        assert_close(found.residual, expected, **EXACT)

    def test_some_eigenvalue_lies_within_the_residual(self):
        F = random(20, 9, 5)
        found = leading_direction(F, "ones", num_steps=1)
        gaps = (torch.linalg.eigvalsh(gram(F)) - found.rayleigh[:, None]).abs().amin(1)
        assert (gaps <= found.residual * found.rayleigh).all()

    def test_zeros_have_no_direction(self):
        F = torch.stack([torch.zeros(9, 5).double(), random(9, 5)])
        found = leading_direction(F, "mean")
        for value in (found.rayleigh, found.residual, found.share):
            assert value[0] == 0
            assert value[1] > 0

    @pytest.mark.parametrize("scale", [1e-15, 1e15])
    def test_scale_does_not_matter(self, scale):
        F = random(2, 9, 5).float()
        plain, scaled = leading_direction(F, "ones"), leading_direction(F * scale, "ones")
        assert_close(scaled.share, plain.share)
        assert_close(scaled.residual, plain.residual)

    def test_masked_positions_do_not_count(self):
        F, mask = random(2, 9, 5), torch.arange(9) < 6
        assert_close(
            leading_direction(F, "mean", mask=mask).share,
            leading_direction(F[:, :6], "mean").share,
            **EXACT,
        )

    def test_rectified_features_lie_along_their_mean(self):
        """Half a step from the mean, and it carries (E relu)² / E relu² = 1/π of the energy."""
        F = random(196, 64).relu()
        top = torch.linalg.eigh(gram(F)).eigenvectors[:, -1]
        found = leading_direction(F, "mean", num_steps=0)
        assert 1 - float((found.direction @ top).square()) < 1e-3
        assert float(found.share) == pytest.approx(1 / math.pi, abs=0.02)
