"""A user's model, data and loss become predictions beside measurements."""

import math

import pytest
import torch
from torch import nn

from equipoise import models
from equipoise.diagnosis import profile


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


def test_a_network_on_real_images():
    found = profile(digits_cnn, "digits", batch_size=128)
    assert sorted(errors(found, "second_moment", "measured_second_moment"))[6] < 0.05
    gradients = errors(found, "gradient", "measured_gradient")
    assert len(gradients) > 10
    assert max(gradients) < 0.4
    assert {weight.name for weight in found.weights} == {"0.weight", "4.weight", "9.weight"}


def test_a_loss_of_the_users():
    x, direction = torch.randn(32, 16), torch.randn(32, 256)
    found = profile(
        nn.Sequential(nn.Linear(16, 256), nn.Tanh(), nn.Linear(256, 256)),
        (x, direction),
        loss_fn=lambda model, batch: (model(batch[0]) * batch[1]).mean(),
        batch_size=32,
    )
    assert [site.operation for site in found.sites if site.is_start] == ["mul"]
    last = [site for site in found.sites if site.operation == "addmm"][-1]
    assert last.gradient == pytest.approx(last.measured_gradient, rel=1e-5)
    assert max(errors(found, "gradient", "measured_gradient")) < 0.2


def test_the_model_is_left_alone():
    model = models.mlp(64, 10, depth=2, width=32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    profile(model, "digits")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_is_not_predicted_says_why():
    class Sorted(nn.Module):
        def forward(self, x):
            return x.sort(1).values

    found = profile(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 128), Sorted(), nn.Linear(128, 10)),
        "digits",
        batch_size=32,
    )
    (cut,) = (site for site in found.sites if site.operation == "sort")
    assert cut.reason == "no rule for sort"
    assert cut.second_moment is None
    following = found.sites[found.sites.index(cut) + 1]
    assert following.second_moment == pytest.approx(following.measured_second_moment, rel=0.3)


def test_maps_that_are_too_large_are_refused_by_name():
    """Theory begins behind them, from what is measured there."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=5), nn.Flatten(), nn.LazyLinear(8)
    )
    model(torch.zeros(1, 3, 80, 80))
    found = profile(model, "random:3x80x80:8", batch_size=4)
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
def test_wrong_data(data, message):
    with pytest.raises(ValueError, match=message):
        profile(models.mlp(64, 10, depth=1, width=8), data)
