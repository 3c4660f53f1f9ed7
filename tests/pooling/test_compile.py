"""Heads in one compiled graph, forward and backward."""

import copy

import pytest
import torch
from torch.testing import assert_close

from support.pooling_family import FAMILY, both_ways, build, maps

# The compiler instantiates every Function that it traces, and looks into scalars.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*requires_grad=True to a scalar:UserWarning"),
]


@pytest.fixture
def compiler():
    torch.compiler.reset()
    yield lambda head, **options: torch.compile(
        head, backend="aot_eager", fullgraph=True, **options
    )
    torch.compiler.reset()


# Every kind of head but that with FFTs, about which the compiler warns, and RUN, which is below.
TOGETHER = ["bilinear", "RUN mean", "iSQRT", "power", "log", "sketch", "maclaurin direct"]


class Heads(torch.nn.ModuleList):
    """Several heads on the same maps, side by side; the compiler takes a while to start."""

    def forward(self, x, mask=None):
        return torch.cat([head(x, mask) for head in self], 1)


def test_forward_and_backward_in_one_graph(compiler):
    heads, x = Heads(build(FAMILY[name]) for name in TOGETHER), maps()
    assert_close(both_ways(compiler(heads), x), both_ways(heads, x), rtol=0, atol=1e-12)


def test_a_reduction_in_training(compiler):
    head, x = build(FAMILY["RUN"], reduction=3).train(), maps()
    twin = copy.deepcopy(head)
    assert_close(both_ways(compiler(head), x), both_ways(twin, x), rtol=0, atol=1e-12)
    assert_close(head.state_dict(), twin.state_dict(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ["bilinear", "RUN"])
def test_other_sizes_and_masks(name, compiler):
    head = build(FAMILY[name])
    compiled = compiler(head, dynamic=True)
    for samples, size in ((5, (6, 7)), (2, (9, 3))):
        x, mask = maps(samples, size), torch.ones(samples, *size, dtype=torch.bool)
        mask[:, 0, 0] = False
        found = both_ways(compiled, x, mask)
        assert_close(found, both_ways(head, x, mask), rtol=0, atol=1e-12)


def test_resampling_splits_the_graph(compiler):
    """Drawing from a generator of one's own splits the graph, as the documentation says."""
    head = build(FAMILY["RUN"], resample="train")
    compiler(head)(maps())
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiler(head.train())(maps())
