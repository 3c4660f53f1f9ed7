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

from dataclasses import replace
from fractions import Fraction
from math import prod

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from equipoise.theory.propagation import latent
from equipoise.theory.propagation.call import Call, Pulled, Result, chained, rule
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.filters import Filters, read_by_taps
from equipoise.theory.propagation.layout import Atom, Layout, UnpredictedError, times
from equipoise.theory.propagation.rules.positions import (
    features_as_positions,
    positions_as_features,
)
from equipoise.theory.propagation.rules.windows import Window, each
from equipoise.theory.propagation.tensors import (
    is_centred,
    mean_square,
    require_values,
    scatter_of_products,
    second_moments,
)
from equipoise.theory.propagation.values import (
    Gradient,
    Known,
    Moments,
    arranged,
    bias_square,
    gaussian,
    measured,
    require_few,
)

Array = NDArray[np.float64]


@rule("convolution")
def convolution(call: Call) -> Result:
    """``aten.convolution``, in one, two or three dimensions."""
    x, weight, bias = (call.argument(name) for name in ("input", "weight", "bias"))
    transposed, groups = call.argument("transposed"), call.argument("groups")
    if isinstance(x, Moments) and (moved := _with_roles_by_axes(x)) is not None:
        return chained(moved, convolution(call.with_first(moved.output)))
    if not isinstance(weight, Known) or weight.data or weight.parameter is None:
        raise UnpredictedError("a convolution with a kernel that is no weight")
    source = _images(x)
    if len(source.with_role("sample")) != 1 or any(a.role == "position" for a in source.axes[0]):
        raise UnpredictedError("a convolution over parts of a sample")
    sizes = source.shape[2:]
    kernel = tuple(weight.value.shape[2:])
    outputs = tuple(call.output.shape[2:])
    count = len(sizes)
    window = Window(
        outputs if transposed else sizes,
        sizes if transposed else outputs,
        kernel,
        *(each(call.argument(name), count) for name in ("stride", "padding", "dilation")),
    )
    variance = mean_square(weight.value)
    # Weights are [out, in/groups, *kernel], transposed [in, out/groups, *kernel].
    first, second = weight.value.shape[:2]
    fan_in, fan_out = (first // groups, second) if transposed else (second, first // groups)
    forth, back = window.gathered, window.scattered
    if transposed:
        forth, back = back, forth
    order = [atom for axis in source.axes[2:] for atom in axis]
    grown = times(source.with_role("feature"))
    wider = grown if fan_in > 1 else Fraction(1)
    centred = not transposed and is_centred(weight.value.flatten(1), variance)
    common: Array | float = 0.0
    filters = None
    if isinstance(x, Known) and not transposed:
        within = groups if centred else 0
        patches = _patches(x.value, window, within)
        read = second_moments(patches, source.count("sample")) * prod(kernel)
        scatter = scatter_of_products(patches)
        seen = np.cov(patches.reshape(-1, patches.shape[2]), rowvar=False, bias=True)
        filters = Filters.of(np.atleast_2d(seen), 1, of_data=True)
    else:
        inputs = x if isinstance(x, Moments) else measured(x.value, source)
        covariance = arranged(inputs.covariance, inputs.order, order)
        read = Exchangeable(forth(covariance.same), forth(covariance.diff), covariance.samples)
        if not transposed:
            filters = Filters.of(read_by_taps(covariance, window.places()), float(fan_in * wider))
        # Of positions that are far apart, every tap adds products of its own.
        scatter = (inputs.scatter + float(1 / (fan_in * groups * grown))) / prod(kernel)
        if centred:
            shared = window.members() @ inputs.mean[inputs.places(order)]
            common = np.outer(shared, shared) / prod(kernel)
    if centred:  # what filters of independent weights have, before they lose their mean
        free = weight.value[0].numel()
        variance *= free / (free - 1)
    noise = bias_square(bias, weight.value, wider)
    same, diff = (variance * fan_in * block for block in (read.same, read.diff))
    if centred or noise:
        rest = noise - variance * fan_in * common
        same, diff = same + rest, diff + rest
    places = [Atom.new("position", size) for size in outputs]
    layout = Layout(
        (
            source.axes[0],
            (Atom.new("feature", call.output.shape[1], call.node.widening),),
            *((place,) if place.size > 1 else () for place in places),
        )
    )
    kept = [place for place in places if place.size > 1]
    output = gaussian(layout, kept, Exchangeable(same, diff, read.samples))
    output = replace(output, scatter=scatter, filters=filters)

    # Wider layers have smaller weights, of the same variance times fan-in.
    relative = float(call.node.widening / grown)

    def pullback(gradient: Gradient) -> Pulled:
        found = [(str(weight.parameter), read.dot(gradient.pairs) / prod(kernel))]
        if not isinstance(x, Moments):
            return Pulled(weights=found)
        scale = variance * fan_out * relative * gradient.filters
        same, diff = (scale * back(block) for block in (gradient.pairs.same, gradient.pairs.diff))
        pairs = arranged(Exchangeable(same, diff, read.samples), order, x.order)
        if fan_in > 1 or transposed or gradient.excess is None:
            return Pulled([(x, Gradient(pairs))], found)
        # Correlations of outputs with an input are k times its slope over the output's size.
        met = arranged(gradient.excess.seen_by(window.members().T), order, x.order)
        slope = np.broadcast_to(latent.mean(x.table * latent.nodes()[0]), x.positions)
        size = variance**2 * gradient.filters / output.second_moment
        return Pulled([(x, _of_own_kernel(x, pairs, met.scaled(slope) * size))], found)

    return Result(output, pullback)


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
    samples, channels = images.shape[:2]
    values = window.read(images.detach().double().cpu().numpy())  # [N, C, *outputs, *kernel]
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
