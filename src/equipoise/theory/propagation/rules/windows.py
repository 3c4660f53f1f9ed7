"""Windows of a map: which positions an output position reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from equipoise.theory.propagation.call import Call
from equipoise.theory.propagation.exchangeable import kron
from equipoise.theory.propagation.layout import Atom, Layout, UnpredictedError
from equipoise.theory.propagation.values.moments import Moments

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Window:
    """Which inputs an output position reads, along every axis of the map."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def gathered(self, pairs: Array, sizes: Array | None = None) -> Array:
        """Sum over taps, the same for both positions of a pair.

        Args:
            pairs: Of the inputs.
            sizes: Factors of taps, of the kernel's shape; 1 by default.
        """
        if sizes is not None:
            return self._weighted(pairs, self.inputs, self.outputs, sizes, scatter=False)
        return self._moved(pairs, self.inputs, self.outputs, scatter=False)

    def scattered(self, pairs: Array, sizes: Array | None = None) -> Array:
        """The transpose of :meth:`gathered`."""
        if sizes is not None:
            return self._weighted(pairs, self.outputs, self.inputs, sizes, scatter=True)
        return self._moved(pairs, self.outputs, self.inputs, scatter=True)

    def read(self, values: Array) -> Array:
        """What outputs read of maps ``[..., *inputs]``: ``[..., *outputs, *kernel]``."""
        count = len(self.inputs)
        shape = (*values.shape[:-count], *self.outputs, *self.kernel)
        found = np.zeros(shape, dtype=values.dtype)
        for places in product(*(enumerate(taps) for taps in self._taps())):
            tap = tuple(number for number, _ in places)
            outs, ins = (tuple(s) for s in zip(*(slices for _, slices in places), strict=True))
            found[(..., *outs, *tap)] = values[(..., *ins)]
        return found

    def places(self) -> NDArray[np.intp]:
        """Which input an output reads by a tap, -1 for none, of shape ``[outputs, taps]``."""
        numbers = np.arange(1.0, prod(self.inputs) + 1).reshape(self.inputs)
        read = self.read(numbers).reshape(prod(self.outputs), -1)
        return read.astype(np.intp) - 1

    def members(self) -> Array:
        """Which inputs are in the window of an output, of shape ``[outputs, inputs]``."""
        found: Array = np.ones((1, 1))
        for taps, n, m in zip(self._taps(), self.inputs, self.outputs, strict=True):
            reads = np.zeros((m, n))
            for outs, ins in taps:
                reads[outs, ins] += np.eye(len(reads[outs]))
            found = kron(found, reads)
        return found

    @staticmethod
    def of_pooling(call: Call, x: Moments) -> Window:
        """The windows of a pooling operation."""
        maps = call.output.ndim - 2
        kernel = each(call.argument("kernel_size"), maps)
        stride = call.argument("stride")
        return Window(
            x.layout.shape[2:],
            tuple(call.output.shape[2:]),
            kernel,
            each(stride, maps) if stride else kernel,
            each(call.argument("padding"), maps),
            each(call.argument("dilation", 1), maps),
        )

    def _moved(
        self, pairs: Array, before: tuple[int, ...], after: tuple[int, ...], *, scatter: bool
    ) -> Array:
        """Add up taps along one axis of the map after the other."""
        count = len(before)
        pairs = pairs.reshape(before * 2)
        for axis, taps in enumerate(self._taps()):
            if taps == [(slice(0, after[axis]), slice(0, before[axis], 1))]:
                continue  # every output reads the input at its own place
            shape = list(pairs.shape)
            shape[axis] = shape[count + axis] = after[axis]
            total = np.zeros(shape)
            for outs, ins in taps:
                source, target = (outs, ins) if scatter else (ins, outs)
                total[_both(axis, count, target)] += pairs[_both(axis, count, source)]
            pairs = total
        return pairs.reshape(prod(after), -1)

    def _weighted(
        self,
        pairs: Array,
        before: tuple[int, ...],
        after: tuple[int, ...],
        sizes: Array,
        *,
        scatter: bool,
    ) -> Array:
        """Add up taps of different sizes."""
        pairs, total = pairs.reshape(before * 2), np.zeros(after * 2)
        for places in product(*(enumerate(taps) for taps in self._taps())):
            size = sizes[tuple(number for number, _ in places)]
            outs, ins = (tuple(s) for s in zip(*(slices for _, slices in places), strict=True))
            source, target = (outs, ins) if scatter else (ins, outs)
            if size:
                total[(*target, *target)] += size * pairs[(*source, *source)]
        return total.reshape(prod(after), -1)

    def _taps(self) -> list[list[tuple[slice, slice]]]:
        """For every axis and tap, which outputs read and the inputs that they read."""
        found = []
        for n, m, k, s, a, d in zip(
            self.inputs,
            self.outputs,
            self.kernel,
            self.stride,
            self.padding,
            self.dilation,
            strict=True,
        ):
            taps = []
            for shift in range(-a, k * d - a, d):  # output i reads input i s + shift
                first = max(0, -(shift // s))
                end = max(first, min(m, (n - 1 - shift) // s + 1))
                start = first * s + shift
                taps.append((slice(first, end), slice(start, start + (end - first) * s, s)))
            found.append(taps)
        return found


def maps(x: Moments, outputs: Sequence[int]) -> tuple[list[Atom], Layout, list[Atom]]:
    """Positions of the input in the order of its axes; layout and positions of the output."""
    order = [atom for axis in x.layout.axes[2:] for atom in axis]
    if set(order) != set(x.order):
        raise UnpredictedError("pooling over some of the positions")
    places = [Atom.new("position", size) for size in outputs]
    layout = Layout(
        (*x.layout.axes[:2], *((place,) if place.size > 1 else () for place in places))
    )
    return order, layout, [place for place in places if place.size > 1]


def _both(axis: int, count: int, chosen: slice) -> tuple[slice, ...]:
    """An index of pairs of positions: one range of an axis for both positions."""
    index = [slice(None)] * (2 * count)
    index[axis] = index[count + axis] = chosen
    return tuple(index)


def each(value: int | Sequence[int], count: int) -> tuple[int, ...]:
    """One number for every axis."""
    values = [value] if isinstance(value, int) else list(value)
    return tuple(values * count if len(values) == 1 else values)
