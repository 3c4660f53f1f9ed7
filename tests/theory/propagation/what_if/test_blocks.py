"""More or fewer blocks are those of a model that was built with as many."""

from dataclasses import astuple

import pytest
import torch
from torch import nn

from equipoise.instrument.recording.tracer import trace
from equipoise.theory.propagation.forward import Forward
from equipoise.theory.propagation.propagate import propagate
from equipoise.theory.propagation.what_if import blocks as blocks_module
from equipoise.theory.propagation.what_if.blocks import prevailing_blocks, with_blocks, with_depth
from equipoise.training import cross_entropy
from support.what_if_models import (
    Block,
    gradients,
    perceptron,
    predicted,
    projected,
    residual,
    second_moments,
    vectors,
)


def repeated(build, depth, *, last, step, head):
    """A deeper model, whose new blocks and head have the weights of those before.

    Args:
        build: Takes a depth.
        depth: Of the deeper model.
        last: Number of the first layer of the last block of three.
        step: Layers of a block.
        head: Number of the first layer behind the blocks.
    """
    torch.manual_seed(0)
    model, deeper = build(3), build(depth)
    own = model.state_dict()
    offset = (depth - 3) * step

    def origin(name):
        number, _, rest = name.partition(".")
        place = int(number)
        if place >= head + offset:
            return f"{place - offset}.{rest}"
        return f"{last + (place - last) % step}.{rest}" if place >= head else name

    deeper.load_state_dict({name: own[origin(name)] for name in deeper.state_dict()})
    return model, deeper


CASES = {
    "blocks": (residual, 2, {"last": 3, "step": 1, "head": 4}),
    "layers in a row": (perceptron, 2, {"last": 6, "step": 3, "head": 9}),
    "fewer": (residual, 1 / 3, {"last": 3, "step": 1, "head": 4}),
}


@pytest.fixture(scope="module", params=CASES)
def answers(request):
    build, factor, names = CASES[request.param]
    with torch.random.fork_rng(devices=[]):
        # Of three layers in a row, two have inputs of their own width.
        depth = 5 if build is perceptron else round(3 * factor)
        model, deeper = repeated(build, depth, **names)
    found = predicted(model, vectors())
    return found, found.what_if(depth=factor), predicted(deeper, vectors())


class TestDepth:
    def test_names_the_sites_of_the_deeper_model(self, answers):
        _, answer, real = answers
        assert second_moments(answer).keys() == second_moments(real).keys()

    def test_predicts_its_second_moments(self, answers):
        _, answer, real = answers
        theirs = second_moments(real)
        for place, q in second_moments(answer).items():
            assert q == pytest.approx(theirs[place], rel=1e-6)

    def test_predicts_its_gradients(self, answers):
        _, answer, real = answers
        theirs, ours = gradients(real), gradients(answer)
        assert ours.keys() == theirs.keys()
        for place, gradient in ours.items():
            assert gradient == pytest.approx(theirs[place], rel=1e-6)

    def test_predicts_the_gradients_of_its_weights(self, answers):
        _, answer, real = answers
        ours, theirs = ({w.name: w.gradient for w in f.weights} for f in (answer, real))
        assert ours == pytest.approx(theirs, rel=1e-6)

    def test_the_model_as_it_is_has_other_sites(self, answers):
        found, _, real = answers
        assert second_moments(found).keys() != second_moments(real).keys()


class TwoStacks(nn.Module):
    """Three blocks, and two of another kind."""

    def __init__(self):
        super().__init__()
        self.entry, self.head = nn.Linear(16, 32), nn.Linear(32, 8)
        self.many = nn.Sequential(*(Block() for _ in range(3)))
        self.few = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))

    def forward(self, x):
        x = self.many(self.entry(x))
        for layer in self.few:
            x = torch.tanh(layer(x))
        return self.head(x)


def counts(model, **changes):
    """How often every operation runs after a change of depth."""
    graph = with_depth(trace(model, vectors(), projected), **changes)
    names = [node.name for node in graph.nodes]
    return {name: names.count(name) for name in ("native_layer_norm", "tanh")}


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (None, {"native_layer_norm": 6, "tanh": 2}),
        ("many", {"native_layer_norm": 6, "tanh": 2}),
        ("", {"native_layer_norm": 6, "tanh": 2}),
    ],
)
def test_the_longest_repetition_is_found(block, expected):
    assert counts(TwoStacks(), depth=2, block=block or None) == expected


def test_a_block_without_weights_is_none():
    model = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Tanh(), nn.Tanh())
    with pytest.raises(ValueError, match="no block of operations with weights is repeated"):
        counts(model, depth=2, block=None)


def test_shared_weights_stay_shared():
    layer = nn.Linear(16, 16)
    model = nn.Sequential(nn.Linear(16, 16), *[layer, nn.ReLU()] * 3, nn.Linear(16, 8))
    answer = predicted(model, vectors()).what_if(depth=2)
    assert [weight.name for weight in answer.weights] == ["7.weight", "1.weight", "0.weight"]


def test_what_is_read_later_cannot_be_left_out():
    class Read(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
            self.head = nn.Linear(16, 8)

        def forward(self, x):
            kept = []
            for layer in self.layers:
                x = torch.relu(layer(x))
                kept.append(x)
            return self.head(x + kept[2])

    with pytest.raises(ValueError, match="takes what a block gave that would be left out"):
        counts(Read(), depth=1 / 3, block=None)


def compared_links(monkeypatch):
    """A list that has an element for every pair of operations whose links were compared."""
    compared = []
    alike = blocks_module._are_linked_alike
    monkeypatch.setattr(
        blocks_module,
        "_are_linked_alike",
        lambda *arguments: compared.append(0) or alike(*arguments),
    )
    return compared


def test_links_of_steps_without_weights_are_not_compared(monkeypatch):
    """Such as those of a solver; blocks have weights one period apart."""
    compared = compared_links(monkeypatch)
    model = nn.Sequential(nn.Linear(16, 8), *[nn.Tanh()] * 50, nn.Linear(8, 4))
    with pytest.raises(ValueError, match="no block of operations with weights is repeated"):
        counts(model, depth=2, block=None)
    assert not compared


def test_links_of_a_deep_chain_are_compared_a_few_times(monkeypatch):
    """Once per operation and period that may win, not once per pair of operations.

    The first layer takes the batch and has no twin before it, so no period covers everything.
    """
    compared = compared_links(monkeypatch)
    for depth in (20, 80):
        layers = [part for _ in range(depth) for part in (nn.Linear(3, 3), nn.ReLU())]
        graph = trace(
            nn.Sequential(*layers),
            torch.randn(4, 3),
            lambda deep, batch: deep(batch).square().sum(),
        )
        compared.clear()
        found = blocks_module.prevailing_blocks(graph)
        assert found.count == depth - 1
        assert len(compared) < 6 * len(graph.nodes)


class Repeated(nn.Module):
    """The same four times, each beside the network's own input."""

    def __init__(self, act):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.act = act

    def forward(self, x):
        h = x
        for layer in self.layers:
            h = self.act(layer(h), x)
        return h.flatten(1)


def convolutions(*head):
    return nn.Sequential(
        nn.Unflatten(1, (2, 2, 2)),
        *(
            nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU())
            for _ in range(4)
        ),
        nn.Flatten(),
        *head,
    )


BEGUN = {
    "beside the input": (lambda: Repeated(lambda h, x: h.relu() + x), (16, 5, 8)),
    "less a mean over the width": (
        lambda: Repeated(lambda h, x: h.relu() - h.relu().mean(1, keepdim=True)),
        (16, 8),
    ),
    "without a head": (convolutions, (16, 8)),
    "with a head": (lambda: convolutions(nn.Linear(8, 3)), (16, 8)),
}


def fields(found):
    records = (*found.sites, *found.weights, *found.attribution)
    return [value for record in records for value in astuple(record)]


def numbers(found):
    return [value for value in fields(found) if isinstance(value, float)]


def words(found):
    return [value for value in fields(found) if not isinstance(value, float)]


@pytest.mark.parametrize("name", BEGUN)
def test_a_way_forward_that_was_begun_in_a_shallower_network_predicts_the_same(name):
    torch.manual_seed(0)
    make, shape = BEGUN[name]
    graph = trace(make(), (torch.randn(shape), torch.arange(16) % 3), cross_entropy)
    blocks = prevailing_blocks(graph)
    forward, alike = None, 0
    for more in (blocks.count, 2 * blocks.count, 3 * blocks.count):
        deeper = with_blocks(graph, blocks, blocks.count + more)
        forward = Forward(deeper) if forward is None else forward.continued(deeper, alike)
        assert len(forward.values) >= alike - blocks.period  # what is behind the last weights
        found, expected = propagate(deeper, begun=forward), propagate(deeper)
        assert words(found) == words(expected)
        assert numbers(found) == pytest.approx(numbers(expected), rel=1e-9, nan_ok=True)
        alike = blocks.end + more * blocks.period
