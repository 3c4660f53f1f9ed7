"""What runs on a CPU runs on an accelerator, with the same numbers; skipped without one."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import equipoise as eq
from equipoise import data, diagnosis, layers, models, probes, training
from equipoise.preconditioners import BNP
from support import command_line
from support.bnp_problems import batches as regression
from support.bnp_problems import mlp as perceptron
from support.bnp_problems import train
from support.model_state import left_alone
from support.pooling_family import CHANNELS
from support.pooling_family import every as every_head

pytestmark = pytest.mark.skipif(
    not torch.accelerator.is_available(), reason="needs an accelerator"
)
folder, equipoise = command_line.folder, command_line.equipoise
DEVICE = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def on_device(value):
    if isinstance(value, torch.Tensor | nn.Module):
        return copy.deepcopy(value).to(DEVICE)
    return type(value)(map(on_device, value))


def gradients(model, x):
    """Output, and the gradients of its sum of squares."""
    x = x.clone().requires_grad_()
    y = model(x)
    wanted = [x, *(p for p in model.parameters() if p.requires_grad)]
    return [y, *torch.autograd.grad(y.square().sum(), wanted)]


def assert_alike(here, there, **tolerance):
    for a, b in zip(here, there, strict=True):
        assert b.device.type == DEVICE.type
        assert_close(b.cpu(), a, **tolerance)


@pytest.mark.parametrize(
    "layer",
    [
        layers.BatchRenorm2d(4),
        layers.GhostBatchNorm2d(4, virtual_batch_size=4),
        layers.FourThingsBatchNorm2d(4),
        layers.SynchronisedBatchNorm2d(4),
        layers.LpNorm(4, p=1.0),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_give_the_same(layer):
    x = torch.randn(8, 4, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    layer = layer.double().train()
    assert_alike(gradients(copy.deepcopy(layer), x), gradients(on_device(layer), on_device(x)))


@every_head
def test_pooling_heads_give_the_same(member):
    torch.manual_seed(0)
    head = member.kind(CHANNELS, **member.options).double()
    x = torch.randn(3, CHANNELS, 5, 2, dtype=torch.float64)
    assert_alike(gradients(copy.deepcopy(head), x), gradients(on_device(head), on_device(x)))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_bnp_trains_the_same(optimizer):
    found = []
    for place in (lambda value: value, on_device):
        model = place(perceptron())
        chosen = optimizer(model.parameters(), lr=0.01)
        BNP(model).attach(chosen)
        found.append(train(model, chosen, place(regression(steps=10))).cpu())
    assert_close(found[1], found[0])


@pytest.mark.filterwarnings("default")
def test_bnp_trains_compiled_under_autocast():
    model = on_device(models.mlp(64, 10, depth=4, width=64, norm="none"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    BNP(model).attach(optimizer)
    compiled, losses = torch.compile(model), []
    source = data.load("digits")
    for batch in source.batches(64, 60, torch.Generator().manual_seed(0)):
        x, y = on_device(batch)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = F.cross_entropy(compiled(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-10:]) / 10 < 0.5 * losses[0]


def test_tracker_leaves_training_bit_for_bit_the_same():
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        ends = []
        for tracked in (False, True):
            torch.manual_seed(0)
            model = on_device(models.mlp(64, 10, depth=4, width=32))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            source = [
                on_device(batch)
                for batch in data.load("digits").batches(32, 8, torch.Generator().manual_seed(0))
            ]

            def steps(seen, model=model, optimizer=optimizer):
                for batch in seen:
                    optimizer.zero_grad()
                    training.cross_entropy(model, batch).backward()
                    optimizer.step()

            if tracked:
                with probes.track(model, training.cross_entropy, optimizer, every=2) as tracker:
                    steps(tracker.batches(source))
            else:
                steps(source)
            ends.append(model.state_dict())
        assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
    finally:
        torch.use_deterministic_algorithms(False)


def test_predictions_and_measurements_are_those_of_a_cpu():
    torch.manual_seed(0)
    model = models.resnet18(width=8)
    x, y = torch.randn(8, 3, 16, 16), torch.randint(10, (8,))
    here = eq.predict(model, (x, y))
    there_model = on_device(model)
    with left_alone(there_model):
        there = eq.predict(there_model, on_device((x, y)), device=DEVICE)
    assert len(here.sites) == len(there.sites)
    for a, b in zip(here.sites, there.sites, strict=True):
        if a.gradient is not None:
            assert math.isclose(a.gradient, b.gradient, rel_tol=1e-4), a.name
    found = [diagnosis.trainability(model, (x, y)), None]
    found[1] = diagnosis.trainability(there_model, on_device((x, y)), device=DEVICE)
    assert found[1].probability == pytest.approx(found[0].probability, abs=0.01)


def test_hessian_and_landscape_are_those_of_a_cpu():
    torch.manual_seed(0)
    model = models.mlp(64, 10, depth=3, width=32).double()
    x, y = next(data.load("digits").batches(64, 1, torch.Generator().manual_seed(0)))
    batch = (x.double(), y)
    loss = training.cross_entropy
    here = probes.landscape(copy.deepcopy(model), loss, batch, steps=(0.1,))
    there = probes.landscape(on_device(model), loss, on_device(batch), steps=(0.1,))
    assert there.losses == pytest.approx(here.losses)
    assert there.beta == pytest.approx(here.beta)


def test_check_up_from_the_command_line(equipoise):
    done = equipoise("checkup", "--device", DEVICE.type, "--seeds", "2", "--json")
    assert done.code == 0, done.err
    assert done.json
