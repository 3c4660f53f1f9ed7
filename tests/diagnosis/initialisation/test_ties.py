"""A tied embedding is too large for a head only where its logits are."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.diagnosis.initialisation.measure import initialisation
from equipoise.diagnosis.initialisation.ties import told_by_logits
from equipoise.instrument.recording.tracer import trace

WORDS, WIDTH = 100, 64
BATCH = torch.randint(WORDS, (8, 12), generator=torch.Generator().manual_seed(0))


class Language(nn.Module):
    """Words, a block, a norm and a head that shares the table; T5 scales what goes into it."""

    def __init__(self, factor):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.block, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight, self.factor = self.table.weight, factor

    def forward(self, ids):
        x = self.table(ids)
        return self.head(self.factor * self.norm(x + self.block(x)))


def loss(model, ids):
    return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


@pytest.mark.parametrize(("factor", "faults"), [(1.0, ["tied"]), (WIDTH**-0.5, [])])
def test_a_table_of_unit_size_needs_a_scaled_input(factor, faults):
    model = Language(factor)
    found = initialisation(model)
    assert [fault.kind for fault in found.faults] == ["tied"]
    told = told_by_logits(found, trace(model, BATCH, loss))
    assert [fault.kind for fault in told.faults] == faults


def test_weights_that_the_pass_does_not_use_stay_a_fault():
    model = Language(WIDTH**-0.5)
    other = trace(nn.Linear(2, 1), torch.ones(3, 2), lambda m, x: m(x).sum())
    assert told_by_logits(initialisation(model), other).faults
