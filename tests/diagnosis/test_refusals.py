"""What is said of a batch that fails names the cause and what to do about it."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.nn import functional as F

import equipoise as eq
from equipoise.diagnosis.problem import Problem
from equipoise.diagnosis.refusals import refuse_missing

X = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
CLASSES = torch.arange(32) % 3
COLUMN = CLASSES[:, None]


def said(loss, target, outputs=3):
    with pytest.raises(ValueError, match=r"failed on a batch|the loss is") as error:
        eq.checkup(lambda: nn.Linear(6, outputs), (X, target), loss_fn=loss)
    return str(error.value)


@pytest.mark.parametrize(
    ("target", "change"),
    [
        (COLUMN, ".squeeze(1)"),
        (CLASSES.float(), ".long()"),
        (COLUMN.float(), ".squeeze(1).long()"),
    ],
)
def test_labels_are_brought_to_the_form_of_cross_entropy(target, change):
    words = said(nn.CrossEntropyLoss(), target)
    assert words.endswith(f"give y{change}.")
    assert f"shape {list(target.shape)}" in words
    changed = target.squeeze(1) if "squeeze" in change else target  # the remedy is one
    assert torch.isfinite(nn.CrossEntropyLoss()(torch.zeros(32, 3), changed.long()))


def test_labels_are_recognised_without_a_loss_too():
    with pytest.raises(ValueError, match=r"no loss fits both\. .*give y\.squeeze\(1\)\.long\(\)"):
        eq.checkup(lambda: nn.Linear(6, 3), (X, COLUMN.float()))
    with pytest.raises(ValueError, match=r"no loss fits both\. Give a loss of your own"):
        eq.checkup(lambda: nn.Linear(6, 3), (X, X[:, 0]))


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8, torch.int64])
@pytest.mark.parametrize(
    "layer", [nn.Linear(4, 3), nn.Linear(4, 3, bias=False), nn.Conv1d(1, 3, 2), nn.BatchNorm1d(4)]
)
def test_inputs_that_are_whole_numbers(layer, kind):
    whole = torch.ones(32, 4, dtype=kind)
    batch = (whole[:, None] if isinstance(layer, nn.Conv1d) else whole, CLASSES)
    with pytest.raises(ValueError, match=r"whole numbers: give x\.float\(\)"):
        eq.checkup(nn.Sequential(layer, nn.Flatten()), batch)


def test_indices_beyond_an_embedding():
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten())
    with pytest.raises(ValueError, match="too few rows: the largest number in the batch is 31"):
        eq.checkup(model, (torch.arange(32)[:, None], CLASSES))


def test_a_list_of_samples_with_names():
    samples = [{"x": x, "labels": label} for x, label in zip(X, CLASSES, strict=True)]
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    with pytest.raises(ValueError, match=r"single samples, give a DataLoader of them"):
        eq.checkup(model, samples)


def test_a_list_of_samples_with_numbers():
    samples = [(x, float(label)) for x, label in zip(X, CLASSES, strict=True)]
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    with pytest.raises(ValueError, match=r"single samples, give a DataLoader of them"):
        eq.checkup(model, samples)


def test_a_loss_of_three_arguments():
    with pytest.raises(ValueError, match="needs 3 arguments, 'model', 'x' and 'y', and is called"):
        eq.checkup(lambda: nn.Linear(6, 3), (X, CLASSES), loss_fn=lambda model, x, y: None)


def test_a_loss_of_one_argument():
    """Such as the method of a trainer, which calls a model of its own."""
    with pytest.raises(ValueError, match=r"takes one argument, and is called with two: \(model, "):
        eq.checkup(lambda: nn.Linear(6, 3), (X, CLASSES), loss_fn=lambda batch: None)


def test_numbers_that_are_no_labels_are_not_rounded():
    assert "y.long()" not in said(nn.CrossEntropyLoss(), X[:, 0])


def test_probabilities_of_a_binary_cross_entropy():
    bits = (X[:, :3] > 0).float()
    assert "BCEWithLogitsLoss" in said(nn.BCELoss(), bits)
    report = eq.checkup(
        lambda: nn.Linear(6, 3), (X, bits), loss_fn=nn.BCEWithLogitsLoss(), seeds=1
    )
    assert report.verdict.trainability is not None


def likelihood(log):
    def loss(output, target):
        mean, variance = output.chunk(2, 1)
        return (log(variance) + (target - mean).square() / variance.abs()).mean()

    return loss


@pytest.mark.parametrize(
    "log",
    [
        torch.log,
        lambda v: (v + 1e-6).log(),
        lambda v: v[:, 0].log(),
        lambda v: v.sqrt(),
    ],
)
def test_the_raw_output_of_a_layer_as_a_variance(log):
    words = said(likelihood(log), X[:, :1], outputs=2)
    assert "nan first in" in words
    assert "take softplus or exp" in words
    assert "Check the scale" not in words


@pytest.mark.parametrize("log", [lambda v: (v.tanh() - 2).log(), lambda v: (v - 100).log()])
def test_other_negative_numbers_have_no_such_cause(log):
    words = said(likelihood(log), X[:, :1], outputs=2)
    assert "softplus" not in words
    assert words.endswith("Check the scale of the data and of the initial weights.")


def test_a_divergence_of_logarithms():
    """Its arguments are swapped, or both are logarithms."""

    def swapped(output, target):
        return F.kl_div(target.softmax(1), output.log_softmax(1), reduction="sum")

    words = said(swapped, torch.randn(32, 2), outputs=2)
    assert "log_target=True" in words
    assert "Check the scale" not in words


def test_where_no_target_counts_the_scale_is_not_to_blame():
    words = said(nn.CrossEntropyLoss(ignore_index=0), torch.zeros(32, dtype=torch.long))
    assert words.endswith("Look at ignore_index, and at how targets are made.")


@pytest.mark.parametrize(
    "loss",
    [
        lambda o, y: nn.functional.gaussian_nll_loss(o[:, :1], y, o[:, 1:]),
        lambda o, y: -Normal(o[:, :1], o[:, 1:]).log_prob(y).mean(),
    ],
)
def test_pytorchs_own_likelihoods(loss):
    assert "softplus or exp of" in said(loss, X[:, :1], outputs=2)
    # Of what is no number the sign is not the cause.
    assert "softplus" not in said(lambda o, y: loss(o * math.nan, y), X[:, :1], outputs=2)


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ([(0, 4)], "holds 1 number that is infinite or missing (nan), in column 4."),
        ([(0, 1), (3, 1)], "holds 2 numbers that are infinite or missing (nan), in column 1."),
        ([(0, 1), (3, 5)], "in columns 1, 5 of 6."),
    ],
)
def test_columns_without_numbers_are_named(places, words):
    x = X.clone()
    for place in places:
        x[place] = math.nan
    with pytest.raises(ValueError, match=r"tensor 1 \(the inputs\) of a batch of tables") as error:
        refuse_missing((x, CLASSES), "tables")
    assert words in str(error.value)
    with pytest.raises(ValueError, match="'features' of a batch") as error:
        refuse_missing({"labels": CLASSES, "features": x}, "tables")
    assert words in str(error.value)
    refuse_missing((X, CLASSES), "tables")


def test_targets_without_numbers_have_no_columns():
    y = X[:, 0].clone()
    y[3] = math.inf
    with pytest.raises(ValueError, match=r"\(the targets\).*\[32\], holds 1 number .*\(nan\)\. "):
        refuse_missing((X, y), "tables")


class Stateful(nn.Module):
    """It takes a state beside its input, as PyTorch's example of a model of language."""

    def __init__(self):
        super().__init__()
        self.steps, self.last = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x, state):
        return self.last(self.steps(x, state)[0])


def test_a_model_that_takes_more_than_the_batch():
    """What is said of the call is said where no loss of the user's makes it."""
    batch = torch.randn(8, 5, 3), torch.randn(8, 5, 3)
    hint = r"a recurrent state, or is called otherwise, give a loss"
    with pytest.raises(ValueError, match=hint):
        Problem.prepare(Stateful, batch)
    with pytest.raises(ValueError, match=r"must be|should be|3-D|tuple") as raised:
        Problem.prepare(Stateful, batch, loss_fn=lambda m, b: m(b[0], b[1]).sum())
    assert "called otherwise" not in str(raised.value)
    state = torch.zeros(1, 8, 4)
    Problem.prepare(Stateful, batch, loss_fn=lambda m, b: m(b[0], (state, state)).square().mean())
