"""How many blocks could train, on a chain whose growth per block is known."""

import itertools
import math

import pytest
import torch
from torch import nn

from equipoise.diagnosis.trainability.calibration import calibration
from equipoise.diagnosis.trainability.depth import trainable_blocks
from equipoise.diagnosis.trainability.judge import judge
from equipoise.diagnosis.trainability.record import Depth
from equipoise.diagnosis.trainability.words import depth_in_words
from equipoise.instrument.recording.tracer import trace
from equipoise.theory.propagation.propagate import propagate
from equipoise.theory.propagation.what_if.blocks import prevailing_blocks
from equipoise.training import cross_entropy
from support.trainability_examples import network

WIDTH, BATCH, BLOCKS = 32, 16, 8
# Each block multiplies q by this.
FACTOR = 1.3


def chain(blocks):
    """Orthogonal layers, which multiply the second moment exactly; the first is no block.

    What theory takes for one block is a layer behind another.
    """
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(blocks + 1)]
    for linear in layers:
        nn.init.orthogonal_(linear.weight, math.sqrt(FACTOR))
    return nn.Sequential(*layers, nn.Linear(WIDTH, 4, bias=False))


def predicted(model):
    x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(0))
    return propagate(trace(model, (x, torch.arange(BATCH) % 4), cross_entropy))


def size(found):
    """Of the outputs, in the logarithm."""
    return math.log([site for site in found.sites if site.module][-1].second_moment)


@pytest.fixture(scope="module")
def found():
    return predicted(chain(BLOCKS))


def depth_with(found, limit, error=0.1):
    """With log-odds that cross 0 where outputs are of the size that a limit of blocks gives."""
    crossing = size(found) + (limit - BLOCKS) * math.log(FACTOR)
    return trainable_blocks(
        found, lambda spread: lambda one: crossing - size(one) + spread * error
    )


@pytest.mark.parametrize("limit", [2.1, 5, 7.5, 9, 15, 30, 60])
def test_the_depth_is_where_the_log_odds_cross_zero(found, limit):
    """The closed form, with 5 % for interpolating over the logarithm of the depth."""
    depth = depth_with(found, limit)
    assert depth.blocks == BLOCKS
    assert depth.value == pytest.approx(limit, rel=0.05)
    assert depth.low < depth.value < depth.high


def test_without_error_the_interval_is_a_point(found):
    depth = depth_with(found, 15, error=0.0)
    assert depth.low == depth.value == depth.high


def test_far_beyond_the_search_it_is_infinite(found):
    depth = depth_with(found, 1000)
    assert depth.value == math.inf
    assert depth_in_words(depth) == "it has 8 equal blocks, and more than 128 could train"


def test_where_not_even_one_block_trains_it_is_zero(found):
    depth = depth_with(found, 0.5)
    assert depth.value == 0
    assert depth_in_words(depth) == "it has 8 equal blocks, and not even one would train"


class TestAllowance:
    """Deeper networks are predicted as far as there is time, shallower ones always."""

    def test_of_a_network_that_trains_nothing_is_said_without_time(self, found):
        odds = lambda spread: lambda one: 9.0 + spread  # noqa: E731
        assert trainable_blocks(found, odds, took=1.0, allowance=1.5) is None

    def test_the_search_goes_as_far_as_it_may(self, found):
        odds = lambda spread: lambda one: 9.0 + spread  # noqa: E731
        depth = trainable_blocks(found, odds, took=1.0, allowance=2.5)
        assert (depth.value, depth.searched) == (math.inf, 2 * BLOCKS)
        assert depth_in_words(depth).endswith("and more than 16 could train")

    def test_fewer_blocks_are_always_looked_at(self, found):
        crossing = size(found) - 3 * math.log(FACTOR)
        odds = lambda spread: lambda one: crossing - size(one)  # noqa: E731
        depth = trainable_blocks(found, odds, took=1.0, allowance=0.0)
        assert depth.value == pytest.approx(BLOCKS - 3, rel=0.05)


class TestNoDepth:
    def test_without_repeated_blocks(self):
        single = nn.Sequential(nn.Linear(WIDTH, 20), nn.Tanh(), nn.Linear(20, 4))
        assert depth_with(predicted(single), 4) is None

    def test_where_blocks_are_the_smaller_part(self):
        """Two equal layers among ten of sizes of their own."""
        widths = [WIDTH, 30, 28, 26, 24, 24, 24, 22, 20, 18, 16]
        layers = [nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(widths)]
        assert depth_with(predicted(nn.Sequential(*layers)), 1) is None

    def test_where_a_block_that_would_be_left_out_is_needed(self):
        class Skipping(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = chain(BLOCKS)

            def forward(self, x):
                outputs = list(
                    itertools.accumulate(self.layers[:-1], lambda y, f: f(y), initial=x)
                )
                return self.layers[-1](outputs[-1] + outputs[-3])

        found = predicted(Skipping())
        assert prevailing_blocks(found.graph).count == BLOCKS
        assert depth_with(found, 4) is None
        assert depth_with(found, 30) is not None

    def test_of_a_record_without_its_trace(self):
        assert trainable_blocks(network(), lambda spread: lambda one: 1.0) is None


class Rotary(nn.Module):
    """A block of attention with rotated queries and keys, which theory does not follow."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.first(x).chunk(3, -1)
        angles = torch.arange(x.shape[1])[:, None] / 10.0 ** torch.arange(WIDTH // 2)
        cosine, sine = angles.cos(), angles.sin()
        q, k = (
            torch.stack(
                [
                    one[..., ::2] * cosine - one[..., 1::2] * sine,
                    one[..., ::2] * sine + one[..., 1::2] * cosine,
                ],
                -1,
            ).flatten(-2)
            for one in (q, k)
        )
        scores = (q @ k.mT / WIDTH**0.5).softmax(-1)
        return x + self.last(scores @ v)


def test_of_blocks_that_theory_reaches_as_they_are_alone():
    """Another number of them has no measured scores: nothing is known of it, not that it fails."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Rotary() for _ in range(3)), nn.Linear(WIDTH, 4))
    x = torch.randn(BATCH, 6, WIDTH)
    y = torch.arange(BATCH)[:, None].expand(-1, 6) % 4
    graph = trace(model, (x, y), lambda m, b: nn.functional.cross_entropy(m(b[0]).mT, b[1]))
    judged = judge(propagate(graph), graph.batch, calibration())
    assert judged.probability > 0.9
    assert judged.depth is None


def test_words():
    assert depth_in_words(Depth(12, 20.4, 18.2, 33.0)) == (
        "it has 12 equal blocks, and about 20 could train (between 18 and 33)"
    )
    assert depth_in_words(Depth(12, 10.0, 8.0, math.inf, searched=24)).endswith(
        "(between 8 and more than 24)"
    )
