"""Blocks are found however they are written, and the activation is the one that is applied."""

import re
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise import theory
from equipoise.models import resnet18
from equipoise.pooling import RUNPool
from support.diagnosis_examples import Block, block_of, found_in, images, layers, only, vectors


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
        block = block_of(model, vectors(rows=32))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", theory.UnstableFixedPointWarning)
            alone = theory.explosion_rate(
                plain, 32, eps=block.eps, weight_variance=block.weight_variance
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
    """Squeeze and excitation: the block's value also feeds a skip connection."""

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
    "dropout": (
        nn.Sequential(nn.ReLU(), nn.Dropout(0.1)),
        "dropout follows, and the theory has no such noise",
    ),
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
        assert (found.layer, found.path.following) == ("1", "3")
        assert found.path.closing.module is model[3]
        assert not found.path.pooled
        normalisation = found.normalisation
        assert (normalisation.rows, normalisation.features) == (16, 6)
        assert not normalisation.is_convolution

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
        assert only(model, images()).path.pooled
        assert any("pooling" in caveat for caveat in block.caveats)
        assert block.rate is not None

    def test_second_order_pooling_is_named(self):
        model = nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), RUNPool(4), nn.Linear(10, 2)
        )
        assert block_of(model, images()).reason == "second-order pooling follows"

    @pytest.mark.parametrize("mode", ["zeros", "circular", "reflect"])
    def test_padding_is_no_activation(self, mode):
        """PyTorch pads by itself before convolving, other than with zeros."""
        model = nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
            nn.Conv2d(4, 2, 3, padding=1, padding_mode=mode),
        )  # fmt: skip
        block = block_of(model, images())
        assert (block.activation, block.following, block.reason) == ("relu", "3", None)

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

    def test_a_model_without_normaliser_has_no_blocks(self):
        model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
        assert found_in(model, vectors()) == ()

    @pytest.mark.parametrize("norm", [nn.LayerNorm(6), nn.RMSNorm(6), nn.GroupNorm(1, 6)])
    def test_other_normalisers_open_blocks_too(self, norm):
        model = nn.Sequential(nn.Linear(6, 6), norm, nn.ReLU(), nn.Linear(6, 2))
        block = block_of(model, vectors())
        assert (block.kind, block.activation, block.following) == (
            type(norm).__name__,
            "relu",
            "3",
        )
        assert block.rate is not None

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
            "its output also feeds a skip connection",
        }
