"""Inputs of the first layer that are constant or far from standardised."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import equipoise as eq
from equipoise.diagnosis.mistakes.data.inputs import OFF, of_inputs
from support.traced_passes import traced_pass

X = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(32) % 3


class Scaled(nn.Module):
    """A layer behind what a function makes of its input."""

    def __init__(self, scale=lambda x: x):
        super().__init__()
        self.scale, self.layer = scale, nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(self.scale(x))


def titles(x, model=None):
    model = model or Scaled()
    traced = traced_pass(model, (x, Y), lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    return [finding.title for finding in of_inputs(traced)]


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (X, []),
        (3 * X + 5, []),
        (100 * X, [OFF]),
        (X + 2000, [OFF]),
        (X / 100 + 1, [OFF]),
        (torch.ones(32, 6), ["All inputs are equal"]),
        (torch.arange(6.0).expand(32, 6), ["All inputs are equal"]),
    ],
)
def test_inputs_are_judged_by_mean_and_spread(x, expected):
    assert titles(x) == expected


def test_what_the_model_scales_itself_is_no_mistake():
    assert titles(100 * X, Scaled(lambda x: x / 100)) == []
    assert titles(100 * X, nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))) == []
    assert titles(100 * X, nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3))) == []


class Graph(nn.Module):
    """Two layers of a graph's convolution, each behind the mean over neighbours."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x, mixing):
        return mixing @ self.last((mixing @ self.first(x)).relu())


@pytest.mark.parametrize("stored", [lambda x: x, torch.Tensor.to_sparse], ids=["dense", "sparse"])
@pytest.mark.parametrize(("scale", "expected"), [(1, []), (1000, [OFF])])
def test_features_of_a_graph_are_judged_and_not_its_matrix(stored, scale, expected):
    """It is the larger of both, and mixes what weights have made of the features."""
    mixing = stored(torch.eye(32) / 2 + torch.eye(32).roll(1, 0) / 2)
    batch = X * scale, mixing, Y
    traced = traced_pass(Graph(), batch, lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2]))
    assert [finding.title for finding in of_inputs(traced)] == expected


def test_scaling_makes_training_faster():
    def loss_after(x, steps=40):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 2))
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        target = (X[:, 0] > 0).long()
        for _ in range(steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), target)
            loss.backward()
            optimizer.step()
        return loss.item()

    assert loss_after(X) < 0.7 * loss_after(X + 2000)


def test_it_is_the_remedy_where_outputs_are_too_large():
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    report = eq.checkup(model, (1e5 * X[:8], Y[:8]))
    (first,) = (f for f in report.findings if f.title == report.verdict.sentence)
    assert "so large" in first.detail
    assert first.remedy.startswith("Standardise the data")


class Conditioned(nn.Module):
    """A second input, such as a time, or a canvas that is the same for all samples."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 8), nn.Linear(2, 8), nn.Linear(8, 3)

    def forward(self, x, c):
        return self.last((self.first(x) + self.second(c)).relu())


@pytest.mark.parametrize("second", [torch.zeros(32, 2), 1000 * torch.ones(32, 2)])
def test_a_second_input_may_be_anything(second):
    batch = X, second, Y
    traced = traced_pass(Conditioned(), batch, lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2]))
    assert of_inputs(traced) == []


class Transposed(nn.Module):
    """Weights times features, whose first axis is not that of samples."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(3, 6))

    def forward(self, x):
        return (self.matrix @ x.T).T


def test_features_that_are_equal_are_not_samples_that_are():
    assert titles(X[:, :1].expand(32, 6), Transposed()) == []


def test_the_input_of_a_differential_equation_is_a_leaf_of_its_own():
    """The derivative's own pass begins with ones, which are no input."""
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))

    def residual(model, batch):
        x = batch.clone().requires_grad_(True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return (slope - torch.cos(x)).square().mean()

    def found(x):
        return [finding.title for finding in of_inputs(traced_pass(model, x, residual))]

    assert found(X[:, :1]) == []
    assert found(1000 * X[:, :1]) == [OFF]
    assert found(torch.ones(32, 1)) == ["All inputs are equal"]


class Tabular(nn.Module):
    """Numbers beside an embedding."""

    def __init__(self):
        super().__init__()
        self.of_category, self.layer = nn.Embedding(4, 3), nn.Linear(9, 3)

    def forward(self, numbers, category):
        return self.layer(torch.cat([numbers, self.of_category(category)], 1))


@pytest.mark.parametrize(("scale", "expected"), [(1.0, []), (1e6, [OFF])])
def test_numbers_beside_an_embedding_are_judged(scale, expected):
    batch = scale * X, torch.arange(32) % 4, Y
    traced = traced_pass(Tabular(), batch, lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2]))
    assert [finding.title for finding in of_inputs(traced)] == expected


@pytest.mark.parametrize(
    ("shape", "turned"),
    [
        ((8, 28, 28, 3), True),
        ((8, 32, 32, 1), True),
        ((8, 3, 28, 28), False),
        ((8, 28, 28, 28), False),
        ((8, 64, 100, 1), False),  # electrodes by time
        ((8, 4, 4, 4), False),
        ((8, 16, 16, 3), False),  # sensors by time by direction
    ],
)
@pytest.mark.parametrize("columns", [3, 1])
def test_channels_that_are_last(shape, turned, columns):
    x, y = torch.randn(shape), torch.arange(8) % 3
    turned &= columns > 1  # a filter over time alone leaves the last axis as it is
    first = nn.Conv2d(shape[1], 8, (3, columns), padding=(1, columns // 2))
    model = nn.Sequential(first, nn.Flatten(), nn.LazyLinear(3))
    model(x)
    traced = traced_pass(model, (x, y), lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    found = [finding.title for finding in of_inputs(traced)]
    assert found == (["Images have their channels last"] if turned else [])


def test_images_that_a_model_turns_itself():
    class Turning(nn.Sequential):
        def forward(self, x):
            return super().forward(x.permute(0, 3, 1, 2))

    x, y = torch.randn(8, 28, 28, 3), torch.arange(8) % 3
    model = Turning(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 26 * 26, 3))
    traced = traced_pass(model, (x, y), lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    assert of_inputs(traced) == []


def test_steps_in_time_whose_features_are_channels():
    x, y = torch.randn(8, 32, 32, 1), torch.arange(8) % 3
    model = nn.Sequential(nn.Conv2d(32, 8, (3, 1)), nn.Flatten(), nn.Linear(8 * 30, 3))
    traced = traced_pass(model, (x, y), lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    assert of_inputs(traced) == []
