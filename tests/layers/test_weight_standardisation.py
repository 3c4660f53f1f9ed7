"""Weight standardisation: filters of mean 0 and variance 1, and its removal by PyTorch."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.testing import assert_close

from equipoise.layers.weight_standardisation import (
    WeightStandardisation,
    weight_standardise,
)

CONVOLUTIONS = {
    "1d": (lambda **o: nn.Conv1d(4, 6, 3, **o), (2, 4, 5)),
    "2d": (lambda **o: nn.Conv2d(4, 6, 3, groups=2, stride=2, **o), (2, 4, 5, 5)),
    "3d": (lambda **o: nn.Conv3d(4, 6, 2, bias=False, **o), (2, 4, 3, 3, 3)),
    "linear": (lambda **o: nn.Linear(4, 6, **o), (2, 4)),
}
every = pytest.mark.parametrize(("make", "shape"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)


@every
class TestFilters:
    def test_mean_zero_and_variance_one(self, make, shape):
        layer = make(dtype=torch.float64)
        weight_standardise(layer, eps=0.0)
        filters = layer.weight.flatten(1)
        assert_close(filters.mean(1), torch.zeros(6).double(), rtol=0, atol=1e-14)
        assert_close(filters.var(1, correction=0), torch.ones(6).double(), rtol=0, atol=1e-13)

    def test_filters_are_not_standardised_before(self, make, shape):
        filters = make().weight.flatten(1)
        assert filters.mean(1).abs().max() > 1e-3
        assert (filters.var(1, correction=0) - 1).abs().min() > 0.1

    def test_eps_stands_under_the_root(self, make, shape):
        layer = make(dtype=torch.float64)
        variance = layer.weight.flatten(1).var(1, correction=0)
        weight_standardise(layer, eps=0.5)
        found = layer.weight.flatten(1).var(1, correction=0)
        assert_close(found, variance / (variance + 0.5), rtol=0, atol=1e-14)

    def test_the_output_ignores_scale_and_shift_of_the_stored_filters(self, make, shape):
        layer = make(dtype=torch.float64)
        x = torch.ones(shape).double().cumsum(-1)
        weight_standardise(layer, eps=0.0)
        expected = layer(x)
        with torch.no_grad():
            layer.parametrizations.weight.original.mul_(3).add_(1)
        assert_close(layer(x), expected, rtol=0, atol=1e-11)

    def test_gradients_agree_with_differences(self, make, shape):
        weight = make(dtype=torch.float64).weight
        assert torch.autograd.gradcheck(WeightStandardisation(), (weight,))

    def test_removal_keeps_the_function(self, make, shape):
        layer, x = make(), torch.ones(shape).cumsum(-1)
        keys, parameters = set(layer.state_dict()), len(list(layer.parameters()))
        weight_standardise(layer)
        expected = layer(x)
        parametrize.remove_parametrizations(layer, "weight")
        assert torch.equal(layer(x), expected)
        assert set(layer.state_dict()) == keys
        assert len(list(layer.parameters())) == parameters

    def test_removal_can_restore_the_stored_weights(self, make, shape):
        layer = make()
        before, kind = copy.deepcopy(layer.state_dict()), type(layer)
        weight_standardise(layer)
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
        assert_close(layer.state_dict(), before, rtol=0, atol=0)
        assert type(layer) is kind

    def test_survives_copies_checkpoints_and_compilation(self, make, shape):
        torch.compiler.reset()
        layer, x = make(), torch.ones(shape).cumsum(-1)
        weight_standardise(layer)
        fresh = make()
        weight_standardise(fresh)
        fresh.load_state_dict(layer.state_dict())
        for twin in (copy.deepcopy(layer), fresh, torch.compile(layer, backend="eager")):
            assert torch.equal(twin(x), layer(x))
        torch.compiler.reset()

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision(self, make, shape, dtype):
        layer = make(dtype=dtype)
        weight_standardise(layer)
        exact = WeightStandardisation()(layer.parametrizations.weight.original.double())
        assert layer.weight.dtype == dtype
        tolerance = 4 * torch.finfo(dtype).eps
        assert_close(layer.weight.double(), exact, rtol=tolerance, atol=tolerance)


def test_large_half_weights_do_not_overflow():
    """float16 ends at 65504, so a variance of 3000² is infinite."""
    weight = (3000 * torch.linspace(-1, 1, 24).reshape(2, 3, 4)).half()
    exact = WeightStandardisation()(weight.double())
    assert_close(WeightStandardisation()(weight).double(), exact, rtol=2e-3, atol=0)


class TestModels:
    def model(self):
        shared = nn.Conv2d(4, 4, 3)
        return nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.Sequential(shared, nn.ReLU(), shared), nn.Linear(4, 2)
        )

    def test_every_convolution_once_and_no_linear_layer(self):
        model = self.model()
        assert weight_standardise(model) == ["0", "1.0"]
        assert len(model[1][0].parametrizations.weight) == 1
        assert not hasattr(model[2], "parametrizations")

    def test_standardising_twice_changes_nothing(self):
        model = self.model()
        weight_standardise(model)
        assert weight_standardise(model) == []

    def test_training_moves_the_stored_weights(self):
        model = self.model()
        weight_standardise(model)
        stored = model[0].parametrizations.weight.original
        before = stored.clone()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model[0](torch.ones(1, 3, 4, 4).cumsum(-1)).square().sum().backward()
        optimizer.step()
        assert not torch.equal(stored, before)
        assert_close(model[0].weight.mean((1, 2, 3)), torch.zeros(4), rtol=0, atol=1e-6)

    def test_layers_whose_filters_have_one_weight_stay(self):
        model = nn.Sequential(nn.Conv2d(4, 4, 1, groups=4), nn.Conv2d(4, 4, 1))
        assert weight_standardise(model) == ["1"]

    def test_a_layer_whose_filters_have_one_weight_is_refused(self):
        with pytest.raises(ValueError, match="filters of one weight"):
            weight_standardise(nn.Conv2d(4, 4, 1, groups=4))
