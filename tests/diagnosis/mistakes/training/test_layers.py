"""Layers that no optimizer sees, and norms that hand nothing on."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.diagnosis.mistakes.training.layers import of_layers
from support.traced_passes import traced_pass

X, Y = torch.randn(16, 6, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3


def titles(model, x=X):
    traced = traced_pass(model, (x, Y), lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    return {finding.title: finding for finding in of_layers(traced)}


class Holding(nn.Module):
    """Layers in any attribute."""

    def __init__(self, held, forward):
        super().__init__()
        self.held, self.head = held, nn.Linear(6, 3)
        self.run = forward

    def forward(self, x):
        return self.head(self.run(self.held, x))


def in_order(held, x):
    for layer in held:
        x = layer(x).relu()
    return x


def layers(count=2):
    return [nn.Linear(6, 6) for _ in range(count)]


def without_gradient(held, x):
    with torch.no_grad():
        return in_order(held, x)


def test_layers_in_plain_containers_are_not_trained():
    model = Holding(layers(), in_order)
    assert len(list(model.parameters())) == 2
    finding = titles(model)["2 layers that no optimizer sees"]
    assert finding.severity == "warning"
    assert "held[0], held[1]" in finding.detail
    assert "nn.ModuleList" in finding.remedy


@pytest.mark.parametrize(
    ("held", "run"),
    [
        ({"a": nn.Linear(6, 6)}, lambda held, x: held["a"](x)),
        (({"a": [nn.Linear(6, 6)]},), lambda held, x: held[0]["a"][0](x)),
        (torch.randn(6, 6, requires_grad=True), lambda held, x: x @ held),
        ([nn.Parameter(torch.randn(6, 6))], lambda held, x: x @ held[0]),
    ],
)
def test_other_containers_and_tensors(held, run):
    assert "1 layer that no optimizer sees" in titles(Holding(held, run))


@pytest.mark.parametrize(
    ("held", "run"),
    [
        (nn.ModuleList(layers()), in_order),
        ([layer.requires_grad_(False) for layer in layers()], in_order),  # a frozen teacher
        (layers(), without_gradient),
        (layers(), lambda held, x: x),
        ([torch.randn(6, 6)], lambda held, x: x @ held[0]),
    ],
    ids=["registered", "frozen", "without gradient", "not used", "constants"],
)
def test_what_is_not_to_be_trained_is_no_mistake(held, run):
    assert titles(Holding(held, run)) == {}


def test_a_shared_layer_that_is_registered_elsewhere_is_trained():
    shared = nn.Linear(6, 6)
    model = nn.Sequential(shared, Holding([shared], in_order))
    assert titles(model) == {}


@pytest.mark.parametrize(
    ("norm", "shape", "over_one"),
    [
        (nn.LayerNorm(1), (16, 6, 1), True),
        (nn.LayerNorm(6), (16, 6), False),
        (nn.GroupNorm(6, 6), (16, 6), True),
        (nn.GroupNorm(3, 6), (16, 6), False),
        (nn.GroupNorm(6, 6), (16, 6, 4), False),
    ],
)
def test_a_norm_of_one_number(norm, shape, over_one):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.head = norm, nn.LazyLinear(3)

        def forward(self, x):
            return self.head(self.norm(x).flatten(1))

    model, x = Net(), torch.randn(shape, generator=torch.Generator().manual_seed(0))
    model(x)
    found = titles(model, x)
    assert ("A norm of one number gives its bias alone" in found) == over_one
    assert (float(norm(x).detach().abs().max()) < 1e-3) == over_one


def test_a_teacher_that_is_detached_is_no_mistake():
    def beside(held, x):
        return x + in_order(held, x).detach()

    assert titles(Holding(layers(), beside)) == {}


@pytest.mark.parametrize(("p", "told"), [(0.9, True), (0.5, False)])
def test_dropout_by_a_function(p, told):
    model = Holding(None, lambda held, x: F.dropout(x, p))
    assert (f"Dropout with p = {p:g}" in titles(model)) == told


def dropped(width, p=0.95, count=2, by_function=False, around=False):
    """Layers with dropout of nearly everything."""
    between = [nn.Linear(width, width) for _ in range(count - 1)]
    module = nn.Dropout(p)
    drop = F.dropout if by_function else lambda x, p: module(x)

    def run(held, x):
        x = drop(held[0](x).relu(), p)
        for layer in held[1:-1]:
            y = drop(layer(x).relu(), p)
            x = x + y if around else y
        return held[-1](x)

    held = nn.ModuleList([nn.Linear(6, width), *between, nn.Linear(width, 6)])
    model = Holding(held, run)
    model.drop = module
    return model


@pytest.mark.parametrize(
    ("model", "severity"),
    [
        (dropped(128), "critical"),
        (dropped(128, by_function=True), "critical"),
        (dropped(128, p=0.9), "warning"),
        (dropped(256), "warning"),
        (dropped(128, count=1), "warning"),
        (dropped(128, around=True), "warning"),
    ],
)
def test_dropout_that_lets_too_little_through(model, severity):
    """Others tell digits apart; see `_DROWNED`."""
    (finding,) = titles(model).values()
    assert finding.severity == severity


def normalised():
    return nn.Sequential(
        nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6), nn.BatchNorm1d(6)
    )


def frozen(model):
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()
    return model


FRESH = "2 batch norms in evaluation mode, with fresh statistics"


def test_batch_norms_that_are_frozen_before_they_have_statistics():
    finding = titles(frozen(normalised()))[FRESH]
    assert finding.severity == "warning"
    assert "1, 4" in finding.detail
    assert FRESH in titles(normalised().eval())


def test_batch_norms_that_normalise():
    assert titles(normalised()) == {}
    trained = normalised()
    trained(X)
    assert titles(frozen(trained)) == {}
    kept = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, track_running_stats=False)).eval()
    assert titles(kept) == {}


def test_a_frozen_batch_norm_that_does_not_run():
    class Bypassing(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.unused = nn.Linear(6, 3), nn.BatchNorm1d(6).eval()

        def forward(self, x):
            return self.head(x)

    assert titles(Bypassing()) == {}


class Virtual(nn.Module):
    """Batch norm over parts of a batch, with or without a way around it."""

    def __init__(self, rows, *, around=False):
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)
        self.rows, self.around = rows, around

    def forward(self, x):
        h = self.first(x)
        normed = torch.cat([self.norm(part) for part in h.split(self.rows)])
        return self.head(normed + h if self.around else normed)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (Virtual(2), True),
        (Virtual(3), True),
        (Virtual(4), False),
        (Virtual(2, around=True), False),
        (Virtual(2).eval(), False),
    ],
)
def test_batch_norms_of_two_rows_on_all_ways(model, told):
    traced = traced_pass(
        model, (torch.randn(12, 4), torch.randn(12, 1)), lambda m, b: F.mse_loss(m(b[0]), b[1])
    )
    titles = [one.title for one in of_layers(traced) if one.severity == "critical"]
    rows = model.rows
    assert titles == [f"All that outputs depend on passes batch norms of {rows} rows"] * told
