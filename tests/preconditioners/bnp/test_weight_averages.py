"""An average of the weights and BNP do not disturb each other."""

from functools import cache

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from equipoise.preconditioners import BNP
from equipoise.preconditioners.bnp.layer import RecordingHook
from support.bnp_problems import OPTIMIZERS, batches, distance, flat, generator, mlp


def convolutions():
    """Two, and a linear layer, with weights from a seed."""
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(3, 2, 3, stride=2),
        nn.Flatten(),
        nn.Linear(8, 2),
    ).double()
    g = generator(2)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=g, dtype=p.dtype) / 2)
    return model


def images(steps=20):
    g = generator(3)
    x = torch.rand(steps, 8, 1, 6, 6, generator=g, dtype=torch.float64)
    return list(zip(x, torch.randn(steps, 8, 2, generator=g, dtype=torch.float64), strict=True))


PROBLEMS = {"linear": (mlp, batches(20)), "convolutions": (convolutions, images())}


def average_of(model):
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))


def train(problem, optimizer, use=None, *, early=False):
    """Train with BNP, and call ``use`` with the average before each step.

    An average made early, before BNP, has no hooks; a later one has copies of them.
    """
    build, data = PROBLEMS[problem]
    model = build()
    average = average_of(model) if use and early else None
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    pre = BNP(model).attach(optimizer)
    if use and not early:
        average = average_of(model)
    path = []
    for x, y in data:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        if average:
            use(model, average, x, y)
        optimizer.step()
        path.append(flat(model))
        if average:
            average.update_parameters(model)
    return torch.stack(path), average, pre


@cache
def trained_alone(problem, optimizer):
    """The path without an average, and the state of BNP."""
    path, _, pre = train(problem, optimizer)
    return path, pre.state_dict()


def nothing(model, average, x, y):
    pass


def evaluation(model, average, x, y):
    average.eval()
    with torch.no_grad():
        average(x)


def training_mode(model, average, x, y):
    """With gradients, on features a thousand times larger."""
    average.train()
    mse_loss(average(x * 1e3), y).backward()


def swapping(model, average, x, y):
    """The model borrows the averages and stays in training mode."""
    pairs = list(zip(model.parameters(), average.module.parameters(), strict=True))
    with torch.no_grad():
        own = [p.clone() for p in model.parameters()]
        for mine, theirs in pairs:
            mine.copy_(theirs)
        model(x * 1e3)
        for mine, kept in zip(model.parameters(), own, strict=True):
            mine.copy_(kept)


def same(a, b):
    """Whether two saved states agree to the bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("early", [True, False], ids=["made before BNP", "made after BNP"])
@pytest.mark.parametrize("use", [nothing, evaluation, training_mode, swapping])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_training_goes_the_same_way_to_the_bit(problem, optimizer, use, early):
    path, average, pre = train(problem, optimizer, use, early=early)
    alone, state = trained_alone(problem, optimizer)
    assert torch.equal(path, alone)
    assert same(pre.state_dict(), state)
    assert all(layer.pending is None for layer in pre._banks.layers)

    expected = path[0]
    for point in path[1:]:
        expected = expected.lerp(point, 0.1)
    torch.testing.assert_close(flat(average.module), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_copy_that_records_would_change_training(problem, monkeypatch):
    monkeypatch.setattr(RecordingHook, "__deepcopy__", lambda hook, memo: hook)
    path, _, _ = train(problem, "adamw", training_mode)
    alone, _ = trained_alone(problem, "adamw")
    assert (path - alone).abs().max() > 1e-3


def test_the_average_itself_is_trained_plainly():
    """Its copied hooks do nothing."""
    _, average, _ = train("linear", "adamw", nothing)
    plain = mlp()
    plain.load_state_dict(average.module.state_dict())
    for model in (average.module, plain):
        optimizer = OPTIMIZERS["adamw"](model.parameters())
        for x, y in batches(3):
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    assert distance(average.module, plain) == 0
