"""A block that is repeated, more or fewer times.

Two operations are alike if they do the same to inputs of the same shapes, from where each is
reached by the same number of steps, or that are the same tensors. Blocks are the longest stretch
of operations that is alike when shifted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import takewhile
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils import _pytree as pytree

from equipoise.instrument import trees
from equipoise.instrument.recording.graph import Given, Graph, Made, Node, without_values
from equipoise.theory.propagation.call import OF_SHAPES
from equipoise.theory.propagation.what_if.editor import Source, edited
from equipoise.theory.propagation.what_if.structure import Structure

Move: TypeAlias = Callable[[Node, int, Source, int], Source]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Equal stretches of operations, one after the other.

    Args:
        end: Number of the operation after the last block.
        period: Operations of a block.
        count: Number of blocks.
        tail: How many operations after them begin as another block would.
    """

    end: int
    period: int
    count: int
    tail: int

    @property
    def last(self) -> range:
        """Numbers of the operations of the last block."""
        return range(self.end - self.period, self.end)


def prevailing_blocks(graph: Graph) -> Blocks | None:
    """The repeated block that makes up most of the network; None if none does."""
    try:
        blocks = _found(graph, None)
    except ValueError:
        return None
    return blocks if 2 * blocks.count * blocks.period >= len(graph.nodes) else None


def with_blocks(graph: Graph, blocks: Blocks, count: int) -> Graph:
    """Repeat blocks that were found another number of times.

    Raises:
        ValueError: If what stands behind them takes from one that would be left out.
    """
    return _Repeated(graph, blocks, count - blocks.count).edited()


def with_depth(graph: Graph, depth: float, block: str | None) -> Graph:
    """Repeat the repeated block that many times as often."""
    if not depth > 0:
        raise ValueError(f"depth is a factor above 0, got {depth}.")
    blocks = _found(graph, block)
    wanted = Fraction(depth).limit_denominator(1000) * blocks.count
    if wanted.denominator != 1 or wanted < 1:
        raise ValueError(
            f"{blocks.count} blocks times {depth} are {float(wanted):g}: choose a multiple of "
            f"1/{blocks.count}."
        )
    return with_blocks(graph, blocks, int(wanted))


def _found(graph: Graph, block: str | None) -> Blocks:
    """The longest repetition, among the operations of a named module if there is one."""
    chosen = [n.number for n in graph.nodes if block is None or _is_in(n.module, block)]
    if not chosen:
        names = sorted({node.module.split(".")[0] for node in graph.nodes if node.module})
        raise ValueError(f"no module {block!r}: at the top there are {', '.join(names)}.")
    nodes = graph.nodes[chosen[0] : chosen[-1] + 1]
    kinds = _kinds(nodes)
    structure = Structure(graph)
    best: tuple[int, int, Blocks] | None = None
    # Links are compared only where operations alone could make a longer repetition, or as long a
    # one of shorter blocks: beginning with what could be longest, that is at few of the periods.
    # Blocks have weights, and so operations with weights stand one period apart.
    weights = structure.weights >> chosen[0] & ((1 << len(nodes)) - 1)
    periods = (p for p in range(1, len(nodes) // 2 + 1) if weights & weights >> p)
    bounds = [(_most_covered(kinds, period), -period) for period in periods]
    for bound, negative in sorted(bounds, reverse=True):
        if best is not None and (bound, negative) <= best[:2]:
            break
        period = -negative
        start, length = _longest_run(graph, nodes, kinds, period)
        covered = (length + period) // period * period
        end = start + length + period
        weighted = structure.weights >> (end - period) & ((1 << period) - 1)
        is_more = best is None or (covered, negative) > best[:2]
        if length >= period and weighted and is_more:
            best = covered, negative, _aligned(graph, start, end, period)
    if best is None:
        where = "" if block is None else f" in {block}"
        raise ValueError(
            f"no block of operations with weights is repeated{where}: there are "
            f"{structure.described()}."
        )
    return best[2]


def _is_in(module: str, name: str) -> bool:
    return module == name or module.startswith(f"{name}.")


def _kinds(nodes: Sequence[Node]) -> Any:
    """A number for every operation, the same for those that do the same, of shape ``[n]``."""
    known: dict[Any, int] = {}
    return np.array([known.setdefault(_kind(node), len(known)) for node in nodes])


def _kind(node: Node) -> tuple[Any, ...]:
    """What an operation does, whatever its inputs are called."""
    leaves, tree = pytree.tree_flatten((node.arguments, node.keywords))
    given = tuple(_form(leaf) for leaf in leaves)
    shapes = tuple(tuple(output.shape) for output in node.outputs)
    return node.operator, str(tree), given, shapes, re.sub(r"\d+", "*", node.module)


def _form(leaf: Any) -> Any:
    if isinstance(leaf, Made):
        return Made, leaf.index
    if isinstance(leaf, Given):
        return leaf.kind, tuple(leaf.value.shape)
    return str(leaf) if isinstance(leaf, torch.dtype | torch.device) else leaf


def _most_covered(kinds: Any, period: int) -> int:
    """At most how many operations whole blocks make up, if links do not matter."""
    different = np.flatnonzero(kinds[period:] != kinds[:-period])
    edges = np.concatenate([[-1], different, [len(kinds) - period]])
    return (int(np.diff(edges).max()) - 1 + period) // period * period


def _longest_run(graph: Graph, nodes: Sequence[Node], kinds: Any, period: int) -> tuple[int, int]:
    """Where most operations in a row are like those a period later, and how many they are."""
    best, start, end = (0, 0), 0, 0
    for place in np.flatnonzero(kinds[period:] == kinds[:-period]).tolist():
        first, second = nodes[place], nodes[place + period]
        if place != end:
            start = place
        if not _are_linked_alike(graph, first, second, nodes[start].number, period):
            start = place + 1
        end = place + 1
        best = max(best, (end - start, nodes[start].number), key=lambda run: run[0])
    return best[1], best[0]


def _are_linked_alike(graph: Graph, first: Node, second: Node, start: int, period: int) -> bool:
    """Whether two operations take what is as far before each, or what comes before all blocks."""
    return all(
        _is_shifted(a, b, period) or _is_same(a, b) or _is_entry(graph, a, b, start, period)
        for a, b in zip(first.inputs, second.inputs, strict=True)
    )


def _is_shifted(first: Source, second: Source, period: int) -> bool:
    """Whether two inputs are as far from the operations that take them; parameters always are."""
    if isinstance(first, Made) and isinstance(second, Made):
        return second.node - first.node == period
    return isinstance(first, Given) and isinstance(second, Given) and first.kind != "data"


def _is_same(first: Source, second: Source) -> bool:
    if isinstance(first, Made) or isinstance(second, Made):
        return first == second
    return first.value is second.value


def _is_entry(graph: Graph, first: Source, second: Source, start: int, period: int) -> bool:
    """Whether the first block takes from outside what the second takes from the first."""
    if not (isinstance(first, Made) and isinstance(second, Made)):
        return False
    shapes = {graph.nodes[s.node].outputs[s.index].shape for s in (first, second)}
    return first.node < start <= second.node < start + period and len(shapes) == 1


def _aligned(graph: Graph, start: int, end: int, period: int) -> Blocks:
    """Let blocks end where a module ends, if that is possible."""

    def shared(last: int) -> int:
        modules = [node.module for node in graph.nodes[last - period : last]]
        return _shared([module.split(".") for module in modules])

    ends = range(end, max(start + 2 * period, end - period + 1) - 1, -1)
    last = max(ends, key=shared)
    return Blocks(last, period, (last - start) // period, end - last)


@dataclass(frozen=True, slots=True)
class _Numbering:
    """How blocks are numbered in the names of modules and parameters.

    Args:
        places: By what stands before a number, by how much it grows from block to block, and the
            smallest in the last block.
    """

    places: dict[str, tuple[int, int]]

    @staticmethod
    def of(nodes: Sequence[Node], blocks: Blocks) -> _Numbering:
        """Read it off the names in the last block, and in the one before."""
        found: dict[str, tuple[int, int]] = {}
        for number in blocks.last:
            pairs = zip(_names(nodes[number - blocks.period]), _names(nodes[number]), strict=True)
            for before, after in pairs:
                old, new = (re.split(r"(\d+)", name) for name in (before, after))
                shared = _shared([old, new])
                if shared < min(len(old), len(new)) and new[shared].isdigit():
                    start, first = "".join(new[:shared]), int(new[shared])
                    step, smallest = found.get(start, (first - int(old[shared]), first))
                    found[start] = step, min(first, smallest)
        return _Numbering(found)

    def renamed(self, name: str, blocks: int) -> str:
        """The name some blocks later."""
        for start, (step, first) in self.places.items():
            number = re.match(r"\d+", name.removeprefix(start))
            if name.startswith(start) and number and int(number[0]) >= first:
                rest = name[len(start) + number.end() :]
                return f"{start}{int(number[0]) + blocks * step}{rest}"
        return name


def _shared(paths: Sequence[Sequence[str]]) -> int:
    """How many parts all paths begin with."""
    alike = (len(set(parts)) == 1 for parts in zip(*paths, strict=False))
    return sum(1 for _ in takewhile(bool, alike))


def _names(node: Node) -> list[str]:
    return [node.module, *(s.name for s in node.inputs if isinstance(s, Given))]


class _Repeated:
    """The graph with more or fewer of its blocks.

    Args:
        graph: The graph.
        blocks: Its blocks.
        extra: How many to add, or to leave out if it is negative.
    """

    def __init__(self, graph: Graph, blocks: Blocks, extra: int) -> None:
        self.graph, self.blocks, self.extra = graph, blocks, extra
        self.nodes = list(graph.nodes[: blocks.end + min(extra, 0) * blocks.period])
        self._kept = len(self.nodes)
        self._copies: dict[tuple[int, int], Given] = {}
        self._numbering = _Numbering.of(graph.nodes, blocks)

    def edited(self) -> Graph:
        """Build it."""
        nodes, end = self.graph.nodes, self.blocks.end
        for copy in range(1, self.extra + 1):
            for number in self.blocks.last:
                self._move(nodes[number], copy, self._periodic)
        for node in nodes[end:]:
            source = self._periodic if node.number < end + self.blocks.tail else self._later
            self._move(node, self.extra, source)
        result = self.graph.result
        if result is not None and result.node >= end:
            result = replace(result, node=result.node + self.extra * self.blocks.period)
        return edited(self.graph, self.nodes, result)

    def _move(self, node: Node, steps: int, source: Move) -> None:
        """Add an operation some blocks later, with its inputs."""
        leaves, tree = pytree.tree_flatten((node.arguments, node.keywords))
        changed = False
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, Made | Given):
                leaves[place] = source(node, place, leaf, steps)
                changed = changed or self._is_changed(leaf, leaves[place])
        arguments, keywords = pytree.tree_unflatten(leaves, tree)
        outputs = node.outputs
        if changed and node.name not in OF_SHAPES:
            outputs = tuple(map(without_values, outputs))
        new = replace(
            node,
            number=len(self.nodes),
            arguments=arguments,
            keywords=keywords,
            outputs=outputs,
            module=self._numbering.renamed(node.module, steps),
        )
        self.nodes.append(new)

    def _is_changed(self, old: Source, new: Source) -> bool:
        """Whether an input is another tensor now, or a copy of one that has changed."""
        if not (isinstance(old, Made) and isinstance(new, Made)):
            return False
        end, period = self.blocks.end, self.blocks.period
        original = new.node
        if new.node >= end + self.extra * period:
            original -= self.extra * period
        elif new.node >= self._kept:
            original = end - period + (new.node - end) % period
        return original != old.node or self.nodes[new.node].outputs[new.index].is_meta

    def _periodic(self, node: Node, place: int, leaf: Source, steps: int) -> Source:
        """The input of an operation that looks like one a block before."""
        twin = self.graph.nodes[node.number - self.blocks.period]
        before = trees.leaves((twin.arguments, twin.keywords))[place]
        if _is_same(before, leaf):
            return self._later(node, place, leaf, 0) if isinstance(leaf, Made) else leaf
        if isinstance(leaf, Made):
            return replace(leaf, node=leaf.node + steps * self.blocks.period)
        if node.number >= self.blocks.end:
            return replace(leaf, name=self._numbering.renamed(leaf.name, steps))
        key = id(leaf.value), steps
        if key not in self._copies:
            name = self._numbering.renamed(leaf.name, steps)
            name = f"{name} (copy {steps})" if name == leaf.name else name
            self._copies[key] = Given(leaf.kind, name, leaf.value.detach())
        return self._copies[key]

    def _later(self, node: Node, place: int, leaf: Source, steps: int) -> Source:
        """The input of an operation behind the blocks."""
        if isinstance(leaf, Given):
            return replace(leaf, name=self._numbering.renamed(leaf.name, steps))
        if leaf.node in self.blocks.last or leaf.node >= self.blocks.end:
            return replace(leaf, node=leaf.node + steps * self.blocks.period)
        if leaf.node >= self.blocks.end + self.extra * self.blocks.period:
            raise ValueError(
                f"{node.module or node.name} takes what a block gave that would be left out."
            )
        return leaf
