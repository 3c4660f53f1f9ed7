"""One door for predictions: a setting of the theory, or the normalisers of a model."""

import numpy as np
import pytest
from torch import nn

import equipoise as eq
from equipoise import models, theory


def build():
    return models.mlp(64, 10, depth=3, width=32)


class TestASetting:
    @pytest.mark.parametrize("size", [16, np.int64(16), 16.0])
    def test_name_and_batch_size(self, size):
        found = eq.predict("gelu", size, gamma=0.5)
        assert found.rate == theory.explosion_rate("gelu", 16, gamma=0.5)
        assert found.depth_scale == theory.depth_scale(found.rate)

    @pytest.mark.parametrize("activation", [nn.ReLU(), lambda x: x.relu()])
    def test_activations_of_the_users(self, activation):
        expected = theory.explosion_rate("relu", 8).value
        assert eq.predict(activation, 8).rate.value == pytest.approx(expected, rel=1e-10)

    def test_a_setting_itself(self):
        setting = theory.Setting("tanh", 8, eps=0.1)
        assert eq.predict(setting).rate == theory.explosion_rate(setting)

    def test_without_a_batch_size(self):
        with pytest.raises(TypeError, match="batch_size is missing: give an activation and"):
            eq.predict("relu")

    def test_half_a_sample(self):
        with pytest.raises(ValueError, match=r"batch_size must be .*16\.5"):
            eq.predict("relu", 16.5)


class TestAModel:
    def test_every_normaliser_has_a_block(self):
        blocks = eq.predict(build, "digits", batch_size=32)
        assert [block.layer for block in blocks] == ["norm1", "norm2", "norm3"]
        expected = theory.explosion_rate("relu", 32).value
        assert all(block.rate.value == pytest.approx(expected, rel=1e-4) for block in blocks)

    def test_what_theory_does_not_cover_has_a_reason(self):
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Softmax(1), nn.Linear(32, 10)
        )
        (block,) = eq.predict(model, "digits")
        assert block.rate is None
        assert "activation" in block.reason

    def test_unknown_data(self):
        with pytest.raises(ValueError, match="no data named 'digitz'"):
            eq.predict(build, "digitz")
