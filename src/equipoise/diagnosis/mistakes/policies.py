"""Losses of policies with parts of the wrong sign."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.diagnosis.mistakes.sources import PRODUCTS, depends_on_weights, origin_of, tensor
from equipoise.diagnosis.mistakes.traced_pass import TracedPass, place_of, sign_of
from equipoise.instrument.batches import fields
from equipoise.instrument.recording.graph import Made, Node
from equipoise.records.finding import Finding

# Signs of the loss's derivative by the smaller, or larger, of two objectives that are no use.
_TURNED = {"minimum": 1.0, "maximum": -1.0}
# From which correlation weights of probabilities are advantages.
_RELATED = 0.5
# By which probabilities do not sum to 1.
_ROUNDING = 1e-3


def of_policies(traced: TracedPass) -> list[Finding]:
    """A policy's loss that makes actions rarer that are better than expected, or sure too soon.

    The sign of numbers that weigh probabilities is known where PPO clips their ratio, as the
    worse of two objectives is to count, and where the batch calls them advantages; elsewhere
    they may be costs.

    Args:
        traced: The pass, and what it is one of.
    """
    named = {
        name: value.detach().double().flatten()
        for name, value in (fields(traced.batch) or {}).items()
        if isinstance(value, Tensor) and "advantage" in str(name).lower()
    }
    for node in traced.after_layers:
        # The larger of two losses is to count, or the smaller of two gains.
        if sign_of(node) == _TURNED.get(node.name) and _are_surrogates(node, traced):
            word, turns = ("smaller", "grows") if node.name == "minimum" else ("larger", "falls")
            return [
                _turned(
                    f"The loss {turns} with the {word} of ratio × advantage and its clipped form"
                    f"{place_of(node)}, which bounds losses where it is to bound gains."
                )
            ]
        weighed = _weighed(node, traced)
        if weighed is None:
            continue
        for name, advantage in named.items():
            if sign_of(node) * _correlation(weighed[1].double().flatten(), advantage) > _RELATED:
                return [_turned(f"The loss grows with the probability of actions times {name!r}.")]
    return _turned_entropy(traced)


def _turned(detail: str) -> Finding:
    return Finding(
        "critical",
        "The policy's loss has its sign turned",
        f"{detail} Actions that are better than expected become rarer.",
        "loss = -(log_probability * advantage).mean(), and of PPO "
        "-torch.min(ratio * advantage, clipped * advantage).mean()",
    )


def _turned_entropy(traced: TracedPass) -> list[Finding]:
    """An entropy that the loss grows with, of the very law whose draws gains and losses weigh."""
    nodes = traced.nodes
    for node in traced.after_layers:
        if node.name != "mul" or len(node.inputs) != 2 or sign_of(node) >= 0:
            continue
        values = [tensor(one, nodes).detach() for one in node.inputs]
        for logarithms, shares in (values, values[::-1]):
            if _is_law(logarithms, shares) and _is_drawn_from(logarithms, traced):
                return [
                    Finding(
                        "warning",
                        "The entropy of the policy counts with the wrong sign",
                        f"The loss grows with it{place_of(node)}: actions become sure before "
                        "others were tried.",
                        "loss = policy_loss - coefficient * entropy",
                    )
                ]
    return []


def _is_law(logarithms: Tensor, shares: Tensor) -> bool:
    """Whether these are logarithms of probabilities, and the probabilities, row by row."""
    if logarithms.shape != shares.shape or shares.ndim < 2 or not shares.is_floating_point():
        return False
    sums = shares.sum(-1)
    return bool(
        ((sums - 1).abs() < _ROUNDING).all()
        and ((logarithms.exp() - shares).abs() < _ROUNDING).all()
    )


def _is_drawn_from(logarithms: Tensor, traced: TracedPass) -> bool:
    """Whether numbers of both signs weigh what was picked from these logarithms."""
    nodes = traced.nodes
    behind = set[int]()
    for node in traced.after_layers:
        made = [one for one in node.inputs if isinstance(one, Made)]
        if node.name in ("gather", "index") and made:
            values = tensor(made[0], nodes).detach()
            if values.shape == logarithms.shape and torch.allclose(
                values, logarithms, atol=_ROUNDING
            ):
                behind.add(node.number)
        elif any(one.node in behind for one in made):
            if _weighed(node, traced) is not None:
                return True
            behind.add(node.number)
    return False


def _weighed(node: Node, traced: TracedPass) -> tuple[Made, Tensor] | None:
    """What is multiplied by numbers of both signs that have no gradient, and these numbers."""
    nodes = traced.nodes
    if node.name != "mul" or len(node.inputs) != 2:
        return None
    first, second = node.inputs
    for made, other in ((first, second), (second, first)):
        origin = origin_of(made, nodes)
        if not isinstance(made, Made) or origin is None or origin.name in PRODUCTS:
            continue
        if not depends_on_weights(made, nodes) or tensor(other, nodes).requires_grad:
            continue
        weights = tensor(other, nodes).detach()
        if weights.is_floating_point() and bool((weights > 0).any() and (weights < 0).any()):
            return made, weights
    return None


def _correlation(one: Tensor, other: Tensor) -> float:
    if one.shape != other.shape or len(one) < 2:
        return 0.0
    first, second = one - one.mean(), other - other.mean()
    size = float(first.norm() * second.norm())
    return float(first @ second) / size if size > 0 else 0.0


def _are_surrogates(node: Node, traced: TracedPass) -> bool:
    """Whether a ratio and its clipped form are compared, both times the same numbers."""
    nodes = traced.nodes
    weighed = []
    for one in node.inputs:
        made = origin_of(one, nodes)
        while made is not None and made.name == "neg":
            made = origin_of(made.inputs[0], nodes)
        found = None if made is None else _weighed(made, traced)
        if found is None:
            return False
        weighed.append((origin_of(found[0], nodes), found[1]))
    if len(weighed) != 2:
        return False
    (first, advantages), (second, same) = weighed
    return torch.equal(advantages, same) and (_clips(first, second) or _clips(second, first))


def _clips(clipped: Node | None, ratio: Node | None) -> bool:
    return (
        clipped is not None
        and ratio is not None
        and clipped.name == "clamp"
        and any(isinstance(one, Made) and one.node == ratio.number for one in clipped.inputs)
    )
