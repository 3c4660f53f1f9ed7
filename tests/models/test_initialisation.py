import math

import pytest
import torch
from torch import nn

from equipoise.models.initialisation import glorot_uniform_, he_normal_


def layers():
    return nn.Sequential(nn.Conv2d(8, 24, 3), nn.Linear(60, 40), nn.BatchNorm1d(4))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


class TestGlorot:
    @pytest.mark.parametrize(("index", "fans"), [(0, 9 * 8 + 9 * 24), (1, 60 + 40)])
    def test_uniform_within_its_bound(self, index, fans):
        weight = glorot_uniform_(layers(), generator=seeded())[index].weight.detach().double()
        bound, count = math.sqrt(6 / fans), weight.numel()
        assert weight.abs().max() <= bound
        # E[w²] = a²/3 with standard deviation a²·√(4/45) for one sample.
        error = bound**2 * math.sqrt(4 / 45 / count)
        assert abs(weight.square().mean() - bound**2 / 3) < 4 * error

    def test_no_bias(self):
        model = glorot_uniform_(layers())
        assert not model[0].bias.any()
        assert not model[1].bias.any()

    def test_normalisers_are_left_alone(self):
        model = layers()
        nn.init.constant_(model[2].weight, 3.0)
        nn.init.constant_(model[2].bias, 2.0)
        glorot_uniform_(model)
        assert model[2].weight.eq(3).all()
        assert model[2].bias.eq(2).all()


class TestHe:
    @pytest.mark.parametrize("scale", [1.0, 0.1])
    def test_variance_by_fan_out(self, scale):
        weight = he_normal_(layers(), scale=scale, generator=seeded())[0].weight.detach().double()
        expected = scale**2 * 2 / (9 * 24)
        assert abs(weight.var() / expected - 1) < 4 * math.sqrt(2 / weight.numel())

    def test_linear_layers_are_left_alone(self):
        model = layers()
        before = model[1].weight.clone()
        assert torch.equal(he_normal_(model)[1].weight, before)

    @pytest.mark.parametrize("scale", [0, -1.0, math.inf, math.nan, "1"])
    def test_scale_must_be_positive(self, scale):
        with pytest.raises(ValueError, match="scale must be a finite number above 0"):
            he_normal_(layers(), scale=scale)


@pytest.mark.parametrize("initialise", [glorot_uniform_, he_normal_])
class TestGenerator:
    def test_same_seed_same_weights(self, initialise):
        one, two = (initialise(layers(), generator=seeded(3))[0].weight for _ in range(2))
        assert torch.equal(one, two)

    def test_another_seed_other_weights(self, initialise):
        one, two = (initialise(layers(), generator=seeded(s))[0].weight for s in (3, 4))
        assert not torch.equal(one, two)
