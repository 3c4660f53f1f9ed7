"""RUN's symmetric form in one function: same numbers as the factor form, less memory."""

import pytest
import torch
from torch.testing import assert_close

from equipoise.pooling.heads.bilinear import BilinearPool
from equipoise.pooling.heads.run import RUNPool
from equipoise.pooling.matrices import bilinear
from equipoise.pooling.run.bilinear import run_bilinear
from equipoise.pooling.run.factor import run_factor
from equipoise.pooling.run.matrix import run_symmetric
from reference import run as reference
from support.cases import each
from support.tensors import random

EXACT = {"rtol": 1e-12, "atol": 1e-12}
N, D, ETA = 7, 4, 0.6


MASK = torch.tensor([[1, 1, 0, 1, 1, 0, 1], [1] * 7, [0, 0, 0, 1, 1, 1, 1]]).bool()
STARTS = {"given": random(D, seed=1), "per sample": random(3, D, seed=2), "ones": "ones"}
CASES = [(name, K) for name in STARTS for K in (1, 2, 3)] + [("mean", K) for K in (0, 1, 2)]
every_case = pytest.mark.parametrize(("name", "steps"), CASES)
masked_or_not = pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])


def start_of(name):
    return STARTS.get(name, name)


def by_factor(F, start, *, mask=None, **options):
    return bilinear(run_factor(F, start, mask=mask, **options), mask=mask)


def gradients(function, F, start, G):
    """Of F, and of the start if it is a tensor."""
    inputs = [
        x.detach().clone().requires_grad_() for x in (F, start) if isinstance(x, torch.Tensor)
    ]
    value = function(*inputs) if len(inputs) == 2 else function(inputs[0], start)
    return [value.detach(), *torch.autograd.grad(value, inputs, G)]


@every_case
@masked_or_not
class TestAgainstTheFactorForm:
    @each("eta", [0.0, ETA, 1.0])
    def test_values_and_gradients(self, name, steps, mask, eta):
        F, start, G = random(3, N, D), start_of(name), random(3, D, D, seed=5)
        options = {"eta": eta, "num_steps": steps, "mask": mask}
        found = gradients(lambda F, v: run_bilinear(F, v, **options), F, start, G)
        expected = gradients(lambda F, v: by_factor(F, v, **options), F, start, G)
        assert_close(found, expected, **EXACT)

    def test_second_derivatives(self, name, steps, mask):
        F, start = random(3, N, D).requires_grad_(), start_of(name)
        options = {"eta": ETA, "num_steps": steps, "mask": mask}

        def twice(function):
            value = function(F, start, **options).pow(3).sum()
            (first,) = torch.autograd.grad(value, F, create_graph=True)
            return torch.autograd.grad(first.pow(2).sum(), F)[0]

        assert_close(twice(run_bilinear), twice(by_factor), rtol=1e-9, atol=1e-9)

    def test_a_constant_direction(self, name, steps, mask):
        F, G = random(3, N, D).requires_grad_(), random(3, D, D, seed=5)
        options = {"eta": ETA, "num_steps": steps, "mask": mask, "differentiate_direction": False}

        def gradient(function):
            return torch.autograd.grad(function(F, start_of(name), **options), F, G)[0]

        assert_close(gradient(run_bilinear), gradient(by_factor), **EXACT)


@pytest.mark.parametrize("steps", [1, 2])
def test_the_unscaled_recurrence_of_the_paper(steps):
    """C̄ = G gives F̄_K = F_K (G + Gᵀ)/N, which goes back through the transcription."""
    F, v, G = random(N, D), random(D, seed=1), random(D, D, seed=5)
    updated = reference.factor(F.numpy(), v.numpy()[:, None], ETA, steps)
    outer = updated @ (G + G.mT).numpy() / N
    expected = reference.factor_gradient(F.numpy(), v.numpy()[:, None], ETA, steps, outer)
    found = gradients(
        lambda F, v: run_bilinear(F, v, eta=ETA, num_steps=steps), F[None], v, G[None]
    )
    assert_close(found[0][0], torch.from_numpy(updated.T @ updated) / N, **EXACT)
    assert_close(found[1][0], torch.from_numpy(expected), rtol=1e-9, atol=1e-9)


def test_agrees_with_the_symmetric_form():
    F, v = random(3, N, D), STARTS["given"]
    assert_close(
        run_bilinear(F, v, eta=ETA, num_steps=2), run_symmetric(bilinear(F), v, eta=ETA), **EXACT
    )


@pytest.mark.parametrize("name", ["given", "mean"])
def test_batches_of_batches(name):
    """torch.func, where nothing may be changed in place."""
    F, G, start = random(2, 3, N, D), random(D, D, seed=5), start_of(name)

    def loss(F):
        return (run_bilinear(F, start, eta=ETA, num_steps=2) * G).sum()

    found = torch.func.vmap(torch.func.grad(loss))(F)
    expected = torch.stack([torch.func.grad(loss)(one) for one in F])
    assert_close(found, expected, **EXACT)
    values = torch.func.vmap(lambda F: run_bilinear(F, start, eta=ETA, num_steps=2))(F)
    assert_close(values[1], run_bilinear(F[1], start, eta=ETA, num_steps=2), **EXACT)


@pytest.mark.parametrize("name", ["given", "mean"])
def test_the_gradient_lies_in_memory_as_the_maps(name):
    maps, start = random(3, D, N).requires_grad_(), start_of(name)
    run_bilinear(maps.mT, start, eta=ETA, num_steps=2).pow(2).sum().backward()
    rows = maps.detach().mT.contiguous().requires_grad_()
    run_bilinear(rows, start, eta=ETA, num_steps=2).pow(2).sum().backward()
    assert maps.grad.is_contiguous()
    assert rows.grad.is_contiguous()
    assert_close(maps.grad.mT, rows.grad, **EXACT)


def saved_numbers(function, *own):
    """Float64 numbers that autograd saves besides the given tensors, each storage once."""
    storages = {}

    def pack(x):
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        kept = function()
    for tensor in own:
        storages.pop(tensor.untyped_storage().data_ptr(), None)
    del kept
    return sum(storages.values()) // 8


class TestMemory:
    """Budgets of the module's docstring, for a batch of B."""

    B, N, D = 3, 40, 16

    @pytest.mark.parametrize("steps", [1, 2, 3])
    def test_of_the_function(self, steps):
        F, v = random(self.B, self.N, self.D).requires_grad_(), random(self.D, seed=1)
        found = saved_numbers(lambda: run_bilinear(F, v, eta=ETA, num_steps=steps), F)
        vectors = (steps + 2) * self.D + steps + 1
        # The start is one vector for the whole batch.
        assert found <= self.B * (self.D**2 + vectors) + self.D

    def test_less_than_the_factor_form(self):
        F, v = random(self.B, self.N, self.D).requires_grad_(), random(self.D, seed=1)
        options = {"eta": ETA, "num_steps": 2}
        by_rows = saved_numbers(lambda: by_factor(F, v, **options), F)
        assert saved_numbers(lambda: run_bilinear(F, v, **options), F) < by_rows / 2

    @pytest.mark.parametrize("steps", [1, 2])
    def test_of_the_head(self, steps):
        """Plain pooling saves the matrix too; RUN adds only vectors."""
        x = random(self.B, self.D, 5, 8).requires_grad_()
        plain, head = BilinearPool(self.D).double(), RUNPool(self.D, num_steps=steps).double()
        base = saved_numbers(lambda: plain(x), x, *plain.buffers())
        found = saved_numbers(lambda: head(x), x, *head.buffers())
        assert found - base <= self.B * ((steps + 2) * self.D + steps + 1) + self.D
        assert found - base <= self.B * ((steps + 1) * (self.N + self.D) + 2 * steps)
