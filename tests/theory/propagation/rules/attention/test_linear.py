"""Attention without a softmax, in every order in which it is written."""

import math
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, elu, normalize, relu

from equipoise.instrument.recording.tracer import trace
from equipoise.theory.propagation.propagate import propagate
from equipoise.theory.propagation.rules.attention.linear.outputs import VARIED
from equipoise.theory.propagation.sites import of_model

D, HEADS, LENGTH, SAMPLES, CLASSES = 64, 4, 16, 8, 10
NETWORKS = 8


def whole(q, k, v):
    """Of all tokens: products of keys and values first."""
    sums = torch.einsum("nhtd,nhd->nht", q, k.sum(2)) + 1e-6
    state = torch.einsum("nhtd,nhte->nhde", k, v)
    return torch.einsum("nhtd,nhde,nht->nhte", q, state, 1 / sums)


def summed(q, k, v):
    """Of all tokens, with products of single features added up."""
    sums = (q * k.sum(2, keepdim=True)).sum(-1, keepdim=True)
    return q @ (k.transpose(-1, -2) @ v) / sums


def summed_so_far(q, k, v):
    """Of earlier tokens, likewise."""
    sums = (k.cumsum(2) * q).sum(-1, keepdim=True)
    return (q[..., None, :] @ (k[..., None] * v[..., None, :]).cumsum(2))[..., 0, :] / sums


def earlier(q, k, v):
    """Of earlier tokens: sums over time of products of keys and values."""
    sums = torch.einsum("nhtd,nhtd->nht", q, k.cumsum(2)) + 1e-6
    state = torch.einsum("nhtd,nhte->nhtde", k, v).cumsum(2)
    return torch.einsum("nhtd,nhtde,nht->nhte", q, state, 1 / sums)


def masked(q, k, v):
    """Products of queries and keys first."""
    scores = (q @ k.transpose(-1, -2)) * torch.ones(LENGTH, LENGTH).tril()
    return scores / scores.sum(-1, keepdim=True) @ v


def decaying(q, k, v):
    """Not divided, and less of what is long past, at another rate in each head."""
    time = torch.arange(LENGTH)
    rates = torch.tensor([0.7, 0.8, 0.9, 0.95])[:, None, None]
    decay = torch.where(time[:, None] >= time, rates ** (time[:, None] - time).clamp(min=0), 0.0)
    return (q @ k.transpose(-1, -2) * D**-0.5 * decay) @ v


def positive_feature(x):
    return elu(x) + 1


def undivided(q, k, v):
    return q @ (k.transpose(-1, -2) @ v) / (LENGTH * D / HEADS)


class RootMeanSquare(nn.Module):
    def forward(self, x):
        return x * x.square().mean(-1, keepdim=True).rsqrt()


class Length(nn.Module):
    def forward(self, x):
        return 8 * normalize(x, dim=-1)


class Attention(nn.Module):
    def __init__(self, form, positive=True, norm=None, heads=HEADS, feature=positive_feature):
        super().__init__()
        self.before = nn.Linear(D, D)
        self.qkv, self.out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, CLASSES)
        self.form, self.heads, self.norm = form, heads, norm or nn.Identity()
        self.feature = feature if positive else nn.Identity()

    def forward(self, x):
        packed = self.qkv(self.before(x)).view(*x.shape[:2], 3, self.heads, -1)
        q, k, v = packed.permute(2, 0, 3, 1, 4)
        found = self.form(self.feature(q), self.feature(k), v).transpose(1, 2).reshape(-1, D)
        return self.out(self.norm(found))


def tokens(seed, alike=0.0):
    generator = torch.Generator().manual_seed(1000 + seed)
    x = torch.randn(SAMPLES, LENGTH, D, generator=generator)
    x = x + alike * torch.randn(SAMPLES, 1, D, generator=generator)
    return x, torch.randint(CLASSES, (SAMPLES * LENGTH,), generator=generator)


def loss(model, batch):
    return cross_entropy(model(batch[0]), batch[1])


@cache
def sites(seed, *args):
    torch.manual_seed(seed)
    return of_model(propagate(trace(Attention(*args), tokens(seed), loss)).sites)


def maps_of(found):
    """Feature maps of queries and keys whose gradients are measured, not parts of them."""
    return [s for s in found if s.operation == "elu" and s.gradient]


def averages(values):
    """Means and standard errors over networks."""
    return np.mean(values, 0), np.std(values, 0, ddof=1) / math.sqrt(len(values))


FORMS = {
    "all tokens": (whole, True),
    "all tokens, sums of features": (summed, True),
    "earlier tokens": (earlier, True),
    "earlier tokens, sums of features": (summed_so_far, True),
    "a mask": (masked, True),
    "decay": (decaying, True),
    "decay, both signs": (decaying, False),
}


@pytest.mark.parametrize("name", FORMS)
def test_moments_of_outputs(name):
    found = []
    for seed in range(NETWORKS):
        own = sites(seed, *FORMS[name])
        assert {site.reason for site in own if "near 0" not in site.reason} == {""}
        last = [s for s in own if s.operation in ("bmm", "mul") and s.measured_gradient][-1]
        found.append(math.log(last.second_moment / last.measured_second_moment))
    mean, error = averages(found)
    assert abs(mean) < 4 * error + 0.02


@pytest.mark.parametrize("name", [name for name, (_, positive) in FORMS.items() if positive])
def test_gradients_of_queries_keys_and_values(name):
    found, stated = [], []
    for seed in range(NETWORKS):
        own = sites(seed, *FORMS[name])
        assert {site.reason for site in own} == {""}
        maps = maps_of(own)
        assert len(maps) == 2
        chosen = [*maps, next(s for s in own if s.module == "qkv")]
        assert not any(s.is_start for s in chosen)
        found.append([math.log(s.gradient / s.measured_gradient) for s in chosen])
        stated = [s.error for s in chosen]
    mean, error = averages(found)
    assert (np.abs(mean) < 4 * error + 2 * np.array(stated)).all()


def queries_first(q, k, v):
    """Queries over the sums, which takes what these give their gradients off again."""
    return q / (q @ k.sum(2).unsqueeze(-1)) @ (k.transpose(-1, -2) @ v)


OTHERS = {
    "tokens that are alike": ((whole,), {}, 1.5, ""),
    "tokens that are alike, a mask": ((masked,), {}, 1.5, ""),
    "one head": ((whole,), {"heads": 1}, 0, "add of attention scores"),
    "small heads": ((whole,), {"heads": 16}, 0, "an average over fewer than 8 features"),
    "queries first": ((queries_first,), {}, 0, "queries over sums of their own weights"),
    "many zeros": ((whole,), {"feature": relu}, 0, VARIED),
    "scales that a norm takes off": (
        (undivided,),
        {"norm": nn.GroupNorm(HEADS, D)},
        0,
        "queries whose scale a norm behind takes off",
    ),
    "scales that a norm in parts takes off": (
        (undivided,),
        {"norm": RootMeanSquare(), "heads": 1},
        0,
        "queries whose scale a norm behind takes off",
    ),
    "scales that a length takes off": (
        (undivided,),
        {"norm": Length(), "heads": 1},
        0,
        "queries whose scale a norm behind takes off",
    ),
    "few scores before a norm in parts": (
        (undivided, False),
        {"norm": RootMeanSquare(), "heads": 1},
        0,
        "a norm of heads whose size a few scores decide",
    ),
    "few scores before a norm": (
        (undivided, False),
        {"norm": nn.LayerNorm(D)},
        0,
        "a norm of heads whose size a few scores decide",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_gradients_are_right_or_refused(name):
    arguments, options, alike, reason = OTHERS[name]
    found = {}
    for seed in range(6):
        torch.manual_seed(seed)
        graph = trace(Attention(*arguments, **options), tokens(seed, alike), loss)
        own = of_model(propagate(graph).sites)
        assert reason in {site.reason for site in own}
        for s in own:
            if s.operation in ("elu", "relu", "mm", "bmm", "addmm") and s.gradient:
                ratio = math.log(s.gradient / s.measured_gradient)
                found.setdefault(s.node, []).append([ratio, s.error])
    mean, error = (np.array(x) for x in zip(*map(averages, found.values()), strict=True))
    assert (np.abs(mean[:, 0]) < 4 * error[:, 0] + 2 * mean[:, 1]).all()


def test_sums_of_weights_take_the_mean_off_the_values():
    """Without that, queries would have e^1.5 as much."""
    ratios = []
    for form in (whole, undivided):
        queries, keys = (s.gradient for s in maps_of(sites(0, form)))
        ratios.append(queries / keys)
    assert ratios[1] > 3 * ratios[0]


def test_heads_that_single_scores_decide_are_not_predicted_behind_a_norm():
    """The first token has a single score, and may be near 0: what a norm divides by."""
    own = sites(0, decaying, False, nn.GroupNorm(HEADS, D))
    (norm,) = (s for s in own if s.operation == "native_group_norm")
    assert norm.reason == "a norm of heads whose size a few scores decide"
    packed = next(s for s in own if s.module == "qkv")
    assert packed.gradient == pytest.approx(packed.measured_gradient, rel=0.2)


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (
            lambda q, k, v: (k.transpose(-1, -2) @ v).sum(2, keepdim=True).expand_as(v),
            "sum of products of keys and values",
        ),
        (lambda q, k, v: (q @ k.transpose(-1, -2)).abs() @ v, "abs of attention scores"),
        (
            lambda q, k, v: q @ (k.transpose(-1, -2) @ v).tanh(),
            "tanh of products of keys and values",
        ),
    ],
)
def test_other_steps_are_named(form, reason):
    assert reason in {site.reason for site in sites(0, form)}
