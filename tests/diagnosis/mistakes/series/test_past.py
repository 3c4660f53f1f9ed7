"""Models of language whose targets are tokens that they have been given."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.diagnosis.mistakes.series.past import of_past
from support.token_models import (
    PAIR,
    TOKENS,
    Attention,
    Recurrent,
    StepsFirst,
    named_loss,
    shifted_loss,
    steps_first_loss,
    tokens_loss,
)
from support.traced_passes import traced_pass


def found(model, batch, loss=tokens_loss):
    model.eval()
    return [finding.severity for finding in of_past(traced_pass(model, batch, loss))]


@pytest.mark.parametrize("model", [Attention(), Recurrent()])
def test_causal_models_are_to_copy(model):
    x = PAIR[0]
    model(x)
    assert found(model, (x, x.clone())) == ["critical"]
    assert found(model, (x, x.roll(1, 1))) == ["warning"]
    assert found(model, {"tokens": x, "labels": x}, named_loss) == ["critical"]
    padded = x.clone()
    padded[:, 15:] = -100
    assert found(model, (x, padded)) == ["critical"]


@pytest.mark.parametrize("model", [Attention(), Recurrent()])
def test_targets_that_come_later(model):
    model(PAIR[0])
    assert found(model, PAIR) == []
    assert found(model, TOKENS, shifted_loss) == []
    assert found(model, (PAIR[0], PAIR[0].flip(1))) == []


@pytest.mark.parametrize("model", [Attention(), Recurrent()])
def test_steps_first(model):
    x, y = (one.t().contiguous() for one in PAIR)
    model(PAIR[0])
    (finding,) = of_past(traced_pass(StepsFirst(model).eval(), (x, x.clone()), steps_first_loss))
    assert finding.severity == "critical"
    assert "model(tokens[:-1])" in finding.remedy
    assert found(StepsFirst(model), (x, y), steps_first_loss) == []


def test_a_series_of_period_two():
    """The next step is the one before."""
    x = torch.cat([PAIR[0][:, :1], (PAIR[0][:, :1] + 1) % 11], 1).repeat(1, 10)
    model = Attention()
    assert found(model, (x[:, :-1], x[:, 1:])) == []
    assert found(model, (x[:, 1:], x[:, 1:])) == ["critical"]


def test_models_of_both_directions():
    """One is given the steps before, and one the steps after."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.forwards, self.backwards = Attention(), Attention()

        def forward(self, tokens):
            return self.forwards(tokens), self.backwards(tokens.flip(1)).flip(1)

    def loss(model, x):
        after, before = model(x)
        return F.cross_entropy(after[:, :-1].mT, x[:, 1:]) + F.cross_entropy(
            before[:, 1:].mT, x[:, :-1]
        )

    assert found(Both(), TOKENS, loss) == []


def test_a_step_that_the_model_shifts_itself():
    """What it is given at a step, it sees at the next."""

    class Shifting(Attention):
        def forward(self, tokens):
            return super().forward(F.pad(tokens[:, :-1], (1, 0)))

    assert found(Shifting(), (PAIR[0], PAIR[0])) == []


def test_a_model_that_makes_a_row_of_each_step():
    class Flat(Attention):
        def forward(self, tokens):
            return super().forward(tokens).flatten(0, 1)

    def flat_loss(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1].flatten())

    assert found(Flat(), (PAIR[0], PAIR[0]), flat_loss) == ["critical"]


def test_autoencoders():
    """They see all steps, or each alone."""
    everything = Attention(mask=torch.ones_like)
    alone = Attention(mask=lambda x: torch.eye(x.shape[-1]).expand_as(x))
    assert found(everything, (PAIR[0], PAIR[0])) == []
    assert found(alone, (PAIR[0], PAIR[0])) == []


class Autoregressive(nn.Module):
    """A flow that subtracts from each number what those before it make."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.means = nn.Linear(6, 6)
        self.register_buffer("before", torch.ones(6, 6).tril(-1))

    def forward(self, x):
        return x - F.linear(x, self.means.weight * self.before, self.means.bias)


def test_flows_are_not_to_copy():
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))
    assert found(Autoregressive(), x, lambda model, batch: model(batch).square().mean()) == []
