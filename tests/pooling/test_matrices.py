"""Features to matrix, matrix to vector: values, exact gradients, masks."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from equipoise.pooling.matrices import bilinear, triangle_indices, upper_triangle
from equipoise.pooling.vectors import signed_sqrt, unit_norm
from support.tensors import gradient, random

OPTIONS = {
    "plain": {},
    "centred": {"centred": True},
    "sum": {"scale": "none"},
    "centred sum": {"centred": True, "scale": "none"},
}
options = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
HALVES = (torch.float16, torch.bfloat16)


MASK = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)


class TestBilinear:
    def test_sums_of_outer_products(self):
        x = random(3, 7, 4)
        for sample, pooled in zip(x, bilinear(x), strict=True):
            expected = sum(torch.outer(row, row) for row in sample) / 7
            assert_close(pooled, expected, rtol=0, atol=1e-15)

    def test_centred_is_the_biased_covariance(self):
        for sample, pooled in zip(
            x := 5 + random(3, 7, 4), bilinear(x, centred=True), strict=True
        ):
            assert_close(pooled, torch.cov(sample.T, correction=0), rtol=0, atol=1e-14)

    @options
    def test_a_mask_is_as_if_the_positions_were_absent(self, options):
        x = random(3, 4, 5)
        pooled = bilinear(x.masked_fill(~MASK[..., None], torch.nan), mask=MASK, **options)
        for sample, mask, found in zip(x, MASK, pooled, strict=True):
            assert_close(found, bilinear(sample[mask], **options), rtol=0, atol=1e-15)
        assert not pooled[1].any()

    @options
    @pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
    def test_gradients_agree_with_differences(self, options, mask):
        x = random(3, 4, 5).requires_grad_()
        assert gradcheck(lambda x: bilinear(x, mask=mask, **options), x)
        assert gradgradcheck(lambda x: bilinear(x, mask=mask, **options), x, fast_mode=True)

    def test_masked_positions_get_no_gradient(self):
        x = random(3, 4, 5).masked_fill(~MASK[..., None], torch.nan)
        found = gradient(lambda x: bilinear(x, mask=MASK, centred=True), x)
        assert not found[~MASK].any()
        assert found.isfinite().all()

    def test_no_positions(self):
        assert not bilinear(torch.zeros(2, 0, 3)).any()
        assert bilinear(torch.zeros(2, 0, 3), centred=True).shape == (2, 3, 3)

    def test_channel_first_maps_keep_their_layout(self):
        maps = random(2, 5, 7).requires_grad_()  # [batch, channels, positions]
        value = bilinear(maps.mT)
        assert_close(value, bilinear(maps.mT.contiguous()))
        (found,) = torch.autograd.grad(value.square().sum(), maps)
        expected = gradient(lambda x: bilinear(x).square(), maps.mT.contiguous()).mT
        assert found.is_contiguous()
        assert_close(found, expected)

    @pytest.mark.parametrize("dtype", HALVES)
    def test_halves_are_summed_in_float32(self, dtype):
        x = (30 * random(2, 100, 4)).to(dtype)
        pooled = bilinear(x)
        assert pooled.dtype == dtype
        exact = bilinear(x.double())
        assert_close(pooled.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-3)

    def test_autocast_changes_nothing(self):
        x = random(2, 9, 4).float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert_close(bilinear(x), bilinear(x.double()).float(), rtol=1e-6, atol=1e-6)

    def test_errors(self):
        x = torch.zeros(2, 3, 4)
        with pytest.raises(ValueError, match=r"need features \[..., N, D\]"):
            bilinear(torch.zeros(4))
        with pytest.raises(ValueError, match="scale must be one of positions, none; got 'sum'"):
            bilinear(x, scale="sum")
        with pytest.raises(TypeError, match="mask must be boolean"):
            bilinear(x, mask=torch.ones(2, 3))
        with pytest.raises(ValueError, match=r"\(2, 3, 4\) without the channels, got \(3,\)"):
            bilinear(x, mask=torch.ones(3, dtype=torch.bool))


class TestUpperTriangle:
    def test_row_by_row(self):
        A = torch.arange(9.0).reshape(3, 3)
        assert upper_triangle(A).tolist() == [0, 1, 2, 4, 5, 8]
        assert upper_triangle(A.expand(2, 5, 3, 3)).shape == (2, 5, 6)

    def test_inner_products_on_request(self):
        A, B = bilinear(random(2, 6, 5).abs())
        exact = (A * B).sum()
        kept = (upper_triangle(M, preserve_inner_products=True) for M in (A, B))
        assert_close(math.prod(kept).sum(), exact)
        assert abs(upper_triangle(A) @ upper_triangle(B) - exact) > 0.1 * abs(exact)

    @pytest.mark.parametrize("preserve", [False, True])
    def test_gradients_agree_with_differences(self, preserve):
        A = random(2, 4, 4).requires_grad_()
        assert gradcheck(lambda A: upper_triangle(A, preserve_inner_products=preserve), A)

    def test_indices_can_be_given(self):
        A = random(2, 4, 4)
        assert torch.equal(upper_triangle(A, indices=triangle_indices(4)), upper_triangle(A))

    def test_not_square(self):
        with pytest.raises(ValueError, match="need square matrices"):
            upper_triangle(torch.zeros(3, 4))


def head(x):
    return unit_norm(signed_sqrt(upper_triangle(bilinear(x, centred=True))))


class TestTransforms:
    def test_gradients_per_sample(self):
        x = random(3, 7, 4)
        per_sample = torch.func.vmap(torch.func.grad(lambda x: head(x).sum()))
        assert_close(per_sample(x), gradient(head, x), rtol=0, atol=1e-14)

    def test_export_with_a_dynamic_batch_and_positions(self):
        class Head(torch.nn.Module):
            def forward(self, x):
                return head(x)

        dynamic = {"x": {0: torch.export.Dim("batch"), 1: torch.export.Dim("positions")}}
        program = torch.export.export(Head(), (random(3, 7, 4),), dynamic_shapes=dynamic)
        x = random(5, 11, 4)
        assert_close(program.module()(x), head(x), rtol=0, atol=1e-15)
