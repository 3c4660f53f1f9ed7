"""Copies that run one after the other part at once; those side by side may not."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import equipoise as eq
from equipoise.diagnosis.initialisation.copies import told_by_gradients, told_by_order
from equipoise.diagnosis.initialisation.measure import initialisation
from equipoise.instrument.recording.tracer import trace
from support.model_state import differences, fingerprint

X = torch.randn(32, 16, generator=torch.Generator().manual_seed(0))
BATCH = X, torch.arange(32) % 4


class Blocks(nn.Module):
    """Copies of one block, and how they are run."""

    def __init__(self, run):
        super().__init__()
        block = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
        self.blocks = nn.ModuleList(copy.deepcopy(block) for _ in range(3))
        self.head, self.run = nn.Linear(16, 4), run

    def forward(self, x):
        return self.head(self.run(self.blocks, x))


def chained(blocks, x):
    for block in blocks:
        x = block(x)
    return x


def residual(blocks, x):
    for block in blocks:
        x = x + block(x)
    return x


def summed(blocks, x):
    return sum(block(x) for block in blocks)


def partly(blocks, x):
    """The last two are side by side."""
    h = blocks[0](x)
    return blocks[1](h) + blocks[2](h)


def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        (chained, "copied in sequence"),
        (residual, "copied in sequence"),
        (summed, "copied"),
        (partly, "copied"),
    ],
)
def test_a_pass_tells_in_which_order_copies_run(run, kind):
    model = Blocks(run)
    found = initialisation(model)
    assert [fault.kind for fault in found.faults] == ["copied"]
    (fault,) = told_by_order(found, trace(model, BATCH, loss)).faults
    assert fault.kind == kind

    loss(model, BATCH).backward()  # the claim itself
    gradients = [block[0].weight.grad for block in model.blocks]
    assert torch.equal(gradients[1], gradients[2]) == (kind == "copied")


def test_a_head_that_was_copied_from_an_embedding_is_told_as_before():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(40, 16), nn.Linear(16, 40, bias=False)
            self.head.weight.data.copy_(self.embedding.weight.data)

        def forward(self, x):
            return self.head(self.embedding(x))

    model, tokens = Tokens(), torch.arange(32)
    found = told_by_order(initialisation(model), trace(model, (tokens, tokens), loss))
    assert [fault.kind for fault in found.faults] == ["copied"]


@pytest.mark.parametrize(("run", "severity"), [(residual, "note"), (summed, "warning")])
def test_the_checkup_says_so(run, severity):
    report = eq.checkup(lambda: Blocks(run), BATCH, seeds=2)
    (finding,) = (f for f in report.findings if "start as copies of each other" in f.title)
    assert finding.severity == severity


def constant(between, *, all_of_them=False):
    """A network whose first layer, or each one, has one number for all weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), between, nn.Linear(32, 4))
    for layer in (model[0], model[2]) if all_of_them else (model[0],):
        nn.init.constant_(layer.weight, 0.1)
        nn.init.zeros_(layer.bias)
    return model


@pytest.mark.parametrize(
    ("build", "kind"),
    [
        (lambda: constant(nn.Tanh(), all_of_them=True), "constant"),
        (lambda: constant(nn.Dropout(0.0), all_of_them=True), "constant"),
        (lambda: constant(nn.Dropout(0.3).eval(), all_of_them=True), "constant"),
        (lambda: constant(nn.Dropout(0.3), all_of_them=True), "constant at first"),
        (lambda: constant(nn.Tanh()), "constant at first"),  # the random layer behind
    ],
)
def test_gradients_tell_whether_equal_units_part(build, kind):
    model = build()
    before = fingerprint(model)
    found = told_by_gradients(initialisation(model), model, loss, BATCH, trace(model, BATCH, loss))
    assert not differences(before, fingerprint(model))
    kinds = {name: fault.kind for fault in found.faults for name in fault.parameters}
    assert kinds["0.weight"] == kind
    assert "2.weight" not in kinds  # classes have gradients of their own, and no layer behind

    optimizer = torch.optim.SGD(model.parameters(), 0.1)  # the claim itself
    for _ in range(3):
        optimizer.zero_grad()
        loss(model, BATCH).backward()
        optimizer.step()
    spread = float(model[0].weight.detach().std(0).max())
    assert (spread < 1e-6) == (kind == "constant")


def test_outputs_may_start_alike():
    """DLinear's two layers start at the average of the past, and stand side by side."""

    class DLinear(nn.Module):
        def __init__(self):
            super().__init__()
            self.season, self.trend = nn.Linear(16, 4), nn.Linear(16, 4)
            for layer in (self.season, self.trend):
                nn.init.constant_(layer.weight, 1 / 16)

        def forward(self, x):
            trend = x.mean(1, keepdim=True).expand_as(x)
            return self.season(x - trend) + self.trend(trend)

    def error(model, batch):
        return (model(batch[0]) - batch[0][:, :4]).square().mean()

    model = DLinear()
    record = initialisation(model)
    assert [fault.kind for fault in record.faults] == ["constant"]
    found = told_by_gradients(record, model, error, BATCH, trace(model, BATCH, error))
    assert found.faults == ()


@pytest.mark.parametrize(("p", "severity"), [(0.0, "critical"), (0.3, "warning")])
def test_the_severity_follows(p, severity):
    report = eq.checkup(lambda: constant(nn.Dropout(p), all_of_them=True), BATCH, seeds=2)
    found = [f.severity for f in report.findings if "copies of each other" in f.title]
    assert found[0] == severity
