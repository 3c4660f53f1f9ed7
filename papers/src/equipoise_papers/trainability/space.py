r"""The networks of the benchmark: designs drawn at random, each at several depths.

A design is everything but the depth. Depths of a design stand in ratios of 2, so that the depth
at which it stops to train can be read off; they end where a pass takes more than :data:`MOST_WORK`
multiplications.

Weights of the blocks are normal with variance :math:`g^2/n` over n inputs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

Layers = Literal["dense", "convolution", "attention"]
Topology = Literal["plain", "pre", "post"]
Norm = Literal["none", "batch", "layer", "rms", "group"]
Activation = Literal[
    "relu", "leaky_relu", "elu", "selu", "gelu", "silu", "mish", "tanh", "sigmoid", "softplus"
]
Fault = Literal["none", "dead", "saturated", "missed", "zero", "input", "head"]
Data = Literal["digits", "fashion-mnist", "shapes", "text"]

# Multiplications of one pass of one network over one batch.
MOST_WORK = 20_000_000
DEEPEST = 200
FAMILIES: tuple[tuple[Layers, Topology], ...] = (
    ("dense", "plain"),
    ("dense", "pre"),
    ("dense", "post"),
    ("convolution", "plain"),
    ("convolution", "pre"),
    ("convolution", "post"),
    ("attention", "pre"),
    ("attention", "post"),
)
_NORMS: dict[Layers, tuple[Norm, ...]] = {
    "dense": ("batch", "batch", "layer", "rms", "group", "none"),
    "convolution": ("batch", "batch", "group", "layer", "none"),
    "attention": ("layer", "layer", "rms", "none"),
}
_DATA: dict[Layers, tuple[Data, ...]] = {
    "dense": ("digits", "fashion-mnist", "shapes"),
    "convolution": ("digits", "fashion-mnist", "shapes"),
    "attention": ("text", "text", "digits", "fashion-mnist"),
}
_WIDTHS: dict[Layers, tuple[int, ...]] = {
    "dense": (16, 32, 64, 64, 128, 256, 512),
    "convolution": (16, 32, 64),
    "attention": (16, 32, 64, 128),
}
# Sizes are drawn among those with which networks of so many blocks fit.
_MOST_DEPTHS = 12
_BATCH_SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512)
# With fewer, not even a good transformer learns anything in so few steps.
_SMALLEST_BATCH: dict[Layers, int] = {"dense": 2, "convolution": 2, "attention": 16}
_FIRST_DEPTHS: dict[Layers, float] = {"dense": 2.0, "convolution": 2.0, "attention": 1.0}
# Gains that textbooks give to keep second moments, over 1/sqrt(inputs).
_RECTIFIERS = ("relu", "leaky_relu", "elu", "gelu", "silu", "mish")
# nn.Linear draws from [-1/sqrt(n), 1/sqrt(n)].
_PYTORCH = 3**-0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One network of the benchmark, as built and before any training.

    Args:
        layers: What its blocks are made of.
        topology: ``plain``: blocks without skip connections; ``pre``: norms inside the residual
            branches; ``post``: after the sums.
        norm: Its norms.
        activation: Its activations.
        depth: Blocks: one layer with weights where plain, two in a residual branch, attention and
            a perceptron of two layers.
        width: Neurons, channels or features.
        batch_size: Samples per step.
        gain: g of all blocks.
        gamma: Scale of all norms.
        beta: Shift of all norms.
        eps: What they add to the variance.
        residual_scale: Factor of the branches.
        fault: ``dead``: shifts of -3; ``saturated``: blocks' weights 8 times larger; ``missed``:
            weights of every third block 50 times smaller; ``zero``: γ, or all weights of blocks
            without norms, are 0; ``input``: data 100 times larger; ``head``: its weights 100 times
            larger.
        data: What it is trained on.
        seed: Of its weights and the order of the data.
    """

    layers: Layers
    topology: Topology
    norm: Norm
    activation: Activation
    depth: int
    width: int
    batch_size: int
    gain: float
    gamma: float = 1.0
    beta: float = 0.0
    eps: float = 1e-5
    residual_scale: float = 1.0
    fault: Fault = "none"
    data: Data
    seed: int

    @property
    def family(self) -> str:
        """Layers and topology, such as ``dense, plain``."""
        return f"{self.layers}, {self.topology}"

    @property
    def positions(self) -> int:
        """Rows of one sample that a layer of a block sees."""
        if self.layers == "dense":
            return 1
        if self.layers == "attention":
            return {"text": 16, "digits": 8}.get(self.data, 7)
        return 16

    @property
    def work(self) -> int:
        """Multiplications of the blocks in one pass over one batch."""
        return self.depth * self.work_of_a_block

    @property
    def work_of_a_block(self) -> int:
        """Multiplications of one of them."""
        matrices = {
            "dense": 1 if self.topology == "plain" else 2,
            "convolution": 9 * (1 if self.topology == "plain" else 2),
            "attention": 8,
        }[self.layers]
        return matrices * self.width**2 * self.positions * self.batch_size

    def at(self, depth: int) -> Network:
        """The same with another number of blocks."""
        return replace(self, depth=depth)

    @property
    def reference(self) -> Network:
        """A network of the same family, data, width and budget that trains."""
        return replace(
            self,
            norm="layer",
            activation="relu",
            depth=2,
            gain=math.sqrt(2) if self.layers != "attention" else 1.0,
            gamma=1.0,
            beta=0.0,
            eps=1e-5,
            residual_scale=1.0,
            fault="none",
            seed=0,
        )


def designs(number: int) -> Iterator[tuple[Network, ...]]:
    """Draw designs, families in turn, each as its networks of growing depth.

    Transformers take longest to train, and are left out of every second round.

    Examples:
        >>> first = next(designs(8))
        >>> first[0].family, [network.depth for network in first]
        ('dense, plain', [3, 5, 10, 21, 41, 82])
    """
    for place in range(number):
        turn, family = divmod(place, len(FAMILIES))
        layers, topology = FAMILIES[family]
        if layers != "attention" or turn % 2 == 0:
            yield _design(random.Random(place), layers, topology, place)


def _design(
    draw: random.Random, layers: Layers, topology: Topology, place: int
) -> tuple[Network, ...]:
    norm = draw.choice(_NORMS[layers])
    activation = draw.choice(get_args(Activation))
    healthy = draw.random() < 0.65
    first = Network(
        layers=layers,
        topology=topology,
        norm=norm,
        activation=activation,
        depth=1,
        width=16,
        batch_size=2,
        gain=_gain(draw, activation),
        gamma=1.0 if healthy else round(math.exp(draw.uniform(math.log(0.2), math.log(3))), 3),
        beta=0.0 if healthy else round(draw.uniform(-1, 2), 3),
        eps=1e-5 if healthy else 10 ** round(draw.uniform(-5, 0), 2),
        fault=draw.choice(get_args(Fault)) if draw.random() < 0.25 else "none",
        data=draw.choice(_DATA[layers]),
        seed=place,
    )
    if first.data == "text" and first.fault == "input":
        first = replace(first, fault="none")
    if norm == "none":
        first = replace(first, gamma=1.0, beta=0.0, eps=1e-5)
    sizes = [
        sized
        for width in _WIDTHS[layers]
        for batch_size in _BATCH_SIZES
        if batch_size >= _SMALLEST_BATCH[layers]
        and (sized := replace(first, width=width, batch_size=batch_size)).work_of_a_block
        * _MOST_DEPTHS
        <= MOST_WORK
    ]
    first = draw.choice(sizes)
    scale = 1.0 if topology == "plain" else draw.choice((1.0, 1.0, 0.3, 0.1, None))
    return tuple(
        replace(first.at(depth), residual_scale=depth**-0.5 if scale is None else scale)
        for depth in _depths(first, _FIRST_DEPTHS[layers] * 2 ** draw.random())
    )


def _gain(draw: random.Random, activation: Activation) -> float:
    kind = draw.random()
    if kind < 0.4:
        return round(math.sqrt(2), 3) if activation in _RECTIFIERS else 1.0
    if kind < 0.55:
        return round(_PYTORCH, 3)
    return round(math.exp(draw.uniform(math.log(0.3), math.log(3))), 3)


def _depths(first: Network, shallowest: float) -> list[int]:
    depths = [round(shallowest * 2**doubled) for doubled in range(8)]
    return [
        depth
        for depth in dict.fromkeys(depths)
        if depth <= DEEPEST and depth * first.work_of_a_block <= MOST_WORK
    ]
