"""Blocks are found however they are written, and predictions take the model's own numbers."""

import re
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise import theory
from equipoise.diagnosis import find_blocks
from equipoise.diagnosis.predictions import predict
from equipoise.models import resnet18
from equipoise.probes.operations import record_operations


def run(model, x):
    return model(x)


def found_in(model, x):
    return find_blocks(record_operations(model, x, run))


def only(model, x):
    found, *_ = found_in(model, x)
    return found


def block_of(model, x):
    return predict(only(model, x))[0]


def vectors(rows=16, features=6):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, features, generator=generator)


def images(rows=4, channels=2, size=6):
    return torch.randn(rows, channels, size, size, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """linear → batch norm → any function → linear."""

    def __init__(self, function):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)
        self.function = function

    def forward(self, x):
        return self.second(self.function(self.norm(self.first(x))))


def layers(*between):
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), *between, nn.Linear(6, 2))


class Swish(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.7 * x)


class Composite(nn.Module):
    """An activation that is made of modules."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Softplus(), nn.Tanh())

    def forward(self, x):
        return x * self.inner(x)


def normal_to_one(x):
    return x / (1 + x.abs())


def three_lines(x):
    y = x + 1
    y *= 0.5
    return y.tanh_()


# What stands between batch norm and the next linear layer, and the same as a plain function.
ACTIVATIONS = {
    "module": (nn.ReLU(), torch.relu),
    "in-place module": (nn.ReLU(inplace=True), torch.relu),
    "GELU": (nn.GELU(), F.gelu),
    "GELU by tanh": (nn.GELU("tanh"), lambda x: F.gelu(x, approximate="tanh")),
    "PReLU": (nn.PReLU(), lambda x: F.leaky_relu(x, 0.25)),
    "leaky slope": (nn.LeakyReLU(0.2), lambda x: F.leaky_relu(x, 0.2)),
    "hardtanh bounds": (nn.Hardtanh(-2.0, 0.5), lambda x: x.clamp(-2.0, 0.5)),
    "threshold": (nn.Softplus(beta=2.0), lambda x: F.softplus(2 * x) / 2),
    "several modules": (nn.Sequential(nn.ELU(), nn.Tanh()), lambda x: torch.tanh(F.elu(x))),
    "custom module": (Swish(), lambda x: x * torch.sigmoid(1.7 * x)),
    "custom module of modules": (Composite(), lambda x: x * torch.tanh(F.softplus(x))),
    "identity": (nn.Identity(), lambda x: x),
    "nothing": (nn.Sequential(), lambda x: x),
    "dropout of nothing": (nn.Sequential(nn.Tanh(), nn.Dropout(0.0)), torch.tanh),
    "dropout in evaluation": (nn.Sequential(nn.Tanh(), nn.Dropout(0.5).eval()), torch.tanh),
    "functional": (F.relu, torch.relu),
    "functional, in place": (lambda x: F.relu(x, inplace=True), torch.relu),
    "functional with underscore": (torch.relu_, torch.relu),
    "method": (lambda x: x.tanh(), torch.tanh),
    "method, in place": (lambda x: x.tanh_(), torch.tanh),
    "functional slope": (lambda x: F.leaky_relu(x, 0.3), lambda x: F.leaky_relu(x, 0.3)),
    "functional slope by keyword": (
        lambda x: F.leaky_relu(x, negative_slope=0.3),
        lambda x: F.leaky_relu(x, 0.3),
    ),
    "functional bounds": (lambda x: F.hardtanh(x, -2.0, 2.0), lambda x: x.clamp(-2, 2)),
    "functional bounds by keyword": (
        lambda x: F.hardtanh(x, min_val=-2.0, max_val=2.0),
        lambda x: x.clamp(-2, 2),
    ),
    "clamp": (lambda x: x.clamp(min=0.0), torch.relu),
    "operators": (lambda x: x * torch.sigmoid(1.7 * x), lambda x: x * torch.sigmoid(1.7 * x)),
    "softsign": (normal_to_one, normal_to_one),
    "maximum": (lambda x: torch.maximum(x, 0.1 * x), lambda x: F.leaky_relu(x, 0.1)),
    "where": (lambda x: torch.where(x > 0, x, 0.1 * x), lambda x: F.leaky_relu(x, 0.1)),
    "several lines, in place": (three_lines, lambda x: torch.tanh((x + 1) / 2)),
    "squared ReLU": (lambda x: F.relu(x) ** 2, lambda x: torch.relu(x).square()),
    "reshaped": (lambda x: F.relu(x.reshape(-1, 3, 2)).flatten(1), torch.relu),
    "functional dropout of nothing": (
        lambda x: F.dropout(torch.tanh(x), 0.5, training=False),
        torch.tanh,
    ),
}


@pytest.mark.parametrize(("between", "plain"), ACTIVATIONS.values(), ids=ACTIVATIONS)
class TestActivations:
    def test_the_function_is_the_one_that_is_applied(self, between, plain):
        model = layers(between) if isinstance(between, nn.Module) else Block(between)
        found = only(model, vectors())
        assert found.reason is None
        x = torch.linspace(-4, 4, 41, dtype=torch.float64)
        expected = plain(x.clone())
        torch.testing.assert_close(
            found.activation.function(x.clone()), expected, rtol=1e-6, atol=1e-9
        )

    def test_the_prediction_is_that_of_the_plain_function(self, between, plain):
        model = layers(between) if isinstance(between, nn.Module) else Block(between)
        block = block_of(model, vectors())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", theory.UnstableFixedPointWarning)
            alone = theory.explosion_rate(
                plain, 16, eps=block.eps, weight_variance=block.weight_variance
            )
        assert block.rate.value == pytest.approx(alone.value, rel=1e-6)
        assert block.reason is None
        assert block.caveats == ()


MISREAD = {
    "torch.max of two tensors": (lambda x: torch.max(x, 0.1 * x), "taken for pooling"),
    "gate of means": (
        lambda x: x * torch.sigmoid(x.mean(1, keepdim=True)),
        "the mean is passed over as pooling",
    ),
}


@pytest.mark.parametrize(
    "function",
    [pytest.param(function, id=name) for name, (function, reason) in MISREAD.items()],
)
def test_no_prediction_for_another_function(function):
    """A function that is misread must be refused rather than predicted."""
    block = block_of(Block(function), vectors())
    leaky = theory.explosion_rate("leaky_relu(0.1)", 16, eps=1e-5).value
    assert block.reason is not None or block.rate.value == pytest.approx(leaky, rel=1e-3)


def test_a_gate_that_rejoins_is_no_elementwise_function():
    """Squeeze and excitation: the block's value also flows around its own linear layer."""

    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x):
            return x * torch.sigmoid(self.linear(x))

    assert block_of(layers(Gate()), vectors()).reason is not None


REFUSED = {
    "softmax": (nn.Softmax(-1), "is not elementwise"),
    "softmax over channels": (nn.Softmax(1), "no activation that theory understands"),
    "layer norm": (nn.LayerNorm(6), "another normaliser follows"),
    "dropout": (nn.Sequential(nn.ReLU(), nn.Dropout(0.1)), "dropout follows, whose noise"),
    "random slopes": (nn.RReLU(), "draws random numbers"),
    "noise": (lambda x: F.relu(x + torch.randn_like(x)), "draws random numbers"),
    "functional dropout": (lambda x: F.dropout(x, 0.1), "dropout follows"),
    "jump": (lambda x: torch.sign(x), "jumps|constant|discontinuous"),
    "logarithm": (lambda x: torch.log(x), "is not finite"),
    "gated halves": (lambda x: F.glu(torch.cat([x, x], 1)), "not elementwise"),
    "concatenation": (
        lambda x: torch.cat([F.relu(x), F.relu(-x)], 1)[:, ::2],
        "no activation that theory understands",
    ),
}


@pytest.mark.parametrize(("between", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_theory_does_not_cover_is_refused_with_the_reason(between, reason):
    model = layers(between) if isinstance(between, nn.Module) else Block(between)
    block = block_of(model, vectors())
    assert (block.rate, block.max_depth) == (None, None)
    assert re.search(reason, block.reason)


class TestSurroundings:
    def test_what_feeds_and_what_follows(self):
        model = layers(nn.ReLU())
        found = only(model, vectors())
        assert found.norm is model[1]
        assert found.feeding is model[0]
        assert (found.layer, found.following) == ("1", "3")
        assert (found.batch_size, found.features, found.is_convolution) == (16, 6, False)

    def test_batch_norm_after_the_activation(self):
        model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.BatchNorm1d(6), nn.Linear(6, 2))
        reason = block_of(model, vectors()).reason
        assert reason == "it normalises the output of relu, not of a linear layer"

    def test_batch_norm_on_the_input(self):
        model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 2))
        assert block_of(model, vectors()).reason == "it normalises the input of the network"

    def test_batch_norm_in_evaluation_mode(self):
        model = layers(nn.ReLU())
        model[1].eval()
        reason = block_of(model, vectors()).reason
        assert reason == "it normalises by running statistics, as in evaluation"

    def test_batch_norm_that_tracks_nothing_uses_the_batch_even_in_evaluation_mode(self):
        model = nn.Sequential(
            nn.Linear(6, 6), nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 2)
        )
        assert block_of(model.eval(), vectors()).reason is None

    def test_two_batch_norms_in_a_row(self):
        first, second = found_in(layers(nn.BatchNorm1d(6), nn.ReLU()), vectors())
        assert "another normaliser follows" in first.reason
        assert "not of a linear layer" in second.reason

    @pytest.mark.parametrize("join", [torch.add, lambda a, b: torch.cat([a, b], 1)[:, :6]])
    def test_residual_branches(self, join):
        class Residual(Block):
            def forward(self, x):
                return self.second(torch.relu(join(self.norm(self.first(x)), x)))

        reason = block_of(Residual(None), vectors()).reason
        assert "a residual or parallel branch joins" in reason

    def test_products_with_another_branch(self):
        class Product(Block):
            def forward(self, x):
                return self.second(self.norm(self.first(x)) * x)

        assert block_of(Product(None), vectors()).reason == "mul combines it with another tensor"

    def test_in_place_addition_of_a_branch(self):
        class Residual(Block):
            def forward(self, x):
                h = self.norm(self.first(x))
                h += x
                return self.second(h)

        assert "a residual or parallel branch joins" in block_of(Residual(None), vectors()).reason

    def test_pooling_is_a_caveat(self):
        model = nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 2, 2)
        )
        block = block_of(model, images())
        assert block.activation == "relu"
        assert any("pooling" in caveat for caveat in block.caveats)
        assert block.rate is not None

    def test_control_flow_that_depends_on_the_data(self):
        """torch.fx cannot trace this; running it can."""

        class Branching(Block):
            def forward(self, x):
                h = self.norm(self.first(x))
                for _ in range(int(x.abs().sum() * 0) + 2):
                    h = torch.tanh(h) if float(h.detach().sum()) > -1e9 else h
                return self.second(h)

        model = Branching(None)
        with pytest.raises((torch.fx.proxy.TraceError, TypeError)):
            torch.fx.symbolic_trace(model)
        x = torch.linspace(-2, 2, 9, dtype=torch.float64)
        found = only(model, vectors()).activation.function(x)
        torch.testing.assert_close(found, torch.tanh(torch.tanh(x)))

    def test_batch_norm_as_a_function(self):
        class Functional(Block):
            def forward(self, x):
                h = F.batch_norm(self.first(x), None, None, training=True)
                return self.second(F.relu(h))

        block = block_of(Functional(None), vectors())
        assert (block.kind, block.activation, block.following) == ("batch_norm", "relu", "second")
        assert block.rate is not None

    def test_numbers_of_batch_norm_as_a_function(self):
        class Functional(Block):
            def forward(self, x):
                weight = torch.full((6,), 0.5)
                h = F.batch_norm(self.first(x), None, None, weight, None, True, 0.1, 0.3)
                return self.second(F.relu(h))

        block = block_of(Functional(None), vectors())
        assert (block.eps, block.gamma) == (0.3, 0.5)

    def test_a_module_without_children_that_does_everything_itself(self):
        class Bare(nn.Module):
            def __init__(self):
                super().__init__()
                self.v, self.w = (nn.Parameter(torch.eye(6)) for _ in range(2))

            def forward(self, x):
                h = F.batch_norm(F.linear(x, self.v), None, None, training=True)
                return F.linear(F.relu(h), self.w)

        assert block_of(Bare(), vectors()).activation == "relu"

    def test_transposed_convolutions_are_linear(self):
        model = nn.Sequential(
            nn.ConvTranspose2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.ConvTranspose2d(4, 2, 3)
        )
        assert block_of(model, images()).activation == "relu"

    def test_a_shared_normaliser_opens_two_blocks(self):
        norm = nn.BatchNorm1d(6)
        model = nn.Sequential(
            nn.Linear(6, 6), norm, nn.ReLU(), nn.Linear(6, 6), norm, nn.Tanh(), nn.Linear(6, 2)
        )
        first, second = found_in(model, vectors())
        assert (first.activation.name, second.activation.name) == ("relu", "tanh")

    def test_a_model_without_batch_norm_has_no_blocks(self):
        model = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 2))
        assert found_in(model, vectors()) == ()

    def test_resnet18(self):
        """The first of two norms in every block is predicted; the stem's output and the second
        norm's also flow along the shortcut."""
        found = found_in(resnet18(10, 2, width=4), images(size=16))
        assert len(found) == 20
        covered = [block.layer for block in found if block.reason is None]
        assert covered == [f"layer{s}.{b}.bn1" for s in (1, 2, 3, 4) for b in (0, 1)]
        reasons = {block.reason for block in found if block.reason is not None}
        assert reasons == {
            "a residual or parallel branch joins before the next linear layer",
            "its output also flows around the next linear layer",
        }


class TestNumbers:
    def test_come_from_the_model(self):
        model = layers(nn.Tanh())
        nn.init.constant_(model[0].weight, 0.5)
        nn.init.constant_(model[0].bias, 0.25)
        nn.init.constant_(model[1].weight, 0.7)
        nn.init.constant_(model[1].bias, -0.2)
        model[1].eps = 0.3
        block, conditions = predict(only(model, vectors()))
        numbers = (block.eps, block.gamma, block.beta, block.weight_variance, block.batch_size)
        assert numbers == pytest.approx((0.3, 0.7, -0.2, 6 * 0.5**2, 16))
        assert conditions.bias_variance == pytest.approx(0.25**2)
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
        assert (found.batch_size, found.features, found.is_convolution) == (rows, 4, True)
        block, _ = predict(found)
        assert any("positions of a feature map are correlated" in c for c in block.caveats)

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
