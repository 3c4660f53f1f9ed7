"""Reentrant checkpoints, which refuse torch.autograd.grad, are probed like the other kind."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction, checkpoint

import equipoise as eq
from equipoise import probes
from equipoise.instrument.checkpoints import differentiable_checkpoints
from equipoise.instrument.recording.tracer import trace
from equipoise.records import to_plain

GENERATOR = torch.Generator().manual_seed(0)
BATCH = torch.randn(32, 8, generator=GENERATOR), torch.arange(32) % 3


class Net(nn.Module):
    """Blocks with dropout and batch norm, with or without checkpoints."""

    def __init__(self, reentrant, *, stem=True):
        super().__init__()
        torch.manual_seed(0)
        self.reentrant = reentrant
        self.stem = nn.Linear(8, 8) if stem else nn.Identity()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Tanh())
            for _ in range(4)
        )
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            if self.reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


def cross_entropy(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def growth(model):
    return probes.gradient_growth(model, cross_entropy, [BATCH], replicates=1, seed=0)


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradients_are_those_without_checkpoints(reentrant):
    assert to_plain(growth(Net(reentrant))) == to_plain(growth(Net(None)))


def test_the_traced_operations_are_those_without_checkpoints():
    mine, plain = (trace(Net(kind), BATCH, cross_entropy) for kind in (True, None))
    assert mine.weights == plain.weights
    mine, plain = (
        [node.name for node in graph.nodes if node.name != "detach"] for graph in (mine, plain)
    )
    assert mine == plain


@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_parameters_that_it_cuts_off_stay_without_gradient():
    model = Net(True, stem=False)
    cross_entropy(model, BATCH).backward()
    cut = [name for name, p in model.named_parameters() if p.grad is None]
    assert len(cut) == 4 * 4
    found = trace(Net(True, stem=False), BATCH, cross_entropy)
    assert [n for n, _ in model.named_parameters() if n not in found.weights] == cut


@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_a_checkup_tells_of_them():
    findings = eq.checkup(lambda: Net(True, stem=False), BATCH).findings
    (finding,) = (f for f in findings if "in 16 parameters: " in f.detail)
    assert "reentrant checkpoint" in finding.detail


def test_second_derivatives():
    x = torch.tensor(2.0, requires_grad=True)
    with differentiable_checkpoints():
        y = checkpoint(lambda x: x**3, x, use_reentrant=True)
    (slope,) = torch.autograd.grad(y, x, create_graph=True)
    assert torch.autograd.grad(slope, x)[0] == 12


def test_pytorch_is_as_before_also_after_an_error():
    with differentiable_checkpoints():
        with differentiable_checkpoints():
            pass
        assert "apply" in vars(CheckpointFunction)
    assert "apply" not in vars(CheckpointFunction)

    def fail():
        raise RuntimeError("raised by the user")

    with pytest.raises(RuntimeError, match="by the user"), differentiable_checkpoints():
        fail()
    assert "apply" not in vars(CheckpointFunction)


def test_a_class_that_is_made_from_it_is_left_alone():
    class Scaled(CheckpointFunction):
        @staticmethod
        def forward(ctx, function, x, scale):
            ctx.scale = scale
            return function(x) * scale

        @staticmethod
        def backward(ctx, gradient):
            return None, ctx.scale * gradient, None

    x = torch.tensor(3.0, requires_grad=True)
    with differentiable_checkpoints():
        y = Scaled.apply(lambda x: 2 * x, x, 5.0)
    assert y == 30


def test_blocks_may_overlap():
    first, second = differentiable_checkpoints(), differentiable_checkpoints()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert "apply" in vars(CheckpointFunction)
    second.__exit__(None, None, None)
    assert "apply" not in vars(CheckpointFunction)
