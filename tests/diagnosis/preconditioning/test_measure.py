"""What the check-up says that preconditioning would do is what the theory's functions say."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from equipoise import preconditioners
from equipoise.diagnosis.preconditioning.measure import preconditioning
from equipoise.preconditioners.bnp.settings import Settings
from equipoise.training import cross_entropy

ROWS = 200


def batch(features: int = 6, scale: bool = True):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, features, generator=generator, dtype=torch.float64)
    if scale:
        x = x * torch.logspace(-1, 1, features, dtype=torch.float64) + 3
    return x, torch.randint(3, (ROWS,), generator=generator)


def network(*, norm: nn.Module | None = None, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(1)
    middle = [norm] if norm is not None else []
    layers = [nn.Linear(6, 5, bias=bias), *middle, nn.Tanh(), nn.Linear(5, 3)]
    return nn.Sequential(*layers).double()


def measure(model, data):
    return {layer.layer: layer for layer in preconditioning(model, data, cross_entropy)}


class TestANetworkWithoutSharedStatistics:
    def test_the_hessian_is_that_of_the_first_unit_before_and_after(self):
        model, data = network(), batch()
        found = measure(model, data)["0"]
        block = preconditioners.hessian_block(model[0], lambda: cross_entropy(model, data))
        transform = preconditioners.preconditioner(block.statistics(), eps=Settings().eps)
        expected = preconditioners.block_conditions(block, transform)
        assert found.hessian == pytest.approx(expected.raw.value)
        assert found.hessian_after == pytest.approx(expected.preconditioned.value)
        assert found.curvature == pytest.approx(expected.curvature.value)
        assert found.gain == pytest.approx(expected.gain)
        assert found.reason is None

    def test_ill_scaled_inputs_gain_and_standardised_ones_do_not(self):
        scaled, plain = (measure(network(), batch(scale=scale))["0"] for scale in (True, False))
        assert scaled.gain > 10
        assert plain.gain == pytest.approx(1, abs=0.3)

    def test_the_promise_is_the_squared_ratio_of_scales(self):
        x, _ = data = batch()
        scales = torch.cat([torch.ones(1), 1 / x.std(0, correction=0)])
        found = measure(network(), data)["0"]
        assert found.promised == pytest.approx(float(scales.max() / scales.min()) ** 2)

    def test_rank_is_counted_in_columns_with_the_bias(self):
        x, y = batch()
        x[:, 3] = x[:, 2]
        found = measure(network(), (x, y))["0"]
        assert (found.rank, found.columns, found.rows) == (6, 7, ROWS)

    def test_without_a_bias_nothing_is_centred(self):
        found = measure(network(bias=False), batch())["0"]
        assert found.columns == 6
        x, _ = batch()
        raw = torch.linalg.cond(x)
        assert found.inputs == pytest.approx(float(raw))


class TestWhatCannotBeMeasured:
    def test_batch_norm_couples_samples_before_it_only(self):
        found = measure(network(norm=nn.BatchNorm1d(5)), batch())
        assert math.isnan(found["0"].hessian)
        assert "samples share batch statistics" in found["0"].reason
        assert found["0"].gain == (found["0"].inputs / found["0"].inputs_after) ** 2
        assert math.isfinite(found["3"].hessian)

    def test_in_evaluation_mode_it_does_not(self):
        model = network(norm=nn.BatchNorm1d(5)).eval()
        assert math.isfinite(measure(model, batch())["0"].hessian)

    def test_a_layer_that_runs_twice(self):
        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer, self.head = nn.Linear(6, 6).double(), nn.Linear(6, 3).double()

            def forward(self, x):
                return self.head(self.layer(self.layer(x)))

        assert "ran 2 times" in measure(Twice(), batch())["layer"].reason

    def test_a_large_map(self):
        model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(2 * 144, 3))
        data = torch.randn(2, 1, 12, 12), torch.tensor([0, 1])
        assert "144 output positions" in measure(model, data)["0"].reason

    def test_inputs_that_are_not_finite(self):
        x, y = batch()
        x[0, 0] = math.inf
        assert measure(network(), (x, y))["0"].reason == "its inputs are not finite"


def test_a_convolution_has_its_channel_statistics():
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(2, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)).double()
    data = torch.randn(30, 2, 4, 4).double() * 5 + 1, torch.randint(3, (30,))
    found = measure(model, data)["0"]
    assert (found.rows, found.columns) == (120, 19)
    assert math.isfinite(found.hessian)
    assert found.inputs_after < found.inputs


def test_dropout_repeats_its_noise_and_the_model_is_untouched():
    model = nn.Sequential(nn.Dropout(0.5), network(norm=nn.BatchNorm1d(5)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    first, second = (measure(model, batch())["1.3"] for _ in range(2))
    assert first == second
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
