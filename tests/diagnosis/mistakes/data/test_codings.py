"""Targets in another coding than the loss takes, and those that look like it and are not."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import equipoise as eq
from equipoise.diagnosis.mistakes.data.codings import of_codings
from support.traced_passes import traced_pass

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(32, 6, generator=GENERATOR)
BITS = (torch.rand(32, 3, generator=GENERATOR) > 0.5).float()
CLASSES = torch.arange(32) % 3


def found(loss, target):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    batch = X, target
    return of_codings(traced_pass(model, batch, lambda m, b: loss(m(b[0]), b[1])))


def titles(loss, target):
    return [one.title for one in found(loss, target)]


def masked(output, target):
    losses = F.binary_cross_entropy_with_logits(output, target, reduction="none")
    return losses[target >= 0].mean()


def weighted(output, target):
    return F.binary_cross_entropy_with_logits(output, target, weight=(target >= 0).float())


def by_hand(output, target):
    p = output.sigmoid()
    return -(target * p.log() + (1 - target) * (1 - p).log()).mean()


BEYOND = "Targets of binary cross-entropy beyond 0 and 1"


class TestBinaryCrossEntropy:
    @pytest.mark.parametrize(
        ("target", "remedy"),
        [
            (2 * BITS - 1, "Take (target + 1) / 2."),
            (BITS + 1, "Take target - 1."),
            (255 * BITS, "Take target / 255."),
            (torch.randn(32, 3, generator=GENERATOR), "squared error"),
        ],
    )
    @pytest.mark.parametrize(
        "loss", [nn.BCEWithLogitsLoss(), by_hand, nn.MultiLabelSoftMarginLoss()]
    )
    def test_beyond_0_and_1_the_loss_has_no_least_value(self, loss, target, remedy):
        (one,) = found(loss, target)
        assert (one.severity, one.title) == ("critical", BEYOND)
        assert remedy in one.remedy
        large = 1000 * (target - 0.5).sign()
        assert float(nn.BCEWithLogitsLoss()(large, target)) < -10

    @pytest.mark.parametrize("target", [BITS, 0.9 * BITS + 0.05, BITS + 1e-6])
    @pytest.mark.parametrize(
        "loss", [nn.BCEWithLogitsLoss(), by_hand, nn.MultiLabelSoftMarginLoss()]
    )
    def test_probabilities_are_none(self, loss, target):
        assert found(loss, target) == []

    def test_a_few_that_resizing_left_beyond_are_a_warning(self):
        (one,) = found(nn.BCEWithLogitsLoss(), 1.06 * BITS - 0.03)
        assert (one.severity, one.title) == ("warning", BEYOND)

    @pytest.mark.parametrize("loss", [masked, weighted])
    def test_what_is_left_out_of_the_loss_does_not_count(self, loss):
        target = BITS.clone()
        target[:, 0] = -1.0
        assert found(loss, target) == []
        assert titles(nn.BCEWithLogitsLoss(), target) == [BEYOND]

    def test_squared_errors_take_any_number(self):
        assert found(F.mse_loss, 255 * BITS) == []

    def test_the_checkup_says_it(self):
        report = eq.checkup(
            lambda: nn.Linear(6, 3), (X, 2 * BITS - 1), loss_fn=nn.BCEWithLogitsLoss(), seeds=2
        )
        (one,) = (f for f in report.findings if f.title == BEYOND)
        assert one.severity == "critical"


SUMS = "Cross-entropy with targets whose rows do not sum to 1"


class TestSoftTargets:
    @pytest.mark.parametrize(
        "loss",
        [
            nn.CrossEntropyLoss(),
            nn.CrossEntropyLoss(label_smoothing=0.1),
            nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])),
            lambda output, target: -(output.log_softmax(1) * target).sum(1).mean(),
        ],
    )
    def test_several_labels_are_no_probabilities(self, loss):
        (one,) = found(loss, BITS)
        assert (one.severity, one.title) == ("warning", SUMS)
        assert "BCEWithLogitsLoss" in one.remedy
        one_hot = F.one_hot(CLASSES, 3).float()
        for sound in (one_hot, 0.7 * one_hot + 0.3 * one_hot.roll(1, 0), X[:, :3].softmax(1)):
            assert found(loss, sound) == []

    def test_weights_of_samples_are_none(self):
        """One number a row, and rows of zeros, as padding has."""
        assert found(nn.CrossEntropyLoss(), F.one_hot(CLASSES, 3) * X[:, :1].abs()) == []

    def test_sums_over_positives_that_are_divided_by_their_number_are_none(self):
        def contrastive(output, target):
            products = (output.log_softmax(1) * target).sum(1)
            return -(products / target.sum(1).clamp(min=1)).mean()

        assert found(contrastive, BITS) == []

    @pytest.mark.parametrize("weights", [X[:, :3], X[:, :3].abs(), 3 * X[:, :3].sigmoid()])
    def test_weights_of_actions_are_none(self, weights):
        """Advantages and values of all actions, by which a policy's gradient is weighed."""
        loss = lambda o, t: -(o.log_softmax(-1) * t).sum(-1).mean()  # noqa: E731
        assert found(loss, weights) == []

    def test_maps_have_their_classes_along_axis_1(self):
        def maps(output, target):
            return F.cross_entropy(output.view(4, 8, 3).mT, target.view(4, 8, 3).mT)

        assert titles(maps, BITS) == [SUMS]
        assert found(maps, F.one_hot(CLASSES, 3).float()) == []


def ranking(output, target):
    return F.margin_ranking_loss(output[:, 0], output[:, 1], target[:, 0], margin=1.0)


def cosine(output, target):
    return F.cosine_embedding_loss(output, output.roll(1, 0), target[:, 0])


class TestSigns:
    @pytest.mark.parametrize(
        ("loss", "name"),
        [
            (lambda o, t: torch.relu(1 - o * t).mean(), "a hinge loss"),
            (lambda o, t: torch.relu(1 - o[:, :1].squeeze(1) * t[:, 0]).mean(), "a hinge loss"),
            (lambda o, t: (1 - t * o).clamp(min=0).square().mean(), "a hinge loss"),
            (lambda o, t: torch.maximum(torch.tensor(0.0), 1 - t * o).mean(), "a hinge loss"),
            (lambda o, t: (torch.ones(32, 3) - t * o).clamp_min(0).mean(), "a hinge loss"),
            (ranking, "a hinge loss"),
            (lambda o, t: F.softplus(-t * o).mean(), "a logistic loss"),
            (lambda o, t: F.softplus(-(t * o)).mean(), "a logistic loss"),
            (nn.SoftMarginLoss(), "the soft margin loss"),
            (nn.HingeEmbeddingLoss(), "the hinge embedding loss"),
            (cosine, "the cosine embedding loss"),
        ],
    )
    def test_labels_0_and_1(self, loss, name):
        (one,) = found(loss, BITS)
        assert (one.severity, one.title) == (
            "critical",
            f"Labels 0 and 1 where {name} takes -1 and 1",
        )
        assert found(loss, 2 * BITS - 1) == []

    @pytest.mark.parametrize(
        "loss",
        [
            lambda o, t: (t * o + 1e-3).relu().mean(),  # a mask and a small number
            lambda o, t: torch.relu(1 - t * (o[:, :1] - o)).mean(),  # a mask of pairs
            lambda o, t: torch.relu(1 - t * (o * (2 * t.roll(1, 0) - 1))).mean(),  # of products
            lambda o, t: torch.relu(1 - o).mean() + (t * o).mean(),
            lambda o, t: (t * (1 - o)).relu().mean(),
            lambda o, t: -(1 - t * o.sigmoid()).clamp(min=1e-6).log().mean(),  # noisy or
            lambda o, t: (1 - t * o.sigmoid()).relu().mean(),
            lambda o, t: (torch.relu(1 - o * t) * t).sum() / t.sum(),  # a mask of what counts
            lambda o, t: (F.softplus(-(o * t)) * t).sum() / t.sum(),
            lambda o, t: torch.relu(1 - o * t).sum() / t.sum(),
        ],
    )
    def test_masks_are_no_labels(self, loss):
        assert found(loss, BITS) == []

    def test_zeros_among_both_signs_are_a_mask(self):
        signs = (2 * BITS - 1) * BITS.roll(1, 0)
        assert found(lambda o, t: torch.relu(1 - o * t).mean(), signs) == []

    def test_a_margin_of_classes_takes_their_numbers(self):
        assert found(nn.MultiMarginLoss(), CLASSES) == []
        numbers = torch.stack([CLASSES, torch.full((32,), -1), torch.full((32,), -1)], 1)
        assert found(nn.MultiLabelMarginLoss(), numbers) == []
        (one,) = found(nn.MultiLabelMarginLoss(), BITS.long())
        assert one.title == "Labels 0 and 1 where a loss takes the numbers of classes"


class TestCTC:
    """Eight steps of four sequences, of 3 classes with a blank."""

    STEPS = torch.full((4,), 8)

    def found(self, targets, lengths, steps=STEPS, **options):
        def loss(output, _):
            logs = output.view(8, 4, 3).log_softmax(-1)
            return F.ctc_loss(logs, targets, steps, lengths, **options)

        return [(one.title, one.severity) for one in found(loss, CLASSES)]

    @pytest.mark.parametrize("lengths", [torch.tensor([2, 1, 2, 3]), [2, 1, 2, 3], (2, 1, 2, 3)])
    def test_targets_that_hold_the_blank(self, lengths):
        padded = torch.tensor([[1, 2, 0], [2, 0, 0], [1, 2, 0], [1, 2, 1]])
        joined = torch.tensor([1, 2, 2, 1, 2, 1, 2, 1])
        steps = self.STEPS if isinstance(lengths, torch.Tensor) else [8] * 4
        for targets in (padded, joined):
            assert self.found(targets, lengths, steps) == []
        told = [("The targets of CTC hold the blank", "critical")]
        assert self.found(padded, [3] * 4, [8] * 4) == told
        assert self.found(joined - 1, lengths, steps) == told
        assert self.found(joined - 1, lengths, steps, blank=2) == []
        assert self.found(joined, lengths, steps, blank=2) == told

    @pytest.mark.parametrize(
        ("length", "severities"), [(4, []), (5, ["critical"]), (8, ["critical"])]
    )
    def test_fewer_steps_than_targets_need(self, length, severities):
        """Of a class that is said again and again, each needs a blank before it."""
        told = self.found(
            torch.ones(4, 8, dtype=torch.long), [length] * 4, [8] * 4, zero_infinity=True
        )
        assert told == [("Fewer steps than the targets of CTC need", one) for one in severities]

    def test_other_classes_need_a_step_each(self):
        alternating = 1 + torch.arange(8).expand(4, 8) % 2
        assert self.found(alternating, [8] * 4, [8] * 4) == []
        some = self.found(alternating, [8] * 4, [8, 8, 8, 7], zero_infinity=True)
        assert some == [("Fewer steps than the targets of CTC need", "warning")]
