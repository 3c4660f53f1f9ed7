"""Models that are to predict the next step, and hardly see the present one."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import equipoise as eq
from equipoise.diagnosis.mistakes.series.own_steps import of_own_steps
from support.token_models import Attention, Recurrent, StepsFirst, steps_first_loss
from support.traced_passes import traced_pass

TOKENS = torch.randint(0, 11, (16, 65), generator=torch.Generator().manual_seed(0))
PAIR = TOKENS[:, :-1], TOKENS[:, 1:]


class Blocks(nn.Module):
    """Causal attention and a perceptron, with residuals or without."""

    def __init__(self, depth, *, residual):
        super().__init__()
        self.residual, self.embed, self.last = residual, nn.Embedding(11, 16), nn.Linear(16, 11)
        self.layers = nn.ModuleList(
            layer
            for _ in range(depth)
            for layer in (
                nn.MultiheadAttention(16, 2, batch_first=True),
                nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)),
            )
        )

    def forward(self, tokens):
        x = self.embed(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        for layer in self.layers:
            if isinstance(layer, nn.MultiheadAttention):
                y = layer(x, x, x, attn_mask=mask, need_weights=False)[0]
            else:
                y = layer(x)
            x = x + y if self.residual else y
        return self.last(x)


def tokens_loss(model, batch):
    return F.cross_entropy(model(batch[0]).mT, batch[1])


def severities(model, batch=PAIR, loss=tokens_loss):
    return [one.severity for one in of_own_steps(traced_pass(model, batch, loss))]


@pytest.fixture(autouse=True)
def _same_weights():
    torch.manual_seed(0)


@pytest.mark.parametrize("depth", [1, 3])
def test_blocks_with_residuals(depth):
    assert severities(Blocks(depth, residual=True)) == []


@pytest.mark.parametrize(("depth", "expected"), [(2, []), (3, ["warning"]), (5, ["critical"])])
def test_blocks_without_residuals(depth, expected):
    """Each divides by the number of steps what a step has for itself."""
    assert severities(Blocks(depth, residual=False)) == expected


@pytest.mark.parametrize("layers", [1, 4])
def test_recurrent_layers_see_every_step(layers):
    model = Recurrent(num_layers=layers)
    model(PAIR[0])
    assert severities(model) == []


def test_what_else_is_given_does_not_count():
    """As of captions, whose pictures differ much more than their words."""

    class Captions(Attention):
        def __init__(self):
            super().__init__()
            self.place = nn.Embedding(64, 16)

        def forward(self, tokens, pictures):
            x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1]))
            return self.last(x + 1000 * pictures[:, None])

    def loss(model, batch):
        return F.cross_entropy(model(batch[0], batch[1]).mT, batch[2])

    pictures = torch.randn(16, 16, generator=torch.Generator().manual_seed(1))
    assert severities(Captions(), (PAIR[0], pictures, PAIR[1]), loss) == []


def test_other_targets_may_need_no_step_of_their_own():
    sums = PAIR[0].cumsum(1) % 11
    assert severities(Blocks(3, residual=False), (PAIR[0], sums)) == []


def test_a_checkup_says_so():
    report = eq.checkup(lambda: Blocks(4, residual=False), PAIR, seeds=1)
    assert report.verdict.sentence == "Not ready to train: outputs hardly depend on their own step"


@pytest.mark.parametrize(("residual", "expected"), [(True, []), (False, ["warning"])])
def test_steps_first(residual, expected):
    batch = tuple(x.t().contiguous() for x in PAIR)
    model = StepsFirst(Blocks(3, residual=residual))
    assert severities(model, batch, steps_first_loss) == expected
