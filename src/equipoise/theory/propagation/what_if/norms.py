"""Another norm, or another scale, shift or ε of the one that is there."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
            f"this model has no batch, group, instance or layer norm: it has "
            f"{structure.described()}."
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


def _put(editor: Editor, node: Node, kind: str, groups: int | None) -> None:
    """Put a norm of a kind in the place of another."""
    places = _NORMS[node.name]
    x, scale, shift = (node.arguments[i] for i in (0, places.scale, places.shift))
    x, scale, shift = _before_instance_norm(editor.graph, node, x, scale, shift)
    last = node.name == "native_layer_norm"
    shape = editor.tensor(x).shape
    if last and len(node.arguments[1]) > 1:
        raise ValueError(f"{node.module} normalises {len(node.arguments[1])} axes at once.")
    channels = shape[-1 if last else 1]
    if kind == "instance" and len(shape) == 2:
        raise ValueError(f"instance norm needs positions, and {node.module} has [N, C].")
    if groups is not None and channels % groups:
        raise ValueError(f"{node.module} has {channels} channels, no multiple of {groups}.")
    function = _function(
        kind, channels, math.gcd(groups or _GROUPS, channels), node.arguments[places.eps], last
    )
    affine = [tensor for tensor in (scale, shift) if tensor is not None]

    def normalise(x: Tensor, *tensors: Tensor) -> Tensor:
        left = list(tensors)
        return function(
            x,
            left.pop(0) if scale is not None else None,
            left.pop(0) if shift is not None else None,
        )

    editor.put(node, normalise, [x, *affine])


def _before_instance_norm(
    graph: Graph, node: Node, *sources: Source | None
) -> tuple[Any, Source | None, Source | None]:
    """Images, scale and shift before instance norm made one sample of them."""
    x = sources[0]
    if not isinstance(x, Made) or graph.nodes[x.node].name not in ("view", "_unsafe_view"):
        return sources[0], sources[1], sources[2]
    before = graph.nodes[x.node].arguments[0]
    shape = Editor(graph).tensor(before).shape
    if len(shape) < 3 or node.outputs[0].shape[:2] != (1, shape[0] * shape[1]):
        return sources[0], sources[1], sources[2]
    scale, shift = (
        graph.nodes[s.node].arguments[0] if isinstance(s, Made) else s for s in sources[1:]
    )
    return before, scale, shift


Normalise = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]


def _function(kind: str, channels: int, groups: int, eps: float, last: bool) -> Normalise:
    """A norm of images ``[N, C, ...]``, or of tokens ``[N, ..., C]`` if channels are last."""

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
        x = x.movedim(-1, 1) if last else x
        if kind in ("batch", "instance"):
            act = F.batch_norm if kind == "batch" else F.instance_norm
            x = act(x, None, None, scale, shift, True, 0.1, eps)
        else:
            x = F.group_norm(x, groups if kind == "group" else 1, scale, shift, eps)
        return x.movedim(1, -1) if last else x

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
                like = editor.tensor(given).shape if given is not None else _affine_shape(node)
                arguments[place] = constant(given, like, value)
        editor.copy(node, changed=True, arguments=tuple(arguments))
    return editor.finished()


def _affine_shape(node: Node) -> tuple[int, ...]:
    if node.name == "native_layer_norm":
        return tuple(node.arguments[1])
    return (node.outputs[0].shape[1],)


def is_batch_norm(node: Node) -> bool:
    """Whether an operation normalises over samples."""
    return node.name in _NORMS and "batch_norm" in node.name and bool(node.arguments[5])
