"""Targets that are all equal."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import equipoise as eq
from equipoise.diagnosis.mistakes.data.targets import of_targets
from support.traced_passes import traced_pass

X = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
ZEROS, CLASSES = torch.zeros(32, dtype=torch.long), torch.arange(32) % 3


def cross_entropy(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def found(loss, *targets):
    batches = [(X, target) for target in targets]
    return judged(batches[0], lambda m, b: loss(m(b[0]), b[1]), batches)


def judged(batch, loss=cross_entropy, batches=None):
    return of_targets(traced_pass(nn.Linear(6, 3), batch, loss, batches=batches))


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (F.cross_entropy, ZEROS),
        (F.mse_loss, torch.full((32, 3), 2.5)),
        (F.smooth_l1_loss, torch.ones(32, 3)),
        (F.binary_cross_entropy_with_logits, torch.ones(32, 3)),
        (lambda output, target: (output - target).abs().mean(), torch.ones(32, 3)),
    ],
)
def test_equal_targets(loss, target):
    (finding,) = found(loss, target, target)
    assert finding.title == "All targets are equal"
    assert "64 samples of 2 batches" in finding.detail


@pytest.mark.parametrize(("objects", "expected"), [(255, 1), (1, 0)])
def test_what_a_loss_ignores_does_not_count(objects, expected):
    """A mask of 0 and 255, whose 255 stands for objects and not for their rims."""
    ignoring = nn.CrossEntropyLoss(ignore_index=255)
    mask = torch.where(torch.arange(32) % 3 == 0, objects, 0)
    mask[:3] = 255
    findings = found(ignoring, mask, mask)
    assert len(findings) == expected
    for finding in findings:
        assert "are 255, which the loss ignores" in finding.detail
        assert "mask // 255" in finding.remedy


def test_other_batches_count():
    assert found(F.cross_entropy, ZEROS, CLASSES) == []


def test_few_may_be_equal_by_chance():
    batch = X[:8], ZEROS[:8]
    assert judged(batch) == []


def test_others_are_drawn_only_if_those_of_the_first_are_equal():
    def drawn():
        raise AssertionError("drawn")

    batch = X, CLASSES
    assert judged(batch, batches=drawn) == []


def test_a_mask_inside_of_the_model_is_no_target():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x, mask):
            weights = (self.gate(x) - (1 - mask) * 1e9).softmax(1)
            return self.head(weights * x)

    batch = X, torch.ones(32, 6), CLASSES
    traced = traced_pass(Masked(), batch, lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2]))
    assert of_targets(traced) == []


def test_targets_that_the_loss_does_not_use_are_none():
    assert found(lambda output, _: output.square().mean(), ZEROS) == []
    assert found(lambda output, _: F.cross_entropy(output, CLASSES), ZEROS) == []


def test_constant_numbers_beside_targets_that_vary():
    """As the first policy's probabilities, which PPO divides by."""
    batch = X, torch.full((32, 3), -1.4), torch.randn(32, 3)

    def loss(model, batch):
        output = model(batch[0])
        return (output - batch[1]).exp().mean() + F.mse_loss(output, batch[2])

    traced = traced_pass(nn.Linear(6, 3), batch, loss, batches=[batch, batch])
    assert of_targets(traced) == []


def test_flags_of_the_end_of_an_episode_are_no_targets():
    """They are subtracted from 1, and from no output."""
    batch = X, torch.zeros(32, 3), torch.randn(32, 3)

    def loss(model, batch):
        state, done, reward = batch
        with torch.no_grad():
            target = reward + 0.9 * (1 - done) * model(state)
        return F.mse_loss(model(state), target)

    assert of_targets(traced_pass(nn.Linear(6, 3), batch, loss, batches=[batch, batch])) == []


def test_a_checkup_says_so():
    report = eq.checkup(nn.Linear(6, 3), (X, ZEROS), loss_fn="cross-entropy")
    assert report.verdict.details.endswith("Found as well: All targets are equal")


def test_probabilities_of_another_policy_are_no_targets():
    """PPO and V-trace divide by the probabilities of actions that were uniform at first."""
    old = torch.full((32, 3), -1.1)

    def weighted(output):
        return (output.log_softmax(1) - old).exp()

    assert found(lambda output, _: -(weighted(output) * X[:, :3]).mean(), old, old) == []

    def detached(output, target):
        likelihood = output.log_softmax(1)
        with torch.no_grad():
            error = (likelihood - target).square()
        return (likelihood * error).mean()

    assert found(detached, old, old) == []
    (finding,) = found(F.mse_loss, old, old)
    assert finding.title == "All targets are equal"
