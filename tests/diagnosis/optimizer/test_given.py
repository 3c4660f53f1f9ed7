"""The user's optimiser, in every form that it may be given in."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from equipoise.diagnosis.optimizer.given import stepping_of


def build():
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def stepping_for(subject, optimizer, copy):
    """How the training of a subject steps a copy of it."""
    return stepping_of(subject, optimizer, copy, lambda: copy)


def holds(optimizer, model):
    """Whether it holds the parameters of a model, and no others."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    return {id(p) for p in held} == {id(p) for p in model.parameters()}


GIVEN = {
    "a function of the model": sgd,
    "a class": torch.optim.AdamW,
    "a partial of a class": partial(torch.optim.SGD, lr=0.1),
    "a function that returns a scheduler, too": lambda model: (
        [sgd(model)],
        [{"scheduler": None, "interval": "step"}],
    ),
    "a function that returns a dictionary": lambda model: {"optimizer": sgd(model)},
}


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_what_makes_optimisers_makes_one_for_a_copy(given):
    copy = build()
    stepping, words = stepping_for(build, given, copy)
    (optimizer,) = stepping.make(copy)
    assert holds(optimizer, copy)
    assert words == ""


def test_an_optimiser_is_copied_with_its_state_for_a_copy():
    model, copy = build(), build()
    given = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    given.step()
    (optimizer,) = stepping_for(model, given, copy)[0].make(copy)
    assert holds(given, model)
    assert holds(optimizer, copy)
    (old, *_), (new, *_) = given.state.values(), optimizer.state.values()
    assert torch.equal(old["exp_avg"], new["exp_avg"])
    assert old["exp_avg"] is not new["exp_avg"]


class Lookahead(torch.optim.SGD):
    """Keeps slow weights, and a list of its own."""

    def __init__(self, parameters, lr, every=2):
        super().__init__(parameters, lr=lr)
        self.every, self.first = every, self.param_groups[0]["params"]

    def step(self, closure=None):
        assert self.every == 2
        super().step(closure)
        self.first[0].data.zero_()


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, Lookahead])
def test_attributes_of_an_optimisers_class_are_copied(kind):
    """PyTorch's own copies drop them, and their steps fail."""
    model, copy = build(), build()
    given = kind(model.parameters(), lr=0.1)
    start = model[0].weight.detach().clone()

    def closure():
        loss = copy(torch.ones(1, 3)).square().sum()
        loss.backward()
        return loss

    (optimizer,) = stepping_for(model, given, copy)[0].make(copy)
    optimizer.step(closure)
    assert torch.equal(model[0].weight, start)
    assert not torch.equal(copy[0].weight, start)


def test_tensors_beside_the_models_are_held_themselves():
    model, copy, temperature = build(), build(), nn.Parameter(torch.ones(()))
    given = torch.optim.SGD([*model.parameters(), temperature], lr=0.1)
    (optimizer,) = stepping_for(model, given, copy)[0].make(copy)
    *own, last = optimizer.param_groups[0]["params"]
    assert {id(p) for p in own} == {id(p) for p in copy.parameters()}
    assert last is temperature


def test_hooks_on_steps_are_an_obstacle_unless_a_function_registers_them():
    def hooked(model):
        optimizer = sgd(model)
        optimizer.register_step_pre_hook(lambda *_: None)
        return optimizer

    model = build()
    stepping, _ = stepping_for(model, hooked(model), build())
    assert stepping.obstacle.startswith("hooks on its steps")
    assert stepping_for(model, hooked, build())[0].obstacle == ""


REFUSED = {
    "of a factory's models": (build, lambda: sgd(build()), "a function that makes new ones"),
    "a name": (build, lambda: "adam", "optimizer is a str. Give the optimiser"),
    "a function that raises": (build, lambda: lambda model: model.nope, "raised AttributeError"),
    "a function that returns none": (
        build,
        lambda: lambda model: None,
        "returned NoneType, not a torch",
    ),
    "a class that needs a rate": (build, lambda: partial(sgd, model=3), "raised TypeError"),
}


@pytest.mark.parametrize(("subject", "given", "words"), REFUSED.values(), ids=REFUSED)
def test_refusals_say_what_was_given_and_what_to_give(subject, given, words):
    with pytest.raises(ValueError, match=words) as error:
        stepping_for(subject, given(), build())
    assert "optimiser" in str(error.value) or "function of the model" in str(error.value)


class Lit(nn.Module):
    """What is known of a LightningModule."""

    automatic_optimization = True

    def __init__(self, world=1):
        super().__init__()
        self.net, self.trainer = build(), None
        self.world = world

    def training_step(self, batch):
        raise NotImplementedError

    def configure_optimizers(self):
        rate = 0.1 if self.world == 1 else 0.1 * self.trainer.world_size
        return {"optimizer": torch.optim.SGD(self.parameters(), lr=rate)}


class TestFrameworks:
    def test_lightnings_own_is_found(self):
        copy = Lit()
        stepping, words = stepping_for(Lit(), None, copy)
        assert holds(stepping.make(copy)[0], copy)
        assert stepping.obstacle == ""
        assert words == "optimiser: that of configure_optimizers"
        copy.automatic_optimization = False
        by_hand = "the model takes its steps by hand"
        for given in (None, Lit.configure_optimizers):
            assert stepping_for(Lit(), given, copy)[0].obstacle == by_hand

    def test_one_that_needs_its_trainer_is_told(self):
        stepping, words = stepping_for(Lit(), None, Lit(world=2))
        assert stepping is None
        assert "configure_optimizers raised AttributeError" in words
        assert words.endswith("give optimizer=")

    def test_one_that_configures_none_is_told(self, monkeypatch):
        monkeypatch.setattr(Lit, "configure_optimizers", lambda self: None)
        words = "optimiser: none, as configure_optimizers returned NoneType; give optimizer="
        assert stepping_for(Lit(), None, Lit()) == (None, words)

    def test_a_trainers_own_is_made_without_a_trace_in_it(self):
        trainer, copy = HuggingFace(build()), build()
        stepping, words = stepping_for(trainer, None, copy)
        (optimizer,) = stepping.make(copy)
        assert holds(optimizer, copy)
        assert trainer.optimizer is None
        assert (stepping.clip, stepping.warms_up) == (1.0, True)
        assert words == "optimiser: that of the Trainer"

    def test_one_that_a_trainer_was_given_is_copied(self):
        trainer, copy = HuggingFace(build()), build()
        trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.7)
        (optimizer,) = stepping_for(trainer, None, copy)[0].make(copy)
        assert holds(optimizer, copy)
        assert optimizer.param_groups[0]["lr"] == 0.7

    def test_the_schedule_that_a_trainer_was_given_tells_the_rate(self):
        trainer, copy = HuggingFace(build()), build()
        trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=1.0)
        trainer.lr_scheduler = LambdaLR(trainer.optimizer, lambda step: min(step, 5) / 100)
        (optimizer,) = stepping_for(trainer, None, copy)[0].make(copy)
        assert optimizer.param_groups[0]["lr"] == 0.05
        assert trainer.optimizer.param_groups[0]["lr"] == trainer.lr_scheduler.last_epoch == 0

    def test_without_any_nobody_says_how(self):
        assert stepping_for(build(), None, build()) == (None, "")

    def test_without_any_no_copy_is_made(self):
        def copied():
            pytest.fail("a copy of a large model takes its memory")

        assert stepping_of(build(), None, build(), copied) == (None, "")


class HuggingFace:
    """What is known of a Trainer."""

    def __init__(self, model):
        self.model, self.optimizer = model, None
        self.args = SimpleNamespace(max_grad_norm=1.0, warmup_steps=10)

    def get_train_dataloader(self):
        raise NotImplementedError

    def compute_loss(self, model, inputs):
        raise NotImplementedError

    def create_optimizer(self):
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        return self.optimizer
