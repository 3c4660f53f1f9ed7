"""Losses that compare outputs with nothing, as flows without log-determinants do."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.diagnosis.mistakes.losses.nothing import compared_with_nothing
from support.model_state import left_alone
from support.traced_passes import traced_pass

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(24, 6, generator=GENERATOR) * 2 + 1


class Coupling(nn.Module):
    def __init__(self, *, zero):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 6))
        if zero:
            nn.init.zeros_(self.net[-1].weight)
            nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        a, b = x.chunk(2, 1)
        s, t = self.net(a).chunk(2, 1)
        s = torch.tanh(s)
        return torch.cat([b * s.exp() + t, a], 1), s.sum(1)


class Flow(nn.Module):
    """Couplings, which start as identities, or as what is drawn."""

    def __init__(self, *, zero=True):
        super().__init__()
        torch.manual_seed(0)
        self.couplings = nn.ModuleList(Coupling(zero=zero) for _ in range(4))

    def forward(self, x):
        total = torch.zeros(len(x))
        for coupling in self.couplings:
            x, logarithm = coupling(x)
            total = total + logarithm
        return x, total


def likelihood(factor):
    def loss(model, batch):
        z, logarithm = model(batch)
        return (0.5 * z.square().sum(1) + factor * logarithm).mean()

    return loss


def found(model, loss, batch=X):
    one = compared_with_nothing(traced_pass(model, batch, loss))
    return None if one is None else (one.severity, one.title, one.detail)


@pytest.mark.parametrize("zero", [True, False])
class TestFlows:
    def test_with_log_determinants(self, zero):
        assert found(Flow(zero=zero), likelihood(-1.0)) is None

    def test_without_them(self, zero):
        severity, _, detail = found(Flow(zero=zero), likelihood(0.0))
        assert severity == "critical"
        assert "least where all outputs are zero" in detail

    def test_with_their_sign_turned(self, zero):
        severity, _, detail = found(Flow(zero=zero), likelihood(1.0))
        assert severity == "critical"
        assert "without bound" in detail


def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))


PAIR = X, X + 0.1 * torch.randn(24, 6, generator=GENERATOR)


def drawn_together(model, batch):
    return (model(batch[0]) - model(batch[1])).square().mean()


def with_others(model, batch):
    one, other = (F.normalize(model(x)) for x in batch)
    return F.cross_entropy(one @ other.T / 0.2, torch.arange(24))


def with_a_stopped_gradient(model, batch):
    return (model(batch[0]) - model(batch[1]).detach()).square().mean()


def of_whitened(model, batch):
    one, other = (model(x) for x in batch)
    spread = sum(F.relu(1 - z.std(0)).mean() for z in (one, other))
    return (one - other).square().mean() + spread


def whitened(z):
    z = z - z.mean(0)
    root = torch.linalg.cholesky(z.T @ z / len(z) + 1e-3 * torch.eye(4))
    return torch.linalg.solve_triangular(root, z.T, upper=False).T


def slow(model, batch):
    return whitened(model(batch[0])).diff(dim=0).square().mean()


def of_equal_views(model, batch):
    one, other = (whitened(model(batch[1] + 0.1 * torch.randn_like(batch[1]))) for _ in range(2))
    return (one - other).square().sum(1).mean()


@pytest.mark.parametrize(
    ("loss", "is_wrong"),
    [
        (drawn_together, True),
        (slow, False),
        (of_equal_views, False),
        (with_others, False),
        (with_a_stopped_gradient, False),
        (of_whitened, False),
    ],
)
def test_pairs(loss, is_wrong):
    assert (found(layers(), loss, PAIR) is not None) == is_wrong


def mined(model, batch):
    """Of three, the one that is to be further away starts nearer."""
    a, p, n = model(batch[0]), model(batch[1].roll(1, 0)), model(batch[1])
    return F.relu((a - p).square().sum(1) - (a - n).square().sum(1) + 0.1).mean()


def mined_rows(model, batch):
    z = model(batch[0])
    a, p, n = z[::2], z[1::2], z.roll(2, 0)[::2]
    return F.relu((a - p).square().sum(1) - 0.1 * (a - n).square().sum(1) + 0.1).mean()


@pytest.mark.parametrize("loss", [mined, mined_rows])
def test_margins_that_hard_examples_do_not_keep(loss):
    assert found(layers(), loss, PAIR) is None


def reconstructed(model, batch):
    return (model(batch)[:, :3] - batch[:, :3]).square().mean()


def of_noise(model, batch):
    return (model(batch) - torch.randn(24, 4)).square().mean()


@pytest.mark.parametrize("loss", [reconstructed, of_noise])
def test_what_is_compared(loss):
    assert found(layers(), loss) is None


def test_critics_that_are_to_be_pleased():
    """By outputs that they judge in several ways."""
    critic = nn.Linear(4, 3).requires_grad_(False)
    assert found(layers(), lambda model, batch: -critic(model(batch).tanh()).mean()) is None
    critic.requires_grad_()
    one = found(
        nn.Sequential(layers(), nn.Tanh(), critic), lambda model, batch: -model(batch).mean()
    )
    assert one is not None
    assert one[0] == "critical"


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic, self.generator = layers(), nn.Linear(3, 6)


def features(model, batch):
    """Of a critic that another optimiser moves."""
    data, noise = batch
    return (model.critic(data) - model.critic(model.generator(noise))).abs().mean()


def feature_means(model, batch):
    data, noise = batch
    made = model.critic(model.generator(noise))
    return (model.critic(data).mean(0) - made.mean(0)).square().sum()


@pytest.mark.parametrize("loss", [features, feature_means])
def test_features_of_what_was_made_are_matched(loss):
    assert found(Generator(), loss, (X, X[:, :3].roll(1, 0))) is None


def test_correlations_have_bounds():
    def loss(model, batch):
        one, other = (0.1 * (z - z.mean(0)) / z.std(0) for z in model(batch).chunk(2, 1))
        return -torch.linalg.matrix_norm(one.T @ other / len(batch), "nuc")

    assert found(layers(), loss) is None


def test_log_determinants_of_the_matrix_itself():
    def loss(model, batch):
        y = model(batch)
        return y.cosh().log().sum(1).mean() - torch.linalg.slogdet(model.weight)[1]

    assert found(nn.Linear(6, 6, bias=False), loss) is None


def controlled(cost):
    """A loss of the states to which a model drives those that it is given."""

    def loss(model, batch):
        states = []
        for _ in range(3):
            batch = 0.9 * batch + 0.1 * model(batch).tanh()
            states.append(batch)
        return cost(torch.stack(states, 1))

    return loss


@pytest.mark.parametrize(
    "cost", [lambda x: x.square().mean(), lambda x: -x.mean()], ids=["error", "gain"]
)
def test_states_of_a_controller(cost):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 6))
    assert found(model, controlled(cost)) is None


def of_constants(target):
    def loss(model, batch):
        z = model(batch)
        return F.binary_cross_entropy_with_logits(z, target(batch))

    return loss


def test_targets_that_are_all_alike():
    """As whole numbers that probabilities were cast to."""
    assert found(layers(), of_constants(lambda x: torch.zeros(24, 4))) is not None
    assert found(layers(), of_constants(lambda x: (x[:, :4] > 0).float())) is None


class Weighed(nn.Module):
    """Two tasks, and weights of their losses that are learnt."""

    def __init__(self):
        super().__init__()
        self.body, self.heads = layers(), nn.ModuleList(nn.Linear(4, 1) for _ in range(2))
        self.weights = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        h = self.body(x)
        return [head(h) for head in self.heads]


@pytest.mark.parametrize(
    ("joined", "is_wrong"),
    [
        (lambda s, losses: ((-s).exp() * losses + s).sum(), False),
        (lambda s, losses: (s.softmax(0) * losses).sum(), False),
        (lambda s, losses: ((-s).exp() * losses).sum(), True),
        (lambda s, losses: (s * losses).sum(), True),
    ],
)
def test_weights_of_losses_that_are_learnt(joined, is_wrong):
    def loss(model, batch):
        errors = [F.mse_loss(z, batch[:, :1]) for z in model(batch)]
        return joined(model.weights, torch.stack(errors))

    titles = [] if (one := found(Weighed(), loss)) is None else [one[1]]
    assert titles == ["A weight of the loss makes it small, whatever the outputs are"] * is_wrong


class Gaussian(nn.Module):
    """A mean, and a deviation that is learnt, of targets far away."""

    def __init__(self):
        super().__init__()
        self.mean, self.deviation = nn.Linear(6, 1), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.mean(x)


def test_deviations_that_are_learnt_are_held():
    def loss(model, batch):
        error = (model(batch) - 1e3 * batch[:, :1]).square()
        return (0.5 * error * (-2 * model.deviation).exp() + model.deviation).mean()

    assert found(Gaussian(), loss) is None


def test_the_model_is_left_as_it_is():
    model = Weighed()
    with left_alone(model):
        found(model, lambda model, batch: (model.weights * model(batch)[0].mean()).sum())
