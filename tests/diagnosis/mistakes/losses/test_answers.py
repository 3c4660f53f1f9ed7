"""Losses that are larger for right answers than for answers that say nothing."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.diagnosis.mistakes.losses.answers import right_answers
from support.traced_passes import traced_pass

GENERATOR = torch.Generator().manual_seed(0)
CENTRES = torch.randn(4, 6, generator=GENERATOR)
Y = torch.arange(32) % 4
# Anchors, others of their classes, and others of other classes.
ANCHORS, ALIKE, OTHERS = (
    CENTRES[(Y + k) % 4] + 0.3 * torch.randn(32, 6, generator=GENERATOR) for k in (0, 0, 1)
)
RISES = ("critical", "The loss is larger for right answers than for none")


def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))


class Cosines(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.classes = layers(), nn.Parameter(torch.randn(4, 8))

    def forward(self, x):
        return F.normalize(self.features(x)) @ F.normalize(self.classes).T


def found(model, batch, loss, **options):
    one = right_answers(traced_pass(model, batch, loss, **options))
    return [] if one is None else [(one.severity, one.title)]


def with_margin(angle):
    """Cross-entropy where the right class has another function of its angle."""

    def loss(model, batch):
        cosine = model(batch[0]).clamp(-1 + 1e-6, 1 - 1e-6)
        hot = F.one_hot(batch[1], 4).bool()
        return F.cross_entropy(16 * torch.where(hot, angle(cosine.acos()), cosine), batch[1])

    return loss


@pytest.mark.parametrize(
    ("angle", "is_wrong"),
    [
        (torch.cos, False),
        (lambda t: torch.cos(t + 0.5), False),
        (lambda t: torch.cos(t) - 0.35, False),
        (lambda t: torch.cos(t + 28.6), True),  # degrees
        (lambda t: t.sin() * math.cos(0.5) + t.cos() * math.sin(0.5), True),
        (lambda t: t.cos() * math.sin(0.5) - t.sin() * math.cos(0.5), True),
    ],
)
def test_margins_of_angles(angle, is_wrong):
    assert found(Cosines(), (ANCHORS, Y), with_margin(angle)) == [RISES] * is_wrong


# Losses of outputs and classes, and whether they are turned.
CLASSES = {
    "cross-entropy": (F.cross_entropy, False),
    "smoothed": (lambda z, y: F.cross_entropy(z, y, label_smoothing=0.2), False),
    "hinge": (F.multi_margin_loss, False),
    "focal": (lambda z, y: focal(z, y), False),
    "errors of one-hot numbers": (lambda z, y: F.mse_loss(z, F.one_hot(y, 8).float()), False),
    "likelihood": (lambda z, y: z.log_softmax(1).gather(1, y[:, None]).mean(), True),
}


def focal(z, y):
    entropy = F.cross_entropy(z, y, reduction="none")
    return ((1 - torch.exp(-entropy)) ** 2 * entropy).mean()


@pytest.mark.parametrize("name", CLASSES)
def test_losses_of_classes(name):
    loss, is_wrong = CLASSES[name]
    given = found(layers(), (ANCHORS, Y), lambda model, batch: loss(model(batch[0]), batch[1]))
    assert given == [RISES] * is_wrong


CODES = torch.tensor([[0, 1, 1, 0, 1, 0, 0, 1], [1, 0, 1, 1, 0, 0, 1, 0]]).float()
CODES = torch.cat([CODES, 1 - CODES.roll(3, 1)])
THRESHOLDS = torch.arange(8)


def of_class_means(z, y):
    """Distances to the means of half of the samples."""
    means = torch.stack([z[:16][y[:16] == k].mean(0) for k in torch.unique(y)])
    return F.cross_entropy(-torch.cdist(z[16:], means), y[16:])


# Losses whose outputs are no scores of classes.
OTHERS_THAN_SCORES = {
    "codes": lambda z, y: F.binary_cross_entropy_with_logits(z, CODES[y]),
    "embeddings": lambda z, y: F.mse_loss(z, CODES.cumsum(1)[y]),
    "prototypes": lambda z, y: F.cross_entropy(F.normalize(z) @ CODES.cumsum(1).T, y),
    "means of classes": of_class_means,
    "thresholds": lambda z, y: F.binary_cross_entropy_with_logits(
        z, (y[:, None] > THRESHOLDS).float()
    ),
}


@pytest.mark.parametrize("name", OTHERS_THAN_SCORES)
def test_outputs_that_are_no_scores_of_classes(name):
    loss = OTHERS_THAN_SCORES[name]
    assert (
        found(layers(), (ANCHORS, Y), lambda model, batch: loss(model(batch[0]), batch[1])) == []
    )


def test_classes_of_another_order():
    loss = lambda model, batch: F.cross_entropy(model(batch[0]), (batch[1] + 1) % 8)  # noqa: E731
    assert found(layers(), (ANCHORS, Y), loss) == [RISES]


def of_kinds(measure):
    """The contrastive loss of all pairs of a batch, of a distance or what is taken for one."""

    def loss(model, batch):
        z = F.normalize(model(batch[0]))
        same = (batch[1][:, None] == batch[1]).float()
        d = measure(z)
        return (same * d + (1 - same) * F.relu(0.5 - d)).mean()

    return loss


@pytest.mark.parametrize(
    ("measure", "is_wrong"),
    [
        (lambda z: 1 - z @ z.T, False),
        (lambda z: torch.cdist(z, z), False),
        (lambda z: z @ z.T, True),
    ],
)
def test_losses_of_labelled_pairs(measure, is_wrong):
    assert found(layers(), (ANCHORS, Y), of_kinds(measure)) == [RISES] * is_wrong


def of_three(distance):
    def loss(model, batch):
        a, p, n = (F.normalize(model(x)) for x in batch)
        return F.relu(distance(a, p) - distance(a, n) + 0.3).mean()

    return loss


@pytest.mark.parametrize(
    ("distance", "is_wrong"),
    [
        (lambda a, b: (a - b).square().sum(1), False),
        (lambda a, b: 1 - F.cosine_similarity(a, b), False),
        (F.cosine_similarity, True),
    ],
)
def test_losses_of_anchors_and_two_others(distance, is_wrong):
    batch = ANCHORS, ALIKE, OTHERS
    assert found(layers(), batch, of_three(distance)) == [RISES] * is_wrong


def test_which_of_two_is_alike_is_told_by_the_inputs():
    """With the others in the place of those of the same class, the similarity is right."""
    assert found(layers(), (ANCHORS, OTHERS, ALIKE), of_three(F.cosine_similarity)) == []


@pytest.mark.parametrize("sign", [1, -1])
def test_two_views_with_a_mask_that_is_written(sign):
    def loss(model, batch):
        z = F.normalize(torch.cat([model(x) for x in batch]))
        logits = sign * z @ z.T / 0.2
        logits.fill_diagonal_(-1e9)
        return F.cross_entropy(logits, torch.arange(64).roll(32))

    assert found(layers(), (ANCHORS, ALIKE), loss) == [RISES] * (sign < 0)


def test_unlike_inputs_tell_nothing():
    other = torch.randn(32, 6, generator=GENERATOR)

    def loss(model, batch):
        return F.cosine_similarity(model(batch[0]), model(batch[1])).mean()

    assert found(layers(), (ANCHORS, other), loss) == []
    assert found(layers(), (ANCHORS, ALIKE), loss) == [RISES]


def test_what_a_teacher_tells_is_left_out():
    teacher = layers()

    def loss(model, batch):
        with torch.no_grad():
            told = teacher(batch[0]).softmax(1)
        z = model(batch[0])
        return -F.cross_entropy(z, batch[1]) + F.cross_entropy(z, told)

    assert found(layers(), (ANCHORS, Y), loss) == []


def test_an_assumed_loss_is_left_out():
    loss = lambda model, batch: -F.cross_entropy(model(batch[0]), batch[1])  # noqa: E731
    assert found(layers(), (ANCHORS, Y), loss) == [RISES]
    assert found(layers(), (ANCHORS, Y), loss, assumed=True) == []


def without_others(model, batch):
    one, other = (F.normalize(model(x)) for x in batch)
    return 1 - (one * other).sum(1).mean()


def without_a_gradient(model, batch):
    one, other = (F.normalize(model(x)) for x in batch)
    return 1 - (one * other.detach()).sum(1).mean()


def whitened(model, batch):
    z = []
    for x in batch[:2]:
        y = model(x)
        y = y - y.mean(0)
        root = torch.linalg.cholesky(y.T @ y / len(y) + 1e-3 * torch.eye(8))
        z.append(torch.linalg.solve_triangular(root, y.T, upper=False).T)
    return (z[0] - z[1]).square().sum(1).mean()


def test_whitened_pairs_are_all_alike_only_where_none_differs():
    batch = ANCHORS, ANCHORS + 0.1 * torch.randn(ANCHORS.shape, generator=GENERATOR)
    assert found(layers(), batch, whitened) == []


def test_pairs_without_others_are_alike_where_all_are():
    given = right_answers(traced_pass(layers(), (ANCHORS, ALIKE), without_others))
    assert given.title == "One answer for all inputs is as good as the right ones"
    assert found(layers(), (ANCHORS, ALIKE), without_a_gradient) == []


ENERGIES = ("warning", "The loss asks for the lowest score of the right class")


@pytest.mark.parametrize(
    ("of_energies", "expected"),
    [
        (lambda e, y: F.cross_entropy(-e, y), ENERGIES),
        (lambda e, y: F.multi_margin_loss(-e, y), ENERGIES),
        (lambda e, y: F.log_softmax(e, 1).gather(1, y[:, None]).mean(), RISES),
        (lambda e, y: e.softmax(1).gather(1, y[:, None]).mean(), RISES),
    ],
    ids=["energies", "hinge", "log-likelihood without a minus", "likelihood without a minus"],
)
def test_energies_are_scores_with_the_other_sign(of_energies, expected):
    def loss(model, batch):
        return of_energies(model(batch[0])[:, :4], batch[1])

    assert found(layers(), (ANCHORS, Y), loss) == [expected]


def test_a_critic_compares_no_samples():
    critic = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))

    def wasserstein(model, batch):
        return model(batch[1]).mean() - model(batch[0]).mean()

    assert found(critic, (ANCHORS, ALIKE), wasserstein) == []


def excluded_alone(z, y):
    """The likelihood that a sample is of another class."""
    return -torch.log(1 - z.softmax(1).gather(1, y[:, None]) + 1e-6).mean()


def excluded_by_transitions(z, y):
    others = (1 - torch.eye(z.shape[1])) / (z.shape[1] - 1)
    return F.nll_loss((z.softmax(1) @ others + 1e-9).log(), y)


def excluded_without_bias(z, y):
    """An estimate of the risk that has no bound below."""
    losses = -F.log_softmax(z, 1)
    return (losses.sum(1) - (z.shape[1] - 1) * losses.gather(1, y[:, None])[:, 0]).mean()


def excluded_in_cosines(z, y):
    """Bounded, and yet no complementary labels: others are rewarded."""
    return F.normalize(z, dim=1).gather(1, y[:, None]).mean()


Y_OF_FIVE = torch.arange(32) % 5
NOT_THIS = ("note", "The loss asks for a low score of the labelled class, and for no other")


@pytest.mark.parametrize(
    ("excluded", "expected"),
    [
        (excluded_alone, [NOT_THIS]),
        (excluded_by_transitions, [NOT_THIS]),
        (excluded_without_bias, [NOT_THIS]),
        (lambda z, y: -F.cross_entropy(z, y), [RISES]),
        (lambda z, y: -F.cross_entropy(z, y, label_smoothing=0.1), [RISES]),
        (lambda z, y: -F.multi_margin_loss(z, y), [RISES]),
        (excluded_in_cosines, [RISES]),
    ],
    ids=["1 - p", "transitions", "without bias", "turned", "smoothed", "hinge", "cosines"],
)
def test_complementary_labels(excluded, expected):
    def loss(model, batch):
        return excluded(model(batch[0])[:, :5], Y_OF_FIVE)

    assert found(layers(), (ANCHORS, Y_OF_FIVE), loss) == expected


class Views(nn.Module):
    """Predicts what a frozen copy tells of another view, which runs with its graph."""

    def __init__(self):
        super().__init__()
        self.online, self.target = layers(), layers().requires_grad_(False)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_view_driven_away_from_what_a_frozen_network_tells(sign):
    def loss(model, batch):
        one, other = model.online(batch[0]), model.target(batch[1])
        return sign * F.cosine_similarity(one, other).mean()

    assert found(Views(), (ANCHORS, ALIKE), loss) == ([RISES] if sign > 0 else [])
