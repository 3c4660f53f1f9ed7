"""Rewards and costs in a batch, by name, and whether they weigh what a loss makes of outputs."""

from __future__ import annotations

import dis
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.diagnosis.sources import PRODUCTS, takes_from
from equipoise.instrument.batches import fields, tensors
from equipoise.instrument.recording.graph import Given, Made, Node

# What is to be made large or small, by its name.
_WORDS = {"advantage": 1.0, "return": 1.0, "reward": 1.0, "cost": -1.0}
_SHORT = {"adv": 1.0, "advs": 1.0, "ret": 1.0, "rets": 1.0, "rew": 1.0, "rews": 1.0}
# Operations that weigh a number by another.
_WEIGHING = {"mul", "mv", "dot", *PRODUCTS}


def named_gains(traced: TracedPass) -> dict[str, tuple[float, Tensor]]:
    """Numbers of the batch that are to be made large, 1, or small, -1, by their names."""
    named = fields(traced.batch)
    if named is None and isinstance(traced.batch, tuple | list):
        named = dict(zip(_unpacked(traced.loss_fn, len(traced.batch)), traced.batch, strict=False))
    found = {}
    for name, value in (named or {}).items():
        signs = [sign for word, sign in _WORDS.items() if word in str(name).lower()]
        signs = signs or [_SHORT[part] for part in str(name).lower().split("_") if part in _SHORT]
        if isinstance(value, Tensor) and value.is_floating_point() and len(signs) == 1:
            found[str(name)] = signs[0], value.detach().double().flatten()
    return found


def _unpacked(loss_fn: object, count: int) -> list[str]:
    """Names that a function of (model, batch) gives the parts of the batch, in one assignment.

    It may be wrapped, as by what reduces its losses or hands it copies.
    """
    code: Any = getattr(loss_fn, "__code__", None)
    steps = [] if code is None or code.co_argcount < 2 else list(dis.get_instructions(code))
    for place, step in enumerate(steps[1:], 1):
        is_batch = steps[place - 1].argval == code.co_varnames[1]
        if step.opname == "UNPACK_SEQUENCE" and step.arg == count and is_batch:
            stored = [one.argval for one in steps[place + 1 :]]
            names = [n for one in stored for n in (one if isinstance(one, tuple) else (one,))]
            return [str(name) for name in names[:count]]
    inside = [cell.cell_contents for cell in getattr(loss_fn, "__closure__", None) or ()]
    for one in (getattr(loss_fn, "of", None), *inside):
        if callable(one) and (found := _unpacked(one, count)):
            return found
    return []


def weighed_by_gains(nodes: Sequence[Node], traced: TracedPass) -> bool:
    """Whether rewards or costs of the batch weigh what a loss makes of some operations' outputs.

    They are numbers other than those that the operations take themselves, and differ from each
    other or lie below zero; or they are called costs. Masks do not, nor do weights of one size.

    Args:
        nodes: The operations, such as comparisons with targets.
        traced: The pass.
    """
    inside = {node.number for node in nodes}
    compared = _places([one for node in nodes for one in node.inputs], traced)
    costs = [value for gain, value in named_gains(traced).values() if gain < 0]
    given = tensors(traced.batch)
    for node in traced.graph.nodes:
        if not takes_from(node, inside):
            continue
        inside.add(node.number)
        if node.name not in _WEIGHING:
            continue
        for one in node.inputs:
            if traced.depends_on_weights(one):
                continue
            for place in _places([one], traced) - compared:
                values = given[place].detach().double().flatten()
                kept = values[values != 0]
                are_costs = any(torch.equal(values, cost) for cost in costs)
                if are_costs or (len(kept) and kept.min() < max(0.0, float(kept.max()))):
                    return True
    return False


def _places(sources: Sequence[Made | Given], traced: TracedPass) -> set[int]:
    """Places of the batch's numbers that tensors were made of, other than by masks and orders."""
    given = tensors(traced.batch)
    found, seen, left = set[int](), set[int](), [*sources]
    while left:
        one = left.pop()
        x = traced.tensor(one)
        if isinstance(one, Given):
            is_number = x.dtype != torch.bool and not x.is_complex()
            alike = [k for k, y in enumerate(given) if x.shape == y.shape and torch.equal(x, y)]
            found |= set(alike[:is_number])
        elif one.node not in seen and x.is_floating_point():
            seen.add(one.node)
            left += traced.nodes[one.node].inputs
    return found
