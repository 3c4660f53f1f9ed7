"""Another norm, or another scale, shift or ε of the one that is there."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.instrument.recording.graph import Graph, Made, Node
from equipoise.theory.propagation.what_if.editor import Editor, Source, constant
from equipoise.theory.propagation.what_if.structure import Structure

# Wu and He 2018, section 4: 32 groups, their default.
_GROUPS = 32
KINDS = ("batch", "group", "instance", "layer", "rms", "none")


@dataclass(frozen=True, slots=True)
class _Places:
    """Where an operation has its arguments."""

    scale: int
    shift: int
    eps: int


_NORMS = {
    **dict.fromkeys(
        ("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"), _Places(1, 2, 7)
    ),
    "native_group_norm": _Places(1, 2, 7),
    "native_layer_norm": _Places(2, 3, 4),
}


def _norms(graph: Graph) -> list[Node]:
    structure = Structure(graph)
    found = [n for n in graph.nodes if n.name in _NORMS and structure.has_data(n.arguments[0])]
    if not found:
        raise ValueError(
            "this model has no batch, group, instance or layer norm that is one operation (an RMS "
            f"norm is several): it has {structure.described()}."
        )
    return found


def with_norm(graph: Graph, kind: str, groups: int | None) -> Graph:
    """Replace every norm; its scale, shift and ε are kept."""
    if kind not in KINDS:
        raise ValueError(f"no norm {kind!r}: there are {', '.join(KINDS)}.")
    if groups is not None and kind != "group":
        raise ValueError(f"groups are those of norm='group', not of norm={kind!r}.")
    found = {node.number for node in _norms(graph)}
    editor = Editor(graph)
    for node in graph.nodes:
        if node.number in found:
            _put(editor, node, kind, groups)
        else:
            editor.copy(node)
    return editor.finished()


@dataclass(frozen=True, slots=True)
class _Norm:
    """One norm, as a layer of the model takes and gives tensors.

    Args:
        module: Name of the layer.
        x: Its input.
        scale: γ, if it has one.
        shift: β, if it has one.
        eps: ε.
        shape: Of the input.
        last: Whether channels are its last axis, and not its second.
    """

    module: str
    x: Source
    scale: Source | None
    shift: Source | None
    eps: float
    shape: tuple[int, ...]
    last: bool

    @property
    def channels(self) -> int:
        """C."""
        return self.shape[-1 if self.last else 1]

    @staticmethod
    def of(graph: Graph, node: Node) -> _Norm:
        """Read the arguments of an operation."""
        places = _NORMS[node.name]
        x, scale, shift, eps = (
            node.arguments[i] for i in (0, places.scale, places.shift, places.eps)
        )
        layer = node.name == "native_layer_norm"
        if layer and len(node.arguments[1]) > 1:
            raise ValueError(f"{node.module} normalises {len(node.arguments[1])} axes at once.")
        shape = tuple(node.outputs[0].shape)
        found = _Norm(node.module, x, scale, shift, eps, shape, layer or len(shape) == 2)
        images = _viewed(graph, x)
        # Instance norm makes one sample with NC channels, and repeats scale and shift N times.
        if images is not None and shape[:2] == (1, images[1][0] * images[1][1]):
            scale, shift = (_repeated(graph, source) for source in (scale, shift))
            x, shape = images
            found = replace(found, x=x, scale=scale, shift=shift, shape=shape)
        return found


def _viewed(graph: Graph, source: Source) -> tuple[Source, tuple[int, ...]] | None:
    """The images that a tensor is a view of, and their shape."""
    if not isinstance(source, Made) or graph.nodes[source.node].name != "view":
        return None
    before = graph.nodes[source.node].arguments[0]
    if not isinstance(before, Made):
        return None
    shape = tuple(graph.nodes[before.node].outputs[before.index].shape)
    return (before, shape) if len(shape) > 2 else None


def _repeated(graph: Graph, source: Source | None) -> Source | None:
    """What a tensor repeats."""
    if not isinstance(source, Made):
        return source
    found: Source = graph.nodes[source.node].arguments[0]
    return found


def _put(editor: Editor, node: Node, kind: str, groups: int | None) -> None:
    """Put a norm of a kind in the place of another."""
    norm = _Norm.of(editor.graph, node)
    if kind == "instance" and len(norm.shape) == 2:
        raise ValueError(f"instance norm needs positions, and {norm.module} has [N, C].")
    if groups is not None and norm.channels % groups:
        raise ValueError(f"{norm.module} has {norm.channels} channels, no multiple of {groups}.")
    function = _function(kind, norm, math.gcd(groups or _GROUPS, norm.channels))
    editor.put(node, function, [norm.x, norm.scale, norm.shift])


Normalise = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]


def _function(kind: str, norm: _Norm, groups: int) -> Normalise:
    """A norm of images ``[N, C, ...]``, or of tokens ``[N, ..., C]`` if channels are last."""
    channels, eps, last = norm.channels, norm.eps, norm.last

    def normalise(x: Tensor, scale: Tensor | None, shift: Tensor | None) -> Tensor:
        if kind == "none":
            return x
        if kind == "rms" or (kind == "layer" and last):
            x = x if last else x.movedim(1, -1)
            if kind == "rms":
                x = F.rms_norm(x, [channels], scale, eps)
            else:
                x = F.layer_norm(x, [channels], scale, shift, eps)
            return x if last else x.movedim(-1, 1)
        moved = last and x.ndim > 2
        x = x.movedim(-1, 1) if moved else x
        if kind in ("batch", "instance"):
            act = F.batch_norm if kind == "batch" else F.instance_norm
            x = act(x, None, None, scale, shift, True, 0.1, eps)
        else:
            x = F.group_norm(x, groups if kind == "group" else 1, scale, shift, eps)
        return x.movedim(1, -1) if moved else x

    return normalise


def with_affine(
    graph: Graph, *, gamma: float | None, beta: float | None, eps: float | None
) -> Graph:
    """Give every norm one scale γ, one shift β or an ε."""
    if eps is not None and not eps >= 0:
        raise ValueError(f"eps must not be negative, got {eps}.")
    found = {node.number for node in _norms(graph)}
    editor = Editor(graph)
    for node in graph.nodes:
        if node.number not in found:
            editor.copy(node)
            continue
        places = _NORMS[node.name]
        arguments = list(node.arguments)
        if eps is not None:
            arguments[places.eps] = eps
        for place, value in ((places.scale, gamma), (places.shift, beta)):
            if value is not None:
                given = arguments[place]
                like = _like_channels(node) if given is None else editor.tensor(given)
                arguments[place] = constant(given, like, value)
        editor.copy(node, changed=True, arguments=tuple(arguments))
    return editor.finished()


def _like_channels(node: Node) -> Tensor:
    """A tensor of the shape that scale and shift would have."""
    layer = node.name == "native_layer_norm"
    output = node.outputs[0]
    return torch.empty(node.arguments[1] if layer else output.shape[1], dtype=output.dtype)


def is_batch_norm(node: Node) -> bool:
    """Whether an operation normalises over samples."""
    return node.name in _NORMS and "batch_norm" in node.name and bool(node.arguments[5])
