"""Moments of layer inputs, against NumPy."""

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.probes.activations import activations
from support.probe_models import batch, build


def literal(rows):
    """The formulas of the docstring, in float64."""
    rows = rows.double().numpy()
    return rows.mean(), rows.var(), (np.ptp(rows, axis=0) == 0).mean()


@pytest.mark.parametrize(
    ("layer", "shape", "rows"),
    [
        (nn.Linear(5, 2), (7, 5), lambda h: h),
        (nn.Linear(5, 2), (7, 3, 5), lambda h: h.reshape(21, 5)),
        (nn.Conv1d(5, 2, 2), (7, 5, 4), lambda h: h.movedim(1, -1).reshape(28, 5)),
        (nn.Conv2d(5, 2, 2), (7, 5, 4, 3), lambda h: h.movedim(1, -1).reshape(84, 5)),
        (nn.Conv2d(5, 2, 2), (5, 4, 3), lambda h: h.movedim(0, -1).reshape(12, 5)),
        (nn.ConvTranspose2d(5, 2, 2), (7, 5, 4, 3), lambda h: h.movedim(1, -1).reshape(84, 5)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_agrees_with_numpy(layer, shape, rows, dtype):
    h = (torch.randn(shape) * 2 + 3).to(dtype)
    h.select(shape.index(5), 2).fill_(0.1)
    (found,) = activations(layer.to(dtype), h)
    expected = literal(rows(h))
    assert (found.rows, found.features) == tuple(rows(h).shape)
    assert (found.mean, found.variance, found.dead) == pytest.approx(expected, rel=1e-6)


def test_the_variance_stays_exact_at_a_large_mean():
    """E[h²] − E[h]² in float32 would be off by more than the variance itself."""
    h = torch.randn(256, 4) + 1e4
    (found,) = activations(nn.Linear(4, 1), h)
    assert found.variance == pytest.approx(literal(h)[1], rel=1e-5)
    assert float(h.square().mean() - h.mean() ** 2) != pytest.approx(literal(h)[1], rel=0.5)


def test_the_dead_share_of_a_single_row_is_unknown():
    h = torch.tensor([1.0, 2.0, 6.0])
    (found,) = activations(nn.Linear(3, 1), h)
    assert (found.rows, found.features) == (1, 3)
    assert (found.mean, found.variance) == pytest.approx((3, 14 / 3))
    assert np.isnan(found.dead)


def test_units_that_a_function_made_dead():
    """ReLU is no module here; the next layer's input shows what it did."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 1)
            nn.init.constant_(self.first.bias, -100.0)
            self.first.bias.data[0] = 100.0

        def forward(self, x):
            return self.second(torch.relu(self.first(x)))

    first, second = activations(Model(), torch.randn(16, 3))
    assert (first.layer, first.dead, second.layer, second.dead) == ("first", 0.0, "second", 0.75)


def test_batches_of_several_kinds():
    class Model(nn.Linear):
        def forward(self, x, scale=1.0):
            return super().forward(x) * scale

    model, x = Model(3, 1), torch.randn(4, 3)
    expected = activations(model, x)
    assert activations(model, (x, None)) == activations(model, [x]) == expected
    assert activations(model, {"scale": 2.0, "x": x}) == expected


def test_a_layer_used_twice_is_measured_at_its_first_call():
    model = build("shared module")
    found = activations(model, batch())
    assert [layer.layer for layer in found] == ["layer", "head"]
    assert found[0].mean == pytest.approx(float(batch()[0].mean()))


def test_a_model_without_layers():
    assert activations(nn.ReLU(), torch.ones(2, 2)) == ()


def test_numbers_that_overflow_are_kept():
    (found,) = activations(nn.Linear(2, 1), torch.tensor([[1.0, torch.inf], [2.0, 3.0]]))
    assert found.mean == torch.inf
    assert np.isnan(found.variance)
