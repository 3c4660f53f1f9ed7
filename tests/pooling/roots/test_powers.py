"""Powers and logarithms of matrices: ties, null spaces, and samples that are not finite."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from equipoise.pooling.matrices import bilinear
from equipoise.pooling.roots.powers import log_euclidean, matrix_power
from reference import matrix_roots as slow
from support.cases import each
from support.tensors import gradient, random

EPS = 0.01
# The function, and its name and parameter for the slow reference.
FUNCTIONS = {
    "root": (matrix_power, ("power", 0.5)),
    "power 0.3": (lambda A: matrix_power(A, 0.3), ("power", 0.3)),
    "power 2.5": (lambda A: matrix_power(A, 2.5), ("power", 2.5)),
    "logarithm": (lambda A: log_euclidean(A, eps=EPS), ("logarithm", EPS)),
}
every = pytest.mark.parametrize(("function", "name"), FUNCTIONS.values(), ids=FUNCTIONS)
CONCAVE = {name: FUNCTIONS[name] for name in ("root", "power 0.3", "logarithm")}
every_concave = pytest.mark.parametrize(("function", "name"), CONCAVE.values(), ids=CONCAVE)

SPECTRA = {
    "distinct": [0.5, 1.0, 2.0, 3.0, 5.0],
    "ties": [1.0, 1.0, 1.0, 4.0, 4.0],
    "nearly tied": [1e-3, 1e-3 * (1 + 1e-9), 1.0, 2.0, 2.0 * (1 + 1e-6)],
    "spread": [1e-8, 1e-4, 1.0, 1e2, 1e5],
    "a multiple of the identity": [3.0] * 5,
}
spectra = pytest.mark.parametrize("spectrum", SPECTRA.values(), ids=SPECTRA)


def basis(size, seed=1):
    return torch.linalg.qr(random(size, size, seed=seed))[0]


def matrix(spectrum):
    U = basis(len(spectrum))
    return (U * torch.tensor(spectrum, dtype=torch.float64)) @ U.T


def pooled(*shape, seed=0):
    """Second moments of rectified features ``[..., N, D]``."""
    return bilinear(random(*shape, seed=seed).relu())


class TestValues:
    @pytest.mark.parametrize("exponent", [0.25, 0.5, 1.0, 2.0, 2.5])
    def test_powers(self, exponent):
        for A in pooled(3, 20, 6):
            found = matrix_power(A, exponent)
            assert_close(found.numpy(), slow.power(A.numpy(), exponent), rtol=0, atol=1e-13)

    def test_logarithms(self):
        for A in pooled(3, 20, 6):
            found = log_euclidean(A, eps=EPS)
            assert_close(found.numpy(), slow.logarithm(A.numpy(), EPS), rtol=0, atol=1e-12)

    def test_the_root_of_a_singular_matrix_is_exact_on_its_range(self):
        A = pooled(4, 3, 8)
        assert_close(matrix_power(A) @ matrix_power(A), A, rtol=0, atol=1e-14)
        assert (torch.linalg.matrix_rank(matrix_power(A)) == 3).all()

    def test_without_a_cut_off_the_rank_grows(self):
        """Eigenvalues that should be 0 are some 1e-17, and their roots 1e-9."""
        A = pooled(4, 3, 8)
        assert (torch.linalg.matrix_rank(matrix_power(A, relative_cutoff=0.0)) > 3).any()

    def test_the_symmetric_part_counts(self):
        A, skew = matrix(SPECTRA["distinct"]), random(5, 5)
        assert_close(matrix_power(A + skew - skew.T), matrix_power(A), rtol=0, atol=1e-14)


class TestGradients:
    @every
    @spectra
    def test_divided_differences(self, function, name, spectrum):
        """With 60 digits, for a gradient G that is not symmetric."""
        G, U = random(5, 5, seed=2), basis(5)
        exact = slow.gradient(spectrum, U.numpy(), G.numpy(), *name)
        found = gradient(function, matrix(spectrum), G).numpy()
        # The matrix is rounded relative to its largest eigenvalue, which moves the smallest.
        uncertain = 1e-13 * max(spectrum) / min(spectrum)
        assert np.abs(found - exact).max() < (1e-12 + uncertain) * np.abs(exact).max()

    def test_the_root_solves_sylvesters_equation(self):
        for A, G in zip(pooled(3, 20, 6), random(3, 6, 6), strict=True):
            exact = slow.root_gradient(A.numpy(), G.numpy())
            assert_close(gradient(matrix_power, A, G).numpy(), exact, rtol=1e-11, atol=1e-12)

    @every
    @pytest.mark.parametrize("spectrum", ["distinct", "ties", "nearly tied"])
    def test_first_and_second_agree_with_differences(self, function, name, spectrum):
        A = matrix(SPECTRA[spectrum]).requires_grad_()
        assert gradcheck(function, A)
        assert gradgradcheck(function, A, fast_mode=True)

    def test_through_eigenvectors_ties_are_nan(self):
        tied = torch.eye(3, dtype=torch.float64)
        plain = gradient(lambda A: slow.through_eigenvectors(A, torch.sqrt), tied)
        assert plain.isnan().any()
        assert_close(gradient(matrix_power, tied), torch.full_like(tied, 0.5))

    def test_without_ties_both_agree(self):
        A, G = pooled(2, 20, 5), random(2, 5, 5)
        plain = gradient(lambda A: slow.through_eigenvectors(A, torch.sqrt), A, G)
        symmetric = (plain + plain.mT) / 2
        assert_close(gradient(matrix_power, A, G), symmetric, rtol=1e-10, atol=1e-10)

    def test_third_derivatives_are_refused(self):
        A = matrix(SPECTRA["distinct"]).requires_grad_()
        (first,) = torch.autograd.grad(matrix_power(A).sum(), A, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), A, create_graph=True)
        with pytest.raises(NotImplementedError, match="third derivatives"):
            torch.autograd.grad(second.sum(), A)


@every_concave
class TestRankDeficient:
    """N ≤ D: the matrix is singular, but FᵀF keeps its rank when F changes."""

    @pytest.mark.parametrize("shape", [(3, 6), (1, 4), (5, 5)])
    def test_first_and_second_are_exact_for_the_features(self, function, name, shape):
        F = random(2, *shape).requires_grad_()
        assert gradcheck(lambda F: function(bilinear(F)), F)
        assert gradgradcheck(lambda F: function(bilinear(F)), F, fast_mode=True)

    @each("dtype", [torch.float32, torch.float64])
    def test_gradients_for_the_matrix_are_finite(self, function, name, dtype):
        A = pooled(3, 10, 40).to(dtype)
        found = gradient(function, A)
        largest = torch.linalg.eigvalsh(A).amax()
        assert found.isfinite().all()
        assert found.abs().max() < 1e4 * max(1 / EPS, float(largest))


@pytest.mark.parametrize("exponent", [1, 2, 3])
def test_whole_powers_are_products_at_null_spaces_too(exponent):
    """Value, first and second derivative, for a singular matrix and any direction E."""
    A, E, G = pooled(3, 6), *(M + M.T for M in random(2, 6, 6))

    def all_three(power):
        A.requires_grad_()
        value = power(A)
        (first,) = torch.autograd.grad((value * G).sum(), A, create_graph=True)
        (second,) = torch.autograd.grad((first * E).sum() + 0 * A.sum(), A)
        return value, first, second

    def product(A):
        return torch.linalg.matrix_power((A + A.T) / 2, exponent)

    found = all_three(lambda A: matrix_power(A, float(exponent)))
    assert_close(found, all_three(product), rtol=0, atol=1e-12)


def test_a_cut_off_of_zero_amplifies_rounding():
    A = pooled(3, 10, 40)
    bound = gradient(matrix_power, A).abs().max()
    assert gradient(lambda A: matrix_power(A, relative_cutoff=0.0), A).abs().max() > 1e4 * bound


@every
class TestNeighbours:
    """Samples of a batch do not affect each other, bit for bit."""

    @each("other", [0.0, 1e20, torch.nan, torch.inf])
    def test_other_samples_have_no_effect(self, function, name, other):
        A, G = pooled(3, 12, 5), random(3, 5, 5)
        mixed = A.clone()
        mixed[1] = other
        rest = [0, 2]
        assert_close(function(mixed)[rest], function(A)[rest], rtol=0, atol=0)
        found, alone = gradient(function, mixed, G), gradient(function, A, G)
        assert_close(found[rest], alone[rest], rtol=0, atol=0)

    @each("broken", [torch.nan, torch.inf])
    def test_samples_that_are_not_finite_give_nan(self, function, name, broken):
        A = pooled(2, 12, 5)
        A[1, 0, 0] = broken
        assert function(A)[1].isnan().all()
        assert gradient(function, A)[1].isnan().all()

    def test_zero_samples(self, function, name):
        zero = torch.zeros(2, 4, 4, dtype=torch.float64)
        value, slope = function(zero), gradient(function, zero)
        if name[0] == "power":
            assert not value.any()
            assert not slope.any()
        else:
            assert_close(value[0], torch.eye(4).double() * np.log(EPS))
            assert_close(slope, torch.full_like(zero, 1 / EPS))


@every
class TestTypes:
    @each("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_narrow_types_are_computed_in_float32(self, function, name, dtype):
        A = pooled(2, 30, 6).to(dtype)
        exact, found = function(A.double()), function(A)
        assert found.dtype == gradient(function, A).dtype == dtype
        tolerance = 4 * torch.finfo(dtype).eps if dtype.itemsize == 2 else 2e-5
        assert_close(found.double(), exact, rtol=tolerance, atol=tolerance)

    def test_autocast_changes_nothing(self, function, name):
        A, G = pooled(2, 30, 6).float(), random(2, 6, 6).float()
        expected = function(A), gradient(function, A, G)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = function(A), gradient(function, A, G)
        assert_close(found, expected, rtol=0, atol=0)

    def test_any_leading_dimensions(self, function, name):
        A = pooled(2, 3, 12, 4)
        one_by_one = torch.stack([function(a) for a in A.flatten(0, 1)]).reshape(A.shape)
        assert_close(function(A), one_by_one, rtol=0, atol=1e-14)
        assert function(A[:0]).shape == (0, 3, 4, 4)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_roots_at_any_scale(scale):
    A = pooled(2, 30, 6).float()
    root, slope = matrix_power(A * scale), gradient(matrix_power, A * scale)
    assert_close(root / scale**0.5, matrix_power(A), rtol=1e-5, atol=1e-5)
    assert_close(slope * scale**0.5, gradient(matrix_power, A), rtol=1e-3, atol=1e-3)


class TestTransforms:
    @every
    def test_gradients_per_sample(self, function, name):
        A = pooled(3, 12, 4)
        per_sample = torch.func.vmap(torch.func.grad(lambda a: function(a).sum()))
        assert_close(per_sample(A), gradient(function, A), rtol=1e-13, atol=1e-13)

    def test_export_with_a_dynamic_batch(self):
        class Root(torch.nn.Module):
            def forward(self, A):
                return matrix_power(A)

        batch = {"A": {0: torch.export.Dim("batch")}}
        program = torch.export.export(Root(), (pooled(3, 12, 4),), dynamic_shapes=batch)
        A = pooled(7, 12, 4)
        assert_close(program.module()(A), matrix_power(A), rtol=0, atol=0)

    def test_saved_numbers(self):
        """U and the eigenvalues, besides the matrix itself."""
        A, kept = pooled(2, 12, 4).requires_grad_(), []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            matrix_power(A)
        others = [t for t in kept if t.data_ptr() != A.data_ptr()]
        assert sum(t.numel() for t in others) == 2 * (4 * 4 + 4)


def test_two_threads_at_256_channels():
    """Where PyTorch's batched LU is silently wrong."""
    A, threads = pooled(2, 300, 256).requires_grad_(), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        root = matrix_power(A)
        (found,) = torch.autograd.grad(root.sum(), A)
    finally:
        torch.set_num_threads(threads)
    assert_close(root @ root, A, rtol=0, atol=1e-11)
    # √A X + X √A = 1 1ᵀ, the gradient of the sum.
    assert_close(root @ found + found @ root, torch.ones_like(A), rtol=0, atol=1e-9)


class TestErrors:
    @pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 0, 0)])
    def test_not_square(self, shape):
        for function, _ in FUNCTIONS.values():
            with pytest.raises(ValueError, match=r"need square matrices.*got shape"):
                function(torch.zeros(shape))

    def test_not_floating(self):
        with pytest.raises(TypeError, match=r"got torch.int64. Use .float"):
            matrix_power(torch.eye(3, dtype=torch.int64))

    @pytest.mark.parametrize("exponent", [0.0, -0.5, torch.nan])
    def test_exponents(self, exponent):
        with pytest.raises(ValueError, match=r"exponent must be a number in \(0, inf\]"):
            matrix_power(torch.eye(2), exponent)

    @pytest.mark.parametrize("cutoff", [-0.1, 1.0])
    def test_cut_offs(self, cutoff):
        with pytest.raises(ValueError, match=r"relative_cutoff must be a number in \[0, 1\)"):
            matrix_power(torch.eye(2), relative_cutoff=cutoff)

    @pytest.mark.parametrize("eps", [0.0, -1.0])
    def test_eps(self, eps):
        with pytest.raises(ValueError, match=r"eps must be a number in \(0, inf\]"):
            log_euclidean(torch.eye(2), eps=eps)
