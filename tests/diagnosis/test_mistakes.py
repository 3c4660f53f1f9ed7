"""What a traced pass shows: outputs that are normalised twice, and parts without a gradient."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.diagnosis.checkup import checkup
from equipoise.diagnosis.mistakes import mistakes
from equipoise.diagnosis.trainability.measure import assert_trainable
from equipoise.instrument.recording.tracer import trace

X, Y = torch.randn(16, 6), torch.randint(0, 3, (16,))


class Net(nn.Module):
    """Two layers; between and after them, what a test puts there."""

    def __init__(self, between=lambda x: x, after=lambda x: x):
        super().__init__()
        self.first, self.last = nn.Linear(6, 12), nn.Linear(12, 3)
        self.between, self.after = between, after

    def forward(self, x):
        return self.after(self.last(self.between(self.first(x).relu())))


def found(model, loss=F.cross_entropy, target=Y):
    graph = trace(model, (X, target), lambda model, batch: loss(model(batch[0]), batch[1]))
    return mistakes(graph, model)


def test_a_sound_network_has_none():
    assert found(Net()) == []


@pytest.mark.parametrize(
    ("after", "loss", "target", "title"),
    [
        (nn.Softmax(1), F.cross_entropy, Y, "Softmax before cross-entropy"),
        (lambda x: x.softmax(1).view(16, 3), F.cross_entropy, Y, "Softmax before cross-entropy"),
        (
            torch.sigmoid,
            F.binary_cross_entropy_with_logits,
            torch.rand(16, 3),
            "Sigmoid before binary cross-entropy of logits",
        ),
    ],
)
def test_an_output_that_is_normalised_twice(after, loss, target, title):
    (one,) = found(Net(after=after), loss, target)
    assert (one.severity, one.title) == ("warning", title)


@pytest.mark.parametrize(
    ("after", "loss"),
    [
        (nn.LogSoftmax(1), F.nll_loss),
        (nn.LogSoftmax(1), F.cross_entropy),  # does nothing twice
        (nn.Softmax(1), lambda p, y: F.nll_loss(p.log(), y)),
        (lambda x: 5 * x.softmax(1), F.cross_entropy),  # no longer probabilities
    ],
)
def test_an_output_that_is_normalised_once(after, loss):
    assert found(Net(after=after), loss) == []


def test_a_large_part_without_a_gradient_is_a_warning_and_a_small_one_a_note():
    (large,) = found(Net(between=torch.Tensor.detach))
    assert large.severity == "warning"
    assert "68 % of the weights: first.weight, first.bias." in large.detail
    model = Net()
    model.unused = nn.Parameter(torch.zeros(2))
    (small,) = found(model)
    assert (small.severity, small.remedy) == ("note", None)
    model.unused.requires_grad_(False)
    assert found(model) == []


class TestWithoutAnyGradient:
    @pytest.mark.parametrize("after", [torch.Tensor.detach, lambda x: torch.tensor(x.tolist())])
    @pytest.mark.parametrize("run", [checkup, assert_trainable])
    def test_a_detached_output_is_refused(self, run, after):
        with pytest.raises(ValueError, match="depends on no trainable parameter"):
            run(Net(after=after), (X, Y))

    @pytest.mark.parametrize("run", [checkup, assert_trainable])
    def test_a_frozen_model_is_refused(self, run):
        with pytest.raises(ValueError, match=r"Unfreeze some with requires_grad_\(True\)"):
            run(Net().requires_grad_(False), (X, Y))
