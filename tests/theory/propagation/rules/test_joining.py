"""What later layers have in common of a concatenation is computed once."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from equipoise.instrument.recording.tracer import trace
from equipoise.theory import explosion_rate
from equipoise.theory.propagation.propagate import propagate

WIDTH, GROWTH = 32, 16


class Dense(nn.Module):
    """Append channels that a norm, a ReLU and a convolution make of all before."""

    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.layer = nn.Conv2d(channels, GROWTH, 3, padding=1, bias=False)

    def forward(self, x):
        return torch.cat([x, self.layer(torch.relu(self.norm(x)))], 1)


def gradients(side, scales):
    """Predicted at every operation, for norms of that scale."""
    torch.manual_seed(0)
    layers = [Dense(WIDTH + i * GROWTH) for i in range(len(scales))]
    for layer, scale in zip(layers, scales, strict=True):
        nn.init.constant_(layer.norm.weight, scale)
    model = nn.Sequential(nn.Conv2d(3, WIDTH, 3, padding=1), *layers)
    loss = lambda model, x: model(x).square().mean()  # noqa: E731
    graph = trace(model, torch.randn(4, 3, side, side), loss)
    return [s.gradient for s in propagate(graph).sites if s.gradient is not None]


@pytest.mark.parametrize("side", [4, 18])  # batch norm of few rows, and of many
class TestSharedParts:
    def test_equal_norms_are_as_norms_that_nearly_are(self, side):
        """Those of other scales share nothing."""
        shared, alone = (gradients(side, scales) for scales in ([1] * 3, [1, 1 + 1e-6, 1 - 1e-6]))
        assert shared == pytest.approx(alone, rel=2e-5)

    def test_norms_of_other_scales_are_not(self, side):
        shared, alone = gradients(side, [1, 1, 1]), gradients(side, [1, 2, 1])
        assert shared != pytest.approx(alone, rel=0.1)


def test_empty_slices_are_left_out():
    """As where some heads of attention look at neighbours alone, and here none do."""

    class Split(nn.Module):
        def __init__(self, heads):
            super().__init__()
            self.first, self.last, self.heads = nn.Linear(64, 64), nn.Linear(64, 64), heads

        def forward(self, x):
            y = self.first(x)
            left, right = y[:, : self.heads], y[:, self.heads :]
            return self.last(torch.cat([left, right.tanh()], 1))

    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    for heads in (0, 64):
        found = propagate(trace(Split(heads), x, lambda model, x: model(x).square().mean()))
        assert all(site.is_predicted for site in found.sites if site.operation == "addmm")


class Joined(nn.Module):
    """A large stream beside a small one, under one group norm or one each."""

    def __init__(self, groups, together):
        super().__init__()
        self.large, self.small = nn.Conv2d(3, 24, 3), nn.Conv2d(3, 8, 3)
        nn.init.normal_(self.large.weight, 0, 3.0)
        self.groups, self.together = groups, together
        self.head = nn.Conv2d(32, 8, 1)

    def forward(self, x):
        a, b = self.large(x), self.small(x)
        if self.together:
            y = F.group_norm(torch.cat([a, b], 1), self.groups)
        else:
            own = self.groups // 4
            y = torch.cat([F.group_norm(a, 3 * own), F.group_norm(b, own)], 1)
        return self.head(y.relu())


def gradients_of_streams(groups, together):
    torch.manual_seed(0)
    model = Joined(groups, together)
    batch = torch.randn(4, 3, 6, 6), torch.randn(4, 8, 4, 4)
    found = propagate(trace(model, batch, lambda model, pair: (model(pair[0]) * pair[1]).sum()))
    return [site.gradient for site in found.sites if site.module in ("large", "small")]


class TestGroupNormOfParts:
    """A group that lies within a part is divided by what that part has."""

    def test_as_norms_of_their_own(self):
        expected = gradients_of_streams(4, together=False)
        assert gradients_of_streams(4, together=True) == pytest.approx(expected, rel=1e-6)

    def test_not_if_a_group_has_some_of_both(self):
        large, small = gradients_of_streams(1, together=True)
        assert small < 3 * large


HEADS, TOKENS, OWN, SHARED = 4, 6, 24, 8


class Keys(nn.Module):
    """Keys with features of every head, and some that all heads share, as in latent attention."""

    def __init__(self):
        super().__init__()
        self.own, self.shared = nn.Linear(64, HEADS * OWN), nn.Linear(64, SHARED)

    def forward(self, x):
        own = self.own(x).unflatten(-1, (HEADS, OWN)).transpose(1, 2)
        return torch.cat([own, self.shared(x)[:, None].expand(-1, HEADS, -1, -1)], -1)


def log_ratios(queries):
    """Of the predicted to the measured gradient of what all heads share, by seeds."""
    found = []
    for seed in range(6):
        torch.manual_seed(seed)
        asked = queries().expand(16, HEADS, TOKENS, OWN + SHARED)
        batch = torch.randn(16, TOKENS, 64), asked
        graph = trace(Keys(), batch, lambda keys, pair: (keys(pair[0]) * pair[1]).sum())
        sites = propagate(graph).sites
        assert [site.reason for site in sites if site.operation == "cat"] == [""]
        (shared,) = (s for s in sites if s.module == "shared" and s.operation == "addmm")
        found.append(math.log(shared.gradient / shared.measured_gradient))
    return torch.tensor(found)


class TestFeaturesThatHeadsShare:
    """Queries of other heads are independent: squared gradients of the copies add up."""

    def test_as_measured(self):
        ratios = log_ratios(lambda: torch.randn(16, HEADS, TOKENS, OWN + SHARED))
        assert abs(ratios.mean()) < 3 * ratios.std() / len(ratios) ** 0.5

    def test_not_with_one_query_for_all(self):
        """There gradients themselves add up, to as many times more as there are heads."""
        ratios = log_ratios(lambda: torch.randn(16, 1, TOKENS, OWN + SHARED))
        assert ratios.mean() == pytest.approx(-math.log(HEADS), abs=0.1)

    def test_second_moments_are_of_both(self):
        torch.manual_seed(0)
        model = Keys()
        with torch.no_grad():
            model.shared.weight *= 3
        graph = trace(model, torch.randn(16, TOKENS, 64), lambda keys, x: keys(x).square().sum())
        (joined,) = (s for s in propagate(graph).sites if s.operation == "cat")
        assert joined.second_moment == pytest.approx(joined.measured_second_moment, rel=0.05)


class Ghost(nn.Module):
    """A layer, batch norm of each part of the batch by itself, and a ReLU."""

    def __init__(self, width, parts):
        super().__init__()
        self.layer, self.norm, self.parts = nn.Linear(width, width), nn.BatchNorm1d(width), parts

    def forward(self, x):
        parts = self.layer(x).chunk(self.parts)
        return torch.cat([self.norm(part) for part in parts]).relu()


def growth_with_parts(parts):
    """Of gradients, per layer, between layers 4 and 8."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Ghost(128, parts) for _ in range(10)))
    batch = torch.randn(32, 128), torch.randn(32, 128)
    graph = trace(model, batch, lambda model, pair: (model(pair[0]) * pair[1]).sum())
    sites = [site for site in propagate(graph).sites if site.operation == "addmm"]
    assert not any(site.reason for site in sites)
    return (sites[4].gradient / sites[8].gradient) ** 0.25


class TestPartsOfABatch:
    """Ghost batch norm: gradients grow as with batches of the size of a part."""

    @pytest.mark.parametrize("parts", [2, 4])
    def test_as_with_smaller_batches(self, parts):
        """To a small part of 1/N: two samples of different parts count as two of one."""
        rows = 32 // parts
        expected = explosion_rate("relu", rows).value
        assert growth_with_parts(parts) == pytest.approx(expected, rel=0.15 / rows)

    def test_not_as_with_the_whole(self):
        assert growth_with_parts(4) > explosion_rate("relu", 32).value * 1.05

    def test_unlike_samples_are_not_joined(self):
        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                self.small, self.large = nn.Linear(16, 8), nn.Linear(16, 8)
                nn.init.normal_(self.large.weight, std=3.0)

            def forward(self, x):
                return torch.cat([self.small(x), self.large(x)])

        torch.manual_seed(0)
        graph = trace(Two(), torch.randn(8, 16), lambda model, x: model(x).square().sum())
        (joined,) = (site for site in propagate(graph).sites if site.operation == "cat")
        assert "unlike samples" in joined.reason
