"""Inputs that hold the targets."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.diagnosis.mistakes.data.leaks import of_leaks
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


class Parts(nn.Module):
    """What :class:`torch.nn.Linear` gives, and what goes into it."""

    def __init__(self, inputs, *outputs):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(inputs, width) for width in outputs)

    def forward(self, x):
        return [layer(x) for layer in self.layers]


def test_what_runs_depends_on_the_numbers():
    """Then outputs of two passes are not those of the same operations."""
    y = X.sum(1)
    x = torch.cat([X, y[:, None]], 1)

    class Choosing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = nn.Linear(6, 1), x[:, 6].clone()

        def forward(self, given):
            if not torch.equal(given[:, 6], self.seen):
                given = given.clone() + 1
            output = self.layer(given[:, :6]).squeeze(1)
            for _ in range(4):
                output = 2 * output
            return output

    def loss(model, batch):
        return F.mse_loss(model(batch[0]), batch[1])

    assert found(Choosing(), (x, y), loss) == []


def test_columns_that_are_reconstructed_beside_others():
    """An autoencoder with a loss of its own for numbers and for classes."""
    x = torch.cat([X, F.one_hot(CLASSES, 3).float()], 1)

    def loss(model, batch):
        output = model(batch[0])
        numbers, classes = output if isinstance(output, list) else output.split([6, 3], 1)
        return F.mse_loss(numbers, batch[1]) + F.cross_entropy(classes, batch[2])

    def loss_of_its_input(model, x):
        return loss(model, (x, x[:, :6], x[:, 6:].argmax(1)))

    assert found(nn.Linear(9, 9), (x, X, CLASSES), loss) == []
    assert found(Parts(9, 6, 3), x, loss_of_its_input) == []


def test_another_output_that_is_given_the_targets():
    """An actor gives the actions that the critic beside it is given."""

    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.actor, self.critic = nn.Linear(4, 2), nn.Linear(6, 1)

        def forward(self, x, seen):
            return self.actor(x[:, :seen]), self.critic(x)

    def loss(model, batch, seen=4):
        action, value = model(batch[0], seen)
        return F.mse_loss(action, batch[1]) + F.mse_loss(value, batch[2])

    agent, batch = Agent(), (X, X[:, 4:].clone(), torch.ones(32, 1))
    assert found(agent, batch, loss) == []
    agent.actor = nn.Linear(6, 2)
    assert len(found(agent, batch, lambda m, b: loss(m, b, seen=6))) == 1


def test_steps_that_are_to_be_remembered():
    """A block that a recurrent layer is to give later on, or one number of a row of steps."""

    class Memory(nn.Module):
        def __init__(self, width=2):
            super().__init__()
            self.layer, self.last = nn.Linear(width, 16), nn.Linear(16, width)

        def forward(self, x):
            return self.last(self.layer(x).tanh().cumsum(1))

    blank = torch.zeros(16, 4, 2)
    block = torch.cat([PAST[:, :4], blank, blank], 1)

    def recalled(model, batch):
        return F.mse_loss(model(batch[0])[:, -batch[1].shape[1] :], batch[1])

    assert found(Memory(), (block, PAST[:, :4].clone()), recalled) == []
    assert len(found(Memory(), (block.flip(1), PAST[:, :4].flip(1)), recalled)) == 1

    def first(model, batch):
        return F.mse_loss(model(batch[0][:, :, None])[:, -1, 0], batch[1])

    assert found(Memory(1), (X, X[:, 0].clone()), first) == []
