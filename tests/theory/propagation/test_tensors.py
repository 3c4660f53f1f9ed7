"""What is read off tensors, and that views of the same memory are read once."""

import math

import pytest
import torch

from equipoise.theory.propagation import tensors
from equipoise.theory.propagation.layout import Layout
from equipoise.theory.propagation.tensors import Readings, mean_square


def test_mean_squares_are_those_of_every_tensor(monkeypatch):
    x = torch.randn(6, 4, 5)
    views = [x, x.view(24, 5), x.transpose(0, 2), x.permute(1, 2, 0)]
    others = [x[:3], x[:, 1:], x[..., ::2], x.expand(2, 6, 4, 5), x.double(), x.clone() * 2]
    readings, reads = Readings(), []
    monkeypatch.setattr(tensors, "mean_square", lambda v: reads.append(v) or mean_square(v))
    for tensor in views + others:
        assert readings.mean_square(tensor) == mean_square(tensor)
    assert len(reads) == 1 + len(others)


def test_correlations_of_views_depend_on_their_axis_of_samples():
    x = torch.randn(4, 4, 3) + 1
    square = x[:, :, 0].contiguous()
    readings = Readings()
    layout = Layout.of_batch((4, 4))
    there, back = (readings.sample_correlation(t, layout) for t in (square, square.T))

    def expected(t):
        return float((t.sum(0) ** 2).sum() - (t**2).sum()) / float(3 * (t**2).sum())

    assert there == pytest.approx(expected(square), rel=1e-5)
    assert back == pytest.approx(expected(square.T), rel=1e-5)
    assert there != back


def test_zeros_are_not_summed_again(monkeypatch):
    """As all gradients are behind a layer that starts at zero; tiny numbers are summed again."""
    monkeypatch.setattr(tensors, "_squares", lambda flat: math.nan)
    assert mean_square(torch.zeros(4096)) == 0
    assert math.isnan(mean_square(torch.full((4096,), 1e-30)))


def test_what_sparse_tensors_do_not_hold_counts_as_zeros():
    dense = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, -3.0]])
    assert mean_square(dense.to_sparse()) == pytest.approx(13 / 6, rel=1e-7)
    assert mean_square(torch.zeros(2, 3).to_sparse()) == 0
    halves = torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 1.0], (2, 3), check_invariants=True)
    assert mean_square(halves) == pytest.approx(4 / 6, rel=1e-7)
