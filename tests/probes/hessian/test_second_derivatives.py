"""What has no second derivative is refused by name, also where autograd would be silent."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from equipoise.probes.hessian.second_derivatives import (
    refuse_once_differentiable,
    twice_differentiable,
)


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


class Twice(Once):
    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


def attention(x):
    return F.scaled_dot_product_attention(x, x, x).square().sum()


def fused_attention(x):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return attention(x)


def second_derivative(loss):
    x = torch.rand(1, 1, 3, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(x), x, create_graph=True)
    return torch.autograd.grad(gradient.sum(), x)[0]


class TestAttention:
    def test_of_the_user_s_model_is_differentiated_by_its_formula(self):
        with twice_differentiable():
            assert second_derivative(attention).norm() > 0

    def test_outside_it_is_not(self):
        with pytest.raises(RuntimeError, match="is not implemented"):
            second_derivative(attention)

    def test_where_the_user_insists_on_a_kernel_the_remedy_is_named(self):
        message = "for_cpu_backward has none: run it in loss_fn under .*MATH"
        with pytest.raises(ValueError, match=message), twice_differentiable():
            second_derivative(fused_attention)


class TestOnceDifferentiable:
    def test_autograd_takes_it_for_a_constant_without_a_word(self):
        """The second derivative of w⁴ at 3 is 108; backward() does object."""
        w = torch.tensor([3.0], requires_grad=True)
        for function, expected in ((Twice, 108.0), (Once, 0.0)):
            (gradient,) = torch.autograd.grad(function.apply(w).square(), w, create_graph=True)
            (second,) = torch.autograd.grad(gradient, w, materialize_grads=True, retain_graph=True)
            assert second.item() == expected
        with pytest.raises(RuntimeError, match="differentiate twice"):
            gradient.backward()

    @pytest.mark.parametrize("around", [lambda x: x, torch.sin], ids=["alone", "deep inside"])
    def test_so_it_is_refused(self, around):
        w = torch.tensor([3.0], requires_grad=True)
        message = r"and Once \(once_differentiable\) has none: write its backward with"
        with pytest.raises(ValueError, match=message):
            refuse_once_differentiable(around(Once.apply(around(w))).sum())

    def test_other_functions_are_not(self):
        w = torch.tensor([3.0], requires_grad=True)
        refuse_once_differentiable(Twice.apply(nn.Linear(1, 1)(w)).sum())
        refuse_once_differentiable(Once.apply(w).sum().detach())


@pytest.mark.parametrize("error", [RuntimeError("shapes do not match"), KeyError("x")])
def test_other_errors_pass(error):
    with pytest.raises(type(error), match=str(error).strip("'")), twice_differentiable():
        raise error


def test_other_operations_get_general_advice():
    message = "and cudnn_rnn_backward has none: run loss_fn under .*cudnn.flags"
    with pytest.raises(ValueError, match=message), twice_differentiable():
        raise NotImplementedError("the derivative for '_cudnn_rnn_backward' is not implemented.")
    message = "and ctc_loss_backward has none: replace it, or measure only blocks"
    with pytest.raises(ValueError, match=message), twice_differentiable():
        raise RuntimeError("derivative for aten::_ctc_loss_backward is not implemented")
