"""Outputs and losses that do not fit each other, or the targets."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import replace

from torch import Tensor

from equipoise.diagnosis.mistakes.outputs.bounds import narrow
from equipoise.diagnosis.mistakes.traced_pass import TracedPass, one_of_each
from equipoise.diagnosis.sources import (
    ARRANGING,
    CTC,
    DRAWN,
    LIKELIHOODS,
    PRODUCTS,
    axis_of,
    either_way,
)
from equipoise.instrument.recording.graph import Given, Made, Node
from equipoise.numerics.pieces import deviation, mean, norm, slabs
from equipoise.records import wording
from equipoise.records.finding import Finding

_CROSS_ENTROPY, _BINARY = "_log_softmax", "binary_cross_entropy_with_logits"
# Losses that normalise what they are given, in words.
_LOSSES = {_CROSS_ENTROPY: "cross-entropy", _BINARY: "binary cross-entropy of logits"}
_NORMALISED_TWICE = {(_CROSS_ENTROPY, "_softmax"): "softmax", (_BINARY, "sigmoid"): "sigmoid"}
# Where bounded activations leave logits between.
_BOUNDED = {"sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0)}
_ASSUMED = "That loss is assumed: give yours as loss_fn= if it is another."
# What makes numbers that are no logarithms of probabilities.
_NO_LOGARITHMS = (*PRODUCTS, "_softmax", "sigmoid", "tanh", "relu")
# Targets that are so many standard deviations from the outputs, or vary so many times as much.
_FAR, _WIDE = 5.0, 30.0
# Outputs that vary more are too large themselves.
_USUAL = 3.0
# How many times as large as the targets outputs may be before it costs much, and before 800 steps
# hardly win anything at any rate, with AdamW or SGD (networks of 3 layers on 8 numbers).
_LARGER, _HOPELESS = 100.0, 3000.0
# Between which activations give numbers; targets may lie beyond by a part of that, as by rounding.
_RANGES = _BOUNDED | {"_softmax": (0.0, 1.0), "relu": (0.0, math.inf)}
_MARGIN = 0.01
# Share of the targets from which it matters.
_MUCH_BEYOND = 0.1
# By which sums of probabilities are not 1, and logarithms of them above 0.
_ROUNDING = 1e-3
# Operations that compare or join numbers one by one.
_BY_ELEMENT = ("sub", "rsub", "mul", "div", "mse_loss", "smooth_l1_loss", "huber_loss")


def of_fit(traced: TracedPass) -> list[Finding]:
    """Outputs that do not fit the loss or the targets."""
    graph = traced.graph
    likelihoods = {
        origin.number
        for node in graph.nodes
        if node.name in LIKELIHOODS and (origin := traced.origin_of_input(node)) is not None
    }
    into = {
        id(source.value)
        for node in graph.nodes
        if node.number in traced.before_layers or node.name in PRODUCTS
        for source in node.inputs
        if isinstance(source, Given)
    }
    found = one_of_each(
        one
        for node in traced.after_layers
        for origin in [traced.origin_of_input(node)]
        for one in (
            _before_a_loss(node, origin, ends_in_nll=node.number in likelihoods)
            or (_mixed(node, traced) if node.number in likelihoods else None),
            _no_logarithms(node, origin, traced),
            narrow(node, traced, is_loss=node.number in likelihoods),
            _divergence_of_probabilities(node, traced),
            _crossed(node, traced),
            _out_of_reach(node, traced, into) or _far_from(node, traced, into),
        )
    )
    if traced.loss_is_assumed:
        return [replace(one, detail=f"{one.detail} {_ASSUMED}") for one in found]
    return found


def _before_a_loss(node: Node, origin: Node | None, *, ends_in_nll: bool) -> Finding | None:
    """An activation whose outputs are taken as logits."""
    loss = _LOSSES.get(node.name)
    if loss is None or origin is None:
        return None
    word = _NORMALISED_TWICE.get((node.name, origin.name))
    if word is not None:
        return Finding(
            "warning",
            f"{word.capitalize()} before {loss}",
            f"{loss.capitalize()} applies its own {word}: after another one its gradients are "
            "small, and the loss cannot come near zero.",
            f"Return what goes into the {word}, and apply it only where probabilities are needed.",
        )
    if origin.name in _BOUNDED and (ends_in_nll or node.name == _BINARY):
        low, high = _BOUNDED[origin.name]
        least = _least(node, low, high)
        return Finding(
            "warning",
            f"{origin.name.capitalize()} before {loss}",
            f"{loss.capitalize()} takes any numbers as logits, and these lie between {low:g} and "
            f"{high:g}: "
            + ("it cannot come near zero." if least is None else f"it cannot come below {least}."),
            f"Return what goes into the {origin.name}.",
        )
    if origin.name == "relu" and (ends_in_nll or node.name == _BINARY):
        return Finding(
            "warning",
            f"ReLU before {loss}",
            "Logits that are never negative cannot rule anything out"
            + (": probabilities are one half or more. " if node.name == _BINARY else ". ")
            + "Where they are cut there is no gradient.",
            "Return what goes into the ReLU.",
        )
    return None


def _mixed(node: Node, traced: TracedPass) -> Finding | None:
    """Logits that are probabilities, such as a mean over the softmax of several experts."""
    if node.name != _CROSS_ENTROPY or not traced.depends_on_weights(node.inputs[0]):
        return None
    logits = traced.tensor(node.inputs[0]).detach()
    if not _are_shares(logits, axis_of(node)) or bool(((logits == 0) | (logits == 1)).all()):
        return None  # a code of classes may go past layers that start at zero
    return Finding(
        "warning",
        "Probabilities before cross-entropy",
        "What it takes as logits lies between 0 and 1 and sums to 1 over the classes, as means of "
        "softmax outputs do. Cross-entropy applies its own softmax: its gradients are small, and "
        f"it cannot come below {_least(node, 0.0, 1.0)}.",
        "Mix logits and leave the softmax away, or take nll_loss of the logarithm of these "
        "probabilities.",
    )


def _least(node: Node, low: float, high: float) -> str | None:
    """The least loss of logits between two bounds; None of one with weights."""
    if node.name == _CROSS_ENTROPY:
        classes = node.outputs[0].shape[axis_of(node)]
        return wording.number(math.log1p((classes - 1) * math.exp(low - high)))
    weights = [*node.arguments[2:4], node.keywords.get("weight"), node.keywords.get("pos_weight")]
    if any(weight is not None for weight in weights):
        return None
    return wording.number(math.log1p(math.exp(-high)))


def _no_logarithms(node: Node, origin: Node | None, traced: TracedPass) -> Finding | None:
    """A likelihood of what is no logarithm of a probability."""
    if node.name not in (*LIKELIHOODS, *CTC):
        return None
    bounded = _are_probabilities(node, traced)
    made_otherwise = origin is not None and origin.name in _NO_LOGARITHMS
    above = bool((traced.tensor(node.inputs[0]) > _ROUNDING).any())  # no logarithm of a share is
    if not (bounded or made_otherwise or above):
        return None
    bounded |= origin is not None and origin.name in ("_softmax", *_BOUNDED)
    if node.name in CTC:
        likelihood, words = "CTC loss", "CTC loss adds up one number per step of each alignment"
        remedy = "Apply log_softmax to the logits before it."
    else:
        likelihood = "NLL"
        words = "negative log-likelihood only picks one number per sample and turns its sign"
        remedy = (
            "Apply log_softmax to the logits before it, or take cross-entropy, which does both."
        )
    return Finding(
        "warning",
        f"{likelihood} of what is no logarithm of a probability",
        f"The {words}. "
        + (
            "Without the logarithm it hardly punishes a class that is sure and wrong."
            if bounded
            else "Of any numbers it falls without bound, and the classes do not compete."
        ),
        remedy,
    )


def _are_probabilities(node: Node, traced: TracedPass) -> bool:
    """Whether a likelihood is given numbers between 0 and 1 that sum to 1 over the classes."""
    values = traced.tensor(node.inputs[0]).detach()
    axis = -1 if node.name in CTC or values.ndim < 2 else 1
    return _are_shares(values, axis)


def _are_shares(values: Tensor, axis: int) -> bool:
    if values.shape[axis] < 2 or bool((values < 0).any()):
        return False
    return all(
        bool(((slab.sum(axis) - 1).abs() < _ROUNDING).all()) for slab in slabs(values, axis)
    )


def _divergence_of_probabilities(node: Node, traced: TracedPass) -> Finding | None:
    """PyTorch's KL divergence, which takes logarithms, of what is none."""
    if node.name != "sub" or len(node.inputs) != 2:
        return None
    made = [traced.nodes[one.node] if isinstance(one, Made) else None for one in node.inputs]
    if [one.name for one in made if one is not None] != ["xlogy", "mul"]:
        return None
    entropy, product = made
    if entropy is None or product is None:
        return None
    target = entropy.inputs[0]
    origins = [traced.origin_of(one) for one in product.inputs if one != target]
    if not any(one is not None and one.name in ("_softmax", "sigmoid") for one in origins):
        return None
    return Finding(
        "warning",
        "KL divergence of what is no logarithm",
        "PyTorch's kl_div takes the logarithms of the model's probabilities, and is given "
        "probabilities: what it gives is no divergence, and falls below zero.",
        "Give it log_softmax of the logits.",
    )


def _crossed(node: Node, traced: TracedPass) -> Finding | None:
    """A column of outputs that meets a row of targets: each is compared with every other."""
    if node.name not in _BY_ELEMENT or len(node.inputs) < 2:
        return None
    operands = [traced.before_expanding(source) for source in node.inputs[:2]]
    row, column = sorted(operands, key=lambda one: len(traced.shape(one)))
    samples, *rest = traced.shape(row) or (0,)
    if samples < 2 or traced.shape(column) != (samples, 1, *rest):
        return None
    compared = _compared(node, traced)
    if compared is None:
        return None
    output, target = (traced.shape(one) for one in compared)
    return Finding(
        "warning" if _was_given_an_axis(column, traced) else "critical",
        "Every output is compared with every target",
        f"Outputs of shape {list(output)} meet targets of shape {list(target)}, which makes "
        f"{[samples, samples, *rest]}: the best that a model can learn is the targets' mean.",
        "Give both one shape: squeeze the longer one, .squeeze(1), or unsqueeze the other.",
    )


def _was_given_an_axis(column: Made | Given, traced: TracedPass) -> bool:
    """Whether the second axis was put there, as where all pairs are meant."""
    while isinstance(column, Made):
        node = traced.nodes[column.node]
        if node.name not in ARRANGING or not node.inputs:
            return False
        if node.name != "transpose" and len(traced.shape(node.inputs[0])) < node.outputs[0].ndim:
            return True
        column = node.inputs[0]
    return False


def _compared(node: Node, traced: TracedPass) -> tuple[Made | Given, Made | Given] | None:
    """What depends on weights and what is made of the batch alone, where one meets the other."""
    for pair in either_way(node):
        output, target = (traced.before_expanding(source) for source in pair)
        if (
            traced.depends_on_weights(output)
            and not traced.depends_on_weights(target)
            and traced.is_of(target)
        ):
            return output, target
    return None


def _is_input(source: Made | Given, into: Container[int]) -> bool:
    """Whether it goes into layers, as what a residual output is added to."""
    return isinstance(source, Given) and id(source.value) in into


def _out_of_reach(node: Node, traced: TracedPass, into: Container[int]) -> Finding | None:
    """Targets beyond the bounds of the activation that gives the outputs."""
    compared = _compared(node, traced) if traced.is_error(node) else None
    if compared is None or _is_input(compared[1], into):
        return None
    output, target = compared
    last = traced.origin_of(output)
    values = traced.tensor(target).detach()
    if last is None or last.name not in _RANGES or not values.is_floating_point():
        return None
    low, high = _RANGES[last.name]
    margin = _MARGIN * (high - low) if math.isfinite(high - low) else 0.0
    is_beyond = (values < low - margin) | (values > high + margin)
    beyond = int(is_beyond.count_nonzero()) / max(1, is_beyond.numel())
    if beyond < _MUCH_BEYOND:
        return None
    return Finding(
        "warning",
        "Targets that the outputs cannot reach",
        f"Outputs of {last.name.strip('_')} lie between {low:g} and {high:g}, and "
        f"{wording.percent(beyond)} of the targets beyond: they go from "
        f"{wording.number(float(values.min()))} to {wording.number(float(values.max()))}.",
        f"Return what goes into the {last.name.strip('_')}, or scale the targets into its range.",
    )


def _far_larger(output: float, target: float) -> Finding:
    """Outputs that have to become far smaller before anything else is learnt."""
    return Finding(
        "critical" if output > _HOPELESS * target else "warning",
        "Outputs are far larger than the targets",
        f"The standard deviation of the outputs is {wording.number(output)}, the root mean square "
        f"of the targets {wording.number(target)}: steps that are small enough for the targets do "
        "not bring the outputs down, and large ones overshoot.",
        "Scale the initial weights down, those of the last layer first, or the inputs; add "
        "normalisation where the signal grows with depth.",
    )


def _squared_beside_noise(
    node: Node, traced: TracedPass
) -> tuple[Made | Given, Made | Given] | None:
    """An output, and what was drawn and is compared with it, as where scores are matched."""
    for output, noise in either_way(node) if node.name in ("add", "sub") else ():
        origin = traced.origin_of(noise)
        while origin is not None and origin.name in ("mul", "div", "neg"):
            origin = traced.origin_of(origin.inputs[0])
        is_drawn = origin is not None and origin.name in DRAWN
        if (
            not is_drawn
            or traced.depends_on_weights(noise)
            or not traced.depends_on_weights(output)
        ):
            continue
        squares = (one for one in traced.users_of(node.number) if one.name == "pow")
        if any(one.arguments[1] == 2 for one in squares):
            return output, noise
    return None


def _are_codes(source: Made | Given, traced: TracedPass) -> bool:
    """Whether they are rows of a table that comes to the outputs, as those of a VQ-VAE."""
    origin = traced.origin_of(source)
    table = None if origin is None else traced.table_of(origin)
    return table is not None and table.value.requires_grad


def _far_from(node: Node, traced: TracedPass, into: Container[int]) -> Finding | None:
    """Targets, or noise, whose mean, or whose scale, the outputs have to reach first."""
    compared = _compared(node, traced) if traced.is_error(node) else None
    compared = compared or _squared_beside_noise(node, traced)
    if compared is None or _is_input(compared[1], into) or _are_codes(compared[1], traced):
        return None
    output, target = (traced.tensor(one).detach() for one in compared)
    if output.shape != target.shape or target.numel() < 2:
        return None
    given, wanted = mean(output), mean(target)
    varies, spread = deviation(output), deviation(target)
    off, most = abs(wanted - given), max(varies, 1.0)
    if not (math.isfinite(spread) and math.isfinite(off)):
        return None
    if abs(given) > abs(wanted):
        off = 0.0  # it is the outputs that are far away
    size = norm(target) / math.sqrt(target.numel())
    if varies > _USUAL and 0 < _LARGER * size < varies:
        return _far_larger(varies, size)
    is_small = 0 < _WIDE * spread < varies < _USUAL
    if off > _FAR * max(spread, most) or spread > _WIDE * most or is_small:
        return Finding(
            "warning",
            "Targets on another scale than the outputs",
            f"Targets have mean {wording.number(wanted)} and standard deviation "
            f"{wording.number(spread)}, outputs {wording.number(given)} and "
            f"{wording.number(varies)}: most steps go into the scale first.",
            "Standardise the targets, or start the output's bias at their mean. For score "
            "matching, multiply the error by σ.",
        )
    return None
