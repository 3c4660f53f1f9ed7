"""Lightning modules and Hugging Face trainers are taken apart by their methods."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from equipoise.diagnosis.inputs.frameworks import (
    copy_without_trainer,
    own_data,
    step_loss,
    taken_apart,
)
from equipoise.diagnosis.problem import Problem
from equipoise.training.losses import UnsuitableBatchError

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3
LOADER = DataLoader(TensorDataset(X, Y), 6)


class Module(nn.Module):
    """What Lightning asks of a module; logging fails without a trainer, as in old versions."""

    def __init__(self, trainer=None):
        super().__init__()
        self.net = nn.Linear(4, 3)
        self._trainer = trainer

    def log(self, name, value):
        raise RuntimeError("no trainer")

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return {"loss": loss, "index": batch_idx}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class WithData(Module):
    def train_dataloader(self):
        return LOADER


class ByHand(Module):
    def training_step(self, batch):
        first, _second = self.optimizers()
        self.toggle_optimizer(first)
        self.manual_backward(F.cross_entropy(self.net(batch[0]), batch[1]))
        raise AssertionError("the second loss is another one's")


class Silent(Module):
    def training_step(self, batch, batch_idx):
        return None


class Uncopiable:
    def __deepcopy__(self, memo):
        raise RuntimeError("holds a process")


def expected(module):
    return F.cross_entropy(module.net(X), Y)


@pytest.mark.parametrize("kind", [Module, ByHand])
def test_the_loss_is_the_training_steps(kind):
    module = kind()
    before = dict(module.__dict__)
    torch.testing.assert_close(step_loss(module, (X, Y)), expected(module))
    assert module.__dict__ == before


def test_a_step_without_a_loss_is_refused():
    with pytest.raises(UnsuitableBatchError, match="training_step returned NoneType, not a loss"):
        step_loss(Silent(), (X, Y))


@pytest.mark.parametrize("model", [WithData(), WithData], ids=["module", "class"])
def test_its_own_loader_is_used(model):
    problem = Problem.prepare(model)
    assert len(problem.first[0]) == 6
    assert problem.source.name == "train_dataloader of WithData"
    assert "training_step" in problem.assumptions[0]


def test_a_module_without_a_loader_asks_for_one():
    assert own_data(Module()) is None
    with pytest.raises(ValueError, match=r"Module brings no data along. Give a DataLoader"):
        Problem.prepare(Module())


def test_the_trainer_is_not_copied():
    module = Module(trainer=Uncopiable())
    assert copy_without_trainer(module)._trainer is None
    assert module._trainer is not None


def test_what_cannot_be_copied_says_so():
    module = Module()
    module.handle = Uncopiable()
    with pytest.raises(ValueError, match=r"cannot be copied .*holds a process.* Give a function"):
        copy_without_trainer(module)


class Trainer:
    """What the Hugging Face Trainer has."""

    def __init__(self, model, model_init=None):
        self.model, self.model_init = model, model_init

    def get_train_dataloader(self):
        return LOADER

    def compute_loss(self, model, inputs):
        return F.mse_loss(model(inputs["x"]), inputs["y"])


def test_a_trainer_brings_model_loss_and_data():
    given = taken_apart(Trainer(nn.Linear(4, 3).eval()))
    assert given.build().training
    assert given.data.train_dataloader() is LOADER
    batch = {"x": X, "y": torch.zeros(12, 3)}
    model = given.build()
    torch.testing.assert_close(given.compute_loss(model, batch), model(X).square().mean())


def test_a_trainer_that_makes_models_gives_new_weights():
    given = taken_apart(Trainer(None, lambda: nn.Linear(4, 3)))
    assert not torch.equal(given.build().weight, given.build().weight)


def test_anything_else_is_refused():
    with pytest.raises(ValueError, match=r"the model is an int; expected a torch.nn.Module"):
        taken_apart(3)


def test_a_trainer_of_another_kind_is_asked_for_its_model():
    with pytest.raises(ValueError, match=r"a SimpleNamespace; .* Give its \.model"):
        taken_apart(SimpleNamespace(model=nn.Linear(4, 3)))
