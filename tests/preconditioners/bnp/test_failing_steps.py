"""A step that raises leaves groups, gradients and parameters as found; the next one is as ever."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from equipoise.preconditioners import BNP
from support.bnp_problems import batches, flat, mlp


class Failing(torch.optim.AdamW):
    """Raises when told to, before or after it has changed a preconditioned parameter."""

    def __init__(self, params, error=None, late=False, **options):
        super().__init__(params, **options)
        self.error, self.late = error, late

    def step(self, closure=None):
        if self.error is not None:
            if self.late:
                with torch.no_grad():
                    self.param_groups[-1]["params"][0].add_(100)
            raise self.error
        return super().step(closure)


KINDS = {
    "linear": lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.3),
    "tensor lr": lambda p: torch.optim.AdamW(
        p, lr=torch.tensor(0.01), weight_decay=0.3, foreach=False
    ),
}


def mixed():
    """Preconditioned layers and a normaliser, whose parameters share one group."""
    return nn.Sequential(mlp((5, 4)), nn.LayerNorm(4, dtype=torch.float64), mlp((4, 3)))


def backward(model, number=0):
    model.zero_grad()
    x, y = batches(3)[number]
    mse_loss(model(x), y).backward()


def contents(optimizer):
    """Everything that groups are made of, as objects."""
    groups = optimizer.param_groups
    return [
        groups,
        *(item for g in groups for item in (g, g["params"], *g.values(), *g["params"])),
    ]


def look(model, optimizer):
    """Whatever an accident could change: objects and bits."""
    return {
        "groups": contents(optimizer),
        "keys": [list(group) for group in optimizer.param_groups],
        "gradients": [p.grad for p in model.parameters()],
        "gradient bits": [p.grad.clone() for p in model.parameters()],
        "parameters": flat(model),
        "versions": [p._version for p in model.parameters()],
        "step": optimizer.step,
    }


def assert_same(model, optimizer, before, *, versions=True):
    now = look(model, optimizer)
    for objects in ("groups", "gradients"):
        assert len(now[objects]) == len(before[objects])
        assert all(a is b for a, b in zip(now[objects], before[objects], strict=True))
    assert now["keys"] == before["keys"]
    assert all(map(torch.equal, now["gradient bits"], before["gradient bits"]))
    assert torch.equal(now["parameters"], before["parameters"])
    assert now["step"] == before["step"]
    if versions:
        assert now["versions"] == before["versions"]


def structure(optimizer):
    """State and groups; of tensors with several elements, which ones they are."""
    return repr(
        [
            (
                {k: id(v) if torch.is_tensor(v) and v.numel() > 1 else v for k, v in s.items()}
                if isinstance(s, dict)
                else s
            )
            for s in optimizer.state.values()
        ]
    ) + repr([{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups])


def boom(error):
    def hook(*_):
        raise error

    return hook


def same_bits(a, b):
    return torch.equal(flat(a[0]), flat(b[0])) and all(
        torch.equal(x, y)
        for layer, other in zip(
            a[2].state_dict()["layers"].values(), b[2].state_dict()["layers"].values(), strict=True
        )
        for x, y in zip(layer.values(), other.values(), strict=True)
    )


def problem(kind, **options):
    model = mixed()
    optimizer = KINDS[kind](model.parameters())
    return model, optimizer, BNP(model, **options).attach(optimizer)


@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("options", [{}, {"max_norm": 0.01}, {"update_every": 2}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
class TestHookThatRaises:
    """Somebody else's hook, between ours and the optimizer's own step."""

    def test_everything_is_as_found(self, kind, options, error):
        model, optimizer, _ = problem(kind, **options)
        optimizer.register_step_pre_hook(boom(error))
        backward(model)
        before = look(model, optimizer)
        with pytest.raises(type(error)):
            optimizer.step()
        assert_same(model, optimizer, before)

    def test_the_next_step_is_the_one_without_the_accident(self, kind, options, error):
        runs = []
        for accident in (True, False):
            model, optimizer, bnp = problem(kind, **options)
            for number in range(3):
                backward(model, number)
                if accident:
                    handle = optimizer.register_step_pre_hook(boom(error))
                    with pytest.raises(type(error)):
                        optimizer.step()
                    handle.remove()
                optimizer.step()
            runs.append((model, optimizer, bnp))
        assert same_bits(*runs)
        assert runs[0][2].state_dict()["steps"] == runs[1][2].state_dict()["steps"] == 3


class TestOptimizerThatRaises:
    def problem(self, **options):
        model = mixed()
        optimizer = Failing(model.parameters(), lr=0.01, weight_decay=0.3, **options)
        return model, optimizer, BNP(model).attach(optimizer)

    def test_before_it_has_changed_anything(self):
        model, optimizer, _ = self.problem(error=MemoryError())
        backward(model)
        before = look(model, optimizer)
        for _ in range(2):
            with pytest.raises(MemoryError):
                optimizer.step()
            assert_same(model, optimizer, before)

    def test_a_change_in_standardised_coordinates_is_taken_back(self):
        """The optimizer's Δ is not the parameters' PΔ/q: to leave it would be a wrong step."""
        model, optimizer, _ = self.problem(error=MemoryError(), late=True)
        backward(model)
        before = look(model, optimizer)
        with pytest.raises(MemoryError):
            optimizer.step()
        assert_same(model, optimizer, before, versions=False)

    @pytest.mark.parametrize("steps", [0, 2])
    def test_halfway_its_groups_counters_and_our_parameters_are_undone(self, steps):
        """Between two groups: the first has been stepped. Moments stay as PyTorch leaves them."""

        class Halfway(torch.optim.Optimizer):
            failing = False

            @torch.no_grad()
            def step(self, closure=None):
                for number, group in enumerate(self.param_groups):
                    if self.failing and number:
                        group["lr"] = 7.0
                        self.state["scratch"] = 1
                        self.param_groups.pop()
                        raise MemoryError
                    for p in group["params"]:
                        state = self.state[p]
                        state["step"] = state.get("step", 0) + 1
                        state.setdefault("m", torch.zeros_like(p)).lerp_(p.grad, 0.1)
                        p.sub_(group["lr"] * state["m"])
                        p.grad.zero_()

        model = mixed()
        optimizer = Halfway(
            [{"params": model[0].parameters()}, {"params": model[1:].parameters(), "lr": 0.1}],
            {"lr": 0.01, "weight_decay": 0.3},
        )
        BNP(model, max_norm=1.0).attach(optimizer)
        for number in range(steps):
            backward(model, number)
            optimizer.step()
        backward(model)
        before, state = look(model, optimizer), structure(optimizer)
        optimizer.failing = True
        with pytest.raises(MemoryError):
            optimizer.step()
        assert_same(model, optimizer, before, versions=False)
        assert structure(optimizer) == state

    def test_training_goes_on(self):
        runs = []
        for error in (MemoryError(), None):
            model, optimizer, bnp = self.problem()
            for number in range(3):
                backward(model, number)
                optimizer.error = error
                if error is not None:
                    with pytest.raises(MemoryError):
                        optimizer.step()
                optimizer.error = None
                optimizer.step()
            runs.append((model, optimizer, bnp))
        assert same_bits(*runs)

    def test_hooks_alone_leave_the_group_split(self):
        """PyTorch runs no post hooks after an error: this is what wrapping `step` is for."""
        model, optimizer, bnp = self.problem(error=MemoryError())
        backward(model)
        before = look(model, optimizer)
        with pytest.raises(MemoryError):
            type(optimizer).step(optimizer)  # past the wrapper of the instance
        assert len(optimizer.param_groups) == 2
        assert optimizer.param_groups[1]["weight_decay"] == 0
        bnp.detach()
        assert_same(model, optimizer, before | {"step": optimizer.step})

    def test_past_the_wrapper_later_parameters_are_not_overwritten(self):
        model, optimizer, bnp = self.problem(error=MemoryError(), late=True)
        backward(model)
        with pytest.raises(MemoryError):
            type(optimizer).step(optimizer)
        model.load_state_dict(mixed().state_dict())
        bnp.detach()
        assert torch.equal(flat(model), flat(mixed()))
        assert len(optimizer.param_groups) == 1

    def test_past_the_wrapper_new_gradients_are_not_replaced_by_old_ones(self):
        """accelerate calls the `step` that it fetched when it prepared the optimizer."""
        model, optimizer, bnp = self.problem()
        twin, other, _ = self.problem()
        optimizer.error = MemoryError()
        backward(model, 0)
        with pytest.raises(MemoryError):
            type(optimizer).step(optimizer)
        optimizer.error = None
        for m, o in ((model, optimizer), (twin, other)):
            backward(m, 1)
            o.step()
        assert [len(group["params"]) for group in optimizer.param_groups] == [6]
        gradients = [[p.grad for p in m.parameters()] for m in (model, twin)]
        assert all(map(torch.equal, *gradients))
        assert bnp.state_dict()["steps"] == 1


class TestInterruptInsideBNP:
    @pytest.mark.parametrize("call", [1, 2])
    def test_while_the_change_is_mapped(self, monkeypatch, call):
        """Between two layers a parameter may hold its change alone."""
        model, optimizer, bnp = problem("adamw")
        (attachment,) = bnp._attachments
        mapping, calls = attachment._map_change, []

        def interrupted(part, factors, step):
            calls.append(part)
            if len(calls) == call:
                with torch.no_grad():
                    part.weight.sub_(step.before[id(part.weight)].value)
                raise KeyboardInterrupt
            mapping(part, factors, step)

        monkeypatch.setattr(attachment, "_map_change", interrupted)
        backward(model)
        before = look(model, optimizer)
        # Parameters of the normaliser have been stepped by the optimizer, for good.
        norm = list(model[1].parameters())
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
        with torch.no_grad():
            start = list(mixed()[1].parameters())
            assert not any(map(torch.equal, norm, start))
            for p, old in zip(norm, start, strict=True):
                p.copy_(old)
        assert_same(model, optimizer, before, versions=False)

    def test_while_gradients_are_mapped(self, monkeypatch):
        model, optimizer, bnp = problem("adamw")
        (attachment,) = bnp._attachments
        mapping, calls = attachment._show, []

        def interrupted(*args):
            calls.append(args)
            if len(calls) == 2:
                raise KeyboardInterrupt
            mapping(*args)

        monkeypatch.setattr(attachment, "_show", interrupted)
        backward(model)
        before = look(model, optimizer)
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
        assert_same(model, optimizer, before)

    def test_a_bias_of_another_optimizer_is_put_back_too(self):
        model = mlp()
        weights = [p for p in model.parameters() if p.dim() == 2]
        biases = [p for p in model.parameters() if p.dim() == 1]
        first, second = torch.optim.Adam(weights, lr=0.1), torch.optim.SGD(biases, lr=0.1)
        bnp = BNP(model).attach(first).attach(second)
        attachment = bnp._attachments[0]
        mapping = attachment._map_change

        def interrupted(part, factors, step):
            mapping(part, factors, step)
            raise KeyboardInterrupt

        attachment._map_change = interrupted
        x, y = batches(1)[0]
        mse_loss(model(x), y).backward()
        before = flat(model)
        with pytest.raises(KeyboardInterrupt):
            first.step()
        assert torch.equal(flat(model), before)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_a_fused_step_is_undone_too(kind):
    """Fused kernels write to parameters without a new version of them."""
    model = mixed()
    momentum = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = kind(model.parameters(), lr=0.01, fused=True, **momentum)
    optimizer.register_step_post_hook(boom(MemoryError()))
    BNP(model).attach(optimizer)
    backward(model)
    with pytest.raises(MemoryError):
        optimizer.step()
    for layer, start in ((model[0], mlp((5, 4))), (model[2], mlp((4, 3)))):
        assert torch.equal(flat(layer), flat(start))


def test_a_closure_that_raises_changes_nothing():
    model = mixed()
    optimizer = KINDS["adamw"](model.parameters())
    bnp = BNP(model).attach(optimizer, run_closure=True)
    backward(model)
    before = look(model, optimizer)
    with pytest.raises(MemoryError):
        optimizer.step(boom(MemoryError()))
    assert_same(model, optimizer, before)
    assert bnp.state_dict()["steps"] == 0


def test_a_post_hook_that_raises_before_ours_undoes_the_step():
    model = mixed()
    optimizer = KINDS["adamw"](model.parameters())
    optimizer.register_step_post_hook(boom(MemoryError()))
    BNP(model).attach(optimizer)
    backward(model)
    before = look(model, optimizer)
    with pytest.raises(MemoryError):
        optimizer.step()
    assert len(optimizer.param_groups) == 1
    assert all(p.grad is g for p, g in zip(model.parameters(), before["gradients"], strict=True))
    for layer, start in ((model[0], mlp((5, 4))), (model[2], mlp((4, 3)))):
        assert torch.equal(flat(layer), flat(start))


class TestWhoeverElseWrapsStep:
    """Schedulers and gradient scalers, made before or after attach()."""

    @pytest.mark.parametrize("first", ["scheduler", "bnp"])
    def test_schedulers(self, first, recwarn):
        model = mixed()
        optimizer = Failing(model.parameters(), lr=0.01, weight_decay=0.3)
        make = torch.optim.lr_scheduler.ExponentialLR
        scheduler = make(optimizer, 0.5) if first == "scheduler" else None
        own = optimizer.__dict__.get("step")
        bnp = BNP(model).attach(optimizer)
        scheduler = scheduler or make(optimizer, 0.5)
        optimizer.error = MemoryError()
        backward(model)
        before = look(model, optimizer)
        with pytest.raises(MemoryError):
            optimizer.step()
        assert_same(model, optimizer, before)
        optimizer.error = None
        optimizer.step()
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] == 0.005
        assert not recwarn.list  # of a scheduler that saw no step
        bnp.detach()
        if first == "scheduler":
            assert optimizer.__dict__["step"] is own
        optimizer.step()

    def test_gradient_scaler(self):
        model, optimizer, _ = problem("adamw")
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        x, y = batches(1)[0]
        scaler.scale(mse_loss(model(x), y)).backward()
        handle = optimizer.register_step_pre_hook(boom(MemoryError()))
        groups = contents(optimizer)
        with pytest.raises(MemoryError):
            scaler.step(optimizer)
        assert all(a is b for a, b in zip(contents(optimizer), groups, strict=True))
        handle.remove()
        optimizer.step()

    def test_a_fused_optimizer_is_still_given_the_scale(self):
        """The scaler looks for `grad_scaler` in the signature of `step`."""

        class Scaled(torch.optim.SGD):
            _step_supports_amp_scaling = True
            given = None

            def step(self, closure=None, *, grad_scaler=None):
                self.given = grad_scaler
                return super().step(closure)

        model = mixed()
        optimizer = Scaled(model.parameters(), lr=0.01, momentum=0.9)
        BNP(model).attach(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
        x, y = batches(1)[0]
        scaler.scale(mse_loss(model(x), y)).backward()
        with pytest.warns(FutureWarning, match="GradScaler is going to stop passing"):
            scaler.step(optimizer)
        assert optimizer.given is scaler


def test_detach_leaves_no_wrapper_and_copies_have_none():
    model, optimizer, bnp = problem("adamw")
    assert "step" in optimizer.__dict__
    assert "step" not in copy.deepcopy(optimizer).__dict__
    bnp.detach()
    assert "step" not in optimizer.__dict__
    assert not optimizer._optimizer_step_pre_hooks
    bnp.attach(optimizer)
    backward(model)
    optimizer.step()
    assert bnp.state_dict()["steps"] == 1
