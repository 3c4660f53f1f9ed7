r"""Convolutions, with the borders that padding makes.

With taps δ, stride s, padding a and dilation d, position r of the output reads
:math:`r s + \delta d - a`:

.. math:: K_{out}(r, r') = v\,C \sum_\delta K_{in}(rs + \delta d - a,\; r's + \delta d - a) + v_b,

where positions outside the map have K = 0; the way back is its transpose. Exact as C grows,
borders included; how much features differ in size, a depthwise convolution's most of all, is
handed to the norm behind, see :mod:`..filters`. Source: Xiao et al. 2018 (arXiv:1806.05393) for
circular padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.theory.propagation import latent
from equipoise.theory.propagation.call import Call, Pulled, Result, chained, rule
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.filters import Filters, read_by_taps
from equipoise.theory.propagation.layout import Atom, Layout, UnpredictedError, times
from equipoise.theory.propagation.rules.linear import over_positions
from equipoise.theory.propagation.rules.positions.features import (
    features_as_positions,
    positions_as_features,
)
from equipoise.theory.propagation.rules.positions.matrices import mapped
from equipoise.theory.propagation.rules.windows import Window, each
from equipoise.theory.propagation.tensors import (
    bias_moments,
    is_centred,
    mean_square,
    require_random,
    require_values,
    scatter_of_products,
    second_moments,
)
from equipoise.theory.propagation.values.covariances import (
    arranged,
    from_covariance,
    measured,
    require_few,
)
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.known import Known
from equipoise.theory.propagation.values.moments import Moments

Array = NDArray[np.float64]
# Of more numbers that outputs read, some channels stand for all, in float32: products of the
# patches of 32 maps of 112 x 112 in 96 channels take 500 GFLOP. Channels that random filters made
# have mean squares that differ by the root of 2/27, and the average of so many by 0.05.
_LARGE, _FEWEST_CHANNELS = 1 << 23, 32
# Taps whose mean squares differ by less are draws of one law.
_UNLIKE_TAPS = 0.3


@rule("convolution")
def convolution(call: Call) -> Result:
    """``aten.convolution``, in one, two or three dimensions."""
    x, weight, bias = (call.argument(name) for name in ("input", "weight", "bias"))
    if isinstance(x, Moments) and _mixes_positions(call, x):
        return _over_positions(x, weight, bias)
    if isinstance(x, Moments) and _is_fixed(call, x):
        return _with_one_kernel(call, x, weight.value)
    if isinstance(x, Moments) and (moved := _with_roles_by_axes(x)) is not None:
        return chained(moved, convolution(call.with_first(moved.output)))
    if not isinstance(weight, Known) or weight.data or weight.parameter is None:
        raise UnpredictedError("a convolution with a kernel that is no weight")
    source = _images(x)
    if len(source.with_role("sample")) != 1 or any(a.role == "position" for a in source.axes[0]):
        raise UnpredictedError("a convolution over parts of a sample")
    kernel = _Kernel.of(call, weight.value, source)
    filters = weight.value.transpose(0, 1) if kernel.transposed else weight.value
    require_random(filters.flatten(1))
    window, fan_in = kernel.window, kernel.fan_in
    order = [atom for axis in source.axes[2:] for atom in axis]
    grown = times(source.with_role("feature"))
    wider = grown if fan_in > 1 else Fraction(1)
    read = (
        _read_of_data(x.value, kernel, source)
        if isinstance(x, Known) and not kernel.transposed
        else _read_of_moments(_moments(x, source), kernel, order, grown, float(fan_in * wider))
    )
    variance = kernel.variance
    if kernel.centred:  # what filters of independent weights have, before they lose their mean
        free = weight.value[0].numel()
        variance *= free / (free - 1)
    offset, noise = bias_moments(bias, weight.value, wider)
    same, diff = (variance * fan_in * block for block in (read.pairs.same, read.pairs.diff))
    if kernel.centred or noise:
        rest = noise - variance * fan_in * read.common
        same, diff = same + rest, diff + rest
    layout, kept = _layout_of_output(call, source, kernel.outputs)
    covariance, means = Exchangeable(same, diff, read.pairs.samples), np.full(len(same), offset)
    output = from_covariance(layout, kept, covariance, means)
    maker = frozenset({call.made_by(weight)})
    output = replace(output, scatter=read.scatter, filters=read.filters, others=maker)

    # Wider layers have smaller weights, of the same variance times fan-in.
    relative = float(call.node.widening / grown)

    def pullback(gradient: Gradient) -> Pulled:
        taps, size = prod(window.kernel), read.plain.dot(gradient.pairs)
        if gradient.excess is not None:  # along the filter itself
            size += gradient.excess.total() * read.pairs.mean_diagonal / (fan_in * taps)
        found = [(str(weight.parameter), size / taps)]
        if not isinstance(x, Moments):
            return Pulled(weights=found)
        scale = variance * kernel.fan_out * relative * gradient.filters
        pairs = arranged(kernel.back(gradient.pairs) * scale, order, x.order)
        if fan_in > 1 or kernel.transposed or gradient.excess is None:
            return Pulled([(x, Gradient(pairs))], found)
        # Correlations of outputs with an input are k times its slope over the output's size.
        met = arranged(gradient.excess.seen_by(window.members().T), order, x.order)
        slope = np.broadcast_to(latent.mean(x.table * latent.nodes()[0]), x.positions)
        size = variance**2 * gradient.filters / output.second_moment
        return Pulled([(x, _of_own_kernel(x, pairs, met.scaled(slope) * size))], found)

    return Result(output, pullback)


def _mixes_positions(call: Call, x: Moments) -> bool:
    """Whether a kernel of one tap mixes positions that stand where channels do.

    As of token mixing that is written as a convolution with a kernel of 1.
    """
    weight, channels = call.argument("weight"), x.layout.axes[1]
    if not isinstance(weight, Known) or weight.data or weight.parameter is None:
        return False
    plain = call.argument("groups") == 1 and not call.argument("transposed")
    single = prod(weight.value.shape[2:]) == 1 and call.output.shape[2:] == x.layout.shape[2:]
    return plain and single and {atom.role for atom in channels} == {"position"}


def _over_positions(x: Moments, weight: Known, bias: object) -> Result:
    """Token mixing, whose positions stand on the second axis."""
    last = x.layout.axes[1]
    turned = x.with_layout(Layout((x.layout.axes[0], *x.layout.axes[2:], last)), {})
    matrix = replace(weight, value=weight.value.flatten(1).t(), layout=None)
    result = over_positions(turned, matrix, bias)
    output = result.output
    assert isinstance(output, Moments)
    samples, *rest, places = output.layout.axes
    back = output.with_layout(Layout((samples, places, *rest)), {})
    before = Result(turned, lambda gradient: Pulled([(x, gradient)]))
    after = Result(back, lambda gradient: Pulled([(output, gradient)]))
    return chained(chained(before, result), after)


def _is_fixed(call: Call, x: Moments) -> bool:
    """Whether every channel has the same kernel, which is no weight, as of a blur."""
    weight = call.argument("weight")
    if not isinstance(weight, Known) or weight.layout or weight.parameter is not None:
        return False
    value = weight.value
    own = value.shape[1] == 1 and len(value) == call.argument("groups") == x.layout.shape[1]
    known = own and not value.is_meta and not call.argument("transposed")
    return known and call.argument("bias") is None and bool((value == value[:1]).all())


def _with_one_kernel(call: Call, x: Moments, kernels: Tensor) -> Result:
    """Linear in positions, and alike for all features."""
    samples, channels, *maps = x.layout.axes
    order = [atom for axis in maps for atom in axis]
    if {atom.role for atom in channels} != {"feature"} or set(order) != set(x.order):
        raise UnpredictedError("a fixed kernel over axes that are not of positions")
    one_hot = torch.eye(x.positions, dtype=torch.float64).reshape(-1, 1, *x.layout.shape[2:])
    options = [call.argument(name) for name in ("stride", "padding", "dilation")]
    found = torch.as_tensor(
        call.node.operator(one_hot, kernels[:1].double(), None, *options, False, [0], 1)
    )
    places = [Atom.new("position", size) for size in found.shape[2:]]
    axes = tuple((place,) if place.size > 1 else () for place in places)
    matrix = np.ascontiguousarray(found.flatten(1).T.numpy())
    layout = Layout((samples, channels, *axes))
    return mapped(x, order, matrix, layout, [place for place in places if place.size > 1])


@dataclass(frozen=True, slots=True)
class _Kernel:
    """What a convolution multiplies with, and where.

    Args:
        window: What outputs read; of a transposed convolution, what inputs read of its outputs.
        outputs: Sizes of the output's maps.
        transposed: Whether it is the transpose of a convolution.
        groups: In how many groups channels are.
        fan_in: Channels that an output reads.
        fan_out: Channels that read an input.
        variance: Mean square of the weights.
        sizes: Mean squares of taps over that, of the kernel's shape; ``None`` if they are alike.
        centred: Whether filters sum to zero.
    """

    window: Window
    outputs: tuple[int, ...]
    transposed: bool
    groups: int
    fan_in: int
    fan_out: int
    variance: float
    sizes: Array | None
    centred: bool

    @staticmethod
    def of(call: Call, weight: Tensor, source: Layout) -> _Kernel:
        """Read it off a call."""
        transposed, groups = call.argument("transposed"), call.argument("groups")
        sizes, outputs = source.shape[2:], tuple(call.output.shape[2:])
        window = Window(
            outputs if transposed else sizes,
            sizes if transposed else outputs,
            tuple(weight.shape[2:]),
            *(each(call.argument(name), len(sizes)) for name in ("stride", "padding", "dilation")),
        )
        # Weights are [out, in/groups, *kernel], transposed [in, out/groups, *kernel].
        first, second = weight.shape[:2]
        fan_in, fan_out = (first // groups, second) if transposed else (second, first // groups)
        variance = mean_square(weight)
        centred = not transposed and is_centred(weight.flatten(1), variance)
        return _Kernel(
            window,
            outputs,
            transposed,
            groups,
            fan_in,
            fan_out,
            variance,
            _sizes_of_taps(weight),
            centred,
        )

    def forth(self, pairs: Exchangeable, sizes: Array | None = None) -> Exchangeable:
        """Pairs of positions of the output, from those of the input; taps count by ``sizes``."""
        moved = self.window.scattered if self.transposed else self.window.gathered
        return _over_pairs(partial(moved, sizes=sizes), pairs)

    def back(self, pairs: Exchangeable) -> Exchangeable:
        """Pairs of positions of the input, from those of the output; taps count by their sizes."""
        moved = self.window.gathered if self.transposed else self.window.scattered
        return _over_pairs(partial(moved, sizes=self.sizes), pairs)

    def weighted(self, seen: Array) -> Array:
        """Products of what two taps read, ``[taps, taps]``, each by their sizes."""
        if self.sizes is None:
            return seen
        scale = np.sqrt(self.sizes).ravel()
        return np.asarray(seen * np.outer(scale, scale))


def _sizes_of_taps(weight: Tensor) -> Array | None:
    """Mean squares of taps over that of all, of the kernel's shape; None if they are alike.

    Taps differ where a part of them is masked, or all but one are zero, as in a delta-orthogonal
    kernel.
    """
    count = weight.shape[0] * weight.shape[1]
    squares = weight.detach().double().square().mean((0, 1)).cpu().numpy()
    if not squares.mean() > 0:
        return None
    sizes: Array = squares / squares.mean()
    largest = max(6 * (2 / count) ** 0.5, _UNLIKE_TAPS)
    return sizes if float(np.abs(sizes - 1).max()) > largest else None


def _over_pairs(function: Callable[[Array], Array], pairs: Exchangeable) -> Exchangeable:
    return Exchangeable(function(pairs.same), function(pairs.diff), pairs.samples)


@dataclass(frozen=True, slots=True)
class _Read:
    """What outputs read of the input.

    Args:
        pairs: Products of what two positions read, summed over taps, each by its size.
        plain: The same, each of size 1, as the weights' gradients see them.
        scatter: By how much features differ in these.
        filters: How much features differ in size behind it, where that is known.
        common: What filters that sum to zero do not see of the products.
    """

    pairs: Exchangeable
    plain: Exchangeable
    scatter: float
    filters: Filters | None
    common: Array | float = 0.0


def _read_of_data(images: Tensor, kernel: _Kernel, source: Layout) -> _Read:
    patches = _patches(images, kernel.window, kernel.groups if kernel.centred else 0)
    samples, taps = source.count("sample"), prod(kernel.window.kernel)
    plain = pairs = second_moments(patches, samples) * taps
    if kernel.sizes is not None:
        patches = patches * np.tile(np.sqrt(kernel.sizes).ravel(), patches.shape[2] // taps)
        pairs = second_moments(patches, samples) * taps
    filters = Filters.of_rows(patches.reshape(-1, patches.shape[2]))
    return _Read(pairs, plain, scatter_of_products(patches), filters)


def _read_of_moments(
    inputs: Moments, kernel: _Kernel, order: Sequence[Atom], grown: Fraction, channels: float
) -> _Read:
    """What is read of features that are independent.

    Args:
        inputs: What is known of them.
        kernel: What reads them.
        order: Their positions, as the axes of the maps have them.
        grown: How many times as many features there are as when it was traced.
        channels: That an output reads, then.
    """
    window, taps = kernel.window, prod(kernel.window.kernel)
    covariance = arranged(inputs.covariance, inputs.order, order)
    plain = pairs = kernel.forth(covariance)
    if kernel.sizes is not None:
        pairs = kernel.forth(covariance, kernel.sizes)
    filters = None
    if not kernel.transposed:
        filters = Filters.of(kernel.weighted(read_by_taps(covariance, window.places())), channels)
    # Of positions that are far apart, every tap adds products of its own.
    scatter = (inputs.scatter + float(1 / (kernel.fan_in * kernel.groups * grown))) / taps
    if not kernel.centred:
        return _Read(pairs, plain, scatter, filters)
    shared = window.members() @ inputs.mean[inputs.places(order)]
    return _Read(pairs, plain, scatter, filters, np.outer(shared, shared) / taps)


def _moments(x: Moments | Known, source: Layout) -> Moments:
    return x if isinstance(x, Moments) else measured(x.value, source)


def _layout_of_output(
    call: Call, source: Layout, sizes: Sequence[int]
) -> tuple[Layout, list[Atom]]:
    """The axes of the output, and its positions."""
    places = [Atom.new("position", size) for size in sizes]
    features = Atom.new("feature", call.output.shape[1], call.node.widening)
    maps = [(place,) if place.size > 1 else () for place in places]
    kept = [place for place in places if place.size > 1]
    return Layout((source.axes[0], (features,), *maps)), kept


def _of_own_kernel(x: Moments, pairs: Exchangeable, excess: Exchangeable) -> Gradient:
    """Second moments of a gradient that went through a kernel of every feature's own.

    Outputs that read one input have a latent in common with it, and so have their gradients: the
    part of a squared gradient that is along the latent z of the input has w(g) = z².
    """
    z, _ = latent.nodes()
    ours, theirs = pairs.mean_diagonal, excess.mean_diagonal
    weight = (ours + theirs * z**2) / (ours + theirs)
    return Gradient(pairs + excess.times(x.correlation), weight, excess)


def _patches(images: Tensor, window: Window, centred: int) -> Array:
    """What outputs read, of shape ``[N, outputs, channels and taps]``.

    Args:
        images: Of shape ``[N, C, ...]``.
        window: What outputs read.
        centred: In how many groups of channels filters sum to zero, so that they do not see what
            the pixels that they read have in common; 0 if they do not.
    """
    require_values(images)
    outputs, taps = prod(window.outputs), prod(window.kernel)
    require_few(outputs)
    large = len(images) * images.shape[1] * outputs * taps / _LARGE
    if large > 1:
        step = min(math.ceil(large), images.shape[1] // _FEWEST_CHANNELS)
        images = images if centred else images[:, :: max(1, step)]
    samples, channels = images.shape[:2]
    exact = images.detach().to("cpu", torch.float32 if large > 1 else torch.float64)
    values = window.read(exact.numpy())  # [N, C, *outputs, *kernel]
    patches = values.reshape(samples, channels, outputs, taps).swapaxes(1, 2)
    if centred:
        grouped = patches.reshape(samples, outputs, centred, -1)
        patches = grouped - grouped.mean(3, keepdims=True)
    return patches.reshape(samples, outputs, -1)


def _with_roles_by_axes(x: Moments) -> Result | None:
    """The input with channels as features and all else as positions; None if it is so already."""
    _, channels, *maps = x.layout.axes
    features = [atom for axis in maps for atom in axis if atom.role == "feature"]
    positions = [atom for atom in channels if atom.role == "position"]
    if features:
        return features_as_positions(x, features)
    if positions and len(positions) < len(channels):
        return positions_as_features(x, positions)
    return None


def _images(x: object) -> Layout:
    """The axes of the input, with its second axis as features."""
    if isinstance(x, Moments):
        if {atom.role for atom in x.layout.axes[1]} != {"feature"}:
            raise UnpredictedError("a convolution whose channels are no features")
        return x.layout
    if not isinstance(x, Known) or not x.data or x.layout is None:
        raise UnpredictedError("a convolution of a tensor whose axes were not followed")
    samples, channels, *maps = x.layout.axes
    features = tuple(Atom("feature", a.size, a.key) for a in channels)
    rest = Layout((samples, *maps)).with_open_as("position").axes
    return Layout((rest[0], features, *rest[1:])).without_short_axes()
