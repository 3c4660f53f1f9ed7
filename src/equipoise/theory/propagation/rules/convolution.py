r"""Convolutions, with the borders that padding makes.

With taps δ, stride s, padding a and dilation d, position r of the output reads
:math:`r s + \delta d - a`:

.. math:: K_{out}(r, r') = v\,C \sum_\delta K_{in}(rs + \delta d - a,\; r's + \delta d - a) + v_b,

where positions outside the map have K = 0; the way back is its transpose. Exact as C grows,
borders included. Source: Xiao et al. 2018 (arXiv:1806.05393) for circular padding.
"""

from __future__ import annotations

from math import prod

import numpy as np

from equipoise.theory.propagation.call import Call, Pulled, Result, rule
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.layout import Atom, Layout
from equipoise.theory.propagation.rules.windows import Window, each
from equipoise.theory.propagation.values import (
    Gradient,
    Known,
    Moments,
    UnpredictedError,
    arranged,
    gaussian,
    is_centred,
    mean_square,
    measured,
)


@rule("convolution")
def convolution(call: Call) -> Result:
    """``aten.convolution``, in one, two or three dimensions."""
    x, weight, bias = (call.argument(name) for name in ("input", "weight", "bias"))
    transposed, groups = call.argument("transposed"), call.argument("groups")
    if not isinstance(weight, Known) or weight.data or weight.parameter is None:
        raise UnpredictedError("a convolution with a kernel that is no weight")
    source = _images(x)
    maps = [axis[0] if axis else Atom.new("position", 1) for axis in source.layout.axes[2:]]
    if any(len(axis) > 1 for axis in source.layout.axes[2:]):
        raise UnpredictedError("a convolution over an axis that was put together from two")
    samples = len(source.layout.with_role("sample"))
    if samples != 1 or any(a.role == "position" for a in source.layout.axes[0]):
        raise UnpredictedError("a convolution over parts of a sample")
    order = [atom for atom in maps if atom.size > 1]
    covariance = arranged(source.covariance, source.order, order)
    sizes = tuple(atom.size for atom in maps)
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
    common = np.zeros(())
    if not transposed and is_centred(weight.value.flatten(1)):
        shared = window.members() @ source.mean[source.places(order)]
        common = np.outer(shared, shared) / prod(kernel)
    noise = mean_square(bias.value) if isinstance(bias, Known) else 0.0
    same, diff = (
        variance * fan_in * (forth(block) - common) + noise
        for block in (covariance.same, covariance.diff)
    )
    places = [Atom.new("position", size) for size in outputs]
    layout = Layout(
        (
            source.layout.axes[0],
            (Atom.new("feature", call.output.shape[1]),),
            *((place,) if place.size > 1 else () for place in places),
        )
    )
    output = gaussian(
        layout,
        [place for place in places if place.size > 1],
        Exchangeable(same, diff, covariance.samples),
    )

    def pullback(gradient: Gradient) -> Pulled:
        scale = variance * fan_out
        pairs = Exchangeable(
            scale * back(gradient.pairs.same),
            scale * back(gradient.pairs.diff),
            covariance.samples,
        )
        N = covariance.samples
        inner, outer = (covariance, gradient.pairs)
        if transposed:
            inner, outer = outer, inner
        size = N * window.tap_averages(inner.same, outer.same)
        size += N * (N - 1) * window.tap_averages(inner.diff, outer.diff)
        found = [(str(weight.parameter), size)]
        if not isinstance(x, Moments):
            return Pulled(weights=found)
        return Pulled([(x, Gradient(arranged(pairs, order, source.order)))], found)

    return Result(output, pullback)


def _images(x: object) -> Moments:
    """The input, with its second axis as features."""
    if isinstance(x, Moments):
        if [atom.role for atom in x.layout.axes[1]] != ["feature"]:
            raise UnpredictedError("a convolution whose channels are no features")
        return x
    if not isinstance(x, Known) or not x.data or x.layout is None:
        raise UnpredictedError("a convolution of a tensor whose axes were not followed")
    samples, channels, *maps = x.layout.axes
    features = tuple(Atom("feature", a.size, a.key) for a in channels)
    rest = Layout((samples, *maps)).with_open_as("position").axes
    return measured(x.value, Layout((rest[0], features, *rest[1:])))
