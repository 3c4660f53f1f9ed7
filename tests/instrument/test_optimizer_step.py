"""The step is the one that training takes next, and is undone bit for bit."""

import copy

import pytest
import torch
from torch import nn

from equipoise import BNP
from equipoise.probes.covariate_shift import covariate_shift
from equipoise.probes.landscape import landscape
from reference.landscape import covariate_shift as literally
from reference.landscape import pass_over
from support.covariate_shifts import assert_agree, chain, double, names_by_layer, numbers
from support.model_state import fingerprint, left_alone
from support.probe_models import batch, build, loss_fn

BATCH = batch()
RATE = 0.1


class TestUpdate:
    @pytest.mark.parametrize(
        "make",
        [
            lambda p: torch.optim.SGD(p, RATE),
            lambda p: torch.optim.SGD(p, RATE, momentum=0.9, weight_decay=0.1, nesterov=True),
            lambda p: torch.optim.Adam(p, RATE),
            lambda p: torch.optim.RMSprop(p, RATE, centered=True),
            lambda p: torch.optim.AdamW(p, torch.tensor(RATE), amsgrad=True),
        ],
        ids=["SGD", "momentum", "Adam", "RMSprop", "AdamW"],
    )
    @pytest.mark.parametrize("steps", [0, 3])
    def test_is_the_step_that_training_takes(self, make, steps):
        model, data = double("batch norm and dropout")
        optimizer = make(model.parameters())
        for _ in range(steps):
            optimizer.zero_grad()
            loss_fn(model, data).backward()
            optimizer.step()
        shift = covariate_shift(model, loss_fn, data, optimizer)
        moved = copy.deepcopy(model)
        twin = make(moved.parameters())
        twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        _, gradients = pass_over(model, loss_fn, data)
        for name, parameter in moved.named_parameters():
            parameter.grad = gradients[name]
        twin.step()
        layers = names_by_layer(model, shift)
        assert_agree(shift, literally(model, loss_fn, data, layers, moved))

    def test_by_hand(self):
        model, data = double("plain")
        expected = covariate_shift(model, loss_fn, data, RATE)

        def step(model):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.data = parameter - RATE * parameter.grad  # other memory

        with left_alone(model):
            assert_agree(covariate_shift(model, loss_fn, data, step), numbers(expected))

    def test_the_optimizer_skips_what_the_loss_does_not_use(self):
        """As in training, where such a parameter has no gradient and no weight decay."""
        seen = []

        class Watching(torch.optim.SGD):
            def step(self, closure=None):
                seen.extend(p.grad is None for g in self.param_groups for p in g["params"])

        model = build("containers")
        covariate_shift(model, loss_fn, BATCH, Watching(model.parameters(), RATE))
        unused = [name.startswith("unused") for name, _ in model.named_parameters()]
        assert seen == unused

    @pytest.mark.parametrize(
        ("update", "error", "message"),
        [
            (None, TypeError, "must be a learning rate, a torch.optim.Optimizer or a function"),
            (True, TypeError, "got bool"),
            (
                lambda m: torch.optim.LBFGS(m.parameters()),
                TypeError,
                "LBFGS evaluates a closure .* calls step\\(closure\\)",
            ),
            (
                lambda m: torch.optim.SGD(nn.Linear(2, 2).parameters(), RATE),
                ValueError,
                "the optimizer trains no parameter of this model",
            ),
        ],
        ids=["nothing", "bool", "LBFGS", "another model's"],
    )
    def test_other_updates_are_refused(self, update, error, message):
        model = build("plain")
        update = update(model) if callable(update) else update
        with pytest.raises(error, match=message) as raised:
            covariate_shift(model, loss_fn, BATCH, update)
        assert "\n" not in str(raised.value)


def bits(value):
    """A nested state as something that compares by bytes and identities."""
    if isinstance(value, dict):
        return {str(key): bits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [bits(item) for item in value]
    if isinstance(value, torch.Tensor):
        return value.dtype, value.detach().numpy().tobytes()
    return value


def everything(optimizer):
    """The state in bytes, the identity of every tensor in it, and all attributes."""
    tensors = [
        (id(p), name, id(value))
        for p, state in optimizer.state.items()
        for name, value in state.items()
    ]
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    return bits(optimizer.state_dict()), tensors, bits(groups), list(vars(optimizer).items())


class Careless(torch.optim.SGD):
    """Changes everything, then fails."""

    def step(self, closure=None):
        super().step(closure)
        self.note = "new"
        self.param_groups[0]["lr"] = 7.0
        self.param_groups.append({"params": [], "lr": 0.0})
        raise InTheMiddleError


class InTheMiddleError(Exception):
    """Raised in the middle of a step."""


class TestOptimizerGoesBack:
    @pytest.mark.parametrize("steps", [0, 2])
    @pytest.mark.parametrize(
        ("make", "options"),
        [
            (torch.optim.SGD, {"momentum": 0.9}),
            (torch.optim.Adam, {}),
            (torch.optim.Adagrad, {}),
            (torch.optim.NAdam, {}),
            (torch.optim.ASGD, {}),
            (torch.optim.Rprop, {}),
            (torch.optim.Adafactor, {}),
        ],
        ids=lambda value: value.__name__ if isinstance(value, type) else "",
    )
    def test_with_its_state(self, make, options, steps):
        model = build("plain")
        optimizer = make(model.parameters(), lr=RATE, **options)
        # A scheduler notes in the optimiser that it has stepped.
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for _ in range(steps):
            loss_fn(model, BATCH).backward()
            optimizer.step()
        before = everything(optimizer), fingerprint(model)
        covariate_shift(model, loss_fn, BATCH, optimizer)
        assert (everything(optimizer), fingerprint(model)) == before

    def test_a_step_does_change_it(self):
        model = build("plain")
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
        before = everything(optimizer)
        loss_fn(model, BATCH).backward()
        optimizer.step()
        assert everything(optimizer) != before

    def test_when_the_step_raises(self):
        model = build("batch norm and dropout")
        optimizer = Careless(model.parameters(), RATE, momentum=0.9)
        before = everything(optimizer), fingerprint(model)
        with pytest.raises(InTheMiddleError):
            covariate_shift(model, loss_fn, BATCH, optimizer)
        assert (everything(optimizer), fingerprint(model)) == before

    def test_with_parameters_of_the_loss(self):
        model, scale = build("plain"), nn.Parameter(torch.ones(1))
        scale.grad = torch.ones(1)
        optimizer = torch.optim.SGD([*model.parameters(), scale], RATE, weight_decay=0.5)
        before = scale.item(), id(scale.grad), scale._version
        covariate_shift(model, lambda m, b: loss_fn(m, b) * scale.sum(), BATCH, optimizer)
        assert (scale.item(), id(scale.grad), scale._version) == before


class TestBNP:
    """Under a preconditioner, the step is the preconditioned one."""

    def trained(self, make=torch.optim.SGD):
        torch.manual_seed(0)
        model = chain(3)
        optimizer = make(model.parameters(), lr=RATE)
        bnp = BNP(model).attach(optimizer)
        for seed in range(3):
            self.step(model, optimizer, seed)
        return model, optimizer, bnp

    def step(self, model, optimizer, seed=9):
        optimizer.zero_grad()
        loss_fn(model, [part.double() for part in batch(seed)]).backward()
        optimizer.step()

    def test_it_must_be_named(self):
        model, optimizer, _ = self.trained()
        with pytest.raises(ValueError, match=r"has step hooks.*such as stateful=\[bnp\]"):
            covariate_shift(model, loss_fn, BATCH, optimizer)

    @pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
    def test_its_step_is_measured_and_its_statistics_are_restored(self, make):
        data = [part.double() for part in batch(9)]
        model, optimizer, bnp = self.trained(make)
        before = bits(bnp.state_dict()), bits(optimizer.state_dict()), fingerprint(model)
        shift = covariate_shift(model, loss_fn, data, optimizer, stateful=[bnp])
        after = bits(bnp.state_dict()), bits(optimizer.state_dict()), fingerprint(model)
        assert after == before
        moved, stepper, _ = self.trained(make)
        self.step(moved, stepper)
        layers = names_by_layer(model, shift)
        assert_agree(shift, literally(model, loss_fn, data, layers, moved))
        plain = covariate_shift(model, loss_fn, data, RATE)
        with pytest.raises(AssertionError):
            assert_agree(plain, numbers(shift), tolerance=1e-4)

    def test_training_goes_on_as_if_nothing_had_been_measured(self):
        probed, unprobed = self.trained(), self.trained()
        covariate_shift(
            probed[0], loss_fn, [p.double() for p in BATCH], probed[1], stateful=[probed[2]]
        )
        for model, optimizer, _ in (probed, unprobed):
            self.step(model, optimizer)
        assert bits(probed[0].state_dict()) == bits(unprobed[0].state_dict())

    def test_hooks_without_a_state_can_be_declared(self):
        model, calls = build("plain"), []
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        optimizer.register_step_post_hook(lambda *_: calls.append(1))
        found = covariate_shift(model, loss_fn, BATCH, optimizer, stateful=[])
        assert numbers(found) == numbers(covariate_shift(model, loss_fn, BATCH, RATE))
        assert calls == [1]

    def test_a_landscape_under_pause_leaves_it_alone(self):
        data = [part.double() for part in batch(9)]
        ends = []
        for probed in (False, True):
            model, optimizer, bnp = self.trained()
            loss = loss_fn(model, data)
            optimizer.zero_grad()
            loss.backward()  # its statistics wait for the step
            if probed:
                with bnp.paused():
                    landscape(model, loss_fn, data, steps=[RATE])
            optimizer.step()
            ends.append((bits(model.state_dict()), bits(bnp.state_dict())))
        assert ends[0] == ends[1]

    def test_only_objects_with_a_state_can_be_named(self):
        with pytest.raises(TypeError, match=r"state_dict\(\) and load_state_dict\(\), got int"):
            covariate_shift(build("plain"), loss_fn, BATCH, RATE, stateful=[3])
