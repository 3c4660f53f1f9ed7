"""Codes that nothing of what is decoded teaches."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import equipoise as eq
from equipoise.diagnosis.mistakes.training.quantised import of_quantised
from support.traced_passes import found_by

X = torch.randn(64, 12, generator=torch.Generator().manual_seed(0))
X = torch.cat([X, X @ torch.randn(12, 12, generator=torch.Generator().manual_seed(1))], 1)
TITLE = ("critical", "What is decoded does not teach the encoder")


def nearest(z, table):
    return table[torch.cdist(z, table).argmin(1)]


def nearest_by_squares(z, table):
    squares = z.pow(2).sum(1, keepdim=True) - 2 * z @ table.t() + table.pow(2).sum(1)
    return F.embedding(squares.argmin(1), table)


def nearest_by_ones(z, table):
    distances = torch.cdist(z, table)
    ones = torch.zeros_like(distances).scatter_(1, distances.argmin(1)[:, None], 1.0)
    return ones @ table


def nearest_by_minimum(z, table):
    _, chosen = torch.cdist(z, table).min(1)
    return table.index_select(0, chosen)


def nearest_without_gradient(z, table):
    with torch.no_grad():
        chosen = torch.cdist(z, table).argmin(1)
    return table[chosen]


def nearest_twice(z, table):
    first = nearest(z, table)
    return first + nearest(z - first.detach(), table)


class Codes(nn.Module):
    """An autoencoder that decodes rows of a table."""

    def __init__(self, look_up=nearest, hand_on=lambda z, codes: codes, learnt=True):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 8))
        self.decoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 24))
        self.table = nn.Parameter(torch.randn(16, 8) * 0.3, requires_grad=learnt)
        self.look_up, self.hand_on = look_up, hand_on

    def forward(self, x):
        z = self.encoder(x)
        codes = self.look_up(z, self.table)
        return self.decoder(self.hand_on(z, codes)), z, codes


def loss(model, x):
    decoded, z, codes = model(x)
    commitment = F.mse_loss(z, codes.detach()) + 4 * F.mse_loss(codes, z.detach())
    return F.mse_loss(decoded, x) + 0.25 * commitment


def found(model, loss=loss):
    torch.manual_seed(0)
    return found_by(of_quantised, model, X, loss)


def straight_through(z, codes):
    return z + (codes - z).detach()


def scaled(z, codes):
    """As the rotation trick does."""
    by = (codes.norm(dim=1, keepdim=True) / z.norm(dim=1, keepdim=True)).detach()
    return by * z + (codes - by * z).detach()


@pytest.mark.parametrize(
    "look_up",
    [
        nearest,
        nearest_by_squares,
        nearest_by_ones,
        nearest_by_minimum,
        nearest_without_gradient,
        nearest_twice,
    ],
)
def test_codes_need_a_way_for_the_gradient(look_up):
    assert found(Codes(look_up)) == [TITLE]
    assert found(Codes(look_up, learnt=False)) == [TITLE]  # as moving averages
    for hand_on in (straight_through, scaled, lambda z, codes: torch.add(z, codes)):
        assert found(Codes(look_up, hand_on)) == []


def test_what_is_not_decoded_needs_none():
    """As where clusters are to be found."""

    def clusters(model, x):
        z = model.encoder(x)
        return F.mse_loss(model.decoder(z), x) + F.mse_loss(z, nearest(z, model.table))

    assert found(Codes(), clusters) == []


def test_an_encoder_that_is_not_trained_needs_none():
    model = Codes()
    model.encoder.requires_grad_(False)
    assert found(model) == []


class Judged(Codes):
    """An autoencoder, and a discriminator of what it decodes."""

    def __init__(self):
        super().__init__(nearest)
        self.judge = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 1))


def judged_detached(model, x):
    return (
        F.softplus(model.judge(model(x)[0].detach())).mean() + F.softplus(-model.judge(x)).mean()
    )


def judged_without_gradient(model, x):
    with torch.no_grad():
        made, _, _ = model(x)
    return F.softplus(model.judge(made)).mean() + F.softplus(-model.judge(x)).mean()


@pytest.mark.parametrize("step", [judged_detached, judged_without_gradient])
def test_the_step_of_a_discriminator_teaches_no_encoder(step):
    """As in VQGAN, whose other step is still told."""
    assert found(Judged(), step) == []
    assert found(Judged(), lambda m, x: loss(m, x) - m.judge(m(x)[0]).mean()) == [TITLE]


class Sentences(nn.Module):
    """Goes on from the words that it has chosen, whose table is the head as well."""

    def __init__(self):
        super().__init__()
        self.words, self.start = nn.Parameter(torch.randn(24, 16)), nn.Linear(24, 16)
        self.cell = nn.GRUCell(16, 16)

    def forward(self, x):
        state, word, outputs = self.start(x).tanh(), torch.zeros(len(x), 16), []
        for _ in range(3):
            state = self.cell(word, state)
            outputs.append(state @ self.words.t())
            word = self.words[outputs[-1].argmax(1)]
        return outputs[-1]


def test_words_that_a_model_has_chosen():
    assert found(Sentences(), lambda m, x: F.mse_loss(m(x), x)) == []


def variance_left(hand_on):
    torch.manual_seed(0)
    model = Codes(hand_on=hand_on)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(400):
        optimizer.zero_grad()
        loss(model, X).backward()
        optimizer.step()
    return (F.mse_loss(model(X)[0], X) / X.var(0, correction=0).mean()).item()


def test_an_encoder_that_is_not_taught_learns_nothing():
    """The very training that the finding foretells."""
    assert variance_left(straight_through) < 0.8 * variance_left(lambda z, codes: codes)


def test_the_verdict_says_so_first():
    report = eq.checkup(Codes, (X, X), loss_fn=lambda model, batch: loss(model, batch[0]))
    assert report.verdict.sentence.startswith("Not ready to train: what is decoded does not teach")
