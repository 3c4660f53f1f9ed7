"""One door for predictions: a setting of the theory, or every operation of a model."""

import math

import numpy as np
import pytest
import torch
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

    @pytest.mark.parametrize("size", [16.5, "64"])
    def test_half_a_sample_or_a_word(self, size):
        with pytest.raises(ValueError, match=f"batch_size must be a whole number, got {size!r}"):
            eq.predict("relu", size)

    def test_a_model_without_its_data(self):
        with pytest.raises(ValueError, match="a model is predicted with its data"):
            eq.predict(digits_cnn)

    def test_a_class_of_activations(self):
        with pytest.raises(TypeError, match=r"give what it makes, such as GELU\(\)"):
            eq.predict(nn.GELU, 64)


def digits_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.BatchNorm2d(128),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def errors(found, predicted, measured):
    pairs = [(getattr(site, predicted), getattr(site, measured)) for site in found.sites]
    return [abs(math.log(a / b)) for a, b in pairs if a and b]


class TestAModel:
    def test_the_theorems_rate_stands_at_deep_batch_norms(self):
        found = eq.predict(lambda: models.mlp(64, 10, depth=14, width=64), "digits")
        rate = theory.explosion_rate("relu", 64).value
        deep = [s.log_gain for s in found.sites if s.kind == "normalisers"][6:12]
        assert [math.exp(gain) for gain in deep] == pytest.approx([rate] * 6, rel=2e-3)

    def test_gradients_of_weights_are_measured_too(self):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(256, 64, generator=generator)
        labels = torch.randint(10, (256,), generator=generator)
        found = eq.predict(lambda: models.mlp(64, 10, depth=4, width=128), (x, labels))
        for weight in found.weights:
            assert weight.gradient == pytest.approx(weight.measured_gradient, rel=0.2)

    def test_labels_that_tell_of_the_input_make_gradients_of_weights_larger(self):
        """A limit: samples count as alike, but digits of one class are nearer to each other."""
        found = eq.predict(lambda: models.mlp(64, 10, depth=4, width=128), "digits")
        ratios = [weight.gradient / weight.measured_gradient for weight in found.weights]
        assert 0.3 < min(ratios) < max(ratios) < 0.9

    def test_a_network_on_real_images(self):
        found = eq.predict(digits_cnn, "digits", batch_size=128)
        assert sorted(errors(found, "second_moment", "measured_second_moment"))[6] < 0.05
        gradients = errors(found, "gradient", "measured_gradient")
        assert len(gradients) > 10
        assert max(gradients) < 0.4
        assert {weight.name for weight in found.weights} == {"0.weight", "4.weight", "9.weight"}

    def test_a_loss_of_the_users(self):
        x, direction = torch.randn(32, 16), torch.randn(32, 256)
        found = eq.predict(
            nn.Sequential(nn.Linear(16, 256), nn.Tanh(), nn.Linear(256, 256)),
            (x, direction),
            loss_fn=lambda model, batch: (model(batch[0]) * batch[1]).mean(),
            batch_size=32,
        )
        assert [site.operation for site in found.sites if site.is_start] == ["mul"]
        last = [site for site in found.sites if site.operation == "addmm"][-1]
        assert last.gradient == pytest.approx(last.measured_gradient, rel=1e-5)
        assert max(errors(found, "gradient", "measured_gradient")) < 0.2

    def test_the_model_is_left_alone(self):
        model = models.mlp(64, 10, depth=2, width=32)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        state = torch.random.get_rng_state()
        eq.predict(model, "digits")
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        assert torch.equal(state, torch.random.get_rng_state())
        assert all(parameter.grad is None for parameter in model.parameters())

    def test_a_misspelt_change_is_answered_with_the_closest(self):
        found = eq.predict(digits_cnn, "digits", batch_size=8)
        with pytest.raises(TypeError, match=r"no option 'batchsize'\. Did you mean 'batch_size'"):
            found.what_if(batchsize=2)

    def test_what_is_not_predicted_says_why(self):
        class Running(nn.Module):
            def forward(self, x):
                return x.cummax(1).values

        found = eq.predict(
            nn.Sequential(nn.Flatten(), nn.Linear(64, 128), Running(), nn.Linear(128, 10)),
            "digits",
            batch_size=32,
        )
        (cut,) = (site for site in found.sites if site.operation == "cummax")
        assert cut.reason == "no rule for cummax"
        assert cut.second_moment is None
        following = found.sites[found.sites.index(cut) + 1]
        assert following.second_moment == pytest.approx(following.measured_second_moment, rel=0.3)

    def test_maps_that_are_too_large_are_refused_by_name(self):
        """Theory begins behind them, from what is measured there."""
        model = nn.Sequential(
            nn.Conv2d(3, 8, 1),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, stride=2),
            nn.Flatten(),
            nn.LazyLinear(8),
        )
        model(torch.zeros(1, 3, 80, 80))
        found = eq.predict(model, "random:3x80x80:8", batch_size=4)
        assert found.sites[0].operation == "convolution"
        assert found.sites[0].second_moment is None
        assert "6400 positions" in found.sites[0].reason
        assert next(s for s in found.sites if s.second_moment).operation == "convolution"

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ("mnst", "no data named 'mnst'"),
            ((torch.randn(64, 3), torch.zeros(64).long()), "inputs of shape .64, 3."),
        ],
    )
    def test_wrong_data(self, data, message):
        with pytest.raises(ValueError, match=message):
            eq.predict(models.mlp(64, 10, depth=1, width=8), data)
