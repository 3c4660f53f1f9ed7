"""Predictions take the model's own numbers, and say where theory ends."""

import pytest
import torch
from torch import nn

from equipoise import theory
from equipoise.diagnosis.prediction.predict import predict
from support.diagnosis_examples import block_of, images, layers, only, vectors


class TestNumbers:
    def test_come_from_the_model(self):
        model = layers(nn.Tanh())
        nn.init.constant_(model[0].weight, 0.5)
        nn.init.constant_(model[0].bias, 0.25)
        nn.init.constant_(model[1].weight, 0.7)
        nn.init.constant_(model[1].bias, -0.2)
        model[1].eps = 0.3
        block, network = predict(only(model, vectors()))
        numbers = (block.eps, block.gamma, block.beta, block.weight_variance, block.batch_size)
        assert numbers == pytest.approx((0.3, 0.7, -0.2, 6 * 0.5**2, 16))
        assert network.setting.bias_variance == pytest.approx(0.25**2)
        expected = theory.explosion_rate(
            "tanh", 16, eps=0.3, gamma=0.7, beta=-0.2, weight_variance=1.5
        )
        assert block.rate.value == pytest.approx(expected.value, rel=1e-6)
        assert block.max_depth == pytest.approx(theory.max_trainable_depth(block.rate))

    def test_fan_in_of_convolutions_counts_taps_and_groups(self):
        model = nn.Sequential(
            nn.Conv2d(4, 6, (3, 2), groups=2, bias=False), nn.BatchNorm2d(6), nn.ReLU(),
            nn.Conv2d(6, 2, 1),
        )  # fmt: skip
        nn.init.constant_(model[0].weight, 0.5)
        block, _ = predict(only(model, images(channels=4)))
        assert block.weight_variance == pytest.approx(2 * 3 * 2 * 0.5**2)

    @pytest.mark.parametrize(
        ("conv", "norm", "shape", "rows"),
        [
            (nn.Conv1d(2, 4, 2), nn.BatchNorm1d(4), (3, 2, 9), 3 * 8),
            (nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), (3, 2, 7, 5), 3 * 5 * 3),
            (nn.Conv3d(2, 4, 2), nn.BatchNorm3d(4), (3, 2, 3, 4, 5), 3 * 2 * 3 * 4),
        ],
    )
    def test_batch_size_is_samples_times_positions(self, conv, norm, shape, rows):
        model = nn.Sequential(conv, norm, nn.ReLU(), type(conv)(4, 2, 1))
        found = only(model, torch.randn(shape))
        normalisation = found.normalisation
        assert (normalisation.rows, normalisation.features) == (rows, 4)
        assert normalisation.is_convolution
        block, _ = predict(found)
        assert block.batch_size == rows
        assert any("positions count as samples" in c for c in block.caveats)

    def test_uneven_scales_are_a_caveat(self):
        model = layers(nn.ReLU())
        with torch.no_grad():
            model[1].weight.copy_(torch.linspace(0.5, 1.5, 6))
        block = block_of(model, vectors())
        assert any("differ between channels" in caveat for caveat in block.caveats)

    def test_batch_norm_without_affine(self):
        model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, affine=False), nn.Linear(6, 2))
        block = block_of(model, vectors())
        assert (block.gamma, block.beta) == (1.0, 0.0)

    def test_a_scale_of_zero_sends_no_signal(self):
        model = layers(nn.ReLU())
        nn.init.zeros_(model[1].weight)
        assert "gamma must not be 0" in block_of(model, vectors()).reason

    def test_batches_of_three_have_no_prediction(self):
        block = block_of(layers(nn.ReLU()), vectors(rows=3))
        assert "a batch of 3 is too small" in block.reason

    def test_unstable_fixed_points_are_on_the_record_and_warn_nobody(self):
        rate = block_of(layers(nn.GELU()), vectors(rows=64)).rate
        assert rate.stable is False
        assert block_of(layers(nn.GELU()), vectors(rows=16)).rate.stable is True
