"""Random numbers that cannot be predicted, or that let no gradient through."""

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.nn import functional as F

import equipoise as eq
from equipoise.diagnosis.mistakes.training.draws import of_draws
from support.traced_passes import traced_pass

X = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
NOISE = "The targets are noise that the model is not given"
DRAWN = "No gradient passes what is drawn"


def titles(model, loss, *, assumed=False):
    torch.manual_seed(0)
    traced = traced_pass(model, X, loss, assumed=assumed)
    return [finding.title for finding in of_draws(traced)]


def layers(*between):
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 6), *between)


def denoised(model, x):
    noise = torch.randn_like(x)
    return F.mse_loss(model(x + 0.5 * noise), noise)


def fresh(model, x):
    return F.mse_loss(model(x + 0.5 * torch.randn_like(x)), torch.randn_like(x))


def flow(model, x):
    start = torch.randn(x.shape)
    return (model((x + start) / 2) - (x - start)).square().mean()


def energy_distance(x, y):
    """Between two laws, of pairs of their points."""
    return 2 * (x - y).norm(dim=1).mean() - (x - x.roll(1, 0)).norm(dim=1).mean()


class TestNoiseAsTarget:
    @pytest.mark.parametrize(
        "loss",
        [
            fresh,
            lambda m, x: (m(x) - 2 * torch.randn(x.shape)).abs().mean(),
            lambda m, x: F.smooth_l1_loss(torch.empty_like(x).normal_(), m(x)),
            lambda m, x: (0.5 * (m(x) - torch.randn_like(x)).flatten(1)).norm(dim=1).mean(),
            lambda m, x: ((d := m(x) - torch.randn_like(x)) * d).mean(),
        ],
    )
    def test_of_fresh_draws(self, loss):
        assert titles(layers(), loss) == [NOISE]
        assert titles(layers(), loss, assumed=True) == []

    @pytest.mark.parametrize(
        "loss",
        [
            denoised,
            flow,
            lambda m, x: (m(x) - (0.9 + 0.1 * torch.rand(x.shape))).square().mean(),  # soft labels
            lambda m, x: torch.cdist(m(x), torch.randn(40, 6)).mean(),  # two samples
            lambda m, x: (m(x).sort(0)[0] - torch.randn(x.shape).sort(0)[0]).square().mean(),
            lambda m, x: (m(x)[:, None] - torch.randn(1, 9, 6)).square().mean(),
            lambda m, x: F.mse_loss(m(x), x + torch.randn_like(x)),
            lambda m, x: (m(x) * torch.randn_like(x)).square().mean(),
            lambda m, x: (m(x) - torch.randn_like(x)).softmax(1).square().mean(),  # noisy logits
            lambda m, x: (m(x) - torch.randn_like(x) - x).square().mean(),  # a noisy output
            lambda m, x: F.cross_entropy(m(x) - torch.randn_like(x), torch.arange(32) % 6),
            lambda m, x: energy_distance(m(x), torch.randn_like(x)),
        ],
    )
    def test_draws_that_are_meant(self, loss):
        assert titles(layers(), loss) == []

    def test_noise_that_the_check_up_takes_for_want_of_targets(self):
        class TwoHeads(nn.Module):
            def __init__(self):
                super().__init__()
                self.policy, self.value = nn.Linear(6, 4), nn.Linear(6, 1)

            def forward(self, x):
                return self.policy(x), self.value(x)

        report = eq.checkup(TwoHeads, X)
        assert "noise, for want of targets" in report.assumptions[0]
        assert NOISE not in [finding.title for finding in report.findings]

    @pytest.mark.parametrize(("loss", "learns"), [(denoised, True), (fresh, False)])
    def test_it_is_not_learnt(self, loss, learns):
        torch.manual_seed(0)
        model = layers()
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        mean = 0.0
        for step in range(400):
            error = loss(model, 3.0 * (X > 0).float())
            optimizer.zero_grad()
            error.backward()
            optimizer.step()
            mean += error.item() / 100 if step >= 300 else 0.0
        assert (mean < 0.7) == learns


class Latent(nn.Module):
    """An autoencoder with a latent law."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw
        self.encode, self.decode = nn.Linear(6, 8), nn.Linear(4, 6)

    def forward(self, x):
        mean, scale = self.encode(x).chunk(2, 1)
        scale = F.softplus(scale) + 0.1
        z = self.draw(mean, scale)
        return self.decode(z), mean, scale, z


def rebuilt(model, x):
    output, mean, scale, _ = model(x)
    return F.mse_loss(output, x) + 0.01 * (mean.square() + scale.square() - scale.log()).mean()


def fitted(model, x):
    """What was drawn goes in again, without a gradient, and its law is fitted to data."""
    output, mean, scale, _ = model(x)
    return F.mse_loss(output, x) - Normal(mean, scale).log_prob(x[:, :4]).mean()


def target_of(model, x):
    """A target, which is to have no gradient, of a draw."""
    target = model(x)[0].detach()
    return F.mse_loss(model.decode(x[:, :4]), target)


def by_score_of_part(model, x):
    output, mean, scale, z = model(x)
    reward = -(output - x).square().mean(1, keepdim=True)
    score = Normal(mean, scale).log_prob(z.clamp(-2, 2))
    return -(score * reward.detach()).mean() - reward.mean()


def by_score(model, x):
    """Rewards the logarithm of the probability of what was drawn."""
    output, mean, scale, z = model(x)
    reward = -(output - x).square().mean(1, keepdim=True)
    return -(Normal(mean, scale).log_prob(z) * reward.detach()).mean() - reward.mean()


def by_entropy(model, x):
    """As SAC: what comes of an action, and how improbable it was."""
    output, mean, scale, z = model(x)
    return (output - x).square().mean() + 0.2 * Normal(mean, scale).log_prob(z).mean()


class TestNoGradient:
    @pytest.mark.parametrize("draw", [torch.normal, lambda m, s: Normal(m, s).sample()])
    def test_passes_samples(self, draw):
        assert titles(Latent(draw), rebuilt) == [DRAWN]
        for loss in (by_score, by_score_of_part, fitted, target_of):
            assert titles(Latent(draw), loss) == []

    def test_improbability_alone_teaches_no_actions(self):
        sampled, shifted = (
            lambda m, s: Normal(m, s).sample(),
            lambda m, s: Normal(m, s).rsample(),
        )
        assert titles(Latent(sampled), by_entropy) == [DRAWN]
        assert titles(Latent(shifted), by_entropy) == []

    @pytest.mark.parametrize(
        "draw",
        [
            lambda m, s: Normal(m, s).rsample(),
            lambda m, s: m + s * torch.randn_like(s),
            lambda m, s: m + torch.normal(0.0, 1.0, m.shape),
            lambda m, s: m,
        ],
    )
    def test_but_passes_what_is_shifted_and_scaled(self, draw):
        assert titles(Latent(draw), rebuilt) == []
