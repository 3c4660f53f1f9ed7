"""What every probe promises: nothing is left behind, and a probed training is the unprobed one."""

import copy
import random
import re

import numpy as np
import pytest
import torch
from torch import nn

from equipoise import probes
from equipoise.instrument.recording.operations import record_operations
from equipoise.instrument.snapshot import untouched
from support.model_state import differences, fingerprint, same_bits
from support.probe_models import MODELS, batch, build, loss_fn

BATCHES = [batch(0), batch(1)]


def redraw(model, replicate):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    np.random.random()  # noqa: NPY002
    random.random()


def growth(model, loss=loss_fn):
    return probes.gradient_growth(model, loss, BATCHES)


def growth_redrawn(model, loss=loss_fn):
    return probes.gradient_growth(model, loss, BATCHES, replicates=2, initialize=redraw)


def conditioning(model, loss=loss_fn):
    return probes.conditioning(model, BATCHES[0], forward=loss)


def activations(model, loss=loss_fn):
    return probes.activations(model, BATCHES[0], forward=loss)


def recording(model, loss=loss_fn):
    return record_operations(model, BATCHES[0], loss)


PROBES = {
    "gradient_growth": growth,
    "gradient_growth, redrawn": growth_redrawn,
    "conditioning": conditioning,
    "activations": activations,
    "record_operations": recording,
}
every_probe = pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES)
every_model = pytest.mark.parametrize("name", MODELS)


class InTheMiddleError(Exception):
    """Raised in the middle of a probe."""


@pytest.fixture
def used():
    """Build a model that has been trained a little: some gradients are there, some are None."""

    def make(name):
        model = build(name)
        with torch.random.fork_rng():
            loss_fn(model, batch(3)).backward()
        parameters = list(model.parameters())
        parameters[0].grad = None
        return model

    return make


@every_model
@every_probe
class TestLeavesNoTrace:
    def test_on_a_used_model(self, probe, name, used):
        model = used(name)
        before = fingerprint(model)
        assert probe(model)
        assert differences(before, fingerprint(model)) == []

    def test_when_the_loss_raises_after_the_forward_pass(self, probe, name, used):
        model = used(name)
        before = fingerprint(model)

        def loss(model, batch):
            loss_fn(model, batch)
            torch.rand(3)
            random.random()
            np.random.random(3)  # noqa: NPY002
            model.eval()
            raise InTheMiddleError

        with pytest.raises(InTheMiddleError):
            probe(model, loss)
        assert differences(before, fingerprint(model)) == []


@every_model
def test_an_unguarded_forward_pass_leaves_traces_or_needs_no_guard(name, used):
    """The twin: what the guard is for. Models without state are exactly those untouched."""
    model = used(name)
    before = fingerprint(model)
    loss_fn(model, BATCHES[0])
    stateless = {"plain", "in-place ReLU", "tied weights", "shared module", "containers"}
    assert bool(differences(before, fingerprint(model))) == (name not in stateless)


@pytest.mark.parametrize("name", ["own generator", "own NumPy generator"])
def test_restoring_all_but_generators_of_modules_is_not_enough(name):
    """The twin for models that own a generator."""
    model = build(name)
    before, values = fingerprint(model), copy.deepcopy(model.state_dict())
    with torch.random.fork_rng(), torch.no_grad():
        loss_fn(model, BATCHES[0])
    model.load_state_dict(values)
    changed = differences(before, fingerprint(model))
    assert "1.generators" in changed
    assert all(key.endswith(".generators") for key in changed)


@pytest.mark.parametrize("probe", [growth, conditioning, recording])
def test_when_a_layer_raises_half_way(probe):
    model = build("batch norm and dropout")
    calls = []

    def fail_late(module, args):
        calls.append(module)
        raise InTheMiddleError

    handle = model[8].register_forward_pre_hook(fail_late)
    before = fingerprint(model)
    with pytest.raises(InTheMiddleError):
        probe(model)
    assert len(calls) == 1
    assert differences(before, fingerprint(model)) == []
    handle.remove()


@every_probe
def test_a_keyboard_interrupt_leaves_no_trace(probe):
    model = build("batch norm and dropout")
    before = fingerprint(model)

    def loss(model, batch):
        loss_fn(model, batch)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        probe(model, loss)
    assert differences(before, fingerprint(model)) == []


def test_when_the_second_initialisation_raises():
    model = build("batch norm and dropout")
    before = fingerprint(model)

    def initialize(model, replicate):
        redraw(model, replicate)
        if replicate:
            raise InTheMiddleError

    with pytest.raises(InTheMiddleError):
        probes.gradient_growth(model, loss_fn, BATCHES, replicates=2, initialize=initialize)
    assert differences(before, fingerprint(model)) == []


RECORDING_IN_INFERENCE = pytest.param(
    recording,
    torch.inference_mode,
)


@pytest.mark.parametrize(
    ("probe", "mode"),
    [
        (growth, torch.no_grad),
        (growth, torch.inference_mode),
        (growth_redrawn, torch.inference_mode),
        (conditioning, torch.no_grad),
        (conditioning, torch.inference_mode),
        (recording, torch.no_grad),
        RECORDING_IN_INFERENCE,
    ],
)
def test_the_caller_may_have_switched_gradients_off(probe, mode):
    model = build("batch norm and dropout")
    expected = probe(model)
    before = fingerprint(model)
    with mode():
        found = probe(model)
    if probe is not recording:  # holds tensors, which have no equality
        assert found == expected
    assert differences(before, fingerprint(model)) == []
    loss_fn(model, BATCHES[0]).backward()  # nothing has become an inference tensor


@every_probe
@pytest.mark.parametrize("lazy", [nn.LazyLinear(3), nn.LazyConv1d(3, 1)])
def test_lazy_modules_are_refused(probe, lazy):
    with pytest.raises(ValueError, match="has lazy parameters without a shape"):
        probe(nn.Sequential(nn.Linear(6, 6), lazy))


def train(probe=None, steps=6):
    """Adam on a network with batch norm and dropout; probed between the steps."""
    torch.manual_seed(0)
    model = build("batch norm and dropout")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for step in range(steps):
        if probe is not None:
            probe(model)
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        if probe is not None:
            probe(model)
        loss = loss_fn(model, (torch.randn(8, 6), torch.randn(8, 1)))
        loss.backward()
        if probe is not None:
            probe(model)
        optimizer.step()
        losses.append(loss.detach())
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return [*losses, *model.state_dict().values(), *moments]


class TestTraining:
    @every_probe
    def test_a_probed_training_equals_the_unprobed_one(self, probe):
        pairs = zip(train(probe), train(), strict=True)
        assert all(same_bits(probed, plain) for probed, plain in pairs)

    def test_an_unguarded_forward_pass_does_change_it(self):
        def unguarded(model):
            with torch.no_grad():
                loss_fn(model, BATCHES[0])

        pairs = zip(train(unguarded), train(), strict=True)
        assert not all(same_bits(probed, plain) for probed, plain in pairs)

    @pytest.mark.parametrize("probe", [growth, conditioning, recording])
    def test_probing_between_forward_and_backward(self, probe):
        model = build("plain")
        loss = loss_fn(model, BATCHES[0])
        probe(model)
        loss.backward()


class TestOtherExecution:
    """Autocast, memory formats and compiled models."""

    def test_autocast_in_the_loss(self):
        model = build("batch norm and dropout").train(False)
        before = fingerprint(model)

        def loss(model, batch):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return loss_fn(model, batch)

        found = growth(model, loss)
        exact = growth(model)
        assert differences(before, fingerprint(model)) == []
        for mixed, full in zip(found.layers, exact.layers, strict=True):
            assert mixed.gradient.value == pytest.approx(full.gradient.value, rel=0.1)
            assert mixed.gradient.value != full.gradient.value

    def test_channels_last(self):
        model = build("convolutions")
        expected = growth(model)
        model.to(memory_format=torch.channels_last)
        before = fingerprint(model)
        found = growth(model)
        assert conditioning(model)
        assert differences(before, fingerprint(model)) == []
        assert model.net[3].weight.is_contiguous(memory_format=torch.channels_last)
        for a, b in zip(found.layers, expected.layers, strict=True):
            assert (a.layer, a.rows, a.features) == (b.layer, b.rows, b.features)
            assert a.gradient.value == pytest.approx(b.gradient.value, rel=1e-4)

    @pytest.mark.parametrize("called_before", [False, True])
    def test_a_compiled_model_is_measured_as_the_original(self, called_before):
        torch.compiler.reset()
        model = build("plain")
        compiled = torch.compile(model, backend="eager")  # seconds less than inductor
        if called_before:
            compiled(BATCHES[0][0])
        found, expected = growth(compiled), growth(model)
        assert found.rate == expected.rate
        assert [layer.gradient for layer in found.layers] == [
            layer.gradient for layer in expected.layers
        ]
        torch.compiler.reset()

    def test_activation_checkpointing_measures_the_same(self):
        model = Checkpointed()
        stored = growth(model)
        model.recompute = True
        assert growth(model) == stored

    def test_sparse_gradients_of_an_embedding(self):
        model = nn.Sequential(nn.EmbeddingBag(9, 6, sparse=True), nn.Linear(6, 2))
        tokens = torch.arange(8).reshape(4, 2)
        model(tokens).sum().backward()
        grad = model[0].weight.grad
        probes.gradient_growth(model, lambda m, x: m(x).square().mean(), [tokens])
        assert model[0].weight.grad is grad
        assert grad.is_sparse


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU()) for _ in range(4)
        )
        self.head = nn.Linear(6, 2)
        self.recompute = False

    def forward(self, x):
        for block in self.blocks:
            if self.recompute:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.head(x)


def test_the_message_for_lazy_modules_names_the_class():
    message = "LazyLinear has lazy parameters without a shape. Run one batch through the model"
    with (
        pytest.raises(ValueError, match=re.escape(message)),
        untouched(nn.LazyLinear(2)),
    ):
        pass
