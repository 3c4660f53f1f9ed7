"""Lengths and angles, exact to rounding wherever the entries are."""

import math

import numpy as np
import pytest
import torch

from equipoise.numerics.vectors import Reference, length

UNIT = torch.finfo(torch.float32).eps


def drawn(*shapes, dtype=torch.float32, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(s, generator=generator) * scale).to(dtype) for s in shapes]


def flat(vector):
    return torch.cat([part.double().reshape(-1) for part in vector])


SHAPES = [(3,), (70_000,), (40, 50), (5, 0), ()]


class TestNorm:
    def test_of_a_million_numbers(self):
        (entries,) = drawn((1_000_000,))
        assert length([entries]) == pytest.approx(float(entries.double().norm()), rel=UNIT)

    def test_of_a_million_equal_numbers(self):
        entries = torch.full((1_000_000,), 0.1)
        assert length([entries]) == pytest.approx(1000 * float(entries[0]), rel=UNIT)

    def test_in_a_running_sum_rounding_adds_up(self):
        """The twin: what is small beside the sum so far is rounded the same way every time."""
        squares = np.full(1_000_000, 0.1, dtype=np.float32) ** 2
        assert math.sqrt(np.cumsum(squares)[-1]) != pytest.approx(100, rel=1e-4)

    @pytest.mark.parametrize("scale", [1e-37, 1e-25, 1.0, 1e25, 1e37])
    def test_where_squares_leave_the_range_of_float32(self, scale):
        vector = drawn(*SHAPES, scale=scale)
        assert length(vector) == pytest.approx(float(flat(vector).norm()), rel=1e-6)

    def test_of_nothing(self):
        assert length([torch.zeros(0)]) == length([torch.zeros(3)]) == 0.0

    @pytest.mark.parametrize("bad", [math.inf, math.nan])
    def test_what_is_not_finite_stays(self, bad):
        found = length([torch.ones(3), torch.tensor([bad])])
        assert repr(found) == repr(bad)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
class TestReference:
    def test_against_one_long_vector(self, dtype):
        a, b = drawn(*SHAPES, dtype=dtype), drawn(*SHAPES, dtype=dtype, seed=1)
        found = Reference(b).compare(a)
        x, y = flat(a), flat(b)
        assert found.distance == pytest.approx(float((x - y).norm()), rel=1e-6)
        assert found.length == pytest.approx(float(x.norm()), rel=1e-6)
        assert found.cosine == pytest.approx(float(x @ y / x.norm() / y.norm()), abs=1e-6)

    def test_with_itself(self, dtype):
        vector = drawn(*SHAPES, dtype=dtype)
        found = Reference(vector).compare(vector)
        assert (found.distance, found.cosine) == (0.0, pytest.approx(1.0, abs=1e-6))

    def test_close_vectors_keep_the_digits_of_their_difference(self, dtype):
        """‖a‖² + ‖b‖² − 2⟨a, b⟩ would have none left."""
        a = [torch.ones(1000, dtype=dtype)]
        b = [torch.ones(1000, dtype=dtype) * (1 + torch.finfo(dtype).eps)]
        assert Reference(b).compare(a).distance == pytest.approx(
            torch.finfo(dtype).eps * math.sqrt(1000), rel=1e-6
        )


class TestMixtures:
    def test_of_types(self):
        a = [torch.ones(2), torch.ones(2).double(), torch.ones(2).half()]
        assert length(a) == pytest.approx(math.sqrt(6))
        assert Reference(a).compare([2 * part for part in a]).distance == pytest.approx(6**0.5)

    def test_of_memory_formats(self):
        (image,) = drawn((2, 3, 100, 200))
        other = image.to(memory_format=torch.channels_last)
        assert Reference([image]).compare([other]).distance == 0.0

    def test_complex_numbers_are_pairs(self):
        a, b = [torch.tensor([3 + 4j])], [torch.tensor([-4 + 3j])]
        found = Reference(b).compare(a)
        assert (found.length, found.distance) == pytest.approx((5.0, math.sqrt(50)))
        assert found.cosine == pytest.approx(0.0, abs=1e-7)

    def test_zero_has_no_angle(self):
        zero, one = [torch.zeros(3)], [torch.ones(3)]
        assert math.isnan(Reference(zero).compare(one).cosine)
        assert math.isnan(Reference(one).compare(zero).cosine)

    def test_vanished_and_exploded_vectors_have_an_angle(self):
        tiny, huge = [torch.tensor([3e-30, 4e-30])], [torch.tensor([4e30, 3e30])]
        assert Reference(tiny).compare(huge).cosine == pytest.approx(0.96)
