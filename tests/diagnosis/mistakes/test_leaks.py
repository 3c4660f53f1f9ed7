"""Inputs that hold the targets."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.diagnosis.mistakes.leaks import of_leaks
from support.traced_passes import traced_pass

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(32, 6, generator=GENERATOR)
PAST, FUTURE = torch.randn(16, 30, 2, generator=GENERATOR).split([20, 10], 1)
CLASSES = torch.randint(0, 3, (32,), generator=GENERATOR)


class Forecast(nn.Module):
    """A decoder is given the last steps, and a place for each step to come."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = (nn.GRU(2, 8, batch_first=True) for _ in range(2))
        self.last = nn.Linear(8, 2)

    def forward(self, past, place):
        _, state = self.encode(past)
        return self.last(self.decode(place, state)[0])[:, -10:]


def found(model, batch, loss):
    return of_leaks(traced_pass(model, batch, loss))


def forecast(model, batch):
    return F.mse_loss(model(*batch[:2]), batch[2])


def test_a_future_that_a_decoder_is_given():
    given = torch.cat([PAST[:, -5:], FUTURE], 1)
    (finding,) = found(Forecast(), (PAST, given, FUTURE), forecast)
    assert (finding.severity, finding.title) == ("warning", "An input holds the targets")
    assert "In batch[1], columns or steps 5 to 14" in finding.detail


@pytest.mark.parametrize(
    "place",
    [torch.zeros(16, 10, 2), torch.cat([PAST[:, -1:], FUTURE[:, :-1]], 1)],
)
def test_zeros_and_the_steps_before(place):
    """Of a decoder under teacher forcing, the last target is in no input."""
    assert found(Forecast(), (PAST, torch.cat([PAST[:, -5:], place], 1), FUTURE), forecast) == []


@pytest.mark.parametrize("column", [lambda y: y, lambda y: (y - y.mean()) / y.std()])
@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_a_label_among_the_features(kind, column):
    y = CLASSES if kind == "classes" else X[:, 0].sin() + 2
    x = torch.cat([X, column(y.float())[:, None]], 1)
    loss = F.cross_entropy if kind == "classes" else F.mse_loss
    model = nn.Linear(7, 3 if kind == "classes" else 1)

    def of(model, batch):
        return loss(model(batch["x"]).squeeze(1), batch["y"])

    (finding,) = found(model, {"x": x, "y": y}, of)
    assert "In 'x', column 6 (counted from 0) is the targets" in finding.detail


def test_a_column_that_the_model_leaves_out():
    x = torch.cat([X, CLASSES.float()[:, None]], 1)
    model = nn.Linear(6, 3)
    assert found(model, (x, CLASSES), lambda m, b: F.cross_entropy(m(b[0][:, :6]), b[1])) == []


def test_all_of_an_input():
    """An autoencoder, and a model of the next step."""

    def reconstructed(model, batch):
        return F.mse_loss(model(batch[0]), batch[1])

    assert found(nn.Linear(6, 6), (X, X.clone()), reconstructed) == []
    model = nn.Linear(2, 2)
    assert found(model, PAST, lambda m, x: F.mse_loss(m(x[:, :-1]), x[:, 1:])) == []


def test_few_classes_may_be_equal_by_chance():
    x = torch.cat([X, CLASSES.float()[:, None]], 1)[:12]
    model = nn.Linear(7, 3)
    assert found(model, (x, CLASSES[:12]), lambda m, b: F.cross_entropy(m(b[0]), b[1])) == []
