"""The axes of tensors that depend on the batch, and on no random weights yet."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from equipoise.instrument.recording.graph import Graph, Node
from equipoise.theory.propagation.call import Call
from equipoise.theory.propagation.layout import Atom, Layout
from equipoise.theory.propagation.values.known import Known
from equipoise.theory.propagation.values.moments import Moments

# What draws numbers that do not depend on the batch.
_DRAWN = ("randn", "rand", "normal", "uniform", "randint")
# Recurrent layers that PyTorch computes in one operation.
RECURRENT = {"mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn"}


class Axes:
    """What is known of the axes of a graph's data.

    Args:
        graph: The graph.
        are_places: Whether the rows of the batch are places of one sample, as nodes of a graph.
    """

    def __init__(self, graph: Graph, *, are_places: bool) -> None:
        self._samples, self._are_places = graph.samples, are_places
        self._rows = {graph.batch, *graph.rows}

    def add_rows_of(self, other: Axes) -> None:
        """Take lengths that the other knows as those of batches."""
        self._rows |= other._rows

    def of_known(self, call: Call, known: Sequence[Known], *, data: bool) -> Layout | None:
        """Of what an operation gives of known tensors; None where it has no axis of samples."""
        node = call.node
        shape = tuple(node.outputs[0].shape)
        layout = next(
            (leaf.layout for leaf in known if leaf.layout and leaf.layout.shape == shape), None
        )
        if node.name == "embedding" and known[1].layout is not None:
            layout = Layout((*known[1].layout.axes, (Atom.new("open", shape[-1]),)))
        if node.name == "cat" and call.argument("dim") == 0 and all(map(_are_samples, known)):
            self._rows.add(shape[0])  # such as two views of each sample
        if layout is None and node.name == "cat":
            layout = _of_joined(call, known)
        if layout is None and node.name in ("index", "index_select") and self._are_places:
            layout = _of_chosen(call)
        if layout is None and data:
            layout = self.of_output(call, node.outputs[0])
        return layout

    def of_output(self, call: Call, output: Tensor) -> Layout | None:
        """Of an output that depends on the batch, by its shape."""
        return _of_recurrent(call) or self.of_input(output)

    def of_input(self, value: Tensor) -> Layout | None:
        """Of a tensor whose first axis counts rows of the batch; None if it does not."""
        shape = tuple(value.shape)
        if not shape or shape[0] not in self._rows:
            return None
        if self._are_places:
            return Layout.of_places(shape)
        return Layout.of_batch(shape, self._samples)

    def draws_samples(self, node: Node) -> bool:
        """Whether it draws as many rows of noise as there are samples, as generators are fed."""
        shape = node.outputs[0].shape
        return node.name in _DRAWN and bool(shape) and shape[0] in self._rows


def like_the_first(call: Call) -> Layout | None:
    """The axes of a tensor that was made to be like another."""
    x = call.arguments[0] if call.arguments else None
    shape = tuple(call.node.outputs[0].shape)
    return x.layout if isinstance(x, Moments) and x.layout.shape == shape else None


def _of_recurrent(call: Call) -> Layout | None:
    """Of what a recurrent layer gives: features for the samples and steps that it was given."""
    shape = tuple(call.node.outputs[0].shape)
    given = call.arguments[0] if call.node.name in RECURRENT else None
    layout = given.layout if isinstance(given, Known | Moments) else None
    if layout is None or layout.shape[:-1] != shape[:-1]:
        return None
    return Layout((*layout.axes[:-1], (Atom.new("open", shape[-1]),)))


def _of_joined(call: Call, known: Sequence[Known]) -> Layout | None:
    """Of tensors that are joined along an axis of features, as two directions of time are."""
    layouts = [leaf.layout for leaf in known if leaf.layout is not None]
    ndim = call.node.outputs[0].ndim
    axis = call.argument("dim") % max(1, ndim)
    others = {
        tuple(tuple((atom.role, atom.size) for atom in own) for own in axes)
        for axes in (layout.axes[:axis] + layout.axes[axis + 1 :] for layout in layouts)
    }
    if len(layouts) < len(known) or len(others) != 1:
        return None
    joined = [layout.axes[axis] for layout in layouts]
    if any(atom.role != "open" for atoms in joined for atom in atoms):
        return None
    axes = layouts[0].axes
    width = call.node.outputs[0].shape[axis]
    return Layout((*axes[:axis], (Atom.new("open", width),), *axes[axis + 1 :]))


def _of_chosen(call: Call) -> Layout | None:
    """Of rows of the data that are chosen by number, such as those at the ends of edges."""
    x, shape = call.arguments[0], call.node.outputs[0].shape
    followed = isinstance(x, Known) and x.data and x.layout is not None
    return Layout.of_places(shape) if followed and shape[1:] == x.value.shape[1:] else None


def _are_samples(data: Known) -> bool:
    """Whether the first axis is that of samples alone."""
    return data.layout is not None and {a.role for a in data.layout.axes[0]} == {"sample"}
