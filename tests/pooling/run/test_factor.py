"""RUN's own backward pass: exact to every order, little memory, PyTorch's transforms."""

import functools

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from equipoise.pooling.run.factor import pull_back, run_factor
from equipoise.pooling.run.iteration import Settings, iterate, unit
from equipoise.pooling.run.matrix import run_matrix, run_symmetric
from reference import run as reference
from support.tensors import random

EXACT = {"rtol": 1e-12, "atol": 1e-12}
CONSTANT = {"differentiate_direction": False}
ETA = 0.6
MASK = torch.tensor([[True, True, False, True], [True, False, True, True]])
# Start, number of steps: every pair that is allowed.
CASES = {
    f"{start}, K={steps}": (start, steps)
    for start in ("shared", "per sample", "mean", "ones")
    for steps in (0, 1, 2, 3)
    if steps or start == "mean"
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
masked_or_not = pytest.mark.parametrize("mask", [None, MASK], ids=["unmasked", "masked"])


def start_of(case, batch=2, channels=3):
    made = {"shared": random(channels, seed=1), "per sample": random(batch, channels, seed=1)}
    return made.get(case[0], case[0])


def update(F, case, **options):
    options = {"eta": ETA, "num_steps": case[1]} | options
    return run_factor(F, start_of(case, len(F), F.shape[-1]), **options)


def gradient(F, G, case, **options):
    F = F.detach().requires_grad_()
    return torch.autograd.grad(update(F, case, **options), F, G)[0]


def constant_gradient(F, G, case):
    """G (I − ηP) by its definition; P from RUN at η = 1, F being of full column rank."""
    P = torch.linalg.pinv(F) @ (F - update(F, case, eta=1.0))
    return G - ETA * G @ P


@every_case
@masked_or_not
class TestDifferences:
    """Against finite differences of the forward pass, and of the backward pass."""

    def test_first_derivative(self, case, mask):
        F = random(2, 4, 3).requires_grad_()
        function = functools.partial(update, case=case, mask=mask)
        assert torch.autograd.gradcheck(function, F, check_batched_grad=mask is None)

    def test_second_derivative(self, case, mask):
        F, mask = random(1, 4, 3).requires_grad_(), mask if mask is None else mask[:1]
        assert torch.autograd.gradgradcheck(
            lambda F: update(F, case, mask=mask), F, fast_mode=True
        )

    def test_agrees_with_autograd(self, case, mask):
        F, G = random(2, 4, 3), random(2, 4, 3, seed=5)
        plain = gradient(F, G, case, mask=mask, plain=True)
        assert_close(gradient(F, G, case, mask=mask), plain, **EXACT)


@every_case
def test_third_derivative_agrees_with_autograd(case):
    F = random(2, 4, 3).requires_grad_()
    found = []
    for plain in (False, True):
        value = update(F, case, plain=plain).pow(3).sum()
        for _ in range(3):
            (g,) = torch.autograd.grad(value, F, create_graph=True)
            value = (g * random(2, 4, 3, seed=6)).sum()
        found.append(value)
    assert_close(*found, rtol=1e-9, atol=0)


class Frozen(torch.autograd.Function):
    """The same backward pass from intermediates without a graph, as if they had been saved."""

    @staticmethod
    def forward(ctx, F, start):
        ctx.save_for_backward(F, start)
        return run_factor(F, start[:, 0], eta=ETA, num_steps=1)

    @staticmethod
    def backward(ctx, G):
        F, start = ctx.saved_tensors
        trace = iterate(F.detach(), start, Settings(ETA, 1, False, True))
        u = (trace.direction @ F.mT).detach()
        return pull_back(F, G, None, u, trace, ETA, to_start=False)[0], None


def test_with_saved_intermediates_second_derivatives_would_be_wrong():
    F, start = random(2, 4, 3).requires_grad_(), unit(random(2, 1, 3, seed=1))[0]
    assert torch.autograd.gradcheck(Frozen.apply, (F, start))
    assert not torch.autograd.gradgradcheck(Frozen.apply, (F, start), raise_exception=False)


@pytest.mark.parametrize("size", [(9, 5), (4, 7), (1, 5), (6, 1)])
@pytest.mark.parametrize("steps", [1, 2, 3])
class TestTranscriptions:
    """Against the backward recurrences written with M = FᵀF and without rescaling."""

    def test_factor_form(self, size, steps):
        F, G, v = random(*size), random(*size, seed=5), random(size[1], seed=1)
        v.requires_grad_()
        F.requires_grad_()
        found = torch.autograd.grad(run_factor(F, v, eta=ETA, num_steps=steps), (F, v), G)
        arrays = F.detach().numpy(), v.detach().numpy()[:, None], ETA, steps, G.numpy()
        of_start = torch.from_numpy(reference.start_gradient(*arrays)[:, 0])
        assert_close(found[0], torch.from_numpy(reference.factor_gradient(*arrays)), **EXACT)
        assert_close(found[1], of_start, **EXACT)

    def test_mean_start(self, size, steps):
        F, G = random(*size), random(*size, seed=5)
        v0 = reference.mean(F.numpy())
        for K in (0, steps):
            expected = reference.factor_gradient(F.numpy(), v0, ETA, K, G.numpy(), of_mean=True)
            F.requires_grad_()
            (found,) = torch.autograd.grad(run_factor(F, "mean", eta=ETA, num_steps=K), F, G)
            F.requires_grad_(False)
            assert_close(found, torch.from_numpy(expected), **EXACT)

    def test_matrix_form(self, size, steps):
        B = random(*size).mT @ random(*size)
        G, v = random(*B.shape, seed=5), random(size[1], seed=1)
        B.requires_grad_()
        (found,) = torch.autograd.grad(run_matrix(B, v, epsilon=0.7, num_steps=steps), B, G)
        arrays = B.detach().numpy(), v.numpy()[:, None], 0.7, steps, G.numpy()
        assert_close(found, torch.from_numpy(reference.matrix_gradient(*arrays)), **EXACT)

    def test_symmetric_form(self, size, steps):
        """Through B = FᵀF it is the factor form's."""
        F, v = random(*size).requires_grad_(), random(size[1], seed=1)
        G = random(size[1], size[1], seed=5)
        factor = run_factor(F, v, eta=ETA, num_steps=steps)
        (expected,) = torch.autograd.grad(factor.mT @ factor, F, G)
        matrix = run_symmetric(F.mT @ F, v, eta=ETA, num_steps=steps)
        assert_close(torch.autograd.grad(matrix, F, G)[0], expected, **EXACT)


class TestExactProperties:
    @every_case
    def test_euler(self, case):
        """⟨F̄, F⟩ = ⟨G, F_K⟩, because F_K is homogeneous of degree one."""
        F, G = random(2, 9, 5), random(2, 9, 5, seed=5)
        inner = (gradient(F, G, case) * F).sum()
        assert_close(inner, (G * update(F, case)).sum(), **EXACT)

    @pytest.mark.parametrize("steps", [1, 2, 3])
    def test_the_correction_has_rank_2k_plus_1(self, steps):
        F, G = random(1, 12, 10), random(1, 12, 10, seed=5)
        correction = (gradient(F, G, ("shared", steps)) - G)[0]
        assert torch.linalg.matrix_rank(correction, rtol=1e-13) == 2 * steps + 1

    @pytest.mark.parametrize("steps", [0, 1, 2])
    def test_the_mean_start_adds_one(self, steps):
        F, G = random(1, 12, 10), random(1, 12, 10, seed=5)
        correction = (gradient(F, G, ("mean", steps)) - G)[0]
        assert torch.linalg.matrix_rank(correction, rtol=1e-13) == 2 * steps + 2

    def test_the_start_is_scale_free(self):
        """v_0ᵀ ∂L/∂v_0 = 0."""
        F, v = random(9, 5), random(5)
        updated = run_factor(F, v.requires_grad_(), num_steps=1)
        (found,) = torch.autograd.grad(updated, v, random(9, 5, seed=5))
        assert abs(float(found @ v.detach())) < 1e-14 < float(found.norm())


class TestConstantDirection:
    """With v̂ constant the gradient is G (I − ηP), and wrong."""

    @every_case
    def test_is_what_autograd_gives_with_a_detached_direction(self, case):
        F, G = random(2, 9, 5), random(2, 9, 5, seed=5)
        plain = gradient(F, G, case, plain=True, **CONSTANT)
        assert_close(gradient(F, G, case, **CONSTANT), plain, **EXACT)
        assert_close(plain, constant_gradient(F, G, case), **EXACT)

    @pytest.mark.parametrize("steps", [1, 2, 16])
    def test_the_error_survives_convergence(self, steps):
        """Random G, eigenvalue ratio 16, η = ½: about 24, 8 and 8 %."""
        errors = []
        for seed in range(20):
            Q, values = torch.linalg.qr(random(9, 5, seed=seed)).Q, torch.tensor([4.0, 1, 1, 1, 1])
            F = Q * values @ torch.linalg.qr(random(5, 5, seed=seed + 50)).Q
            G, case = random(9, 5, seed=seed + 99), ("shared", steps)
            right = gradient(F[None], G[None], case, eta=0.5)
            found = gradient(F[None], G[None], case, eta=0.5, **CONSTANT)
            errors.append(float((found - right).norm() / right.norm()))
        assert 0.05 < np.median(errors) < 0.4

    def test_except_for_the_squared_norm(self):
        """L = ‖F‖² − ερ at convergence, where ρ is stationary."""
        F, case = random(1, 9, 5), ("shared", 200)
        G = 2 * update(F, case)
        assert_close(gradient(F, G, case, **CONSTANT), gradient(F, G, case), **EXACT)

    def test_second_derivative_is_that_of_the_constant(self):
        F, G = random(2, 4, 3).requires_grad_(), random(2, 4, 3, seed=5).requires_grad_()
        updated = update(F, ("shared", 2), **CONSTANT)
        (first,) = torch.autograd.grad(updated, F, G, create_graph=True)
        of_features, of_gradient = torch.autograd.grad(first.sum(), (F, G), allow_unused=True)
        assert of_features is None
        assert_close(of_gradient, constant_gradient(F, torch.ones_like(F), ("shared", 2)), **EXACT)


class Watched(TorchDispatchMode):
    """Records the size of the largest result of an operation."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        results = [out] if isinstance(out, torch.Tensor) else []
        self.largest = max([self.largest, *(x.numel() for x in results if not func.is_view)])
        return out


def saved_numbers(F, call):
    """Numbers that autograd keeps beside the features, storages counted once."""
    storages = {}

    def pack(x):
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        kept = call(F)  # noqa: F841, freed storages would be reused and counted once
    storages.pop(F.untyped_storage().data_ptr(), None)
    return sum(storages.values()) / F.element_size()


class TestLeanness:
    @every_case
    def test_saved_numbers(self, case):
        """At most (K + 1)(N + D) + 2K a sample; autograd saves more."""
        B, N, D = 4, 30, 20
        F, K = random(B, N, D).requires_grad_(), case[1]
        budget = B * ((K + 1) * (N + D) + 2 * K)
        assert saved_numbers(F, lambda F: update(F, case)) <= budget
        assert saved_numbers(F, lambda F: update(F, case, plain=True)) > budget

    @every_case
    def test_a_constant_direction_saves_itself_alone(self, case):
        F = random(4, 30, 20).requires_grad_()
        call = functools.partial(update, case=case, **CONSTANT)
        assert saved_numbers(F, call) == 4 * 20

    def test_saved_numbers_in_half_precision(self):
        """The widened features are not kept: float32 numbers, counted as two."""
        F = random(4, 30, 20).half().requires_grad_()
        assert saved_numbers(F, lambda F: update(F, ("shared", 1))) <= 2 * 4 * (2 * 50 + 2)

    @pytest.mark.parametrize(("N", "D"), [(6, 40), (40, 6)])
    @every_case
    def test_nothing_larger_than_the_features(self, case, N, D):
        with Watched() as seen:
            gradient(random(2, N, D), random(2, N, D), case)
        assert seen.largest == 2 * N * D
        with Watched() as naive:
            random(2, N, D).mT @ random(2, N, D)
            random(2, N, D) @ random(2, N, D).mT
        assert naive.largest == 2 * max(N, D) ** 2


class TestThreads:
    @pytest.fixture(params=[1, 2])
    def _threads(self, request):
        before = torch.get_num_threads()
        torch.set_num_threads(request.param)
        yield
        torch.set_num_threads(before)

    @pytest.mark.usefixtures("_threads")
    @pytest.mark.parametrize("D", [256, 384])
    def test_large_widths_are_right(self, D):
        """With two threads batched LU of PyTorch 2.13 is wrong, so nothing here may use it."""
        F, G, v = random(3, 300, D).relu(), random(3, 300, D, seed=5), random(D, seed=1)
        single = F.float().requires_grad_()
        updated = run_factor(single, v.float(), num_steps=2)
        updated.backward(G.float())
        for n in range(3):
            arrays = F[n].numpy(), v.numpy()[:, None], 0.5, 2
            exact = torch.from_numpy(reference.factor(*arrays)).float()
            slope = torch.from_numpy(reference.factor_gradient(*arrays, G[n].numpy())).float()
            assert_close(updated[n], exact)
            assert_close(single.grad[n], slope, rtol=0, atol=1e-5)


class TestTransforms:
    """torch.func, compile, export and autocast."""

    F, G, v = random(2, 4, 3), random(2, 4, 3, seed=5), random(3, seed=1)

    @pytest.mark.parametrize("plain", [False, True])
    @pytest.mark.parametrize("start", [v, "mean"], ids=["shared", "mean"])
    def test_vmap_of_grad(self, plain, start):
        def loss(F, mask):
            return (run_factor(F, start, mask=mask, plain=plain) * self.G[0]).sum()

        found = torch.func.vmap(torch.func.grad(loss))(self.F, MASK)
        F = self.F.clone().requires_grad_()
        (run_factor(F, start, mask=MASK) * self.G[0]).sum().backward()
        assert_close(found, F.grad, **EXACT)

    def test_vmap_over_starts(self):
        starts = random(5, 3, seed=8)
        found = torch.func.vmap(run_factor, in_dims=(None, 0))(self.F, starts)
        expected = torch.stack([run_factor(self.F, v) for v in starts])
        assert_close(found, expected, **EXACT)

    # PyTorch's decompositions for forward mode call what PyTorch itself deprecates.
    @pytest.mark.filterwarnings("ignore:.*torch.jit.script")
    def test_forward_mode_is_for_the_plain_path(self):
        """The own backward pass has none, and refuses."""

        def call(F, *, plain):
            return run_factor(F, self.v, plain=plain)

        (_, slope) = torch.func.jvp(lambda F: call(F, plain=True), (self.F,), (self.G,))
        step = 1e-6 * self.G
        difference = (call(self.F + step, plain=True) - call(self.F - step, plain=True)) / 2e-6
        assert_close(slope, difference, rtol=1e-7, atol=1e-7)
        with pytest.raises(NotImplementedError, match="jvp"):
            torch.func.jvp(lambda F: call(F, plain=False), (self.F,), (self.G,))

    # The compiler instantiates every Function that it traces.
    @pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
    @pytest.mark.parametrize(
        ("start", "options"),
        [("mean", {"mask": MASK}), (v, CONSTANT), (v, {"plain": True})],
        ids=["mean and mask", "constant direction", "plain"],
    )
    def test_compiles_in_one_graph(self, start, options):
        def call(F):
            return run_factor(F, start, num_steps=1, **options)

        torch.compiler.reset()
        compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
        F = self.F.clone().requires_grad_()
        updated, expected = compiled(F), call(F)
        assert_close(updated, expected, **EXACT)
        slopes = [torch.autograd.grad(out, F, self.G)[0] for out in (updated, expected)]
        assert_close(*slopes, **EXACT)
        torch.compiler.reset()

    # PyTorch's exporter calls what PyTorch itself deprecates.
    @pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
    @pytest.mark.parametrize("start", [v, "mean"], ids=["shared", "mean"])
    def test_exports_with_dynamic_sizes(self, start):
        class Head(torch.nn.Module):
            def forward(self, images):
                return run_factor(images.flatten(2).mT, start)

        sizes = {d: torch.export.Dim(f"size_{d}", min=1) for d in (0, 2, 3)}
        example = (random(2, 3, 4, 5),)
        exported = torch.export.export(Head(), example, dynamic_shapes=(sizes,))
        images = random(7, 3, 6, 2)
        assert_close(exported.module()(images), Head()(images), **EXACT)

    def test_autocast_changes_nothing(self):
        """Neither forward nor backward, where products would be in bfloat16."""
        F, G, case = self.F.float(), self.G.float(), ("mean", 2)
        with torch.autocast("cpu", torch.bfloat16):
            updated, found = update(F, case), gradient(F, G, case)
            assert (F.mT @ F).dtype == torch.bfloat16
        assert updated.dtype == torch.float32
        assert torch.equal(updated, update(F, case))
        assert torch.equal(found, gradient(F, G, case))
