"""Landscape and covariate shift leave no trace, and measure the same however the model runs."""

import random
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.probes.covariate_shift import covariate_shift
from equipoise.probes.landscape import landscape
from support.model_state import differences, fingerprint, same_bits
from support.probe_models import MODELS, batch, build, loss_fn

BATCH = batch()
STEPS = (0.05, 1e30)  # the second diverges


def along_gradient(model, loss=loss_fn, data=BATCH):
    return landscape(model, loss, data, steps=STEPS)


def along_random(model, loss=loss_fn, data=BATCH):
    generator = torch.Generator().manual_seed(0)
    return landscape(model, loss, data, steps=STEPS, direction="random", generator=generator)


def losses(model, loss=loss_fn, data=BATCH):
    return landscape(model, loss, data, steps=STEPS, gradients=False)


def shift(model, loss=loss_fn, data=BATCH, **options):
    return covariate_shift(model, loss, data, 0.1, **options)


def shift_under_adam(model, loss=loss_fn, data=BATCH):
    return covariate_shift(model, loss, data, torch.optim.Adam(model.parameters(), 0.1))


PROBES = {
    "along the gradient": along_gradient,
    "along a random direction": along_random,
    "losses alone": losses,
    "covariate shift": shift,
    "covariate shift in whole passes": partial(shift, share_prefix=False),
    "covariate shift under Adam": shift_under_adam,
}
every_probe = pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES)
every_model = pytest.mark.parametrize("name", MODELS)


class InTheMiddleError(Exception):
    """Raised in the middle of a probe."""


def used(name):
    """A model that has been trained a little: some gradients are there, some are None."""
    model = build(name)
    with torch.random.fork_rng():
        loss_fn(model, batch(3)).backward()
    next(model.parameters()).grad = None
    return model


def everything(model):
    """The fingerprint, and the names of all attributes of all modules."""
    attributes = {f"{name}.attributes": list(vars(m)) for name, m in model.named_modules()}
    return fingerprint(model) | attributes


def failing_at(call, error):
    """A loss that leaves a mess at its n-th evaluation, and raises."""
    calls = []

    def loss(model, data):
        found = loss_fn(model, data)
        calls.append(found)
        if len(calls) == call:
            torch.rand(3)
            random.random()
            np.random.random(3)  # noqa: NPY002
            model.eval()
            for parameter in model.parameters():
                parameter.requires_grad_(False)
                parameter.grad = torch.ones_like(parameter)
            raise error
        return found

    return loss


@every_model
@every_probe
class TestLeavesNoTrace:
    def test_on_a_used_model(self, probe, name):
        model = used(name)
        before = everything(model)
        assert probe(model)
        assert differences(before, everything(model)) == []

    def test_when_the_loss_raises_half_way(self, probe, name):
        model = used(name)
        before = everything(model)
        # "buffers reassigned" has one layer, which takes a single pass.
        with pytest.raises(InTheMiddleError):
            probe(model, failing_at(1 if name == "buffers reassigned" else 2, InTheMiddleError))
        assert differences(before, everything(model)) == []


@every_probe
def test_a_keyboard_interrupt_leaves_no_trace(probe):
    model = used("batch norm and dropout")
    before = everything(model)
    with pytest.raises(KeyboardInterrupt):
        probe(model, failing_at(3, KeyboardInterrupt))
    assert differences(before, everything(model)) == []


def train(probe=None, name="batch norm and dropout", steps=5):
    """Adam, in mixed precision, probed between the steps and between forward and backward."""
    torch.manual_seed(0)
    model = build(name)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    found = []

    def loss(model, data):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss_fn(model, data)

    for step in range(steps):
        data = torch.randn(8, 6), torch.randn(8, 1)
        if probe is not None:
            probe(model, loss, data, optimizer)
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        value = loss(model, data)
        if probe is not None:
            probe(model, loss, data, optimizer)
        value.backward()
        if probe is not None:
            probe(model, loss, data, optimizer)
        optimizer.step()
        found.append(value.detach())
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return [*found, *model.state_dict().values(), *moments]


TRAINING_PROBES = {
    "landscape": lambda model, loss, data, _: landscape(model, loss, data, steps=STEPS),
    "covariate shift": covariate_shift,
}


class TestTraining:
    @pytest.mark.parametrize("probe", TRAINING_PROBES.values(), ids=TRAINING_PROBES)
    @pytest.mark.parametrize("name", ["batch norm and dropout", "transformer", "convolutions"])
    def test_a_probed_training_equals_the_unprobed_one(self, probe, name):
        pairs = zip(train(probe, name), train(None, name), strict=True)
        assert all(same_bits(probed, plain) for probed, plain in pairs)

    def test_walking_there_and_back_does_change_it(self):
        """The twin: θ − ηd + ηd is not θ in floating point."""

        def there_and_back(model, loss, data, _):
            with torch.no_grad():
                for sign in (-1, 1):
                    for parameter in model.parameters():
                        parameter.data.add_(torch.ones_like(parameter), alpha=sign * 0.1)

        pairs = zip(train(there_and_back), train(), strict=True)
        assert not all(same_bits(probed, plain) for probed, plain in pairs)


@every_probe
class TestOtherExecution:
    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    def test_the_caller_may_have_switched_gradients_off(self, probe, mode):
        model = build("batch norm and dropout")
        expected = probe(model)
        before = everything(model)
        with mode():
            found = probe(model)
        assert repr(found) == repr(expected)  # nan is not equal to itself
        assert differences(before, everything(model)) == []
        loss_fn(model, BATCH).backward()  # nothing has become an inference tensor

    def test_the_caller_may_be_under_autocast(self, probe):
        model = build("residual")

        def loss(model, data):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return loss_fn(model, data)

        inside = probe(model, loss)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert repr(probe(model)) == repr(inside)

    def test_channels_last(self, probe):
        model = build("convolutions").to(memory_format=torch.channels_last)
        before = everything(model)
        assert probe(model)
        assert differences(before, everything(model)) == []
        assert model.net[3].weight.is_contiguous(memory_format=torch.channels_last)

    @pytest.mark.parametrize("in_place", [False, True])
    def test_a_compiled_model_is_measured_as_the_original(self, probe, in_place):
        torch.compiler.reset()
        model = build("plain")
        expected = probe(model)
        if in_place:
            model.compile(backend="eager")  # seconds less than inductor
            compiled = model
        else:
            compiled = torch.compile(model, backend="eager")
        compiled(BATCH[0])
        assert repr(probe(compiled)) == repr(expected)
        torch.compiler.reset()

    def test_activation_checkpointing_measures_the_same(self, probe):
        model = Checkpointed()
        stored = probe(model)
        model.recompute = True
        before = everything(model)
        assert repr(probe(model)) == repr(stored)
        assert differences(before, everything(model)) == []

    @pytest.mark.parametrize("lazy", [nn.LazyLinear(3), nn.LazyConv1d(3, 1)])
    def test_lazy_modules_are_refused(self, probe, lazy):
        with pytest.raises(ValueError, match="has lazy parameters without a shape"):
            probe(nn.Sequential(nn.Linear(6, 6), lazy))


@pytest.mark.parametrize("probe", [along_gradient, along_random, losses, shift])
def test_sparse_gradients_of_an_embedding(probe):
    model = nn.Sequential(nn.EmbeddingBag(9, 6, sparse=True), nn.Linear(6, 1))
    tokens = torch.arange(8).reshape(4, 2)
    model(tokens).sum().backward()
    gradient = model[0].weight.grad
    probe(model, lambda m, x: m(x).square().mean(), tokens)
    assert model[0].weight.grad is gradient
    assert gradient.is_sparse


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.2)) for _ in range(3)
        )
        self.head = nn.Linear(6, 1)
        self.recompute = False

    def forward(self, x):
        for block in self.blocks:
            if self.recompute:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.head(x)
