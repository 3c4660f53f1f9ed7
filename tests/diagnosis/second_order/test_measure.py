"""Second-order pooling in a model: spectra before and after, direction, cost."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from equipoise.diagnosis.second_order.measure import second_order
from equipoise.diagnosis.second_order.record import SecondOrderPooling
from equipoise.pooling.heads.bilinear import BilinearPool
from equipoise.pooling.heads.compact import CompactBilinearPool
from equipoise.pooling.heads.isqrt import ISQRTPool
from equipoise.pooling.heads.log_euclidean import LogEuclideanPool
from equipoise.pooling.heads.matrix_power import MatrixPowerPool
from equipoise.pooling.heads.run import RUNPool
from equipoise.pooling.run.layer import RUN
from equipoise.records import from_plain, to_plain
from equipoise.training import cross_entropy

HEADS = {
    "bilinear": lambda: BilinearPool(8),
    "reduced": lambda: BilinearPool(8, reduction=4, centred=True),
    "run": lambda: RUNPool(8, eta=1.0, start="mean"),
    "gaussian": lambda: RUNPool(8),
    "ones": lambda: RUNPool(8, start="ones"),
    "isqrt": lambda: ISQRTPool(8),
    "power": lambda: MatrixPowerPool(8),
    "log": lambda: LogEuclideanPool(8),
    "compact": lambda: CompactBilinearPool(8, size=32),
    "sketch": lambda: CompactBilinearPool(8, size=32, run=False),
}
BATCH = torch.rand(6, 3, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 4


def model_with(head):
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), head, nn.Linear(head.output_dim, 4))


def measured(head):
    return second_order(model_with(head), BATCH, cross_entropy)[0]


@pytest.mark.parametrize("name", HEADS)
class TestEveryHead:
    def test_it_is_found_and_measured(self, name):
        found = measured(HEADS[name]())
        assert (found.layer, found.samples, found.positions) == ("2", 6, 16)
        assert found.channels == (4 if name == "reduced" else 8)
        assert found.before.top[0] >= found.before.top[-1] >= 0
        assert 0 < found.direction_share <= 1
        assert 0 < found.cost.value < 1.5
        assert found.shrinks is (name in ("run", "gaussian", "ones", "compact"))
        assert from_plain(SecondOrderPooling, to_plain(found)) == found

    def test_the_model_and_the_random_state_stay_as_they_are(self, name):
        model = model_with(HEADS[name]())
        before = {key: value.clone() for key, value in model.state_dict().items()}
        state, attributes = torch.get_rng_state(), set(vars(model[2]))
        second_order(model, BATCH, cross_entropy)
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
        assert torch.equal(torch.get_rng_state(), state)
        assert set(vars(model[2])) == attributes
        assert all(p.grad is None for p in model.parameters())
        assert not model[2]._forward_hooks


class TestSpectra:
    """Rows (2, 0) and (0, 1): second moments diag(2, ½)."""

    maps = torch.tensor([[[[2.0, 0.0]], [[0.0, 1.0]]]])

    def spectra(self, head):
        model = nn.Sequential(head, nn.Linear(3, 1))
        (found,) = second_order(model, self.maps, lambda model, x: model(x).sum())
        return found

    def test_of_the_square_root(self):
        found = self.spectra(MatrixPowerPool(2))
        assert found.before.top == pytest.approx((0.8, 0.2))
        assert found.before.condition == pytest.approx(4)
        assert found.after.top == pytest.approx((2 / 3, 1 / 3))
        assert found.after.condition == pytest.approx(2)

    def test_of_a_removed_direction(self):
        start = torch.tensor([1.0, 0.0])
        found = self.spectra(RUNPool(2, eta=1.0, start=start))
        assert found.direction_share == pytest.approx(0.8)
        assert found.eigen_residual == 0
        assert found.after.top == pytest.approx((1.0, 0.0))
        assert found.after.rank == 1

    def test_without_a_gradient_there_is_no_cost(self):
        found = self.spectra(RUNPool(2))
        assert found.cost is None
        assert "no gradient" in found.reason


def test_a_model_without_such_a_layer_has_no_records():
    model = nn.Sequential(nn.Flatten(), nn.Linear(108, 4))
    assert second_order(model, BATCH, cross_entropy) == ()


def test_a_run_layer_of_its_own_is_found_but_not_one_inside_a_head():
    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.run, self.head = nn.Linear(3, 5), RUN(5), nn.Linear(5, 4)

        def forward(self, x):
            return self.head(self.run(self.linear(x.flatten(2).mT).relu()).mean(1))

    (found,) = second_order(Rows(), BATCH, cross_entropy)
    assert (found.layer, found.kind, found.positions) == ("run", "RUN", 36)
    assert len(second_order(model_with(RUNPool(8)), BATCH, cross_entropy)) == 1


def test_a_layer_that_runs_twice_is_named():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = BilinearPool(3)
            self.linear = nn.Linear(6, 4)

        def forward(self, x):
            return self.linear(self.head(x) + self.head(x))

    (found,) = second_order(Twice(), BATCH, cross_entropy)
    assert found.before is None
    assert "ran 2 times" in found.reason


def test_features_that_are_not_finite_are_named():
    x = BATCH[0].clone()
    x[0] = math.nan
    (found,) = second_order(model_with(BilinearPool(8)), (x, BATCH[1]), cross_entropy)
    assert "not finite" in found.reason


def test_a_coarse_clock_is_waited_for(monkeypatch):
    """As of Windows: where ticks are longer than a pass, its time was 0."""
    tick = 1 / 256
    exact = time.process_time

    def info(name):
        return SimpleNamespace(resolution=tick)

    monkeypatch.setattr(time, "process_time", lambda: exact() // tick * tick)
    monkeypatch.setattr(time, "get_clock_info", info)
    (found,) = second_order(model_with(HEADS["run"]()), BATCH, cross_entropy)
    assert 0 <= found.cost.value < 1.5
