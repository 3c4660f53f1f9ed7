r"""Complex numbers: rotated pairs, Fourier transforms, and products of both with fixed numbers.

What real numbers become on the way is not followed, but how: at the end, where they are real
again, the operations are run on draws of whole samples, see :mod:`..draws`. Filters that are
parameters are taken as they are, and their own gradients are not predicted.

Pairs of features that are multiplied with numbers c of each position, as rotary embeddings do,
have closed moments, as the parts of a pair are independent:

.. math:: K_{out}(p, p') = K(p, p')\,\overline{\operatorname{Re} c_p c^*_{p'}} .
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.theory.propagation import draws
from equipoise.theory.propagation.call import Call, Pulled, Result
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.layout import Atom, Axis, Layout, UnpredictedError
from equipoise.theory.propagation.rules.shape import FOLLOWED
from equipoise.theory.propagation.tensors import features_last
from equipoise.theory.propagation.values.covariances import arranged, from_covariance
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.known import Known, Unfinished
from equipoise.theory.propagation.values.moments import Moments

Array = NDArray[np.float64]

# What makes real numbers complex, and complex ones real again.
BEGINNINGS = {"view_as_complex", "_fft_r2c", "_fft_c2c"}
_ENDS = {"view_as_real", "_fft_c2r", "abs"}
_PAIR = 2


@dataclass(frozen=True, slots=True, eq=False)
class Complex(Unfinished):
    """Complex numbers that operations made of real ones.

    Args:
        source: The real numbers.
        layout: The axes.
        run: Gives their values from those of the source.
        factors: If pairs were multiplied with fixed numbers and nothing else, these.
    """

    source: Moments
    layout: Layout
    run: Callable[[Tensor], Tensor]
    factors: Tensor | None = None

    @property
    def latents(self) -> frozenset[Hashable]:
        """Of the real numbers."""
        return self.source.latents


def begun(call: Call) -> Complex:
    """Pairs as complex numbers, and transforms of real numbers."""
    x = call.arguments[0]
    if not isinstance(x, Moments):
        raise UnpredictedError(f"{call.node.name} of no moments")
    if call.node.name == "view_as_complex":
        *axes, pair = x.layout.axes
        if {atom.role for atom in pair} != {"feature"}:
            raise UnpredictedError("complex numbers of pairs that are no features")
        one = torch.ones((), dtype=torch.complex128)
        return Complex(x, Layout(tuple(axes)), _of_pairs, one)
    layout = _with_lengths(call, x.layout)
    return Complex(x, layout, partial(_transformed, call))


def _of_pairs(values: Tensor) -> Tensor:
    return torch.view_as_complex(values.contiguous())


def _transformed(call: Call, values: Tensor) -> Tensor:
    """The transform of real numbers, which may have been declared complex before."""
    complex_ones = call.node.name == "_fft_c2c"
    return _applied(call, values.to(torch.complex128) if complex_ones else values)


def carried(call: Call, value: Complex) -> Result | Complex:
    """What comes of complex numbers: other ones, or real ones.

    Raises:
        UnpredictedError: If something random beside them takes part, or the axes are lost.
    """
    name = call.node.name
    if any(isinstance(a, Moments | Complex) and a is not value for a in call.arguments):
        raise UnpredictedError("complex numbers and something random beside them")
    if any(isinstance(a, Known) and a.data for a in call.arguments):
        raise UnpredictedError("complex numbers and a part of the batch")
    layout = value.layout
    if name in FOLLOWED and name != "expand":
        layout, _ = FOLLOWED[name](call, layout)
        moves = partial(_moved, call, value, layout)
        return replace(value, layout=layout, run=moves, factors=_of_moved(call, value, layout))
    if name == "view_as_real":
        layout = Layout((*layout.axes, (Atom.new("feature", _PAIR),)))
    elif name.startswith("_fft") or name == "slice":
        layout = _with_lengths(call, layout)
    elif not call.node.is_pointwise and name != "_conj":
        raise UnpredictedError(f"{name} of complex numbers")
    if layout.shape != tuple(call.output.shape):
        raise UnpredictedError(f"{name} of complex numbers that are repeated")

    def run(values: Tensor) -> Tensor:
        return _applied(call, value.run(values))

    if name in _ENDS:
        if name == "view_as_real" and value.factors is not None:
            return _rotated(value, layout)
        return _of_draws(value.source, run, layout)
    factors = None
    if name == "mul" and value.factors is not None:
        (other,) = (a for a in call.arguments if a is not value)
        number = other.value if isinstance(other, Known) else torch.tensor(other)
        factors = value.factors * number.detach().to(torch.complex128)
    return replace(value, layout=layout, run=run, factors=factors)


def _applied(call: Call, values: Tensor) -> Tensor:
    """What the operation makes of other values than its own."""
    arguments = [
        values
        if isinstance(a, Moments | Complex)
        else (a.value.detach() if isinstance(a, Known) else a)
        for a in call.arguments
    ]
    return torch.as_tensor(call.node.operator(*arguments, **call.keywords))


def _with_lengths(call: Call, layout: Layout) -> Layout:
    """Axes whose lengths a transform, or a slice, changes."""
    dims = call.argument("dim")
    roles = {
        a.role for dim in ([dims] if isinstance(dims, int) else dims) for a in layout.axes[dim]
    }
    if "sample" in roles:
        raise UnpredictedError("a transform over samples")
    if "feature" in roles and call.node.name != "slice":
        # Its real part is even, and the imaginary part of the next one vanishes, as in FNet.
        raise UnpredictedError("a Fourier transform over features, which mixes without weights")
    axes = [
        axis if own == size else _of_length(axis, size)
        for axis, own, size in zip(layout.axes, layout.shape, call.output.shape, strict=True)
    ]
    return Layout(tuple(axes))


def _of_length(axis: Axis, size: int) -> Axis:
    roles = {atom.role for atom in axis}
    if len(roles) != 1:
        raise UnpredictedError("a transform of an axis with both positions and features")
    return (Atom.new(roles.pop(), size),) if size > 1 else ()


def _moved(call: Call, before: Complex, layout: Layout, values: Tensor) -> Tensor:
    """Axes in another order or form, of other samples than those that were traced."""
    found = before.run(values)
    if call.node.name in ("view", "_unsafe_view", "reshape", "_reshape_alias"):
        return found.reshape(_shape(layout, found.numel()))
    return _applied(call, found)


def _of_moved(call: Call, value: Complex, layout: Layout) -> Tensor | None:
    """Factors with other axes; None where they are not told apart any more."""
    if value.factors is None or value.factors.ndim == 0:
        return value.factors
    whole = value.factors.expand(value.layout.shape)
    return _applied(call, whole) if layout.shape == tuple(call.output.shape) else None


def _rotated(value: Complex, layout: Layout) -> Result:
    """Pairs of features that numbers of each position turn, and enlarge."""
    x = value.source
    assert value.factors is not None
    whole = value.factors.expand(value.layout.shape)
    order = [atom for atom in value.layout.with_role("position") if atom.size > 1]
    real, imaginary = (
        features_last(part, value.layout.without_short_axes())[0]
        for part in (whole.real, whole.imag)
    )
    turn = (real @ real.T + imaginary @ imaginary.T) / real.shape[1]
    turns = arranged(Exchangeable(turn, turn, x.correlation.samples), order, x.order)
    size = (real - imaginary).mean(1)[x.places(order).argsort()]
    covariance = x.covariance.times(turns)
    mean = x.mean * (size if x.mean.any() else 0.0)
    output = from_covariance(layout, x.order, covariance, mean).made_of(x)
    output = replace(output, scatter=x.scatter)
    return Result(output, lambda g: Pulled([(x, Gradient(g.pairs.times(turns), g.weight))]))


def _of_draws(x: Moments, run: Callable[[Tensor], Tensor], layout: Layout) -> Result:
    """What is known of real numbers that were made of draws of whole samples."""
    if draws.of_the_loss.get():
        raise UnpredictedError("complex numbers that the loss takes")
    order = [atom for atom in layout.with_role("position") if atom.size > 1]
    batches = draws.DRAWS // max(x.layout.size("feature"), layout.size("feature"))
    if not batches:
        raise UnpredictedError(f"a transform beside more than {draws.DRAWS} features")

    def function(rows: Tensor) -> Tensor:
        values = run(_samples_of(rows, x.layout, x.order, batches))
        return _rows_of(values, layout, order, batches)

    output = draws.combined((x,), function, layout, order)
    return Result(output, lambda gradient: Pulled(draws.pulled_back(output, gradient)))


def _shape(layout: Layout, elements: int) -> list[int]:
    """The shape with as many samples as there are elements for."""
    traced = layout.size("sample")
    samples = elements * traced // prod(layout.shape)
    return [
        prod(samples if atom.role == "sample" else atom.size for atom in axis)
        for axis in layout.axes
    ]


def _samples_of(rows: Tensor, layout: Layout, order: Sequence[Atom], batches: int) -> Tensor:
    """Draws of single features, two samples each, as a tensor of whole samples."""
    features = layout.with_role("feature")
    count = layout.size("feature")
    pairs = rows.reshape(draws.DRAWS, 2, -1)[: batches * count]
    whole = pairs.reshape(batches, count, 2, -1).transpose(1, 2)
    (sample,) = layout.with_role("sample")
    given = [sample, *features, *order]
    sizes = [2 * batches, *(atom.size for atom in given[1:])]
    wanted = [given.index(atom) for atom in layout.atoms if atom in given]
    found = whole.reshape(sizes).permute(wanted)
    return found.reshape(_shape(layout, found.numel()))


def _rows_of(values: Tensor, layout: Layout, order: Sequence[Atom], batches: int) -> Tensor:
    """The inverse of :func:`_samples_of`; draws are repeated if there are too few."""
    sizes = [2 * batches if atom.role == "sample" else atom.size for atom in layout.atoms]
    atoms: list[Any] = list(layout.atoms)
    wanted = [*layout.with_role("sample"), *layout.with_role("feature"), *order]
    rest = [atom for atom in atoms if atom not in wanted]  # of length 1
    whole = values.reshape(sizes).permute([atoms.index(atom) for atom in [*wanted, *rest]])
    count = layout.size("feature")
    pairs = whole.reshape(batches, 2, count, -1).transpose(1, 2)
    rows = pairs.reshape(batches * count, 2, -1)
    return rows[torch.arange(draws.DRAWS) % len(rows)].flatten(0, 1)
