"""Classes that compete along another axis than the one that a likelihood picks from."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.diagnosis.mistakes.outputs.classes import of_classes
from support.traced_passes import traced_pass

X, Y = torch.randn(16, 6), torch.randint(0, 3, (16,))
STEPS, TOKENS = torch.randn(16, 7, 6), torch.randint(0, 3, (16, 7))
MAPS, PIXELS = torch.randn(16, 6, 8, 8), torch.randint(0, 3, (16, 8, 8))


def titles(model, batch, loss):
    traced = traced_pass(model, batch, lambda m, b: loss(m(b[0]), b[1]))
    return [finding.title for finding in of_classes(traced)]


def picked(output, target):
    """As of the actions that were taken."""
    return -output.gather(1, target[:, None]).mean()


@pytest.mark.parametrize(
    ("loss", "title"),
    [
        (lambda x, y: F.nll_loss(x.log_softmax(0), y), "Log-softmax over the samples"),
        (lambda x, y: F.nll_loss((x.softmax(0) + 1e-6).log(), y), "Softmax over the samples"),
        (lambda x, y: picked(x.log_softmax(0), y), "Log-softmax over the samples"),
        (lambda x, y: F.nll_loss(x.log_softmax(1), y), None),
        (lambda x, y: picked(x.log_softmax(-1), y), None),
        (lambda x, y: picked(x.log_softmax(-1).log_softmax(-1), y), None),
        # Similarities of samples have one on either axis.
        (lambda x, y: F.nll_loss((x @ x.T).log_softmax(0), torch.arange(16)), None),
        # With others beside them, each sample still has a partner of its own.
        (lambda x, y: picked((x @ torch.cat([x, -x]).T).log_softmax(0), torch.arange(16)), None),
    ],
)
def test_a_softmax_over_the_samples(loss, title):
    assert titles(nn.Linear(6, 3), (X, Y), loss) == ([] if title is None else [title])


@pytest.mark.parametrize(("axis", "expected"), [(0, ["Log-softmax over the samples"]), (1, [])])
@pytest.mark.parametrize(
    "loss",
    [
        lambda x, y, axis: F.kl_div(x.log_softmax(axis), y.softmax(axis), reduction="batchmean"),
        lambda x, y, axis: -(y.softmax(axis) * x.log_softmax(axis)).sum(axis).mean(),
    ],
)
def test_a_softmax_over_the_samples_beside_probabilities(loss, axis, expected):
    teacher = torch.randn(16, 3)
    assert titles(nn.Linear(6, 3), (X, teacher), lambda x, y: loss(x, y, axis)) == expected
    # One score for each sample: the batch is a list to be ranked.
    assert titles(nn.Linear(6, 1), (X, teacher[:, :1]), lambda x, y: loss(x, y, axis)) == []


@pytest.mark.parametrize(
    ("axis", "expected"),
    [
        (0, ["Log-softmax over the samples"]),
        (1, []),
        (2, ["Log-softmax over positions"]),
        (-1, ["Log-softmax over positions"]),
    ],
)
def test_a_softmax_over_positions(axis, expected):
    loss = lambda x, y: F.nll_loss(x.log_softmax(axis), y)  # noqa: E731
    assert titles(nn.Conv2d(6, 3, 1), (MAPS, PIXELS), loss) == expected


LOST = ["Logits lose their order before the loss"]


@pytest.mark.parametrize("length", [7, 9])
@pytest.mark.parametrize(
    ("arranged", "expected"),
    [
        (lambda x: x.view(len(x), 3, -1), LOST),
        (lambda x: x.reshape(len(x), 3, x.shape[1]).contiguous(), LOST),
        (lambda x: x[:, 1:].reshape(len(x), 3, -1), LOST),
        (lambda x: x.transpose(1, 2), []),
        (lambda x: x.permute(0, 2, 1).contiguous(), []),
        (lambda x: 0.5 * x.mT, []),
    ],
)
def test_logits_of_steps(arranged, expected, length):
    """Whether or not the number of classes divides that of steps."""
    x, y = torch.randn(16, length, 6), torch.randint(0, 3, (16, length))

    def loss(output, target):
        output = arranged(output)
        return F.cross_entropy(output, target[:, : output.shape[2]])

    assert titles(nn.Linear(6, 3), (x, y), loss) == expected


@pytest.mark.parametrize(
    ("flat", "expected"),
    [
        (lambda x: x.view(-1, 4), LOST),
        (lambda x: x.flatten(1).view(-1, 4), LOST),
        (lambda x: x.permute(0, 2, 3, 1).reshape(-1, 4), []),
        (lambda x: x.flatten(2).transpose(1, 2).flatten(0, 1), []),
    ],
)
def test_logits_of_pixels(flat, expected):
    loss = lambda x, y: F.cross_entropy(flat(x), y.flatten())  # noqa: E731
    assert titles(nn.Conv2d(6, 4, 1), (MAPS, PIXELS), loss) == expected


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, y: F.cross_entropy(x.flatten(0, 1), y.flatten()),
        lambda x, y: F.cross_entropy(x[:, :-1].reshape(-1, 3), y[:, 1:].reshape(-1)),
        lambda x, y: F.cross_entropy(x[:, 0], y[:, 0]),
        lambda x, y: F.cross_entropy(x.mean(1), y[:, 0]),
        lambda x, y: F.cross_entropy(x[..., 0], y[:, 0]),  # which of the steps it is
        lambda x, y: F.cross_entropy(x.flatten(1), y[:, 0]),  # which of all cells
        lambda x, y: F.cross_entropy(x.view(16, 7, 3, 1).squeeze(-1).flatten(0, 1), y.flatten()),
    ],
)
def test_what_keeps_its_order(loss):
    assert titles(nn.Linear(6, 3), (STEPS, TOKENS), loss) == []


def test_logits_that_lost_their_order_are_not_learnt():
    """The same layer learns the sign of its input at every step, and nothing of it otherwise."""
    x = torch.randn(64, 8, 1)
    target = (x[..., 0] > 0).long()

    def trained(arranged):
        torch.manual_seed(0)
        model = nn.Linear(1, 2)
        optimizer = torch.optim.Adam(model.parameters(), 0.05)
        for _ in range(100):
            loss = F.cross_entropy(arranged(model(x)), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()

    assert trained(lambda y: y.transpose(1, 2)) < 0.2
    assert trained(lambda y: y.view(64, 2, 8)) > 0.6
