"""Windows of a map: which positions an output position reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from equipoise.theory.propagation.call import Call
from equipoise.theory.propagation.exchangeable import kron
from equipoise.theory.propagation.layout import Atom, Layout
from equipoise.theory.propagation.values import Moments, UnpredictedError

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

    def gathered(self, pairs: Array) -> Array:
        """Sum over taps, the same for both positions of a pair."""
        pairs = pairs.reshape(self.inputs * 2)
        for axis, taps in enumerate(self._taps()):
            pairs = _along_both(pairs, axis, taps)
        return pairs.reshape(prod(self.outputs), -1)

    def scattered(self, pairs: Array) -> Array:
        """The transpose of :meth:`gathered`."""
        pairs = pairs.reshape(self.outputs * 2)
        for axis, taps in enumerate(self._taps()):
            pairs = _along_both(pairs, axis, [tap.T for tap in taps])
        return pairs.reshape(prod(self.inputs), -1)

    def tap_averages(self, inputs: Array, gradient: Array) -> float:
        """Average over taps of the sum over pairs of input times gradient."""
        total = float((self.gathered(inputs) * gradient).sum())
        return total / prod(self.kernel)

    def members(self) -> Array:
        """Which inputs are in the window of an output, of shape ``[outputs, inputs]``."""
        found: Array = np.ones((1, 1))
        for taps in self._taps():
            found = kron(found, np.asarray(sum(taps)))
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

    def maps(self, call: Call, x: Moments) -> tuple[list[Atom], Layout, list[Atom]]:
        """Positions of the input in the order of its axes; layout and positions of the output."""
        order = [atom for axis in x.layout.axes[2:] for atom in axis]
        if set(order) != set(x.order):
            raise UnpredictedError("pooling over some of the positions")
        places = [Atom.new("position", size) for size in self.outputs]
        layout = Layout(
            (*x.layout.axes[:2], *((place,) if place.size > 1 else () for place in places))
        )
        return order, layout, [place for place in places if place.size > 1]

    def _taps(self) -> list[list[Array]]:
        """For every axis and tap, the 0–1 matrix that reads inputs, ``[outputs, inputs]``."""
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
            read = np.arange(m)[:, None] * s - a
            found.append([(read + tap * d == np.arange(n)).astype(float) for tap in range(k)])
        return found


def _along_both(pairs: Array, axis: int, taps: Sequence[Array]) -> Array:
    """Apply a sum of products of one matrix with itself to one axis of either position."""
    dimensions = pairs.ndim // 2
    second = dimensions + axis
    moved = np.moveaxis(pairs, (axis, second), (-2, -1))
    total = sum(tap @ moved @ tap.T for tap in taps)
    return np.moveaxis(np.asarray(total), (-2, -1), (axis, second))


def each(value: int | Sequence[int], count: int) -> tuple[int, ...]:
    """One number for every axis."""
    values = [value] if isinstance(value, int) else list(value)
    return tuple(values * count if len(values) == 1 else values)
