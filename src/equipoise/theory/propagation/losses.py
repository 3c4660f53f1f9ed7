r"""The gradient that a loss sends back, from the law of what it is given.

A loss is a known function of random logits z. Draws of z have the predicted moments: with
:math:`z_n = R_1(\xi_n - \bar\xi) + R_2\eta`, ξ and η standard normal,

.. math:: R_1 R_1^\top = K_s - K_d, \qquad R_2 R_2^\top = (K_s + (N - 1)K_d)/N

are the covariances K_s within and K_d between N samples. The recorded operations of the loss are
run on them, on the real targets, and differentiated. That is exact for any loss but for the number
of draws, which are the same at every call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.instrument import trees
from equipoise.instrument.forward import recording_gradients
from equipoise.instrument.recording.graph import Given, Graph, Made, Node, evaluated
from equipoise.theory.propagation import latent
from equipoise.theory.propagation.call import WEIGHTED
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.values.covariances import arranged
from equipoise.theory.propagation.values.known import Known
from equipoise.theory.propagation.values.moments import Moments, Value

Array = NDArray[np.float64]

# Together draws have about this many elements.
_ELEMENTS, _FEWEST_DRAWS, _MOST_DRAWS = 20_000, 2, 32


def gradients(
    graph: Graph, values: Mapping[int, list[Value]], inputs: Mapping[Made, Moments]
) -> Iterator[dict[Made, Tensor]]:
    """Derivatives of the loss by what it is given, for one draw after another.

    Args:
        graph: The graph.
        values: What is known of the outputs of every node.
        inputs: What goes into operations that have no way back.

    Returns:
        The derivatives of each draw. There are none if weights lie between the inputs and the
        loss, or if the loss takes what is not known.
    """
    nodes = _between(graph, inputs)
    taken = {s for node in nodes for s in node.inputs if isinstance(s, Made)}
    laws = {source: law for source, law in inputs.items() if source in taken}
    inner = {node.number for node in nodes}
    constants = {
        source: value.value
        for source in taken - set(laws)
        if source.node not in inner
        and isinstance(value := values[source.node][source.index], Known)
        and not value.value.is_meta
    }
    lost = any(source.node not in inner for source in taken - set(laws) - set(constants))
    if not laws or graph.result is None or lost or any(map(_needs_theory, nodes)):
        return
    devices = {s.value.device for node in nodes for s in node.inputs if isinstance(s, Given)}
    device = next(iter(devices), torch.device("cpu"))
    generator = np.random.default_rng(0)
    size = sum(math.prod(law.layout.shape) for law in laws.values())
    for _ in range(int(np.clip(_ELEMENTS // size, _FEWEST_DRAWS, _MOST_DRAWS))):
        drawn = {
            source: torch.from_numpy(_draw(law, generator))
            .to(device, graph.nodes[source.node].outputs[source.index].dtype)
            .requires_grad_()
            for source, law in laws.items()
        }
        loss = _run(nodes, {**constants, **drawn})[graph.result]
        found = torch.autograd.grad(loss, list(drawn.values()), allow_unused=True)
        given = {source: g for source, g in zip(drawn, found, strict=True) if g is not None}
        del drawn, found, loss
        yield given


def _needs_theory(node: Node) -> bool:
    """Whether an operation multiplies with weights, or cannot be run again."""
    return node.name in WEIGHTED or isinstance(node.operator, type)


def is_mean(graph: Graph) -> bool:
    """Whether the loss is an average, so that its gradients fall as samples are added."""
    of_batch = _of_batch(graph)
    return any(
        node.name == "mean" or _reduces(node)
        for node in behind_weights(graph)
        if node.number in of_batch and _is_scalar(node)
    )


def _of_batch(graph: Graph) -> set[int]:
    """The operations that depend on the batch, not on parameters alone."""
    found: set[int] = set()
    for node in graph.nodes:
        for source in node.inputs:
            given = isinstance(source, Given) and source.kind == "data" and source.value.ndim > 0
            if given or (isinstance(source, Made) and source.node in found):
                found.add(node.number)
    return found


def behind_weights(graph: Graph) -> list[Node]:
    """The operations that no weights come after."""
    found: dict[int, Node] = {}
    left = [graph.result] if graph.result is not None else []
    while left:
        node = graph.nodes[left.pop().node]
        if node.number not in found and node.name not in WEIGHTED:
            found[node.number] = node
            left += [source for source in node.inputs if isinstance(source, Made)]
    return list(found.values())


def _is_scalar(node: Node) -> bool:
    return node.outputs[0].ndim == 0


def _reduces(node: Node) -> bool:
    """Whether a loss function of PyTorch averages, which 1 means."""
    if isinstance(node.operator, type):  # of users, without a schema
        return False
    for place, argument in enumerate(node.operator._schema.arguments):
        if argument.name == "reduction":
            given = node.arguments[place : place + 1]
            return bool((given[0] if given else argument.default_value) == 1)
    return False


def _between(graph: Graph, inputs: Mapping[Made, Moments]) -> list[Node]:
    """The operations that lead from the inputs to the loss, in order."""
    after: set[int] = set()
    for node in graph.nodes:
        sources = [source for source in node.inputs if isinstance(source, Made)]
        if Made(node.number, 0) not in inputs and any(
            source in inputs or source.node in after for source in sources
        ):
            after.add(node.number)
    before: set[int] = set()
    left = [graph.result] if graph.result is not None else []
    while left:
        number = left.pop().node
        if number in after and number not in before:
            before.add(number)
            left += [s for s in graph.nodes[number].inputs if isinstance(s, Made)]
    return [node for node in graph.nodes if node.number in before]


def _run(nodes: list[Node], values: dict[Made, Tensor]) -> dict[Made, Tensor]:
    """The outputs of operations, differentiable."""

    def tensor(source: Any) -> Tensor:
        return source.value if isinstance(source, Given) else values[source]

    with recording_gradients():
        for node in nodes:
            inputs = trees.replaced((Made, Given), tensor, (node.arguments, node.keywords))
            for index, output in enumerate(evaluated(node.operator, *inputs)):
                values[Made(node.number, index)] = output
    return values


def _draw(law: Moments, generator: np.random.Generator) -> Array:
    """One tensor of the given moments, with the axes that it was traced with."""
    layout = law.layout
    samples, features = layout.size("sample"), layout.size("feature")
    order = [atom for atom in layout.with_role("position") if atom.size > 1]
    pairs = arranged(law.correlation, law.order, order)
    own, shared = Exchangeable(pairs.same, pairs.diff, samples).blocks
    noise = generator.standard_normal((samples, law.positions, features))
    latents = _root(own) @ (noise - noise.mean(0))
    latents += _root(shared / samples) @ generator.standard_normal((law.positions, features))
    g, _ = latent.nodes()
    table = np.broadcast_to(law.table, (law.positions, len(g)))[law.places(order)]
    for position, row in enumerate(table):
        latents[:, position] = np.interp(latents[:, position], g, row)
    roles = ("sample", "position", "feature")
    atoms = [i for role in roles for i, atom in enumerate(layout.atoms) if atom.role == role]
    sizes = [layout.atoms[i].size for i in atoms]
    found: Array = latents.reshape(sizes).transpose(np.argsort(atoms)).reshape(layout.shape)
    return found


def _root(covariance: Array) -> Array:
    """A matrix whose square is the covariance."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0)))
