"""Normalisers are read however they are called, and predictions match deep networks."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise import checkup, layers, models, theory
from equipoise.diagnosis import comparison
from equipoise.diagnosis.prediction.blocks import find_blocks
from equipoise.diagnosis.prediction.normalisations import batch_covariance, is_normalisation, read
from equipoise.diagnosis.prediction.predict import predict
from equipoise.instrument.recording.operations import record_operations
from support.diagnosis_examples import fixed_batches

WEIGHT, BIAS = torch.full((8,), 0.5), torch.full((8,), -0.2)


def run(model, x):
    return model(x)


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


class Calls(nn.Module):
    """Anything that a forward pass may do."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def only_read(function, x):
    model = function if isinstance(function, nn.Module) else Calls(function)
    operations = record_operations(model, x, run)
    (norm,) = (read(operation) for operation in operations if is_normalisation(operation))
    return norm


def filled(norm):
    """Distinct numbers for γ and β."""
    nn.init.constant_(norm.weight, 0.5)
    if getattr(norm, "bias", None) is not None:
        nn.init.constant_(norm.bias, -0.2)
    return norm


# Kind, γ, β, ε and features per group, on sixteen rows of eight features.
WRITTEN = {
    "LayerNorm": (filled(nn.LayerNorm(8, eps=0.3)), ("layer norm", 0.5, -0.2, 0.3, None)),
    "LayerNorm without shift": (
        filled(nn.LayerNorm(8, bias=False)),
        ("layer norm", 0.5, None, 1e-5, None),
    ),
    "LayerNorm without parameters": (
        nn.LayerNorm(8, elementwise_affine=False),
        ("layer norm", None, None, 1e-5, None),
    ),
    "layer_norm": (lambda x: F.layer_norm(x, (8,)), ("layer norm", None, None, 1e-5, None)),
    "layer_norm, all positional": (
        lambda x: F.layer_norm(x, (8,), WEIGHT, BIAS, 0.3),
        ("layer norm", 0.5, -0.2, 0.3, None),
    ),
    "layer_norm by keyword": (
        lambda x: F.layer_norm(input=x, eps=0.3, bias=BIAS, normalized_shape=[8]),
        ("layer norm", None, -0.2, 0.3, None),
    ),
    "torch.layer_norm": (
        lambda x: torch.layer_norm(x, (8,), WEIGHT, BIAS, 0.3),
        ("layer norm", 0.5, -0.2, 0.3, None),
    ),
    "RMSNorm": (filled(nn.RMSNorm(8, eps=0.3)), ("rms norm", 0.5, None, 0.3, None)),
    "RMSNorm without ε": (
        nn.RMSNorm(8),
        ("rms norm", 1.0, None, torch.finfo(torch.float32).eps, None),
    ),
    "rms_norm": (
        lambda x: F.rms_norm(x, (8,)),
        ("rms norm", None, None, torch.finfo(torch.float32).eps, None),
    ),
    "rms_norm, all positional": (
        lambda x: F.rms_norm(x, (8,), WEIGHT, 0.3),
        ("rms norm", 0.5, None, 0.3, None),
    ),
    "GroupNorm": (filled(nn.GroupNorm(2, 8, eps=0.3)), ("group norm", 0.5, -0.2, 0.3, 4)),
    "GroupNorm of one group": (nn.GroupNorm(1, 8), ("group norm", 1.0, 0.0, 1e-5, 8)),
    "group_norm, all positional": (
        lambda x: F.group_norm(x, 2, WEIGHT, BIAS, 0.3),
        ("group norm", 0.5, -0.2, 0.3, 4),
    ),
    "group_norm by keyword": (
        lambda x: F.group_norm(x, num_groups=1, eps=0.3),
        ("group norm", None, None, 0.3, 8),
    ),
    "BatchNorm1d": (filled(nn.BatchNorm1d(8, eps=0.3)), ("batch norm", 0.5, -0.2, 0.3, None)),
}


class TestReading:
    @pytest.mark.parametrize(("function", "expected"), WRITTEN.values(), ids=WRITTEN)
    def test_arguments(self, function, expected):
        norm = only_read(function, normal(16, 8))
        weight, bias = (
            None if t is None else float(t.detach().mean()) for t in (norm.weight, norm.bias)
        )
        found = (norm.normaliser, weight, bias, norm.eps, norm.group_size)
        assert found == pytest.approx(expected)
        assert (norm.rows, norm.features, norm.reason) == (16, 8, None)

    def test_the_default_eps_of_rms_norm_is_that_of_the_type(self):
        norm = only_read(nn.RMSNorm(8).double(), normal(16, 8).double())
        assert norm.eps == torch.finfo(torch.float64).eps

    @pytest.mark.parametrize(
        ("norm", "shape", "rows", "features"),
        [
            (nn.LayerNorm(8), (3, 5, 8), 15, 8),
            (nn.LayerNorm((5, 8)), (3, 5, 8), 3, 40),
            (nn.LayerNorm((2, 4, 6)), (3, 2, 4, 6), 3, 48),
            (nn.RMSNorm((2, 4, 6)), (3, 2, 4, 6), 3, 48),
            (nn.GroupNorm(2, 8), (3, 8), 3, 8),
            (nn.BatchNorm2d(2), (3, 2, 4, 6), 72, 2),
        ],
    )
    def test_rows_and_features(self, norm, shape, rows, features):
        found = only_read(norm, normal(*shape))
        assert (found.rows, found.features) == (rows, features)
        assert found.is_convolution == isinstance(norm, nn.BatchNorm2d)


def block_of(norm, x, before=None, after=None):
    model = nn.Sequential(before or nn.Linear(8, 8), norm, nn.Tanh(), after or nn.Linear(8, 2))
    (found,) = find_blocks(record_operations(model, x, run))
    return predict(found)[0]


class TestPredictions:
    """Block by block, from the model's own numbers."""

    @pytest.mark.parametrize(
        ("norm", "law"),
        [
            (nn.LayerNorm(8, eps=0.3), theory.layer_norm),
            (nn.RMSNorm(8, eps=0.3, elementwise_affine=False), theory.layer_norm),
            (nn.GroupNorm(2, 8, eps=0.3), partial(theory.group_norm, group_size=4)),
        ],
    )
    def test_the_rate_is_that_of_theory(self, norm, law):
        linear = nn.Linear(8, 8)
        nn.init.constant_(linear.weight, 0.5)
        nn.init.constant_(linear.bias, 0.25)
        beta = 0.0
        if norm.weight is not None:
            filled(norm)
            beta = -0.2
        block = block_of(norm, normal(16, 8), linear)
        numbers = {"eps": 0.3, "gamma": block.gamma, "beta": beta, "weight_variance": 2.0}
        expected = law("tanh", bias_variance=0.25**2, **numbers).rate
        assert block.rate.value == pytest.approx(expected.value, rel=1e-6)
        without_bias = law("tanh", **numbers).rate
        assert abs(block.rate.value / without_bias.value - 1) > 1e-3
        assert any("derived by Equipoise" in caveat for caveat in block.caveats)

    def test_batch_norm_has_no_such_caveat(self):
        assert block_of(nn.BatchNorm1d(8), normal(16, 8)).caveats == ()

    @pytest.mark.parametrize("norm", [nn.LayerNorm(8), nn.RMSNorm(8), nn.GroupNorm(2, 8)])
    def test_two_samples_are_enough(self, norm):
        assert block_of(norm, normal(2, 8)).rate is not None

    @pytest.mark.parametrize("mode", ["train", "eval"])
    def test_evaluation_changes_nothing(self, mode):
        assert block_of(getattr(nn.LayerNorm(8), mode)(), normal(16, 8)).reason is None

    def test_small_groups_are_refused(self):
        assert block_of(nn.GroupNorm(2, 8), normal(16, 8)).rate is not None
        block = block_of(nn.GroupNorm(4, 8), normal(16, 8))
        assert (block.rate, block.max_depth, block.caveats) == (None, None, ())
        assert block.reason == "groups of 2 features are too small: group norm needs at least 4"

    def test_group_norm_over_feature_maps_is_refused(self):
        convs = nn.Conv2d(2, 8, 3), nn.Conv2d(8, 2, 1)
        block = block_of(nn.GroupNorm(2, 8), normal(4, 2, 6, 6), *convs)
        assert block.rate is None
        assert "positions of feature maps" in block.reason

    def test_layer_norm_over_whole_feature_maps_is_not(self):
        convs = nn.Conv2d(2, 8, 3), nn.Conv2d(8, 2, 1)
        block = block_of(nn.LayerNorm((8, 4, 4)), normal(4, 2, 6, 6), *convs)
        assert (block.features, block.batch_size) == (8 * 4 * 4, 4)
        assert block.rate is not None


class Watched(nn.Module):
    """A linear layer, a norm that keeps running statistics, dropout."""

    def __init__(self, norm):
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 6), norm
        self.rest = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 2))

    def forward(self, x):
        return self.rest(self.norm(self.linear(x)))


class TestBatchCovariance:
    def test_it_is_the_mean_of_products_over_features(self):
        model, x = Watched(nn.BatchNorm1d(6)), normal(16, 8)
        found = batch_covariance(model, x, run, model.norm)
        rows = model.linear(x).detach().double().numpy()
        np.testing.assert_allclose(found, rows @ rows.T / 6, rtol=1e-12, atol=1e-12)
        assert not np.allclose(found, np.cov(rows), rtol=0.1)  # means over features stay

    def test_positions_of_feature_maps_are_rows(self):
        model, x = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)), normal(4, 2, 5, 5)
        found = batch_covariance(model, x, run, model[1])
        maps = model[0](x).detach().double().numpy()
        expected = np.einsum("bcij,dckl->bijdkl", maps, maps).reshape(36, 36) / 3
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)

    def test_of_a_shared_norm_it_is_the_first_call_that_counts(self):
        norm = nn.BatchNorm1d(8)
        model, x = nn.Sequential(norm, nn.Linear(8, 8), norm), normal(16, 8)
        found = batch_covariance(model, x, run, norm)
        rows = x.double().numpy()
        np.testing.assert_allclose(found, rows @ rows.T / 8, rtol=1e-12)

    @pytest.mark.parametrize("training", [True, False])
    def test_the_model_is_left_untouched(self, training):
        model, x = Watched(nn.BatchNorm1d(6)).train(training), normal(16, 8)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        random = torch.get_rng_state()
        batch_covariance(model, x, run, model.norm)
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]), name
        assert torch.equal(torch.get_rng_state(), random)
        assert {module.training for module in model.modules()} == {training}
        assert all(parameter.grad is None for parameter in model.parameters())
        assert not model.norm._forward_pre_hooks
        if training:
            model(x)  # which does move them
            assert not torch.equal(model.norm.running_mean, before["norm.running_mean"])

    def test_hooks_are_gone_after_an_exception(self):
        model = Watched(nn.BatchNorm1d(6))
        with pytest.raises(RuntimeError):
            batch_covariance(model, normal(16, 7), run, model.norm)
        assert not model.norm._forward_pre_hooks


def deep(norm, depth=12, width=128, activation=nn.Tanh):
    """Weights of variance 1/fan-in and no biases, unlike PyTorch's."""
    layers = [nn.Flatten()]
    for fan_in in (64, *[width] * (depth - 1)):
        linear = nn.Linear(fan_in, width, bias=False)
        nn.init.normal_(linear.weight, std=fan_in**-0.5)
        layers += [linear, norm(width), activation()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def diagnose(build, batch_size=32, seeds=5, batches=2):
    return checkup(build, fixed_batches(batch_size, batches), seeds=seeds, batches=batches)


DEEP = {
    "layer norm": (nn.LayerNorm, theory.layer_norm),
    "RMS norm": (partial(nn.RMSNorm, eps=1e-5), theory.layer_norm),
    "group norm": (partial(nn.GroupNorm, 8), partial(theory.group_norm, group_size=16)),
}


class TestDeepNetworks:
    @pytest.mark.parametrize(("norm", "law"), DEEP.values(), ids=DEEP)
    def test_theory_and_measurement_agree(self, norm, law):
        report = diagnose(partial(deep, norm))
        (growth,) = report.comparisons
        assert growth.quantity == "gradient growth per layer"
        assert growth.measured == report.growth.rate
        # Weights that were drawn have their variance up to a few parts in a thousand.
        assert growth.predicted.value == pytest.approx(law("tanh", eps=1e-5).rate.value, rel=2e-3)
        assert growth.outcome == "agrees"
        assert abs(growth.z) <= 3
        error = np.hypot(growth.measured.error, growth.finite_width)
        assert growth.measured.value - 1 > 3 * error  # balanced gradients would be seen
        assert len(report.blocks) == len(report.growth.layers) == 12
        titles = [finding.title for finding in report.findings]
        assert "Theory and measurement agree on the gradient growth per layer" in titles

    def test_small_groups_grow_faster_than_a_whole_layer(self):
        """The measurement is far from what the whole layer's prediction would be."""
        (growth,) = diagnose(partial(deep, partial(nn.GroupNorm, 16))).comparisons
        error = np.hypot(growth.measured.error, growth.finite_width)
        whole = theory.layer_norm("tanh", eps=1e-5).rate.value
        assert growth.outcome == "agrees"
        assert growth.measured.value - whole > 5 * error

    def test_the_batch_does_not_matter(self):
        """Nor is there a fixed point between samples that could be compared."""
        build = partial(models.mlp, 64, 10, depth=4, width=16, norm="layer")
        small, large = (diagnose(build, batch_size=size, seeds=1, batches=1) for size in (2, 64))
        assert small.blocks[1].rate == large.blocks[1].rate
        assert [c.quantity for c in large.comparisons] == ["gradient growth per layer"]

    def test_a_width_beyond_the_largest_simulation_is_cut_to_whole_groups(self, monkeypatch):
        monkeypatch.setattr(comparison, "_MOST_WIDTH", 20)
        build = partial(deep, partial(nn.GroupNorm, 5), depth=5, width=30)
        assert diagnose(build, seeds=1, batches=1).comparisons


def test_the_plain_function_has_an_order_of_its_own():
    """torch.batch_norm takes γ and β first, torch.nn.functional's after the running values."""
    mean, variance = torch.full((8,), 7.0), torch.full((8,), 9.0)

    def call(x):
        return torch.batch_norm(x, WEIGHT, BIAS, mean, variance, True, 0.1, 1e-3, False)

    norm = only_read(call, normal(6, 8))
    assert float(norm.weight[0]) == 0.5
    assert float(norm.bias[0]) == pytest.approx(-0.2)
    assert norm.eps == 1e-3


def test_instance_norm_is_named_not_predicted():
    model = nn.Sequential(nn.Conv2d(2, 4, 1), nn.InstanceNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1))
    (found,) = find_blocks(record_operations(model, normal(2, 2, 5, 5), run))
    block, conditions = predict(found)
    assert conditions is None
    assert block.reason == "instance norm takes its statistics over the positions of one sample"


@pytest.mark.parametrize(
    ("norm", "derived"),
    [(nn.LayerNorm((4, 5, 5)), True), (nn.LayerNorm((5, 5)), False), (nn.LayerNorm(5), False)],
)
def test_layer_norm_after_a_convolution_must_cover_the_channels(norm, derived):
    model = nn.Sequential(nn.Conv2d(2, 4, 1), norm, nn.Tanh(), nn.Conv2d(4, 4, 1))
    (found,) = find_blocks(record_operations(model, normal(2, 2, 5, 5), run))
    block, _ = predict(found)
    assert (block.rate is not None) is derived
    if not derived:
        assert block.reason == "layer norm over positions without the channels is not derived"


@pytest.mark.parametrize(
    "norm",
    [layers.BatchRenorm1d(8), layers.GhostBatchNorm1d(8, virtual_batch_size=4)],
    ids=lambda norm: type(norm).__name__,
)
def test_variants_of_batch_norm_are_one_normaliser_that_theory_does_not_know(norm):
    model = nn.Sequential(nn.Linear(6, 8), norm, nn.ReLU(), nn.Linear(8, 2))
    (found,) = find_blocks(record_operations(model, normal(16, 6), run))
    assert predict(found)[0].reason == f"{type(norm).__name__} does more than batch norm"
