"""Gradients that are no finite numbers, and the operation where they stop being some."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equipoise.instrument import trees
from equipoise.instrument.forward import entries_of
from equipoise.instrument.memory import pass_on_lack_of_memory
from equipoise.instrument.recording.graph import Given, Graph, Made, Node, evaluated
from equipoise.probes.record import GradientGrowth
from equipoise.records import wording
from equipoise.records.finding import Finding

_NAMES = 3
# Operations with infinite derivatives at points that models meet, and how to keep away from them.
_AT_ZERO = "add a small number before it, as in sqrt(x + 1e-6)"
_REMEDIES = {
    "sqrt": _AT_ZERO,
    "rsqrt": _AT_ZERO,
    "pow": _AT_ZERO,
    "linalg_vector_norm": "take sqrt(x.square().sum() + 1e-6)",
    "norm": "take sqrt(x.square().sum() + 1e-6)",
    "cdist": "take square roots of squared distances plus a small number",
    "_cdist_forward": "take square roots of squared distances plus a small number",
    "_euclidean_dist": "take square roots of squared distances plus a small number",
    "std": "add a small number to the variance, and take its square root",
    "log": "clamp its input from below, or take log1p or log_softmax",
    "div": "add a small number to what is divided by",
    "reciprocal": "add a small number to what is divided by",
    "acos": "clamp its input to less than 1 in size",
    "asin": "clamp its input to less than 1 in size",
    "where": "replace the bad inputs before the operation, not its results after it",
    "_linalg_eigh": "equal eigenvalues have no derivative: make the diagonal differ",
    "_linalg_svd": "equal singular values have no derivative",
}


@dataclass(frozen=True, slots=True)
class Broken:
    """Where gradients are no finite numbers.

    Args:
        names: Parameters whose gradients are; of an untraced model, layers.
        missing: Whether some are no numbers at all (nan), and not merely infinite.
        operation: Whose backward pass gives the first of them; empty if that is unknown.
        module: That it ran in; empty for the model itself.
    """

    names: tuple[str, ...] = ()
    missing: bool = False
    operation: str = ""
    module: str = ""

    def __bool__(self) -> bool:
        return bool(self.names)

    @property
    def sentence(self) -> str:
        """What follows for training, without a full stop."""
        return "Will not train: " + (
            "its gradients are nan" if self.missing else "its gradients overflow"
        )

    @property
    def words(self) -> str:
        """What is so, in a clause."""
        value = "no number (nan)" if self.missing else "infinite"
        return f"the gradient at {wording.listed(self.names, _NAMES)} is {value}"


def broken(graph: Graph | None, growth: GradientGrowth | None = None) -> Broken:
    """Find gradients that are not finite.

    Args:
        graph: A traced pass; without one the operation stays unknown.
        growth: What was measured on all batches.
    """
    squares = {} if graph is None else graph.weights
    names = tuple(name for name, square in squares.items() if not math.isfinite(square))
    if graph is not None and names:
        first = _first(graph)
        operation, module = "", ""
        if first is not None:
            operation, module = first.function or first.name, first.module
        overflows = first is not None and operation not in _REMEDIES and _overflows(first, graph)
        missing = any(math.isnan(squares[name]) for name in names) and not overflows
        return Broken(names, missing, operation, module)
    layers = () if growth is None else growth.layers
    values = {layer.layer: layer.gradient.value for layer in layers}
    names = tuple(name for name, value in values.items() if not math.isfinite(value))
    return Broken(names, any(math.isnan(values[name]) for name in names))


def conclude_broken(found: Broken) -> list[Finding]:
    """The finding about gradients that are not finite."""
    if not found:
        return []
    where = f" in {found.module!r}" if found.module else ""
    origin = (
        f" The first comes from the backward pass of {found.operation}{where}."
        if found.operation
        else ""
    )
    if found.missing or found.operation in _REMEDIES:
        known = _REMEDIES.get(found.operation, "keep its input where its derivative is finite")
        remedy = (
            f"{wording.capital(known)}."
            if found.operation
            else "torch.autograd.set_detect_anomaly(True) names the operation."
        )
    else:
        remedy = (
            "Lower the scale of the weights or of the data, or compute in a wider "
            "floating-point type."
        )
    return [
        Finding(
            "critical",
            "Gradients are no numbers (nan)" if found.missing else "Gradients overflow",
            f"{wording.capital(found.words)}.{origin} The first step of training spreads them to "
            "all weights.",
            remedy,
        )
    ]


def _first(graph: Graph) -> Node | None:
    """The operation whose backward pass gives the first derivative that is not finite."""
    weights = {name for name, square in graph.weights.items() if not math.isfinite(square)}
    for node in reversed(graph.nodes):
        if _may_break(node, graph.nodes, weights) and (
            node.function or _breaks(node, graph.nodes)
        ):
            return node
    return None  # such as a hook


def _overflows(node: Node, graph: Graph) -> bool:
    """Whether what it gives back is infinite, and nothing of it is nan as yet."""
    given = [
        gradient
        for source in node.inputs
        if isinstance(source, Made)
        for gradient in _of(source, graph.nodes)
    ]
    return bool(given) and not any(bool(gradient.isnan().any()) for gradient in given)


def _may_break(node: Node, nodes: Sequence[Node], weights: set[str]) -> bool:
    """Whether it is given finite derivatives, and an input of it has others."""
    given = [gradient for gradient in node.gradients if gradient is not None]
    return (
        bool(given)
        and all(map(_is_finite, given))
        and any(
            source.name in weights
            if isinstance(source, Given)
            else not all(map(_is_finite, _of(source, nodes)))
            for source in node.inputs
        )
    )


def _of(source: Made, nodes: Sequence[Node]) -> Iterator[Tensor]:
    gradients = nodes[source.node].gradients
    if source.index < len(gradients) and (gradient := gradients[source.index]) is not None:
        yield gradient


def _breaks(node: Node, nodes: Sequence[Node]) -> bool:
    """Whether its own backward pass gives what is not finite; no if it cannot be repeated."""
    leaves: list[Tensor] = []

    def leaf(source: Made | Given) -> Tensor:
        value = (
            nodes[source.node].outputs[source.index] if isinstance(source, Made) else source.value
        )
        value = value.detach()
        if value.is_floating_point():
            leaves.append(value := value.clone().requires_grad_())
        return value

    try:
        with torch.enable_grad():
            inside: Any = trees.replaced((Made, Given), leaf, (node.arguments, node.keywords))
            outputs = evaluated(node.operator, *inside)
            pairs = [
                (output, gradient)
                for output, gradient in zip(outputs, node.gradients, strict=False)
                if gradient is not None and output.requires_grad
            ]
            found = torch.autograd.grad(
                [output for output, _ in pairs],
                leaves,
                [gradient for _, gradient in pairs],
                allow_unused=True,
            )
    except (RuntimeError, TypeError, ValueError) as error:  # opaque, or without a derivative
        pass_on_lack_of_memory(error)
        return False
    return not all(_is_finite(gradient) for gradient in found if gradient is not None)


def _is_finite(gradient: Tensor) -> bool:
    return bool(torch.isfinite(entries_of(gradient)).all())
