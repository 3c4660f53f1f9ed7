r"""Rows of the batch that are chosen by number, and added up: tokens of one expert, edges.

A row is a sample, or a sample's position. Chosen rows are samples of their own, with what rows
have on average: of N samples with T positions each,

.. math:: K_{same} = \overline{K(t, t)}, \qquad
          K_{diff} = \overline{K(r, r')} \text{ over pairs of two rows},

whoever chose them. A row that is chosen :math:`c_r` times gets :math:`c_r` gradients,

.. math:: \Pi_{in}(r, r) = \bar c\,\Pi_{same} + \overline{c(c - 1)}\,\Pi_{diff}, \qquad
          \Pi_{in}(r, r') = \bar c^2\,\Pi_{diff} ,

and where rows are added to others by number, K goes the one way and Π the other.

Rows that are added up by numbers of the data, as messages to the nodes of a graph, are positions
of one sample instead (:func:`rows_of_a_graph`): both steps are matrices that are known, and
moments are exact for this graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.instrument.recording.graph import Given, Graph, Made
from equipoise.theory.propagation import latent
from equipoise.theory.propagation.call import Call, Pulled, Result, chained, rule
from equipoise.theory.propagation.exchangeable import Exchangeable, kron
from equipoise.theory.propagation.layout import Atom, Axis, Layout, UnpredictedError
from equipoise.theory.propagation.rules.arithmetic.sums import add
from equipoise.theory.propagation.rules.positions.matrices import mapped
from equipoise.theory.propagation.values.covariances import arranged, from_covariance
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.known import Known
from equipoise.theory.propagation.values.moments import Moments

Array = NDArray[np.float64]

# Of larger graphs, pairs of rows would take too long.
MOST_PLACES = 2048
MANY_ROWS = f"sums by number over a graph of more than {MOST_PLACES:,} rows, or of other rows"


@rule("index")
def index(call: Call) -> Result:
    """``x[numbers]``, for numbers of rows."""
    return _chosen(call.arguments[0], call.argument("indices"))


@rule("index_select")
def index_select(call: Call) -> Result:
    """The same along one axis, as libraries for graphs write it."""
    x, axis = call.arguments[0], call.argument("dim")
    if not isinstance(x, Moments):
        raise UnpredictedError("rows of no moments")
    before = [None] * (axis % len(x.layout.axes))
    return _chosen(x, [*before, call.argument("index")])


def _chosen(x: object, given: Sequence[Any]) -> Result:
    """Elements by numbers along some axes, None along all others."""
    chosen = [i for i, numbers in enumerate(given) if numbers is not None]
    if not isinstance(x, Moments) or not all(isinstance(given[i], Known) for i in chosen):
        raise UnpredictedError("elements that are chosen by random numbers")
    if chosen != list(range(chosen[0], chosen[-1] + 1)):
        raise UnpredictedError(
            "elements that are chosen along axes that are not next to each other"
        )
    axis, numbers = chosen[0], given[chosen[0]].value
    mask = numbers.dtype is torch.bool
    axes = list(x.layout.axes)
    taken = axes[axis : axis + (numbers.ndim if mask else len(chosen))]  # a mask may have several
    if len(chosen) > 1:
        numbers, mask = _of_several_axes([given[i].value for i in chosen], x, axis), False
    atoms = [atom for own in taken for atom in own]
    if are_places(atoms) and not any(given[i].others for i in chosen):
        numbers = numbers.flatten().nonzero()[:, 0] if mask else numbers
        return at_places(x, axis, len(taken), numbers)
    roles = {atom.role for atom in atoms}
    plain = mask or numbers.ndim == 1
    if "sample" not in roles or "feature" in roles or not plain or numbers.is_meta:
        raise UnpredictedError("elements that are chosen by number, and are no rows of the batch")
    (sample,) = x.layout.with_role("sample")
    rows = sample.size * prod(atom.size for atom in x.order if atom in atoms)
    numbers = numbers.flatten().nonzero()[:, 0] if mask else numbers % rows
    return rows_by_number(x, axis, numbers, len(taken))


def rows_by_number(x: Moments, axis: int, numbers: Tensor, count: int = 1) -> Result:
    """Rows of the batch, by numbers along some axes of samples and positions."""
    axes = list(x.layout.axes)
    taken = axes[axis : axis + count]
    atoms = [atom for own in taken for atom in own]
    (sample,) = x.layout.with_role("sample")
    pooled = [atom for atom in x.order if atom in atoms]
    kept = [atom for atom in x.order if atom not in atoms]
    T = prod(atom.size for atom in pooled)
    axes[axis : axis + len(taken)] = [(Atom.new("sample", len(numbers), sample.times),)]
    layout = Layout(tuple(axes))
    ordered = arranged(x.covariance, x.order, [*pooled, *kept])
    covariance = _of_rows(ordered, T, layout.count("sample"))
    mean = x.mean[x.places([*pooled, *kept])].reshape(T, -1).mean(0)
    output = from_covariance(layout, kept, covariance, mean, _shape(x)).made_of(x)
    counts = torch.bincount(numbers, minlength=sample.size * T).double()
    once, again = float(counts.mean()), float((counts * (counts - 1)).mean())

    def pullback(gradient: Gradient) -> Pulled:
        pairs, eye, ones = gradient.pairs, np.eye(T), np.ones((T, T))
        others = pairs.diff * once**2
        own = pairs.same * once + pairs.diff * again
        same = kron(eye, own) + kron(ones - eye, others)
        whole = Exchangeable(same, kron(ones, others), x.correlation.samples)
        back = arranged(whole, [*pooled, *kept], x.order)
        return Pulled([(x, Gradient(back, gradient.weight))])

    return Result(output, pullback)


def _of_several_axes(numbers: Sequence[Tensor], x: Moments, axis: int) -> Tensor:
    """Numbers of elements, from those along every axis."""
    if any(one.dtype is torch.bool or one.is_meta for one in numbers):
        raise UnpredictedError("elements that are chosen by several masks")
    found = torch.zeros((), dtype=torch.long)
    for one, length in zip(numbers, x.layout.shape[axis:], strict=False):
        found = found * length + one.detach().cpu() % length
    return found


def are_places(atoms: Sequence[Atom]) -> bool:
    """Whether an axis is one of positions; a batch of one is no other axis."""
    return bool(atoms) and all(
        atom.role == "position" or (atom.role == "sample" and atom.size == 1) for atom in atoms
    )


def at_places(x: Moments, axis: int, count: int, numbers: Tensor) -> Result:
    """The elements at some places of axes of positions, by numbers that are the same for all."""
    if numbers.is_meta:
        raise UnpredictedError("elements that are chosen by numbers before the change")
    taken, rest, own = _apart(x, axis, count)
    size = prod(atom.size for atom in taken)
    chosen = (numbers.detach().cpu().flatten() % size).numpy()
    matrix = np.zeros((len(chosen), size))
    matrix[np.arange(len(chosen)), chosen] = 1
    found = [Atom.new("position", length) for length in numbers.shape]
    axes = _replaced(x, axis, count, found, own)
    places = [*rest, *(atom for atom in found if atom.size > 1)]
    whole = kron(np.eye(x.positions // size), matrix)
    return mapped(x, [*rest, *taken], whole, Layout(tuple(axes)), places)


def _apart(x: Moments, axis: int, count: int) -> tuple[list[Atom], list[Atom], Axis]:
    """The positions of some axes, all others, and the sample that stands beside them."""
    atoms = [atom for own in x.layout.axes[axis : axis + count] for atom in own]
    taken = [atom for atom in atoms if atom.role == "position" and atom.size > 1]
    rest = [atom for atom in x.order if atom not in taken]
    return taken, rest, tuple(atom for atom in atoms if atom.role == "sample")


def _replaced(x: Moments, axis: int, count: int, found: Sequence[Atom], own: Axis) -> list[Axis]:
    """The axes of a tensor, with others in place of some."""
    new: list[Axis] = [(atom,) if atom.size > 1 else () for atom in found]
    axes = list(x.layout.axes)
    if own and not new:
        raise UnpredictedError("one row of the only sample")
    if own:
        new[0] = (*own, *new[0])
    axes[axis : axis + count] = new
    return axes


# What adds rows to those of another tensor, and where among its arguments the numbers stand.
ADDING = {
    "index_add": "index",
    "scatter_add": "index",
    "scatter_reduce": "index",
    "index_put": "indices",
    "_index_put_impl": "indices",
    "index_copy": "index",
}


@rule(*ADDING)
def added(call: Call) -> Result:
    """What is added to rows of another tensor, or takes their place, by numbers of the rows."""
    name = call.node.name
    source = call.argument({"scatter_add": "src", "scatter_reduce": "src"}.get(name, "source"))
    if "index_put" in name:
        source = call.argument("values")
    into, dim, numbers = call.argument("self"), call.argument("dim", 0), _numbers(call)
    if isinstance(into, Moments) and isinstance(source, Known) and not source.value.numel():
        return Result(
            into.with_layout(into.layout, {}), lambda gradient: Pulled([(into, gradient)])
        )
    if not isinstance(source, Moments) or numbers.value.is_meta:
        raise UnpredictedError(f"{name} of no moments, or by numbers before the change")
    if call.argument("alpha", 1) != 1 or call.argument("reduce", "sum") not in ("sum", "mean"):
        raise UnpredictedError(f"{name} that is not a sum or a mean")
    axis = dim % call.output.ndim
    given = numbers.value.detach().cpu()
    mask = given.dtype is torch.bool
    several = given.ndim if mask else 1
    count = prod(call.output.shape[axis : axis + several])
    rows = given.flatten().nonzero()[:, 0] if mask else given % count
    counts = torch.bincount(rows, minlength=count).double().numpy()
    scale = np.ones(len(rows))
    if call.argument("reduce", "sum") == "mean":
        scale = 1 / (counts[rows.numpy()] + bool(call.argument("include_self")))
    replaces = name == "index_copy" or ("index_put" in name and not call.argument("accumulate"))
    if replaces and counts.max(initial=0) > 1:
        raise UnpredictedError(f"{name} of several rows in place of one")
    keeps = not (isinstance(into, Known) and not into.value.is_meta and not into.value.any())
    if keeps and (name == "index_copy" or call.argument("reduce", "sum") == "mean"):
        raise UnpredictedError(f"{name} among rows that are not zero")
    if several == 1 and are_places(source.layout.axes[axis]) and not numbers.others:
        result = _to_places(source, axis, call.output.shape[axis], rows, scale)
    else:
        rows_of_all = _rows_of(into, source, axis, several)
        if counts.max(initial=0) > 1 and not numbers.others:
            raise UnpredictedError(MANY_ROWS)  # those that meet are more alike than others
        result = _to_rows(source, axis, counts, rows_of_all, scale)
    if not keeps:
        return result
    total = chained(result, add(replace(call, arguments=(into, result.output), keywords={})))
    if not replaces:
        return total

    def pullback(gradient: Gradient) -> Pulled:
        # What was there, zeros, gets no gradient.
        assert total.pullback is not None
        pulled = total.pullback(
            replace(gradient, pairs=gradient.pairs * (1 / gradient.rows), rows=1.0)
        )
        left = max(gradient.rows - float(counts.mean()), 1e-12)
        inputs = [
            (x, Gradient(g.pairs * left, g.weight, rows=left) if x is into else g)
            for x, g in pulled.inputs
        ]
        return Pulled(inputs, pulled.weights)

    return replace(total, pullback=pullback)


def _numbers(call: Call) -> Known:
    """The numbers of the rows that something is added to."""
    given = call.argument(ADDING[call.node.name])
    if isinstance(given, list | tuple):
        if len(given) != 1:
            raise UnpredictedError(f"{call.node.name} along several axes")
        (given,) = given
    if not isinstance(given, Known):
        raise UnpredictedError(f"{call.node.name} by random numbers")
    numbers = given.value
    if call.node.name.startswith("scatter"):
        axis = call.argument("dim") % numbers.ndim
        numbers = numbers.movedim(axis, 0).flatten(1)
        if not bool((numbers == numbers[:, :1]).all()):
            raise UnpredictedError(f"{call.node.name} of features to rows of their own")
        numbers = numbers[:, 0]
    if numbers.ndim != 1 and numbers.dtype is not torch.bool:
        raise UnpredictedError(f"{call.node.name} along several axes")
    return replace(given, value=numbers)


def _rows_of(into: object, source: Moments, axis: int, several: int) -> Sequence[Axis]:
    """The axes that count samples and their positions."""
    layout = into.layout if isinstance(into, Known | Moments) else None
    axes = list(layout.axes[axis : axis + several]) if layout is not None else []
    atoms = [atom for own in axes for atom in own]
    if {atom.role for atom in source.layout.axes[axis]} != {"sample"}:
        raise UnpredictedError("a sum by numbers of what are no rows of the batch")
    if not any(atom.role == "sample" for atom in atoms) or any(a.role == "feature" for a in atoms):
        raise UnpredictedError("sums of rows, to rows that were not followed to here")
    return Layout(tuple(axes)).with_open_as("position").axes


def _to_places(source: Moments, axis: int, count: int, rows: Tensor, scale: Array) -> Result:
    """Positions that are added to others, by numbers of the data."""
    taken, rest, own = _apart(source, axis, 1)
    matrix = np.zeros((count, len(rows)))
    np.add.at(matrix, (rows.numpy(), np.arange(len(rows))), scale)
    place = Atom.new("position", count)
    layout = Layout(tuple(_replaced(source, axis, 1, [place], own)))
    whole = kron(np.eye(source.positions // len(rows)), matrix)
    places = [*rest, place] if place.size > 1 else rest
    return mapped(source, [*rest, *taken], whole, layout, places)


def _to_rows(
    source: Moments, axis: int, counts: Array, rows: Sequence[Axis], scale: Array
) -> Result:
    """Rows that are added to those of the batch, whoever they are.

    Elements of the rows know nothing of others that these are made of.
    """
    pooled = [atom for own in rows for atom in own]
    T = prod(atom.size for atom in pooled if atom.role == "position")
    once, again = float(counts.mean()), float((counts * (counts - 1)).mean())
    once, again = once * float(scale.mean()), again * float((scale**2).mean())
    size = once * float((scale**2).mean()) / float(scale.mean())
    axes = list(source.layout.axes)
    axes[axis : axis + 1] = rows
    layout = Layout(tuple(axes))
    places = [atom for atom in pooled if atom.role == "position" and atom.size > 1]
    K, eye, ones = source.covariance, np.eye(T), np.ones((T, T))
    own, others = K.same * size + K.diff * again, K.diff * once**2
    same = kron(eye, own) + kron(ones - eye, others)
    whole = Exchangeable(same, kron(ones, others), layout.count("sample"))
    mean = np.tile(source.mean * once, T)
    output = from_covariance(layout, [*places, *source.order], whole, mean)
    output = replace(output, others=source.made_by)
    taken = source.correlation.samples

    def pullback(gradient: Gradient) -> Pulled:
        found = _of_rows(gradient.pairs * (1 / gradient.rows), T, taken)
        square, mean = float((scale**2).mean()), float(scale.mean())
        sizes = Exchangeable(found.same * square, found.diff * mean**2, taken)
        return Pulled([(source, Gradient(sizes))])

    return Result(output, pullback)


def rows_of_a_graph(graph: Graph) -> int:
    """How many rows there are where what weights made is added up by numbers of the data.

    Such as messages between the nodes of a graph: then rows are no samples that are alike, as each
    has neighbours of its own. 0 where nothing is added up so.
    """
    of_weights: set[int] = set()
    most, adds = 0, False
    for node in graph.nodes:
        if any(_is_of_weights(source, of_weights) for source in node.inputs):
            of_weights.add(node.number)
        if node.number not in of_weights or node.name not in {*ADDING, "index", "index_select"}:
            continue
        sizes = [_value(graph, source).shape[:1] for source in node.inputs]
        most = max([most, *(size[0] for size in [*sizes, node.outputs[0].shape[:1]] if size)])
        if node.name in ADDING:
            numbers = node.arguments[1 if "put" in node.name else 2]
            numbers = numbers[0] if isinstance(numbers, list | tuple) else numbers
            first = "put" in node.name or node.arguments[1] % node.outputs[0].ndim == 0
            adds |= (
                first
                and isinstance(numbers, Made | Given)
                and not _is_of_weights(numbers, of_weights)
            )
    return most if adds else 0


def _is_of_weights(source: Given | Made, of_weights: set[int]) -> bool:
    return source.node in of_weights if isinstance(source, Made) else source.kind == "parameter"


def _value(graph: Graph, source: Given | Made) -> Tensor:
    if isinstance(source, Given):
        return source.value
    return graph.nodes[source.node].outputs[source.index]


def _of_rows(pairs: Exchangeable, count: int, taken: int) -> Exchangeable:
    """Averages over one row, and over pairs of two, where T positions and samples are rows.

    Args:
        pairs: Positions that become rows come first.
        count: T.
        taken: How many rows are chosen.
    """
    N = pairs.samples
    same, diff = (
        block.reshape(count, -1, count, len(block) // count) for block in (pairs.same, pairs.diff)
    )
    own = np.einsum("tatb->ab", same) / count
    within, between = same.sum((0, 2)) - own * count, diff.sum((0, 2))
    total = count * (count - 1) + (N - 1) * count**2
    return Exchangeable(own, (within + (N - 1) * between) / max(1, total), taken)


def _shape(x: Moments) -> Array | None:
    """The law of standardised elements; None if it is Gaussian."""
    if x.gaussian:
        return None
    centred = x.typical - latent.mean(x.typical)
    return np.asarray(centred / np.sqrt(latent.mean(centred**2)))
