"""A replayed loss is the same in every evaluation and leaves no trace."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.instrument.replay import Replay
from support.cases import each
from support.model_state import left_alone, same_bits
from support.probe_models import ALL, batch, build, loss_fn

BATCH = batch()
every_model = each("name", ALL)


class InTheMiddleError(Exception):
    """Raised in the middle of an evaluation."""


class Noisy(nn.Module):
    """Draws from every source, its own generator included."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x):
        own = torch.rand(6, generator=self.generator)
        noise = torch.rand(()) + random.random() + np.random.random()  # noqa: NPY002
        return self.layer(x) * own + noise.float()


class Gain(nn.Module):
    """Multiplies by a buffer that every call changes in place."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))
        self.register_buffer("gain", torch.ones(()))

    def forward(self, x):
        self.gain.mul_(2)
        return self.gain * self.weight * x


def plain_gradient(model):
    """One pass without a replay."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    loss = loss_fn(model, BATCH)
    return loss, torch.autograd.grad(loss, parameters, materialize_grads=True)


@every_model
class TestEveryModel:
    def test_every_evaluation_is_the_same(self, name):
        replay = Replay(build(name), loss_fn, BATCH)
        first, gradients = replay.gradient()
        again, others = replay.gradient()
        assert same_bits(first, again)
        assert same_bits(first, replay.loss())
        assert all(same_bits(a, b) for a, b in zip(gradients, others, strict=True))

    def test_no_trace_is_left(self, name):
        model = build(name)
        with left_alone(model):
            replay = Replay(model, loss_fn, BATCH)
            replay.gradient()
            replay.loss(graph=False)

    def test_the_numbers_are_those_of_a_plain_pass(self, name):
        loss, gradients = Replay(build(name), loss_fn, BATCH).gradient()
        expected, others = plain_gradient(build(name))
        assert same_bits(loss, expected.detach())
        assert all(same_bits(a, b) for a, b in zip(gradients, others, strict=True))

    def test_no_trace_is_left_when_the_loss_raises(self, name):
        def fails(model, batch):
            loss_fn(model, batch)
            model.eval()
            np.random.random(3)  # noqa: NPY002
            random.random()
            raise InTheMiddleError

        model = build(name)
        with left_alone(model), pytest.raises(InTheMiddleError):
            Replay(model, fails, BATCH).loss()


def test_two_plain_passes_differ():
    """The twin: dropout draws another mask."""
    model = build("batch norm and dropout")
    assert not same_bits(plain_gradient(model)[0], plain_gradient(model)[0])


class TestNoise:
    def test_from_every_source_is_replayed_and_restored(self):
        model = Noisy()
        own = model.generator.get_state()
        with left_alone(model):
            replay = Replay(model, loss_fn, BATCH)
            losses = [replay.loss() for _ in range(3)]
            assert all(same_bits(loss, losses[0]) for loss in losses)
            assert torch.equal(model.generator.get_state(), own)

    def test_others_may_draw_between_evaluations(self):
        replay = Replay(Noisy(), loss_fn, BATCH)
        first = replay.loss()
        torch.rand(3)
        random.random()
        np.random.random(2)  # noqa: NPY002
        assert same_bits(replay.loss(), first)


class TestBuffers:
    def test_a_later_backward_pass_sees_the_buffers_of_its_forward_pass(self):
        """Restoring values in place would make this gradient that of a gain of 1."""
        model = Gain()
        loss = Replay(model, lambda m, b: m(b[0]).sum(), BATCH).loss()
        (gradient,) = torch.autograd.grad(loss, [model.weight])
        torch.testing.assert_close(gradient, 2 * BATCH[0].sum(0))
        assert float(model.gain) == 1

    def test_a_buffer_of_several_names_stays_one(self):
        model = nn.Sequential(Gain(), Gain())
        model[1].gain = model[0].gain
        Replay(model, lambda m, b: m(b[0]).sum(), BATCH).loss()
        assert model[1].gain is model[0].gain
        # The first call multiplies by 2, and the second by 4.
        replay = Replay(model, lambda m, b: m(torch.ones(1, 6)).sum(), BATCH)
        assert float(replay.loss(graph=False)) == 6 * 2 * 4


class TestGradient:
    def test_hessian_vector_products(self):
        """L = Σ w⁴ has the Hessian diag(12 w²)."""
        model = nn.ParameterList([nn.Parameter(torch.tensor([1.0, 2.0]))])
        replay = Replay(model, lambda m, _: (m[0] ** 4).sum(), None)
        loss, (gradient,) = replay.gradient(create_graph=True)
        (product,) = torch.autograd.grad(gradient.sum(), replay.parameters)
        assert (float(loss.detach()), product.tolist()) == (17.0, [12.0, 48.0])

    def test_no_grad_is_set(self):
        model = build("plain")
        Replay(model, loss_fn, BATCH).gradient()
        assert all(p.grad is None for p in model.parameters())

    def test_unused_parameters_have_zero_gradients(self):
        replay = Replay(build("containers"), loss_fn, BATCH)
        found = dict(zip(replay.names, replay.gradient()[1], strict=True))
        assert found["unused.weight"].abs().max() == 0
        assert found["scales.0"].abs().max() > 0

    def test_sparse_ones_become_dense(self):
        model = nn.EmbeddingBag(9, 4, sparse=True)
        tokens = torch.arange(8).reshape(4, 2)
        _, (gradient,) = Replay(model, lambda m, x: m(x).square().sum(), tokens).gradient()
        assert gradient.layout is torch.strided

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    def test_the_caller_may_have_switched_gradients_off(self, mode):
        model = build("batch norm and dropout")
        expected = Replay(model, loss_fn, BATCH).gradient()[1]
        with mode():
            found = Replay(model, loss_fn, BATCH).gradient()[1]
        assert all(same_bits(a, b) for a, b in zip(found, expected, strict=True))

    def test_the_caller_may_be_under_autocast(self):
        """Its cache of casts would hide that parameters move."""
        model = nn.Linear(4, 4, bias=False)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            replay = Replay(model, lambda m, x: m(x).float().square().sum(), torch.ones(2, 4))
            first = float(replay.gradient()[0])
            with torch.no_grad():
                model.weight.mul_(2)
            assert float(replay.gradient()[0]) == 4 * first


class TestParameters:
    def test_trainable_ones_by_name_and_shared_ones_once(self):
        assert Replay(build("tied weights"), loss_fn, BATCH).names == (
            "0.weight",
            "0.bias",
            "2.bias",
        )
        frozen = Replay(build("frozen parameters"), loss_fn, BATCH)
        assert not {"0.weight", "5.weight", "5.bias"} & set(frozen.names)

    def test_a_compiled_model_has_the_names_of_the_original(self):
        model = build("plain")
        compiled = torch.compile(model, backend="eager")
        assert Replay(compiled, loss_fn, BATCH).names == Replay(model, loss_fn, BATCH).names


@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        (
            lambda m, b: 1.0,
            ValueError,
            "must be a floating-point tensor .* got float.*without .item",
        ),
        (lambda m, b: m(b[0]).argmax(), ValueError, "got one of torch.int64"),
        (lambda m, b: m(b[0]), ValueError, r"one number, got shape \(8, 2\). Take its mean"),
        (lambda m, b: m(b[0]).sum().detach(), ValueError, "depends on no trainable parameter"),
    ],
)
def test_other_values_than_one_number_are_refused(loss, error, message):
    with pytest.raises(error, match=message):
        Replay(build("plain"), loss, BATCH).gradient()


def test_an_infinite_loss_is_a_number():
    replay = Replay(build("plain"), lambda m, b: m(b[0]).sum() * float("inf"), BATCH)
    assert not replay.loss().isfinite()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(2, 2).requires_grad_(False), "no trainable parameter. Unfreeze"),
        (nn.ReLU(), "no trainable parameter"),
        (nn.LazyLinear(2), "LazyLinear has lazy parameters without a shape"),
        (
            nn.Sequential(nn.Linear(2, 2), nn.LazyBatchNorm1d(affine=False)),
            "LazyBatchNorm1d has lazy parameters",
        ),
    ],
    ids=["frozen", "no parameters", "lazy", "lazy buffers"],
)
def test_models_that_cannot_be_probed_are_refused(model, message):
    with pytest.raises(ValueError, match=message):
        Replay(model, loss_fn, BATCH)


def test_sharded_parameters_are_refused():
    class Sharded(nn.Parameter):
        device_mesh = "two processes"

    model = nn.Linear(2, 2)
    model.weight = Sharded(torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"'weight' is a DTensor, split over processes"):
        Replay(model, loss_fn, BATCH)
