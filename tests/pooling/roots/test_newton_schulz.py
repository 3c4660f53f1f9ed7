"""iSQRT: a few coupled Newton-Schulz steps, and the exact gradient of what they compute."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from equipoise.pooling.matrices import bilinear
from equipoise.pooling.roots.newton_schulz import sqrt_newton_schulz
from equipoise.pooling.roots.powers import matrix_power
from reference import matrix_roots as slow
from support.cases import each
from support.tensors import gradient, random

NORMS = ("trace", "frobenius")
every = pytest.mark.parametrize("norm", NORMS)
steps = pytest.mark.parametrize("iterations", [1, 2, 3, 5])
paths = pytest.mark.parametrize("plain", [False, True], ids=["own backward", "plain"])


def pooled(*shape, seed=0):
    """Second moments of rectified features ``[..., N, D]``."""
    return bilinear(random(*shape, seed=seed).relu())


def root(iterations=5, norm="trace", plain=False):
    return lambda A: sqrt_newton_schulz(A, iterations=iterations, prenormalise=norm, plain=plain)


def symmetric(matrix):
    return (matrix + matrix.mT) / 2


def saved_numbers(function, A):
    """Numbers that autograd keeps beside the input, each storage once."""
    A, kept = A.detach().requires_grad_(), [A]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        value = function(A)
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}
    del storages[A.untyped_storage().data_ptr()]
    return sum(storages.values()) // value.itemsize


class TestValues:
    @every
    @steps
    @paths
    def test_the_coupled_recurrence(self, norm, iterations, plain):
        """M = ZY replaces Z, because polynomials of one matrix commute."""
        for A in pooled(3, 20, 6):
            exact = slow.newton_schulz(A.numpy(), iterations, norm)
            found = root(iterations, norm, plain)(A)
            assert_close(found.numpy(), exact, rtol=0, atol=1e-14)

    @every
    def test_many_steps_converge_to_the_root(self, norm):
        A = pooled(3, 40, 5)
        assert_close(root(25, norm)(A), matrix_power(A), rtol=0, atol=1e-12)

    def test_five_steps_do_not_and_the_trace_needs_more(self):
        A = pooled(3, 196, 64)
        exact = matrix_power(A)
        trace, frobenius = (float((root(5, n)(A) - exact).norm() / exact.norm()) for n in NORMS)
        assert 0.05 < frobenius < trace / 1.5 < 0.3

    def test_small_eigenvalues_grow_by_three_halves_a_step(self):
        small = 1e-9
        A = torch.diag(torch.tensor([1.0, small], dtype=torch.float64))
        assert_close(root(5)(A)[1, 1].item(), 1.5**5 * small, rtol=1e-6, atol=0)

    def test_the_symmetric_part_counts(self):
        A, skew = pooled(20, 5), random(5, 5)
        assert_close(root()(A + skew - skew.T), root()(A), rtol=0, atol=1e-15)


class TestGradients:
    @every
    @steps
    @paths
    def test_first_and_second_agree_with_differences(self, norm, iterations, plain):
        """At matrices that are not symmetric, so in every direction."""
        A = (pooled(2, 20, 4) + 0.01 * random(2, 4, 4)).requires_grad_()
        assert gradcheck(root(iterations, norm, plain), A)
        assert gradgradcheck(root(iterations, norm, plain), A, fast_mode=True)

    @every
    @steps
    def test_backward_through_every_step(self, norm, iterations):
        """The recurrence on autograd's tape, for a gradient G that is not symmetric."""
        A, G = pooled(3, 20, 6), random(3, 6, 6)
        tape = gradient(lambda A: slow.newton_schulz_by_autograd(A, iterations, norm), A, G)
        assert_close(gradient(root(iterations, norm), A, G), symmetric(tape), rtol=0, atol=1e-13)

    def test_the_norm_is_differentiated(self):
        """With c as a constant a part of the gradient is missing, less near convergence."""
        A = pooled(20, 6)
        c = A.diagonal().sum().detach()
        missing = []
        for iterations in (1, 2, 5, 20):
            constant = gradient(lambda A, K=iterations: c.sqrt() * unit_steps(A / c, K), A)
            found = gradient(root(iterations), A)
            missing.append(float((found - constant).norm() / found.norm()))
        assert missing[0] > 0.1
        assert missing == sorted(missing, reverse=True)
        assert missing[-1] < 1e-8

    @every
    def test_third_derivatives_agree_with_differences(self, norm):
        def slope(A):
            return torch.autograd.grad(root(3, norm)(A).square().sum(), A, create_graph=True)[0]

        assert gradgradcheck(slope, pooled(20, 3).requires_grad_())

    def test_saved_intermediates_would_give_wrong_second_derivatives(self):
        """They carry no graph, which is why the own backward pass recomputes them."""

        def second(function, through):
            A = pooled(20, 4).requires_grad_()
            value = function(A)
            (first,) = torch.autograd.grad(value.sum(), A, create_graph=True)
            first = first if through else first.detach() + 0 * A
            return torch.autograd.grad((first * random(4, 4)).sum(), A)[0]

        exact = second(root(plain=True), through=True)
        assert_close(second(root(), through=True), exact, rtol=0, atol=1e-12)
        assert (second(root(), through=False) - exact).norm() > 0.1 * exact.norm()

    @every
    def test_singular_matrices_have_a_gradient(self, norm):
        F = random(2, 3, 6).requires_grad_()
        assert gradcheck(lambda F: root(5, norm)(bilinear(F)), F)
        assert gradient(root(5, norm), bilinear(F)).isfinite().all()


def unit_steps(Y, iterations):
    """The recurrence from a matrix that is already normalised."""
    identity = torch.eye(len(Y), dtype=Y.dtype)
    Z = identity
    for _ in range(iterations):
        T = 0.5 * (3 * identity - Z @ Y)
        Y, Z = Y @ T, T @ Z
    return Y


@every
@paths
class TestNeighbours:
    """Samples of a batch do not affect each other, bit for bit."""

    @each("value", [0.0, 1e20, torch.nan, torch.inf])
    def test_other_samples_have_no_effect(self, norm, plain, value):
        A, G, function = pooled(3, 12, 5), random(3, 5, 5), root(5, norm, plain)
        mixed = A.clone()
        mixed[1] = value
        rest = [0, 2]
        assert_close(function(mixed)[rest], function(A)[rest], rtol=0, atol=0)
        found, alone = gradient(function, mixed, G), gradient(function, A, G)
        assert_close(found[rest], alone[rest], rtol=0, atol=0)

    @each("broken", [torch.nan, torch.inf])
    def test_samples_that_are_not_finite_give_nan(self, norm, plain, broken):
        A = pooled(2, 12, 5)
        A[1, 0, 0] = broken
        assert root(5, norm, plain)(A)[1].isnan().all()
        assert gradient(root(5, norm, plain), A)[1].isnan().all()

    def test_zero_samples_are_zero_with_gradient_zero(self, norm, plain):
        zero = torch.zeros(2, 4, 4)
        assert not root(5, norm, plain)(zero).any()
        assert not gradient(root(5, norm, plain), zero).any()

    @each("scale", [1e-30, 1e30])
    def test_any_scale_of_float32(self, norm, plain, scale):
        A, function = pooled(2, 30, 6).float(), root(5, norm, plain)
        assert_close(function(A * scale) / scale**0.5, function(A), rtol=1e-5, atol=1e-6)
        found = gradient(function, A * scale) * scale**0.5
        assert_close(found, gradient(function, A), rtol=1e-4, atol=1e-5)


def test_a_zero_matrix_on_the_tape_is_nan():
    zero = torch.zeros(1, 3, 3, dtype=torch.float64)
    assert slow.newton_schulz_by_autograd(zero, 5, "trace").isnan().all()


@paths
class TestTypes:
    @each("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_narrow_types_are_computed_in_float32(self, plain, dtype):
        A = pooled(2, 30, 6).to(dtype)
        found = root(plain=plain)(A)
        assert found.dtype == gradient(root(plain=plain), A).dtype == dtype
        tolerance = 4 * torch.finfo(dtype).eps
        assert_close(found.double(), root()(A.double()), rtol=tolerance, atol=tolerance)

    def test_autocast_changes_nothing(self, plain):
        A, G = pooled(2, 30, 6).float(), random(2, 6, 6).float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value, inside = root(plain=plain)(A), gradient(root(), A, G)
        assert_close(value, root(plain=plain)(A), rtol=0, atol=0)
        assert_close(inside, gradient(root(), A, G), rtol=0, atol=0)

    def test_any_leading_dimensions(self, plain):
        A, function = pooled(2, 3, 12, 4), root(plain=plain)
        one_by_one = torch.stack([function(a) for a in A.flatten(0, 1)]).reshape(A.shape)
        assert_close(function(A), one_by_one, rtol=0, atol=1e-15)
        assert function(A[:0]).shape == (0, 3, 4, 4)


class TestTransforms:
    # PyTorch's compiler warns about what it does itself.
    @pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
    def test_compile_whole_on_the_plain_path(self):
        torch.compiler.reset()
        function = root(plain=True)
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        A, G = pooled(2, 12, 4), random(2, 4, 4)
        assert_close(compiled(A), function(A), rtol=0, atol=1e-14)
        assert_close(gradient(compiled, A, G), gradient(function, A, G), rtol=0, atol=1e-14)
        torch.compiler.reset()

    @paths
    def test_gradients_per_sample(self, plain):
        A = pooled(3, 12, 4)
        per_sample = torch.func.vmap(torch.func.grad(lambda a: root(plain=plain)(a).sum()))
        assert_close(per_sample(A), gradient(root(), A), rtol=0, atol=1e-14)

    # torch.func loads scripts of PyTorch's own when it first needs them.
    @pytest.mark.filterwarnings("ignore:.*torch.jit.script")
    def test_forward_mode_on_the_plain_path(self):
        """Euler: the root is homogeneous of degree ½."""
        A = pooled(2, 12, 4)
        value, slope = torch.func.jvp(root(plain=True), (A,), (A,))
        assert_close(slope, value / 2, rtol=0, atol=1e-14)

    def test_saved_numbers(self):
        """The K - 1 squares and the root; autograd keeps 3K - 1 matrices."""
        A, size = pooled(2, 12, 8), 2 * 8 * 8
        assert saved_numbers(root(5), A) == 5 * size
        tape = saved_numbers(lambda A: slow.newton_schulz_by_autograd(A, 5, "trace"), A)
        assert 14 * size <= tape < 15 * size


def test_two_threads_at_256_channels():
    """Where PyTorch's batched LU is silently wrong."""
    A, threads = pooled(2, 300, 256), torch.get_num_threads()
    tape = gradient(lambda A: slow.newton_schulz_by_autograd(A, 5, "trace"), A)
    try:
        torch.set_num_threads(2)
        found = gradient(root(), A)
    finally:
        torch.set_num_threads(threads)
    assert_close(found, symmetric(tape), rtol=0, atol=1e-11 * float(tape.abs().max()))


class TestErrors:
    @pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 0, 0)])
    def test_not_square(self, shape):
        with pytest.raises(ValueError, match=r"need square matrices.*got shape"):
            sqrt_newton_schulz(torch.zeros(shape))

    def test_no_step(self):
        with pytest.raises(
            ValueError, match="iterations must be a whole number of at least 1; got 0"
        ):
            sqrt_newton_schulz(torch.eye(2), iterations=0)

    def test_other_norms(self):
        with pytest.raises(ValueError, match="one of trace, frobenius; got 'spectral'"):
            sqrt_newton_schulz(torch.eye(2), prenormalise="spectral")
