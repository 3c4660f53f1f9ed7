"""Two batches in one network: the reference's two rates, means and biases."""

import numpy as np
import pytest
import torch

from equipoise.theory import cross_batch
from reference.brackets import ACTIVATIONS as REFERENCE
from reference.brackets import spectra


class TestCrossBatch:
    def test_forward_and_backward_coincide(self):
        pair = cross_batch("silu", 8)
        assert pair.forward == pair.backward
        row = spectra(REFERENCE["silu"], 8)
        assert pair.forward.value == pytest.approx(float(row["cross_rate"]), abs=1e-14)
        assert pair.forward.value == pytest.approx(float(row["cross_rate_backward"]), abs=1e-14)

    def test_two_batches_of_relu_correlate(self):
        """c_CB = (E φ)², which is 1/(2π) at a large batch."""
        pair = cross_batch("relu", 10**6)
        assert pair.c.value == pytest.approx(1 / (2 * np.pi), abs=1e-6)
        assert pair.correlation.value == pytest.approx(1 / np.pi, abs=1e-6)

    def test_square_of_a_mean_that_may_be_negative(self):
        """Erratum 11: for φ = -softplus the mean is negative, its square is not."""
        ours = cross_batch(lambda x: -torch.nn.functional.softplus(x), 9).c
        other = cross_batch(torch.nn.functional.softplus, 9).c
        assert ours.value == pytest.approx(other.value, rel=1e-9)
        assert ours.value > 0

    @pytest.mark.parametrize("name", ["relu", "tanh", "gelu", "alpha_relu(2)"])
    def test_what_batches_share_dies_out(self, name):
        for B in (4, 16, 1000):
            assert cross_batch(name, B).backward.value < 1

    def test_bias_variance_is_shared(self):
        plain, biased = cross_batch("tanh", 8), cross_batch("tanh", 8, bias_variance=0.3)
        assert biased.c.value == pytest.approx(plain.c.value + 0.3)
