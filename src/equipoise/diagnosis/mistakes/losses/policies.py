"""Losses of policies with parts of the wrong sign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from equipoise.diagnosis.mistakes.losses.gains import named_gains
from equipoise.diagnosis.mistakes.traced_pass import TracedPass, one_sign, place_of, sign_of
from equipoise.diagnosis.sources import (
    ARRANGING,
    PRODUCTS,
    either_way,
    kinds_of,
    weights_behind,
)
from equipoise.instrument.recording.graph import Given, Made, Node
from equipoise.numerics.pieces import correlation
from equipoise.records.finding import Finding

# Signs of the loss's derivative by the smaller, or larger, of two objectives that are no use.
_TURNED = {"minimum": 1.0, "maximum": -1.0}
# From which correlation weights of probabilities are advantages.
_RELATED = 0.5
# Operations that take the largest or the least number of a row.
_CHOSEN = {"max": 1.0, "amax": 1.0, "min": -1.0, "amin": -1.0}
# By which probabilities do not sum to 1.
_ROUNDING = 1e-3


def of_policies(traced: TracedPass) -> list[Finding]:
    """A policy's loss that makes actions rarer that are better than expected, or sure too soon.

    The sign of numbers that weigh probabilities is known where PPO clips their ratio, as the
    worse of two objectives is to count, and where the batch, or the loss that unpacks it, calls
    them advantages, returns or rewards, or costs; so is that of rewards in targets of values.
    """
    named = named_gains(traced)
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
        weighed = _weighed(node, traced, of_both_signs=False) if named else None
        if weighed is None:
            continue
        sign = sign_of(node) * _sign_of_probability(weighed[0], traced)
        for name, (gain, value) in named.items():
            if gain < 0 and not bool((weighed[1] < 0).any()):
                continue  # classes, too, are weighed by what it costs to miss them
            weights = weighed[1].double().flatten()
            if weights.shape != value.shape:
                continue
            if sign * gain * correlation(weights, value) > _RELATED:
                turns = "grows" if gain > 0 else "falls"
                return [
                    _turned(f"The loss {turns} with the probability of actions times {name!r}.")
                ]
    return (
        _turned_entropy(traced)
        or _learnt_advantages(traced)
        or _turned_values(traced, named)
        or _learnt_targets(traced, named)
    )


def _learnt_advantages(traced: TracedPass) -> list[Finding]:
    """Log-probabilities that are weighed by what came, less a value that learns by that, too."""
    for node in traced.after_layers:
        if node.name != "mul" or len(node.inputs) != 2:
            continue
        for made, other in either_way(node):
            origin = traced.origin_of(other)
            if not isinstance(made, Made) or origin is None or origin.name != "sub":
                continue
            if not traced.tensor(other).requires_grad or len(origin.inputs) != 2:
                continue
            came, _ = origin.inputs
            is_picked = _sign_of_probability(made, traced) and traced.depends_on_weights(made)
            if is_picked and traced.is_of_data_alone(came):
                return [
                    Finding(
                        "critical",
                        "Advantages have a gradient",
                        f"mul{place_of(node)} weighs log-probabilities by returns less values, "
                        "and its gradient reaches the values: they move to where the loss falls "
                        "without bound.",
                        "advantage = (returns - value).detach()",
                    )
                ]
    return []


def _turned_values(traced: TracedPass, named: Mapping[str, tuple[float, Tensor]]) -> list[Finding]:
    """Values whose targets fall with what is called a reward, and grow with the best that follows.

    Where the least of the values that follow is taken, they are costs, and are to be; where none
    is chosen, they may be costs as well.
    """
    rewards = {name: value for name, (gain, value) in named.items() if gain > 0}
    for _, target in traced.compared if rewards else ():
        if isinstance(target, Given) or "parameter" not in kinds_of(target, traced.kinds):
            continue
        signs = dict[str, set[float]]()
        chosen, seen = set[float](), set[tuple[Made | Given, float]]()
        left: list[tuple[Made | Given, float]] = [(target, 1.0)]
        while left:
            term = source, sign = left.pop()
            if term in seen:
                continue
            seen.add(term)
            if isinstance(source, Given):
                for name, value in rewards.items():
                    if torch.equal(source.value.detach().double().flatten(), value):
                        signs.setdefault(name, set()).add(sign)
                continue
            node = traced.nodes[source.node]
            chosen |= {sign * by for by in _choices(node, traced)}
            left += _terms(node, sign, traced)
        turned = [name for name, found in signs.items() if found == {-1.0}]
        if turned and chosen == {1.0}:
            return [
                Finding(
                    "critical",
                    "Values learn the reward with its sign turned",
                    f"Their targets fall with {turned[0]!r}, and hold the best of the values that "
                    "follow: what is good is learnt as bad.",
                    "target = reward + discount * following; of costs, take the least of the "
                    "values that follow.",
                )
            ]
    return []


def _learnt_targets(
    traced: TracedPass, named: Mapping[str, tuple[float, Tensor]]
) -> list[Finding]:
    """Values whose targets hold values of the same weights that follow, with their gradient."""
    rewards = [value for gain, value in named.values() if gain > 0]
    for node in traced.after_layers:
        if len(node.inputs) < 2 or not traced.is_error(node):
            continue
        sides = [one for one in node.inputs[:2] if isinstance(one, Made)]
        weights = [
            weights_behind(one.node, traced.graph)
            for one in sides
            if traced.depends_on_weights(one)
        ]
        if len(weights) < 2 or weights[0] != weights[1]:
            continue
        if any(_holds_what_follows(one, rewards, traced) for one in sides):
            return [
                Finding(
                    "warning",
                    "The targets of values have a gradient",
                    f"{node.name}{place_of(node)} compares values with rewards and the values "
                    "that follow, and both get a gradient: later values are pulled towards "
                    "earlier ones, and learning is slow or ends elsewhere.",
                    "with torch.no_grad(): target = reward + discount * following",
                )
            ]
    return []


def _holds_what_follows(made: Made, rewards: Sequence[Tensor], traced: TracedPass) -> bool:
    """Whether it is what the batch tells, plus a choice among learnt values.

    Or plus any learnt value, where what the batch tells is called a reward.
    """
    origin = traced.origin_of(made)
    if origin is None or origin.name != "add" or len(origin.inputs) != 2:
        return False
    for came, following in (origin.inputs, origin.inputs[::-1]):
        if not isinstance(following, Made) or not traced.depends_on_weights(following):
            continue
        if traced.is_of_data_alone(came):
            told = traced.tensor(came).detach().double().flatten()
            return _is_chosen(following, traced) or any(torch.equal(told, one) for one in rewards)
    return False


def _is_chosen(made: Made, traced: TracedPass) -> bool:
    """Whether the largest or smallest number of each row is taken on the way from the layers."""
    left, seen = [made.node], set[int]()
    while left:
        number = left.pop()
        node = traced.nodes.get(number)
        if number in seen or node is None or node.name in PRODUCTS:
            continue
        seen.add(number)
        if _choices(node, traced):
            return True
        left += [one.node for one in node.inputs if isinstance(one, Made)]
    return False


def _choices(node: Node, traced: TracedPass) -> list[float]:
    """1 if an operation takes the largest number of each row, -1 if the smallest.

    Of two networks the smaller is taken out of caution, which says nothing.
    """
    by = _CHOSEN.get(node.name)
    if node.name in ("gather", "index") and len(node.inputs) > 1:
        origin = traced.origin_of(node.inputs[1])
        by = None if origin is None else _CHOSEN.get(origin.name.removeprefix("arg"))
    return [] if by is None else [by]


def _terms(node: Node, sign: float, traced: TracedPass) -> list[tuple[Made | Given, float]]:
    """What a sum, a multiple or a choice is made of, with the sign that each counts with."""
    if node.name in {"add", "sub", "rsub"}:
        signs = {"add": (1.0, 1.0), "sub": (1.0, -1.0), "rsub": (-1.0, 1.0)}[node.name]
        return [
            (one, sign * by)
            for one, by in zip(node.arguments[:2], signs, strict=False)
            if isinstance(one, Made | Given)
        ]
    if node.name in {"mul", "div"}:
        found = []
        for one, other in (node.arguments[:2], node.arguments[1::-1]):
            if isinstance(one, Made | Given):
                numbers = traced.tensor(other) if isinstance(other, Made | Given) else other
                by = one_sign(torch.as_tensor(numbers, dtype=torch.float64))
                found += [(one, sign * by)] if by else []
        return found
    if node.name in {*ARRANGING, *_CHOSEN, "neg", "maximum", "minimum"}:
        by = -sign if node.name == "neg" else sign
        return [(one, by) for one in node.inputs]
    return []


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
    for node in traced.after_layers:
        if node.name != "mul" or len(node.inputs) != 2 or sign_of(node) >= 0:
            continue
        values = [traced.tensor(one).detach() for one in node.inputs]
        for logarithms, shares in (values, values[::-1]):
            if _is_law(logarithms, shares) and _is_drawn_from(logarithms, traced):
                return [
                    Finding(
                        "warning",
                        "The entropy of the policy counts with the wrong sign",
                        f"The loss grows with it{place_of(node)}: the policy settles on actions "
                        "before it has tried others.",
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
    behind = set[int]()
    for node in traced.after_layers:
        made = [one for one in node.inputs if isinstance(one, Made)]
        if node.name in ("gather", "index") and made:
            values = traced.tensor(made[0]).detach()
            if values.shape == logarithms.shape and torch.allclose(
                values, logarithms, atol=_ROUNDING
            ):
                behind.add(node.number)
        elif any(one.node in behind for one in made):
            if _weighed(node, traced) is not None:
                return True
            behind.add(node.number)
    return False


def _sign_of_probability(made: Made, traced: TracedPass) -> float:
    """Whether numbers grow with the probability of what was done, 1, or fall, -1; 0 if unknown."""
    sign, node = 1.0, traced.origin_of(made)
    while node is not None and node.name in {"neg", "exp", "sum"}:
        sign *= -1.0 if node.name == "neg" else 1.0
        node = traced.origin_of(node.inputs[0])
    name = "" if node is None else node.name
    # PyTorch's normal distribution subtracts the logarithm of its deviation, and a constant.
    return sign * {"gather": 1.0, "index": 1.0, "sub": 1.0, "nll_loss_forward": -1.0}.get(
        name, 0.0
    )


def _weighed(
    node: Node, traced: TracedPass, *, of_both_signs: bool = True
) -> tuple[Made, Tensor] | None:
    """What is multiplied by numbers without a gradient, and these numbers."""
    if node.name != "mul" or len(node.inputs) != 2:
        return None
    for made, other in either_way(node):
        origin = traced.origin_of(made)
        if not isinstance(made, Made) or origin is None or origin.name in PRODUCTS:
            continue
        if not traced.depends_on_weights(made) or traced.tensor(other).requires_grad:
            continue
        weights = traced.tensor(other).detach()
        has_both = bool((weights > 0).any() and (weights < 0).any())
        if weights.is_floating_point() and (has_both or not of_both_signs):
            return made, weights
    return None


def _are_surrogates(node: Node, traced: TracedPass) -> bool:
    """Whether a ratio and its clipped form are compared, both times the same numbers."""
    weighed = []
    for one in node.inputs:
        made = traced.origin_of(one)
        while made is not None and made.name == "neg":
            made = traced.origin_of(made.inputs[0])
        found = None if made is None else _weighed(made, traced)
        if found is None:
            return False
        weighed.append((traced.origin_of(found[0]), found[1]))
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
