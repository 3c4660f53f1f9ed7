"""Gradients that are no finite numbers are found, with the operation that makes them."""

import math

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise import probes
from equipoise.diagnosis.broken import Broken, broken, conclude_broken
from equipoise.instrument.recording.origins import origin
from equipoise.instrument.recording.tracer import trace
from equipoise.probes.record import GradientGrowth, LayerGradients
from equipoise.records import Estimate

GENERATOR = torch.Generator().manual_seed(0)
BATCH = torch.randn(32, 8, generator=GENERATOR), torch.arange(32) % 3


class Between(nn.Module):
    """An operation between two layers."""

    def __init__(self, operation):
        super().__init__()
        torch.manual_seed(0)
        self.below, self.above = nn.Linear(8, 16), nn.Linear(16, 3)
        self.operation = operation

    def forward(self, x):
        return self.above(self.operation(self.below(x)))


def cross_entropy(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def zero(x):
    return x - x.detach()


def in_two_ways(x):
    """A root at zero beside an operation that runs later and is given the same tensor."""
    low = x.relu()
    return zero(low).square().sqrt() + low.tanh().exp()


def root(x):
    return zero(x).square().sqrt()


def power(x):
    return x + zero(x).square().pow(0.3)


def masked(x):
    """Infinite where it is masked: 0 times infinity is no number."""
    return torch.where(zero(x) == 0, x, x / zero(x).square())


@pytest.mark.parametrize(
    ("name", "operation"),
    [("sqrt", root), ("pow", power), ("div", masked), ("sqrt", in_two_ways)],
)
def test_the_operation_is_named(name, operation):
    model = Between(operation)
    found = broken(trace(model, BATCH, cross_entropy))
    assert found.missing
    assert found.names == ("below.weight", "below.bias")
    assert (found.operation, found.module) == (name, "Between")


def test_training_shows_that_it_is_right():
    model = Between(root)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    cross_entropy(model, BATCH).backward()
    optimizer.step()
    assert model.below.weight.isnan().all()


@pytest.mark.parametrize(
    "operation", [torch.relu, lambda x: x.square().sqrt(), lambda x: x * x.norm()]
)
def test_finite_gradients_are_none(operation):
    assert not broken(trace(Between(operation), BATCH, cross_entropy))


def test_a_gradient_that_overflows_is_called_so():
    def steep(x):
        return (x * 1e30 - (x * 1e30).detach()) * 1e30

    found = broken(trace(Between(steep), BATCH, cross_entropy))
    assert (found.missing, found.sentence) == (False, "Will not train: its gradients overflow")
    (finding,) = conclude_broken(found)
    assert "wider floating-point type" in finding.remedy


def layers(*norms):
    return GradientGrowth(
        tuple(
            LayerGradients(
                f"norm{i}", "LayerNorm", 8, 8, Estimate(norm, 0.0, "measured"), *[None] * 3
            )
            for i, norm in enumerate(norms)
        ),
        None,
        None,
        1,
        1,
    )


@pytest.mark.parametrize(("value", "missing"), [(math.nan, True), (math.inf, False)])
def test_of_an_untraced_model_the_layers_are_known(value, missing):
    assert broken(None, layers(1.0, value)) == Broken(("norm1",), missing)
    assert not broken(None, layers(1.0, 2.0))
    assert not broken(None)


def test_the_verdict_says_it_and_a_test_suite_fails():
    model = Between(root)
    found = eq.checkup(model, BATCH)
    assert found.verdict.sentence == "Will not train: its gradients are nan"
    assert found.verdict.trainability is None
    assert found.findings[0].severity == "critical"
    assert "sqrt in 'Between'" in found.findings[0].detail
    with pytest.raises(ValueError, match=r"no numbers \(nan\).*sqrt\(x \+ 1e-6\)"):
        eq.assert_trainable(model, BATCH)


def fully_masked(x):
    """Attention in which nothing may be attended to."""
    scores = (x @ x.T).masked_fill(torch.ones(len(x), len(x), dtype=torch.bool), -math.inf)
    return scores.softmax(-1) @ x


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        (lambda x: (x - 100).log(), "the loss is nan .*: nan first in log in 'Between'"),
        (
            lambda x: (x * 1e6).exp(),
            "infinite numbers first in exp in 'Between'",
        ),
        (fully_masked, "nan first in _softmax in 'Between'. All that it compares is masked"),
        (lambda x: zero(x.relu()) / zero(x.relu()), "nan first in div in 'Between'"),
    ],
)
def test_a_loss_that_is_not_finite_is_traced_back(operation, words):
    with pytest.raises(ValueError, match=words):
        eq.checkup(Between(operation), BATCH)


def test_targets_that_are_all_ignored_are_named():
    with pytest.raises(ValueError, match="no target counts, as where all are the index"):
        eq.checkup(
            Between(torch.tanh), (BATCH[0], torch.full((32,), -100)), loss_fn="cross-entropy"
        )


def test_a_later_batch_is_traced_back_too():
    model, late = Between(lambda x: (x + 3).log()), (BATCH[0] - 100, BATCH[1])
    with pytest.raises(ValueError, match="nan first in log in 'Between'"):
        probes.gradient_growth(
            model, cross_entropy, [(BATCH[0] / 10, BATCH[1]), late], replicates=1
        )


def test_an_infinite_loss_is_traced_back():
    with pytest.raises(ValueError, match=r"loss is inf .*: infinite numbers first in exp"):
        eq.checkup(
            Between(lambda x: x), BATCH, loss_fn=lambda output, _: (output * 1e9).exp().sum()
        )


def test_finite_passes_with_masks_have_no_origin():
    def masked(x):
        mask = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        return (x @ x.T).masked_fill(mask, -math.inf).softmax(-1) @ x

    assert origin(trace(Between(masked), BATCH, cross_entropy)) == ""
