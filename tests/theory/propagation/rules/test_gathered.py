"""Chosen rows have what rows have on average, or what they are in a graph, and give it back."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from equipoise.instrument.recording.tracer import trace
from equipoise.theory.propagation.propagate import propagate
from equipoise.theory.propagation.rules import gathered
from equipoise.theory.propagation.sites import of_model

C, SAMPLES, LENGTH = 64, 8, 6
ROWS = SAMPLES * LENGTH


class Chosen(nn.Module):
    """An expert, or edges of a graph, that see some rows."""

    def __init__(self, choose):
        super().__init__()
        self.before, self.after = nn.Linear(C, C), nn.Linear(C, C)
        self.choose = choose

    def forward(self, x):
        return self.after(self.choose(torch.relu(self.before(x))))


HALF = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))[: ROWS // 2]
EDGES = torch.randint(ROWS, (3 * ROWS,), generator=torch.Generator().manual_seed(0))
MASK = torch.zeros(ROWS, dtype=torch.bool).index_fill(0, HALF, 1).view(SAMPLES, LENGTH)
WAYS = {
    "some tokens": lambda x: x.flatten(0, 1)[HALF],
    "ends of edges": lambda x: x.flatten(0, 1)[EDGES],
    "some tokens, selected": lambda x: x.flatten(0, 1).index_select(0, HALF),
    "a mask": lambda x: x[MASK],
}


def ratios(choose, layer):
    """Logarithms of predicted over measured moments and gradients, of a layer."""
    found = []
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(SAMPLES, LENGTH, C) + torch.randn(SAMPLES, 1, C)
        loss = lambda model, x: (model(x) * weights(len(model(x)))).sum()  # noqa: E731
        sites = of_model(propagate(trace(Chosen(choose), x, loss)).sites)
        (site, *_) = (s for s in sites if s.module == layer and s.operation == "addmm")
        assert all(site.is_predicted for site in sites)
        measured = site.measured_second_moment, site.measured_gradient
        found.append(np.log([site.second_moment, site.gradient]) - np.log(measured))
    return np.mean(found, 0)


def weights(rows):
    return torch.randn(rows, C, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", WAYS)
def test_moments_before_and_behind(name):
    assert np.abs(ratios(WAYS[name], "before")).max() < 0.1


def test_samples_are_those_that_were_chosen():
    x = torch.randn(SAMPLES, LENGTH, C)
    x = x + 2 * torch.randn(SAMPLES, 1, C)  # tokens of a sample are alike
    graph = trace(Chosen(WAYS["a mask"]), x, lambda model, x: model(x).sum())
    *_, last = of_model(propagate(graph).sites)
    assert last.correlation == pytest.approx(last.measured_correlation, abs=0.05)


def test_features_are_refused():
    model = Chosen(lambda x: x[:, :, HALF])
    found = propagate(trace(model, torch.randn(SAMPLES, LENGTH, C), squares))
    reason = "elements that are chosen by number, and are no rows of the batch"
    assert reason in {site.reason for site in found.sites}


def squares(model, x):
    hidden = model.choose(torch.relu(model.before(x)))
    return hidden.square().mean() * math.pi


def test_tokens_by_number_are_those_tokens():
    """Such as every other one, twice."""
    numbers = torch.tensor([[0, 2, 4], [4, 0, 0]])
    x = torch.randn(SAMPLES, LENGTH, C) * torch.arange(1.0, LENGTH + 1)[:, None]
    model = Chosen(lambda x: x[:, numbers].flatten(1, 2))
    sites = of_model(propagate(trace(model, x, lambda m, x: (m(x) ** 2).mean())).sites)
    (chosen,) = (s for s in sites if s.operation == "index")
    assert chosen.second_moment == pytest.approx(chosen.measured_second_moment, rel=0.1)
    whole = next(s for s in sites if s.operation == "relu")
    assert whole.second_moment > 1.3 * chosen.second_moment  # the last tokens are the largest


NODES, EDGES_OF_ALL, CLASSES = 24, 96, 10


def graph(seed):
    """Nodes, edges from and to some of them, and classes."""
    generator = torch.Generator().manual_seed(1000 + seed)
    x = torch.randn(NODES, 32, generator=generator)
    edges = torch.randint(NODES, (2, EDGES_OF_ALL), generator=generator)
    return (x, edges), torch.randint(CLASSES, (NODES,), generator=generator)


def convolution(h, source, target):
    """With the degrees' inverse roots, as of graph convolutional networks."""
    degree = torch.zeros(NODES).index_add_(0, target, torch.ones(EDGES_OF_ALL)) + 1
    scale = degree.rsqrt()
    own = h / degree[:, None]
    return own.index_add(0, target, h[source] * (scale[source] * scale[target])[:, None])


def mean_of_neighbours(h, source, target):
    wide = target[:, None].expand(-1, h.shape[1])
    return torch.zeros_like(h).scatter_reduce(0, wide, h[source], "mean", include_self=False)


def isomorphism(h, source, target):
    wide = target[:, None].expand(-1, h.shape[1])
    return 1.5 * h + torch.zeros_like(h).scatter_add(0, wide, h[source])


def of_both_ends(h, source, target):
    """Messages that know where they go; those of one node have that in common."""
    messages = torch.relu(torch.cat([h[source], h[target]], 1))
    return torch.zeros(NODES, messages.shape[1]).index_add_(0, target, messages)


def selected(h, source, target):
    """As PyTorch Geometric writes it."""
    wide = target[:, None].expand(-1, h.shape[1])
    return torch.zeros_like(h).scatter_add_(0, wide, h.index_select(0, source))


def written(h, source, target):
    return torch.zeros_like(h).index_put_((target,), h[source], accumulate=True)


class Graph(nn.Module):
    def __init__(self, gather, wider=1):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(i, C) for i in (32, wider * C))
        self.head, self.gather = nn.Linear(wider * C, CLASSES), gather

    def forward(self, x, edges):
        for layer in self.layers:
            x = self.gather(torch.relu(layer(x)), *edges)
        return self.head(x)


def deviations(build, batch, loss, seeds=6):
    """Means over networks of ln(predicted/measured) beyond 4 standard errors, by operation.

    Of second moments; then of gradients, less twice the stated error.
    """
    found = {}
    for seed in range(seeds):
        torch.manual_seed(seed)
        sites = of_model(propagate(trace(build(), batch(seed), loss)).sites)
        assert {site.reason for site in sites} == {""}
        for site in sites:
            moment = math.log(site.second_moment / site.measured_second_moment)
            gradient = math.nan
            if site.measured_gradient and site.gradient and not site.is_start:
                gradient = math.log(site.gradient / site.measured_gradient)
            found.setdefault(site.node, []).append([moment, gradient, site.error])
    values = np.array(list(found.values()))  # [operations, seeds, 3]
    means, errors = values.mean(1), values.std(1, ddof=1) / math.sqrt(seeds)
    beyond = np.abs(means) - 4 * errors
    gradients = beyond[:, 1] - 2 * means[:, 2]
    return beyond[:, 0], gradients[np.isfinite(gradients)]


def of_graph(model, batch):
    (x, edges), y = batch
    return cross_entropy(model(x, edges), y)


GATHERS = {
    "convolution": (convolution, 1),
    "mean": (mean_of_neighbours, 1),
    "isomorphism": (isomorphism, 1),
    "both ends": (of_both_ends, 2),
    "index_put": (written, 1),
    "index_select": (selected, 1),
}


@pytest.mark.parametrize("name", GATHERS)
def test_messages_of_a_graph(name):
    gather, wider = GATHERS[name]
    moments, gradients = deviations(lambda: Graph(gather, wider), graph, of_graph)
    assert moments.max() < 0.05
    assert gradients.max() < 0


def test_messages_of_a_larger_graph_are_refused(monkeypatch):
    """Their rows are not alike: those that meet at a node have more in common."""
    monkeypatch.setattr(gathered, "MOST_PLACES", EDGES_OF_ALL - 1)
    torch.manual_seed(0)
    sites = of_model(propagate(trace(Graph(of_both_ends, 2), graph(0), of_graph)).sites)
    reasons = {site.reason for site in sites if site.reason}
    assert any("larger" in reason or "graph" in reason for reason in reasons)
    first = next(s for s in sites if s.operation == "relu" and s.gradient)
    assert first.gradient == pytest.approx(first.measured_gradient, rel=1e-4)


def test_a_graph_of_other_rows_is_not_known():
    torch.manual_seed(0)
    found = propagate(trace(Graph(convolution), graph(0), of_graph))
    answer = found.what_if(batch_size=3 * NODES)
    assert any("graph" in site.reason for site in answer.sites)


class Experts(nn.Module):
    """Two of four experts for each token, by the largest gates."""

    def __init__(self, combine):
        super().__init__()
        self.before, self.gate = nn.Linear(C, C), nn.Linear(C, 4, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(C, C), nn.ReLU(), nn.Linear(C, C)) for _ in range(4)
        )
        self.after, self.combine = nn.Linear(C, CLASSES), combine

    def forward(self, x):
        return self.after(self.combine(self, torch.relu(self.before(x))))


def added_by_number(model, x):
    tokens = x.flatten(0, 1)
    weights, chosen = torch.topk(model.gate(tokens).softmax(-1), 2)
    weights = weights / weights.sum(-1, keepdim=True)
    found = torch.zeros_like(tokens)
    for mask, expert in zip(one_hot(chosen, 4).permute(2, 1, 0), model.experts, strict=True):
        place, token = torch.where(mask)
        found.index_add_(0, token, expert(tokens[token]) * weights[token, place, None])
    return found.view_as(x)


def written_by_mask(model, x):
    weights, chosen = model.gate(x)[..., :2].softmax(-1).max(-1)
    found = torch.zeros_like(x)
    for number, expert in enumerate(model.experts[:2]):
        found[chosen == number] = expert(x[chosen == number])
    return found * weights.unsqueeze(-1)


def tokens(seed):
    generator = torch.Generator().manual_seed(1000 + seed)
    x = torch.randn(SAMPLES, LENGTH, C, generator=generator)
    return x, torch.randint(CLASSES, (SAMPLES, LENGTH), generator=generator)


def of_tokens(model, batch):
    x, y = batch
    return cross_entropy(model(x).flatten(0, 1), y.flatten())


@pytest.mark.parametrize("combine", [added_by_number, written_by_mask])
def test_experts_for_some_tokens(combine):
    moments, gradients = deviations(lambda: Experts(combine), tokens, of_tokens)
    assert moments.max() < 0.1
    assert gradients.max() < 0


def test_rows_that_take_the_place_of_others_are_refused():
    def combine(model, x):
        found = x.clone()
        found[MASK] = model.experts[0](x[MASK])
        return found

    sites = propagate(trace(Experts(combine), tokens(0), of_tokens)).sites
    assert "rows that take the place of others that are not zero" in {s.reason for s in sites}


class Scored(nn.Module):
    """Sums over features of products with one vector, and of products of two tensors."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(C, C, bias=False), nn.Linear(C, C, bias=False)
        self.vector = nn.Parameter(torch.randn(C))

    def forward(self, x):
        first, second = self.one(x), self.other(x)
        return (first * self.vector).sum(-1), (first * second).sum(-1)


def test_sums_over_features_whose_signs_cancel():
    """They are as large as a product with a matrix, not zero as their mean."""
    found = []
    for seed in range(20):
        torch.manual_seed(seed)
        x, model = torch.randn(SAMPLES, C), Scored()
        loss = lambda model, x: sum((y * y.detach().cos()).sum() for y in model(x))  # noqa: E731
        sites = propagate(trace(model, x, loss)).sites
        sums = [s for s in sites if s.operation == "sum" and s.module]
        found.append([math.log(s.second_moment / s.measured_second_moment) for s in sums])
    error = np.std(found, 0, ddof=1) / math.sqrt(len(found))
    # Of one vector and few samples, the logarithm of a mean square averages below.
    assert (np.abs(np.mean(found, 0)) < 4 * error + 0.15).all()


@pytest.mark.parametrize("norm", [nn.LayerNorm(C), nn.GroupNorm(4, C)])
def test_sums_over_features_that_a_norm_has_centred_are_refused(norm):
    """They are 0, whatever signs features have."""
    model = nn.Sequential(nn.Linear(C, C), norm)
    loss = lambda model, x: (model(x).sum(-1) * x.sum(-1)).cos().sum()  # noqa: E731
    sites = propagate(trace(model, torch.randn(SAMPLES, C), loss)).sites
    assert "a sum over features that layer norm has centred" in {site.reason for site in sites}
