"""Signed root and unit norm: values, exact gradients, and zero."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F
from torch.testing import assert_close

from equipoise.pooling.vectors import signed_sqrt, unit_norm
from support.tensors import gradient, random

HALVES = (torch.float16, torch.bfloat16)


class TestSignedSqrt:
    def test_values(self):
        x = random(50)
        assert_close(signed_sqrt(x), x.sign() * x.abs().sqrt(), rtol=0, atol=0)

    def test_gradients_agree_with_differences(self):
        x = random(10).requires_grad_()
        assert gradcheck(signed_sqrt, x)
        assert gradgradcheck(signed_sqrt, x)

    @pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64])
    def test_zero_has_slope_zero_and_its_smallest_neighbour_the_true_one(self, dtype):
        tiny = torch.finfo(dtype).smallest_normal
        x = torch.tensor([0.0, -0.0, tiny, -tiny], dtype=dtype)
        slopes = gradient(signed_sqrt, x)
        assert signed_sqrt(x)[:2].tolist() == slopes[:2].tolist() == [0.0, 0.0]
        expected = torch.full((2,), 0.5 / math.sqrt(tiny), dtype=torch.float64)
        assert_close(slopes[2:].double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=0)

    def test_second_derivatives_at_zero_are_zero(self):
        x = torch.zeros(3, requires_grad=True)
        (first,) = torch.autograd.grad(signed_sqrt(x).sum(), x, create_graph=True)
        assert torch.autograd.grad(first.sum(), x)[0].tolist() == [0, 0, 0]

    def test_autograd_gives_nan_at_zero(self):
        assert gradient(lambda x: x.sign() * x.abs().sqrt(), torch.zeros(1)).isnan().all()

    def test_entries_that_are_not_finite_have_no_effect_on_others(self):
        x = torch.tensor([4.0, torch.nan, -torch.inf])
        assert signed_sqrt(x)[0] == 2
        assert gradient(signed_sqrt, x)[0] == 0.25
        assert signed_sqrt(x)[2] == -torch.inf


class TestUnitNorm:
    def test_values(self):
        x = random(4, 9)
        assert_close(unit_norm(x), F.normalize(x, dim=-1), rtol=0, atol=1e-15)

    def test_gradients_agree_with_differences(self):
        x = random(3, 4).requires_grad_()
        assert gradcheck(unit_norm, x)
        assert gradgradcheck(unit_norm, x)

    @pytest.mark.parametrize("scale", [1e-37, 1e-30, 1e30, 1e38])
    def test_any_scale_of_float32(self, scale):
        x, G = random(2, 5).clamp(-3, 3).float(), random(2, 5).float()
        assert_close(unit_norm(x * scale), unit_norm(x), rtol=1e-6, atol=1e-6)
        slope = gradient(unit_norm, x * scale, G) * scale
        assert_close(slope, gradient(unit_norm, x, G), rtol=1e-5, atol=1e-5)

    def test_pytorchs_normalize_fails_at_small_scales(self):
        x = torch.tensor([3e-30, 4e-30])
        assert F.normalize(x, dim=0).norm() < 1e-10
        assert_close(unit_norm(x).norm(), torch.tensor(1.0))

    def test_zero_stays_zero_with_gradient_zero(self):
        x, G = torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.ones(2, 2)
        assert unit_norm(x).tolist()[0] == gradient(unit_norm, x, G).tolist()[0] == [0.0, 0.0]
        x = torch.zeros(2, requires_grad=True)
        (first,) = torch.autograd.grad(unit_norm(x).sum(), x, create_graph=True)
        assert torch.autograd.grad(first.sum(), x, allow_unused=True)[0].tolist() == [0.0, 0.0]

    @pytest.mark.parametrize("value", [0.0, torch.nan, torch.inf])
    def test_other_samples_have_no_effect(self, value):
        x, G = random(3, 4), random(3, 4, seed=1)
        mixed = x.clone()
        mixed[1, 2] = value
        rest = [0, 2]
        assert torch.equal(unit_norm(mixed)[rest], unit_norm(x)[rest])
        assert torch.equal(gradient(unit_norm, mixed, G)[rest], gradient(unit_norm, x, G)[rest])

    @pytest.mark.parametrize("dtype", HALVES)
    def test_squares_of_many_halves_do_not_overflow(self, dtype):
        x = torch.ones(131072, dtype=dtype)
        assert unit_norm(x).dtype == dtype
        assert_close(unit_norm(x)[0].item(), 131072**-0.5, rtol=4e-3, atol=0)
