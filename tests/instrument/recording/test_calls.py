"""Skipping cached calls never changes a number, also in models that make it hard."""

import queue
import random
from collections import deque
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.instrument.recording import effects as call_effects
from equipoise.probes.covariate_shift import covariate_shift
from support.covariate_shifts import assert_agree, numbers

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(0)).double()


def linear(width=6):
    return nn.Linear(6, width)


class Residual(nn.Module):
    """Changes its output in place after the inner layer's call."""

    def __init__(self):
        super().__init__()
        self.layer = linear()

    def forward(self, x):
        h = self.layer(x)
        h += x
        return h


class Auxiliary(nn.Module):
    """Appends a term of the loss to a shared list, as mixtures of experts do."""

    def __init__(self, terms):
        super().__init__()
        self.layer, self.terms = linear(), terms

    def forward(self, x):
        h = torch.tanh(self.layer(x))
        self.terms.append(h.square().mean())
        return h


class WithTerms(nn.Module):
    def __init__(self):
        super().__init__()
        self.terms = []
        self.blocks = nn.Sequential(*(Auxiliary(self.terms) for _ in range(4)))

    def forward(self, x):
        self.terms.clear()
        return self.blocks(x) + sum(self.terms)


class Cached(nn.Module):
    """Writes to one of its arguments."""

    def __init__(self):
        super().__init__()
        self.layer = linear()

    def forward(self, x, cache):
        cache.seen.append(self.layer(x))
        return torch.tanh(cache.seen[-1])


@dataclass
class Cache:
    seen: list


class WithCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Cached() for _ in range(4)])

    def forward(self, x):
        cache = Cache([])
        for block in self.blocks:
            x = block(x, cache)
        return x + sum(cache.seen)  # all of them, also those of blocks that moved


class Packed(nn.Module):
    """Returns several tensors by name."""

    def __init__(self):
        super().__init__()
        self.layer = linear()

    def forward(self, inputs):
        h = torch.tanh(self.layer(inputs["h"]))
        return {"h": h, "all": (*inputs["all"], h)}


class Unpacked(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(Packed() for _ in range(4)))

    def forward(self, x):
        return sum(self.blocks({"h": x, "all": ()})["all"])


class Branching(nn.Module):
    """Uses another layer once its first layer has moved."""

    def __init__(self):
        super().__init__()
        self.stem, self.left, self.right, self.head = linear(), linear(), linear(), linear()
        self.start = self.stem.bias.tolist()

    def forward(self, x):
        h = self.stem(x)
        moved = self.stem.bias.tolist() != self.start
        return self.head(self.right(h) if moved else self.left(h))


class Twice(nn.Module):
    """Two calls with one power iteration each; the second depends on the first."""

    def __init__(self):
        super().__init__()
        self.stem = linear()
        self.layer = nn.utils.parametrizations.spectral_norm(linear())
        self.middle, self.head = linear(), linear()

    def forward(self, x):
        h = self.layer(torch.tanh(self.stem(x)))
        return self.head(self.layer(torch.tanh(self.middle(h))))


class Skipping(nn.Module):
    """Skips blocks at random, with a generator that is not PyTorch's."""

    def __init__(self, draw):
        super().__init__()
        self.blocks, self.draw = nn.ModuleList([linear() for _ in range(6)]), draw

    def forward(self, x):
        for block in self.blocks:
            x = x + self.draw() * block(x)
        return x


class Dropping(nn.Module):
    """Dropout inside and outside of modules."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(nn.Sequential(linear(), nn.Dropout()) for _ in range(4)))

    def forward(self, x):
        for block in self.blocks:
            x = nn.functional.dropout(block(x), 0.2)
        return x


class Hooked(nn.Module):
    """A loss on inner features that hooks collect."""

    def __init__(self):
        super().__init__()
        blocks = [nn.Sequential(linear(), nn.Tanh()) for _ in range(4)]
        self.blocks = nn.Sequential(*blocks)
        self.features = []
        for block in blocks:
            block[0].register_forward_hook(self.collect)

    def collect(self, module, args, output):
        self.features.append(output)

    def forward(self, x):
        self.features.clear()
        return self.blocks(x) + sum(self.features)


class Push(nn.Module):
    """Passes its input on, and keeps it for a later :class:`Pop`."""

    def __init__(self, kept, push):
        super().__init__()
        self.layer, self.kept, self.push = linear(), kept, push

    def forward(self, x):
        h = torch.tanh(self.layer(x))
        self.push(self.kept, h)
        return h


class Pop(nn.Module):
    def __init__(self, kept, pop):
        super().__init__()
        self.layer, self.kept, self.pop = linear(), kept, pop

    def forward(self, x):
        return torch.tanh(self.layer(x)) + self.pop(self.kept)


def skipping(make, push, pop):
    """A U-Net whose halves hand on their skips in something that all of them hold."""

    def build():
        kept = make()
        down = [nn.Sequential(Push(kept, push), linear()) for _ in range(2)]
        return nn.Sequential(*down, linear(), Pop(kept, pop), Pop(kept, pop))

    return build


class Slot:
    value = None


def fill(array, h):
    array += h.detach().numpy()


class OfClass(nn.Module):
    """Hands on its input in an attribute of its class."""

    skip = None

    def __init__(self, pushes):
        super().__init__()
        self.layer, self.pushes = linear(), pushes

    def forward(self, x):
        h = torch.tanh(self.layer(x))
        if self.pushes:
            OfClass.skip = h
            return h
        h, OfClass.skip = h + OfClass.skip, None
        return h


class InBuffer(nn.Module):
    """Keeps its output in a buffer that the model reads."""

    def __init__(self, in_place):
        super().__init__()
        self.layer, self.in_place = linear(), in_place
        self.register_buffer("kept", torch.zeros(8, 6))

    def forward(self, x):
        h = torch.tanh(self.layer(x))
        if self.in_place:
            self.kept.copy_(h.detach())
        else:
            self.kept = h
        return h


class WithBuffers(nn.Module):
    def __init__(self, in_place):
        super().__init__()
        self.blocks = nn.Sequential(*(InBuffer(in_place) for _ in range(4)))

    def forward(self, x):
        return self.blocks(x) + sum(block.kept for block in self.blocks)


def square(model, x):
    return model(x).square().sum()


def with_penalty(model, x):
    """The gradient with respect to the batch, as for a critic."""
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(square(model, x), [x], create_graph=True)
    return slope.square().sum()


def chain(block):
    return nn.Sequential(*(block() for _ in range(4)))


HARD = {
    "in-place addition": (lambda: chain(Residual), square),
    "in-place activation": (
        lambda: nn.Sequential(linear(), nn.ReLU(inplace=True), linear(), nn.ELU(inplace=True)),
        square,
    ),
    "terms of the loss in a list": (WithTerms, square),
    "cache among the arguments": (WithCache, square),
    "packed outputs": (Unpacked, square),
    "gradient penalty": (lambda: nn.Sequential(linear(), nn.Tanh(), linear()), with_penalty),
    "buffers that two calls change": (Twice, square),
    "dropout beside modules": (Dropping, square),
    "hooks on inner modules": (Hooked, square),
}
SKIPS = {
    "deque": skipping(deque, deque.append, deque.pop),
    "list": skipping(list, list.append, list.pop),
    "dictionary": skipping(dict, lambda d, h: d.update(h=h), lambda d: d["h"]),
    "list in a dictionary": skipping(
        lambda: {"skips": []}, lambda d, h: d["skips"].append(h), lambda d: d["skips"].pop()
    ),
    "object": skipping(Slot, lambda s, h: setattr(s, "value", h), lambda s: s.value),
    "array": skipping(lambda: np.zeros((8, 6)), fill, lambda a: torch.from_numpy(a.copy())),
    "queue": skipping(queue.SimpleQueue, lambda q, h: q.put(h), lambda q: q.get_nowait()),
    "class": lambda: nn.Sequential(OfClass(True), linear(), linear(), OfClass(False)),
    "buffer": lambda: WithBuffers(in_place=False),
    "buffer's memory": lambda: WithBuffers(in_place=True),
}
HARD |= {f"skips in a shared {kind}": (make, square) for kind, make in SKIPS.items()}
NOT_SHARED = {
    "another path after the step": (Branching, square),
    "NumPy's generator": (lambda: Skipping(np.random.random), square),
    "Python's generator": (lambda: Skipping(random.random), square),
}


def measure(make, loss, **options):
    torch.manual_seed(1)
    return covariate_shift(make().double(), loss, X, 0.01, **options)


@pytest.mark.parametrize(("make", "loss"), (HARD | NOT_SHARED).values(), ids=HARD | NOT_SHARED)
def test_the_numbers_are_those_of_whole_passes(make, loss):
    shared, whole = measure(make, loss), measure(make, loss, share_prefix=False)
    assert max(layer.l2 for layer in shared.layers) > 1e-3
    assert_agree(shared, numbers(whole), tolerance=5e-15)


@pytest.mark.parametrize(("make", "loss"), HARD.values(), ids=HARD)
def test_outputs_are_shared(make, loss):
    assert measure(make, loss).shared_prefix


@pytest.mark.parametrize(("make", "loss"), NOT_SHARED.values(), ids=NOT_SHARED)
def test_whole_passes_are_taken_where_sharing_would_be_wrong(make, loss):
    assert not measure(make, loss).shared_prefix


@pytest.mark.parametrize(
    "name",
    [
        "terms of the loss in a list",
        "cache among the arguments",
        *[n for n in HARD if "skips" in n],
    ],
)
def test_checking_calls_for_effects_is_needed(name, monkeypatch):
    """The twin: without the check, these modules give other numbers, or fail."""
    make, loss = HARD[name]
    whole = measure(make, loss, share_prefix=False)
    monkeypatch.setattr(call_effects.CallSurroundings, "unchanged", lambda self: True)
    with pytest.raises((AssertionError, RuntimeError, LookupError, TypeError, queue.Empty)):
        assert_agree(measure(make, loss), numbers(whole), tolerance=1e-3)
