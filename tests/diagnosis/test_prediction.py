"""A pass whose tensors do not all go into memory is traced on fewer samples."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import equipoise as eq
from equipoise.diagnosis import prediction
from equipoise.diagnosis.prediction import in_sequence, traced
from equipoise.diagnosis.problem import Problem
from support.model_state import left_alone

X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
BATCH = X, torch.arange(16) % 3


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))


def problem(batch=BATCH):
    return Problem.prepare(
        network(), batch, loss_fn=lambda m, b: F.cross_entropy(m(b[0]), b[1]), batch_size=16
    )


@pytest.fixture
def memory_holds(monkeypatch):
    """As if the device's memory held all tensors of a pass on so many samples, and no more."""
    trace = prediction.trace

    def hold(most):
        def small(model, batch, loss_fn):
            if len(batch[0]) > most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return trace(model, batch, loss_fn)

        monkeypatch.setattr(prediction, "trace", small)

    return hold


@pytest.mark.parametrize(("most", "taken"), [(16, 16), (15, 8), (5, 4), (1, 1)])
def test_the_batch_is_halved_until_it_goes_in(memory_holds, most, taken):
    memory_holds(most)
    model = network()
    with left_alone(model):
        found = traced(problem(), model)
        assert found.graph.batch == len(found.problem.first[0]) == taken


def test_one_sample_that_is_too_much_is_an_error(memory_holds):
    memory_holds(0)
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        traced(problem(), network())


def test_a_batch_of_several_lengths_is_not_parted(memory_holds):
    memory_holds(8)
    graph = problem((*BATCH, torch.zeros(2, 40, dtype=torch.long)))
    assert graph.halved() is None
    with pytest.raises(torch.OutOfMemoryError):
        traced(graph, network())


def test_a_check_up_says_how_many_samples_theory_saw(memory_holds):
    whole = eq.checkup(network(), BATCH)
    memory_holds(8)
    found = eq.checkup(network(), BATCH)
    notes = [
        [one.title for one in checkup.findings if one.title.startswith("Theory saw")]
        for checkup in (whole, found)
    ]
    assert notes == [[], ["Theory saw 8 of 16 samples"]]
    chances = [checkup.verdict.probability for checkup in (whole, found)]
    assert chances[0] == pytest.approx(chances[1], abs=0.05)


def test_the_verdict_alone_is_given_as_well(memory_holds):
    memory_holds(8)
    assert eq.diagnosis.trainability(network(), BATCH).probability > 0.9


class Branches(nn.Module):
    """A stem, a residual branch of two layers, a layer on the sum, and two heads."""

    def __init__(self):
        super().__init__()
        self.stem, self.first, self.second, self.trunk = (nn.Linear(8, 8) for _ in range(4))
        self.one, self.other = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.second(self.first(x).relu())
        x = self.trunk(x)
        return self.one(x) + self.other(x)


def test_layers_in_sequence_are_no_branches_or_heads():
    given = Problem.prepare(
        Branches(), BATCH, loss_fn=lambda m, b: F.cross_entropy(m(b[0]), b[1]), batch_size=16
    )
    pairs = in_sequence(traced(given, Branches()))
    assert pairs == {("first", "second"), ("second", "trunk")}
