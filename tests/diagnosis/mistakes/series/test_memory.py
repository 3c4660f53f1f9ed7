"""Time steps that a loss hardly depends on."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.diagnosis.mistakes.series.memory import of_memory
from support.traced_passes import traced_pass

STEPS, WIDTH = 100, 32
X = torch.randn(16, STEPS, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(16) % 3


class Classifier(nn.Module):
    """The last state, or the mean of all, of a recurrent layer."""

    def __init__(self, kind, *, batch_first=True, mean=False):
        super().__init__()
        self.layer = kind(4, WIDTH, batch_first=batch_first)
        self.head, self.mean = nn.Linear(WIDTH, 3), mean

    def forward(self, x):
        if not self.layer.batch_first:
            x = x.transpose(0, 1)
        y, _ = self.layer(x)
        axis = 1 if self.layer.batch_first else 0
        return self.head(y.mean(axis) if self.mean else y.select(axis, -1))


def cross_entropy(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def titles(model, batch=(X, Y), loss=cross_entropy):
    return [finding.title for finding in of_memory(traced_pass(model, batch, loss))]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [True, False])
def test_the_last_state_of_a_long_sequence(kind, batch_first):
    torch.manual_seed(0)
    model = Classifier(kind, batch_first=batch_first)
    before = [p.clone() for p in model.parameters()]
    state = torch.get_rng_state()
    (title,) = titles(model)
    assert title.startswith("The first 7")
    assert title.endswith("of 100 time steps are forgotten")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert all(p.grad is None for p in model.parameters())
    assert not model.layer._forward_pre_hooks


def test_it_is_the_derivative_by_what_the_layer_is_given():
    torch.manual_seed(0)
    model, x = Classifier(nn.LSTM), X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(cross_entropy(model, (x, Y)), x)
    sizes = gradient.double().square().sum((0, 2)).sqrt()
    early = int((sizes > 1e-6 * sizes.max()).nonzero()[0, 0])
    assert titles(model) == [f"The first {early} of 100 time steps are forgotten"]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_the_remedies(kind):
    """A gate that starts open, and a mean over all states."""
    torch.manual_seed(0)
    model = Classifier(kind)
    with torch.no_grad():
        model.layer.bias_ih_l0[WIDTH : 2 * WIDTH] = 2.0
    assert titles(model) == []
    assert titles(Classifier(kind, mean=True)) == []


def test_the_gate_s_bias_makes_the_first_step_learnable():
    """The class is told at the first step alone; what is learnt is tried on new samples."""

    def samples(count, seed):
        x = torch.randn(count, 60, 4, generator=torch.Generator().manual_seed(seed))
        y = torch.arange(count) % 3
        x[torch.arange(count), 0, y] += 3.0
        return x, y

    def loss_after(bias):
        torch.manual_seed(0)
        model = Classifier(nn.LSTM)
        with torch.no_grad():
            model.layer.bias_ih_l0[WIDTH : 2 * WIDTH] = bias
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(60):
            optimizer.zero_grad()
            cross_entropy(model, samples(64, 1)).backward()
            optimizer.step()
        return cross_entropy(model, samples(256, 2)).item()

    assert loss_after(4.0) < 0.8 < 1.1 < loss_after(0.0)  # log 3 is 1.1


def test_short_sequences_targets_at_every_step_and_packed_ones_are_left_alone():
    torch.manual_seed(0)
    assert titles(Classifier(nn.LSTM), (X[:, :40], Y)) == []
    layer = nn.LSTM(4, 3, batch_first=True)
    every = Y[:, None].expand(-1, STEPS)
    assert titles(layer, (X, every), lambda m, b: F.cross_entropy(m(b[0])[0].mT, b[1])) == []
    lengths = torch.full((16,), STEPS)

    def packed(model, batch):
        rows = nn.utils.rnn.pack_padded_sequence(batch[0], lengths, batch_first=True)
        return F.cross_entropy(model.head(model.layer(rows)[1][0][-1]), batch[1])

    assert titles(Classifier(nn.LSTM), loss=packed) == []
    assert titles(nn.Linear(4, 3), (X[:, 0], Y)) == []


def test_the_remedy_names_the_gate_of_the_layer():
    torch.manual_seed(0)
    (finding,) = of_memory(traced_pass(Classifier(nn.GRU), (X, Y), cross_entropy))
    assert finding.severity == "warning"
    assert "gru.bias_ih_l0[hidden_size : 2 * hidden_size]" in finding.remedy
