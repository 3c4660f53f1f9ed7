"""Parameters that one batch does not use, and others do."""

import torch
from torch import nn
from torch.nn import functional as F

from equipoise.diagnosis.mistakes.training.reach import MOST, of_reach
from support.model_state import left_alone
from support.traced_passes import traced_pass

GENERATOR = torch.Generator().manual_seed(0)
BATCHES = [(torch.randn(8, 6, generator=GENERATOR), torch.arange(8) % 3) for _ in range(6)]


def cross_entropy(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


class Experts(nn.Module):
    """Each batch goes to one expert; the last gets none."""

    def __init__(self, count=4):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(count))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        number = next(i for i, (known, _) in enumerate(BATCHES) if torch.equal(x, known))
        return self.head(self.experts[number % (len(self.experts) - 1)](x))


def found(batches):
    model = Experts()
    with left_alone(model):
        return of_reach(traced_pass(model, BATCHES[0], cross_entropy, batches=batches))


def test_what_other_batches_use_is_no_mistake():
    (finding,) = found(BATCHES)
    assert finding.title == "2 parameters without a gradient"
    assert "experts.3.weight" in finding.detail


def test_with_one_batch_all_others_seem_unused():
    (finding,) = found(BATCHES[:1])
    assert finding.title == MOST
    assert "in 6 parameters: " in finding.detail
