"""What every probe promises: it leaves no trace, and the model's way to run changes nothing.

A new probe joins by one line in PROBES.
"""

import copy
import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from equipoise import probes
from equipoise.instrument.recording.tracer import trace
from support import hiding_models
from support.hiding_models import HIDING
from support.model_state import differences, fingerprint, same_bits
from support.probe_models import ALL, batch, build, loss_fn

BATCH, NEXT_BATCH = batch(0), batch(1)
STEPS = (0.05, 1e30)  # the second diverges


def redraw(model, replicate):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            module.reset_running_stats()
    np.random.random()  # noqa: NPY002
    random.random()


def growth(model, loss=loss_fn, data=BATCH):
    return probes.gradient_growth(model, loss, [data, data])


def growth_redrawn(model, loss=loss_fn, data=BATCH):
    return probes.gradient_growth(model, loss, [data], replicates=2, initialize=redraw)


def conditioning(model, loss=loss_fn, data=BATCH):
    return probes.conditioning(model, data, forward=loss)


def activations(model, loss=loss_fn, data=BATCH):
    return probes.activations(model, data, forward=loss)


def recording(model, loss=loss_fn, data=BATCH):
    return [node.name for node in trace(model, data, loss).nodes]


def along_gradient(model, loss=loss_fn, data=BATCH):
    return probes.landscape(model, loss, data, steps=STEPS)


def along_random(model, loss=loss_fn, data=BATCH):
    generator = torch.Generator().manual_seed(0)
    return probes.landscape(
        model, loss, data, steps=STEPS, direction="random", generator=generator
    )


def losses_only(model, loss=loss_fn, data=BATCH):
    return probes.landscape(model, loss, data, steps=STEPS, gradients=False)


def shift(model, loss=loss_fn, data=BATCH):
    return probes.covariate_shift(model, loss, data, 0.1)


def shift_in_whole_passes(model, loss=loss_fn, data=BATCH):
    return probes.covariate_shift(model, loss, data, 0.1, share_prefix=False)


def shift_under_adam(model, loss=loss_fn, data=BATCH):
    adam = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 0.1)
    return probes.covariate_shift(model, loss, data, adam)


def curvature(model, loss=loss_fn, data=BATCH):
    return probes.hessian(model, loss, data, more_batches=[NEXT_BATCH], steps=3)


# Probes by name, each with an evaluation of the loss, not the first if there are several, at
# which the tests let it fail.
PROBES = {
    "gradient_growth": (growth, 2),
    "gradient_growth, redrawn": (growth_redrawn, 2),
    "conditioning": (conditioning, 1),
    "activations": (activations, 1),
    "trace": (recording, 1),
    "landscape along the gradient": (along_gradient, 3),
    "landscape along a random direction": (along_random, 3),
    "landscape of losses alone": (losses_only, 3),
    "covariate_shift": (shift, 2),
    "covariate_shift in whole passes": (shift_in_whole_passes, 2),
    "covariate_shift under Adam": (shift_under_adam, 2),
    "hessian": (curvature, 2),
}
every_probe = pytest.mark.parametrize(("probe", "fails_at"), PROBES.values(), ids=PROBES)
# One that restores a snapshot at the end, and one that replays the loss from it. How a model is
# put back does not depend on the rest of a probe.
BOTH_WAYS = ("gradient_growth, redrawn", "covariate_shift")
every_model = pytest.mark.parametrize("name", ALL)


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
    """A loss that changes all that it can in its n-th evaluation, and raises."""
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
class TestLeavesNoTrace:
    def test_on_a_used_model(self, name):
        """Nor does it find one of those before it, on the same model."""
        model = used(name)
        before = everything(model)
        for called, (probe, _) in PROBES.items():
            assert probe(model), called
            assert differences(before, everything(model)) == [], called

    @pytest.mark.parametrize("way", BOTH_WAYS)
    def test_when_the_loss_raises(self, way, name):
        """Every probe is interrupted below."""
        (probe, fails_at), model = PROBES[way], used(name)
        before = everything(model)
        # "buffers reassigned" has one layer, which takes a single pass.
        call = 1 if name == "buffers reassigned" else fails_at
        with pytest.raises(InTheMiddleError):
            probe(model, failing_at(call, InTheMiddleError))
        assert differences(before, everything(model)) == []


@every_model
def test_an_unguarded_forward_pass_leaves_traces_of_models_with_state(name):
    """The twin: models without state are the only ones that need no guard."""
    model = used(name)
    before = fingerprint(model)
    loss_fn(model, BATCH)
    stateless = {"plain", "in-place ReLU", "tied weights", "shared module", "containers"}
    assert bool(differences(before, fingerprint(model))) == (name not in stateless)


@pytest.mark.parametrize("name", ["own generator", "own NumPy generator"])
def test_restoring_all_but_generators_of_modules_is_not_enough(name):
    """The twin for models that own a generator."""
    model = build(name)
    before, values = fingerprint(model), copy.deepcopy(model.state_dict())
    with torch.random.fork_rng(), torch.no_grad():
        loss_fn(model, BATCH)
    model.load_state_dict(values)
    changed = differences(before, fingerprint(model))
    assert changed
    assert all(key.endswith((".generator", ".source")) for key in changed)


@every_probe
class TestInterruptions:
    def test_by_the_keyboard(self, probe, fails_at):
        for call in (1, fails_at):
            model = used("batch norm and dropout")
            before = everything(model)
            with pytest.raises(KeyboardInterrupt):
                probe(model, failing_at(call, KeyboardInterrupt))
            assert differences(before, everything(model)) == []

    def test_by_a_layer(self, probe, fails_at):
        model = used("batch norm and dropout")

        def fail(module, args):
            raise InTheMiddleError

        handle = model[8].register_forward_pre_hook(fail)
        before = everything(model)
        with pytest.raises(InTheMiddleError):
            probe(model)
        assert differences(before, everything(model)) == []
        handle.remove()


class Scaling(nn.Module):
    """Scales its inputs, in place or not."""

    def __init__(self, *, in_place):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
        self.in_place = in_place

    def forward(self, x):
        return self.layers(x.div_(3) if self.in_place else x / 3)


@every_probe
def test_a_batch_is_left_as_it_was(probe, fails_at):
    """Every pass of a model that writes to its inputs sees what the first one saw."""
    before = [x.clone() for x in (*BATCH, *NEXT_BATCH)]
    found = []
    for in_place in (True, False):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            found.append(probe(Scaling(in_place=in_place)))
    names = {"div_", "div"}
    first, second = (
        [x for x in result if x not in names] if probe is recording else result for result in found
    )
    assert repr(first) == repr(second)  # some numbers are nan
    assert all(map(torch.equal, before, (*BATCH, *NEXT_BATCH)))


class Streaming(nn.Module):
    """Takes its scales from a generator, which nothing can copy."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 1)
        self.scales = {"stream": (1.0 + i for i in range(1000))}

    def forward(self, x):
        return self.layer(x) * next(self.scales["stream"])


@every_probe
def test_what_cannot_be_put_back_is_refused_by_its_name(probe, fails_at):
    model = nn.Sequential(Streaming())
    with pytest.raises(ValueError, match=r"0\.scales\['stream'\] is a generator, .*Take it off"):
        probe(model)
    assert next(model[0].scales["stream"]) == 1


def test_parameters_that_a_forward_pass_adds_are_refused_between_batches():
    """The Hessian on several batches would be of different parameters; nothing is left behind."""
    model = hiding_models.build("parameters added")
    before = everything(model)
    with pytest.raises(ValueError, match=r"adds parameters .*gain, late\. Run one batch"):
        curvature(model)
    assert differences(before, everything(model)) == []


def test_an_initialisation_that_raises_leaves_no_trace():
    model = build("batch norm and dropout")
    before = fingerprint(model)

    def initialize(model, replicate):
        redraw(model, replicate)
        if replicate:
            raise InTheMiddleError

    with pytest.raises(InTheMiddleError):
        probes.gradient_growth(model, loss_fn, [BATCH], replicates=2, initialize=initialize)
    assert differences(before, fingerprint(model)) == []


@dataclass
class Run:
    """A training with Adam in mixed precision."""

    model: nn.Module
    optimizer: torch.optim.Optimizer = field(init=False)

    def __post_init__(self):
        self.optimizer = torch.optim.Adam(
            [p for p in self.model.parameters() if p.requires_grad], lr=0.01
        )

    def loss(self, model, data):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss_fn(model, data)

    def bits(self, probe=None) -> list[Any]:
        """Train, with the probe between other parts in each step, from last to first."""
        found = []
        for place in (2, 1, 0):
            probes = [None] * 3
            probes[place] = probe
            data = torch.randn(8, 6), torch.randn(8, 1)
            self.measure(probes[0], data)
            self.optimizer.zero_grad(set_to_none=place != 1)
            value = self.loss(self.model, data)
            self.measure(probes[1], data)
            value.backward()
            self.measure(probes[2], data)
            self.optimizer.step()
            found.append(value.detach())
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        return [*found, *self.model.state_dict().values(), *moments]

    def measure(self, probe, data):
        if probe is not None:
            probe(self.model, self.loss, data, self.optimizer)


def train(probe=None, name="batch norm and dropout"):
    torch.manual_seed(0)
    return Run(build(name)).bits(probe)


def without_optimizer(probe):
    return lambda model, loss, data, optimizer: probe(model, loss, data)


TRAINING_PROBES = {
    **{name: without_optimizer(probe) for name, (probe, _) in PROBES.items()},
    "covariate_shift under the training's optimiser": probes.covariate_shift,
}


class TestTraining:
    @pytest.mark.parametrize(
        ("probe", "name"),
        [
            *((probe, "batch norm and dropout") for probe in TRAINING_PROBES),
            *itertools.product(BOTH_WAYS, ["own generator", "averages"]),
        ],
    )
    def test_a_probed_training_equals_the_unprobed_one(self, probe, name):
        pairs = zip(train(TRAINING_PROBES[probe], name), train(None, name), strict=True)
        assert all(same_bits(probed, plain) for probed, plain in pairs)

    def test_an_unguarded_forward_pass_changes_it(self):
        def unguarded(model, loss, data, _):
            with torch.no_grad():
                loss(model, data)

        pairs = zip(train(unguarded), train(), strict=True)
        assert not all(same_bits(probed, plain) for probed, plain in pairs)

    def test_moving_parameters_there_and_back_changes_it(self):
        """θ − ηd + ηd is not θ in floating point."""

        def there_and_back(model, loss, data, _):
            with torch.no_grad():
                for sign in (-1, 1):
                    for parameter in model.parameters():
                        parameter.data.add_(torch.ones_like(parameter), alpha=sign * 0.1)

        pairs = zip(train(there_and_back), train(), strict=True)
        assert not all(same_bits(probed, plain) for probed, plain in pairs)


HIDDEN_PROBES = {name: PROBES[name][0] for name in BOTH_WAYS}


def train_hiding(name, probe=None):
    torch.manual_seed(0)
    return Run(hiding_models.build(name)).bits(probe)


@pytest.mark.parametrize("name", HIDING)
class TestStateThatNoAttributeShows:
    @pytest.mark.parametrize("probe", HIDDEN_PROBES.values(), ids=HIDDEN_PROBES)
    def test_a_probed_training_equals_the_unprobed_one(self, probe, name):
        found, plain = train_hiding(name, without_optimizer(probe)), train_hiding(name)
        assert all(same_bits(a, b) for a, b in zip(found, plain, strict=True))

    def test_an_unguarded_forward_pass_changes_it(self, name):
        def unguarded(model, loss, data, _):
            with torch.no_grad():
                loss(model, data)

        found, plain = train_hiding(name, unguarded), train_hiding(name)
        assert len(found) != len(plain) or not all(map(same_bits, found, plain))


@every_probe
class TestExecution:
    """Inference mode, autocast, memory formats, compiled and lazy models."""

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    def test_the_caller_may_have_switched_gradients_off(self, probe, fails_at, mode):
        model = build("batch norm and dropout")
        expected = probe(model)
        before = everything(model)
        with mode():
            found = probe(model)
        assert repr(found) == repr(expected)  # nan is not equal to itself
        assert differences(before, everything(model)) == []
        loss_fn(model, BATCH).backward()  # nothing has become an inference tensor

    def test_the_caller_may_be_under_autocast(self, probe, fails_at):
        model = build("residual")

        def loss(model, data):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return loss_fn(model, data)

        inside = probe(model, loss)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert repr(probe(model)) == repr(inside)
        if probe is not recording:
            assert repr(inside) != repr(probe(model))

    def test_training_under_the_callers_autocast_goes_on(self, probe, fails_at):
        """PyTorch caches casts of weights, also of weights that a probe moves or uses."""

        def gradients(probe):
            model = build("residual")
            with torch.autocast("cpu", dtype=torch.bfloat16):
                if probe is not None:
                    probe(model)
                loss_fn(model, BATCH).backward()
            return [parameter.grad for parameter in model.parameters()]

        pairs = zip(gradients(probe), gradients(None), strict=True)
        assert all(same_bits(probed, plain) for probed, plain in pairs)

    def test_a_pending_backward_pass_goes_on(self, probe, fails_at):
        """Between a loss and its gradients, which PyTorch refuses if a saved tensor changed."""
        model, again = build("batch norm and dropout"), build("batch norm and dropout")
        with torch.random.fork_rng():
            loss_fn(again, BATCH).backward()
        loss = loss_fn(model, BATCH)
        probe(model)
        loss.backward()
        pairs = zip(model.parameters(), again.parameters(), strict=True)
        assert all(same_bits(probed.grad, plain.grad) for probed, plain in pairs)

    def test_channels_last(self, probe, fails_at):
        model = build("convolutions").to(memory_format=torch.channels_last)
        before = everything(model)
        assert probe(model)
        assert differences(before, everything(model)) == []
        assert model.net[3].weight.is_contiguous(memory_format=torch.channels_last)

    @pytest.mark.parametrize("in_place", [False, True])
    def test_a_compiled_model_is_measured_as_the_original(self, probe, fails_at, in_place):
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

    def test_activation_checkpointing_measures_the_same(self, probe, fails_at):
        model = Checkpointed()
        stored = probe(model)
        model.recompute = True
        before = everything(model)
        assert repr(probe(model)) == repr(stored)
        assert differences(before, everything(model)) == []

    @pytest.mark.parametrize("lazy", [nn.LazyLinear(3), nn.LazyConv1d(3, 1)])
    def test_lazy_modules_are_refused(self, probe, fails_at, lazy):
        with pytest.raises(ValueError, match="has lazy parameters without a shape"):
            probe(nn.Sequential(nn.Linear(6, 6), lazy))

    def test_sparse_gradients_of_an_embedding_stay(self, probe, fails_at):
        if probe in (curvature, shift_under_adam):
            return  # no second derivative of an embedding bag; Adam refuses sparse gradients
        model = nn.Sequential(nn.EmbeddingBag(9, 6, sparse=True), nn.Linear(6, 1))
        tokens = torch.arange(8).reshape(4, 2)
        model(tokens).sum().backward()
        gradient = model[0].weight.grad
        before = gradient.to_dense()
        probe(model, lambda m, x: m(x).square().mean(), tokens)
        assert model[0].weight.grad is gradient
        assert gradient.is_sparse
        assert torch.equal(gradient.to_dense(), before)


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


@pytest.mark.parametrize(
    "probe",
    [
        lambda model, loss, data: probes.landscape(model, loss, data, steps=[0.1]),
        lambda model, loss, data: probes.hessian(model, loss, data),
        lambda model, loss, data: probes.gradient_growth(model, loss, [data]),
        lambda model, loss, data: probes.covariate_shift(model, loss, data, 0.1),
    ],
    ids=["landscape", "hessian", "gradient_growth", "covariate_shift"],
)
@pytest.mark.parametrize(
    "criterion", [nn.MSELoss(), nn.functional.mse_loss], ids=["MSELoss", "mse_loss"]
)
def test_a_criterion_is_refused_in_the_place_of_a_loss(probe, criterion):
    data = torch.ones(4, 2), torch.ones(4, 1)
    with pytest.raises(
        TypeError, match=r"of \(model, batch\), and \w+ is one of \(output, target\)"
    ):
        probe(nn.Linear(2, 1), criterion, data)
