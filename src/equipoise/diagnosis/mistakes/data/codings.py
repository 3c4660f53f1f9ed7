"""Targets in another coding than the loss takes.

Beyond 0 to 1, several of one, 0 for -1, blanks in those of CTC, or more of these than steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from equipoise.diagnosis.mistakes.traced_pass import TracedPass, one_of_each
from equipoise.diagnosis.sources import ARRANGING, CTC, either_way
from equipoise.instrument.recording.graph import Given, Made, Node
from equipoise.records import wording
from equipoise.records.finding import Finding

_BINARY = ("binary_cross_entropy_with_logits", "binary_cross_entropy")
_LOGARITHMS = ("log", "log1p", "log_sigmoid_forward")
# Beyond 0 and 1 by less than the first is rounding; by less than the second, resized images.
_ROUNDING, _OVERSHOOT = 1e-3, 0.05
# Share of the targets from which they are no few outliers.
_MANY = 0.01
# Share of the rows from which their sums tell how targets are made.
_ROWS = 0.1
# Share of the sequences from which it is no odd recording that has too few steps.
_SHORT = 0.05
# What hands numbers on, but for a factor or a constant.
_SCALING = {"mul", "div", "add", *ARRANGING}
# Outputs behind these are never below zero: what they are multiplied by is no label of -1 and 1.
_POSITIVE = ("sigmoid", "_softmax", "exp")


def of_codings(traced: TracedPass) -> list[Finding]:
    """Targets that the loss does not take as they are meant."""
    return one_of_each(
        one
        for node in traced.after_layers
        for one in (
            _beyond(node, traced),
            _several(node, traced),
            _zero_for_minus_one(node, traced),
            _indices(node, traced),
            *_of_ctc(node, traced),
        )
    )


def _beyond(node: Node, traced: TracedPass) -> Finding | None:
    """Targets of a binary cross-entropy that are less than 0 or more than 1."""
    found = _binary_target(node, traced)
    if found is None:
        return None
    values, counted = found
    over = torch.maximum(-values, values - 1)
    beyond = (over > _ROUNDING) & counted
    if not bool(beyond.any()):
        return None
    of = int(counted.sum())
    far = int(((over > _OVERSHOOT) & counted).sum()) / of
    least, most = float(values[counted].min()), float(values[counted].max())
    return Finding(
        "critical" if far >= _MANY else "warning",
        "Targets of binary cross-entropy beyond 0 and 1",
        f"They go from {wording.number(least)} to {wording.number(most)}, with "
        f"{wording.percent(int(beyond.sum()) / of)} outside 0 to 1. The loss expects "
        "probabilities: for other numbers it falls without bound as outputs grow.",
        _to_probabilities(values[counted]),
    )


def _binary_target(node: Node, traced: TracedPass) -> tuple[Tensor, Tensor] | None:
    """The targets of a binary cross-entropy, and which of them count."""
    judged = node
    if node.name in _BINARY and len(node.inputs) > 1:
        source = node.inputs[1]
    elif node.name == "rsub" and len(node.inputs) == 1 and node.arguments[1:2] == (1,):
        source = node.inputs[0]  # (1 - target) * log(...), written out
        products = [user for user in traced.users_of(node.number) if _has_logarithm(user, traced)]
        if not products:
            return None
        judged = products[0]
    else:
        return None
    values = traced.tensor(source).detach()
    if traced.depends_on_weights(source) or not values.is_floating_point():
        return None
    return values.double(), _counted(judged, values, traced)


def _has_logarithm(node: Node, traced: TracedPass) -> bool:
    """Whether it is a product with the logarithm of an output."""
    made = [traced.origin_of(one) for one in node.inputs if traced.depends_on_weights(one)]
    return node.name == "mul" and any(one is not None and one.name in _LOGARITHMS for one in made)


def _counted(node: Node, values: Tensor, traced: TracedPass) -> Tensor:
    """Which elements the loss depends on, where some are masked or have a weight of zero."""
    counted = torch.ones_like(values, dtype=torch.bool)
    gradient = node.gradients[0] if node.gradients else None
    if gradient is not None and gradient.shape == values.shape:
        counted &= gradient != 0
    if node.name not in _BINARY:
        return counted
    weight = node.arguments[2] if len(node.arguments) > 2 else node.keywords.get("weight")
    if isinstance(weight, Made | Given):
        counted &= (traced.tensor(weight) != 0).expand_as(values)
    return counted


def _to_probabilities(values: Tensor) -> str:
    """How to bring targets between 0 and 1."""
    distinct = set(torch.unique(values).tolist()) if values.numel() else set()
    if distinct <= {-1.0, 1.0}:
        return "Take (target + 1) / 2."
    if distinct <= {1.0, 2.0}:
        return "Take target - 1."
    if distinct <= {-1.0, 0.0, 1.0}:
        return "If -1 means that there is no label, leave those out: weight=(target >= 0).float()."
    if distinct <= {0.0, 255.0}:
        return "Take target / 255."
    return (
        "Scale labels and masks to 0 and 1, as by target / 255; for standardised images and other "
        "real numbers take the squared error."
    )


def _several(node: Node, traced: TracedPass) -> Finding | None:
    """Cross-entropy with rows of targets that are no probabilities of one class each.

    Rows with one number alone are left out: it may be the weight of the sample.
    """
    made = _soft_target(node, traced)
    if made is None:
        return None
    values, axis = made
    several = (values != 0).sum(axis) > 1
    sums = values.sum(axis)
    wrong = several & ((sums - 1).abs() > 0.01)
    if float(wrong.double().mean()) < _ROWS:
        return None
    low, high = float(sums[several].min()), float(sums[several].max())
    are_bits = torch.unique(values).numel() <= 2  # also after label smoothing
    if not are_bits and (bool((values < 0).any()) or high - low > 0.01 * high):
        return None  # weights of actions, such as advantages
    return Finding(
        "warning",
        "Cross-entropy with targets whose rows do not sum to 1",
        f"{wording.percent(float(wrong.double().mean()))} of the rows are no probabilities; those "
        f"with several numbers sum to between {wording.number(low)} and {wording.number(high)}. "
        "Classes compete for one probability, so the model cannot be sure of several at once.",
        "If a sample may have several classes, take nn.BCEWithLogitsLoss."
        if are_bits
        else "Make each row sum to 1, as by target.softmax(1) of scores; if a sample may have "
        "several classes, take nn.BCEWithLogitsLoss.",
    )


def _soft_target(node: Node, traced: TracedPass) -> tuple[Tensor, int] | None:
    """The target of a cross-entropy with probabilities, and its axis of classes."""
    if node.name != "mul" or len(node.inputs) != 2 or not isinstance(node.inputs[0], Made):
        return None
    logarithms, target = traced.nodes[node.inputs[0].node], node.inputs[1]
    if logarithms.name != "_log_softmax" or traced.depends_on_weights(target):
        return None
    values = traced.tensor(target).detach().double()
    if values.shape != logarithms.outputs[0].shape or values.ndim < 2:
        return None
    axis = logarithms.arguments[1] if len(logarithms.arguments) > 1 else 1
    if not _is_scaled(target, traced) or not _ends_in_a_mean(node, traced):
        return None
    return values, int(axis)


def _is_scaled(source: Made | Given, traced: TracedPass) -> bool:
    """Whether it is a tensor of the batch but for numbers, as label smoothing leaves it."""
    while isinstance(source, Made):
        node = traced.nodes[source.node]
        if node.name not in _SCALING or len(node.inputs) != 1:
            return False
        source = node.inputs[0]
    return traced.is_of(source)


def _ends_in_a_mean(node: Node, traced: TracedPass) -> bool:
    """Whether products are summed and averaged, and not divided by sums of targets."""
    waiting = [node.number]
    while waiting:
        for user in traced.users_of(waiting.pop()):
            if user.name == "div" and len(user.inputs) > 1:
                return False
            if user.name in ("sum", "neg", "mean", "mul", "div"):
                waiting.append(user.number)
    return True


def _zero_for_minus_one(node: Node, traced: TracedPass) -> Finding | None:
    """Labels 0 and 1 where a loss multiplies by -1 and 1."""
    for target, name in _signs(node, traced):
        if traced.depends_on_weights(target) or not traced.is_of(target):
            continue
        values = traced.tensor(target).detach().double()
        zeros = float((values == 0).double().mean())
        of_one_sign = bool((values >= 0).all()) or bool((values <= 0).all())  # else 0 is a mask
        if not (
            0 < zeros < 1 and of_one_sign and bool(((values == 0) | (values.abs() == 1)).all())
        ):
            continue
        return Finding(
            "critical",
            f"Labels 0 and 1 where {name} takes -1 and 1",
            f"{wording.percent(zeros)} of the labels are 0: for them the product is 0, whatever "
            "the output, and the loss has no gradient.",
            "Take 2 * target - 1.",
        )
    return None


def _signs(node: Node, traced: TracedPass) -> Iterator[tuple[Made | Given, str]]:
    """What a loss multiplies outputs by, or chooses their sign by, and its name."""
    if node.name == "soft_margin_loss":
        yield node.inputs[1], "the soft margin loss"
    elif _cuts_at_zero(node, traced):
        for source in node.inputs:
            for target in _behind_margin(source, traced):
                yield target, "a hinge loss"
    elif node.name == "softplus":
        for target in _behind_softplus(node.inputs[0], traced):
            yield target, "a logistic loss"
    elif node.name == "add" and len(node.inputs) == 2:
        yield from _chosen(node, traced)


def _behind_softplus(source: Made | Given, traced: TracedPass) -> Iterator[Made | Given]:
    """The labels y of ``-(y * output)`` and of ``(-y) * output``."""
    made = traced.origin_of(source)
    if made is not None and made.name == "neg":
        yield from _labels(traced.origin_of(made.inputs[0]), traced)
    yield from _negative(_labels(made, traced), traced)


def _negative(targets: Iterator[Made | Given], traced: TracedPass) -> Iterator[Made | Given]:
    """Those with numbers below zero, as the labels -y are."""
    return (target for target in targets if bool((traced.tensor(target) < 0).any()))


def _cuts_at_zero(node: Node, traced: TracedPass) -> bool:
    """Whether it gives max(x, 0)."""
    if node.name in ("clamp", "clamp_min"):
        bounds = (*node.arguments[1:], *node.keywords.values())
        return [bound for bound in bounds if bound is not None] == [0]
    if node.name == "maximum":
        return any(not bool(traced.tensor(one).any()) for one in node.inputs)
    return node.name == "relu"


def _behind_margin(source: Made | Given, traced: TracedPass) -> Iterator[Made | Given]:
    """The labels y of ``margin - y * output``."""
    made = traced.origin_of(source)
    if made is None:
        return
    if made.name == "rsub" and len(made.inputs) == 1:
        yield from _labels(traced.origin_of(made.inputs[0]), traced)
    elif made.name == "sub" and len(made.inputs) == 2:
        if not traced.depends_on_weights(made.inputs[0]):
            yield from _labels(traced.origin_of(made.inputs[1]), traced)
    elif made.name == "add" and len(made.inputs) == 1:  # margin + (-y) * output, as for ranks
        labels = _labels(traced.origin_of(made.inputs[0]), traced, ranks=True)
        yield from _negative(labels, traced)


def _labels(
    product: Node | None, traced: TracedPass, *, ranks: bool = False
) -> Iterator[Made | Given]:
    """The factor of an output that may be a label, and is no mask of products or differences."""
    if product is None or product.name != "mul" or len(product.inputs) != 2:
        return
    for pair in either_way(product):
        target, output = (traced.before_expanding(one) for one in pair)
        last = traced.origin_of(output)
        other = () if last is None else (last.name,)
        if (
            traced.depends_on_weights(output)
            and not {*other} & {"mul", *_POSITIVE, *(() if ranks else ("sub",))}
            and not _weighs_too(target, product, traced)
        ):
            yield target


def _weighs_too(target: Made | Given, product: Node, traced: TracedPass) -> bool:
    """Whether a tensor multiplies or counts something else as well, as a mask does."""
    values = traced.tensor(target)
    return any(
        node.number != product.number
        and node.name in ("mul", "sum", "div")
        and any(traced.tensor(traced.before_expanding(one)) is values for one in node.inputs)
        for node in traced.nodes.values()
    )


def _chosen(node: Node, traced: TracedPass) -> Iterator[tuple[Made | Given, str]]:
    """The labels of PyTorch's hinge and cosine embedding losses, compared with 1 and -1."""
    compared: dict[float, tuple[str, Made | Given]] = {}
    for source in node.inputs:
        branch = traced.origin_of(source)
        test = None
        if branch is not None and branch.name == "where":
            test = traced.origin_of(branch.inputs[0])
        if test is None or test.name not in ("eq", "ne") or len(test.inputs) != 1:
            return
        compared[float(test.arguments[1])] = test.name, test.inputs[0]
    if compared.keys() == {1.0, -1.0}:
        (kind, target), (other, same) = compared[1.0], compared[-1.0]
        if kind == other and torch.equal(traced.tensor(target), traced.tensor(same)):
            name = "hinge" if kind == "ne" else "cosine"
            yield target, f"the {name} embedding loss"


def _indices(node: Node, traced: TracedPass) -> Finding | None:
    """Labels 0 and 1 of all classes where a loss takes the numbers of those that apply."""
    if node.name != "multilabel_margin_loss_forward":
        return None
    target = traced.tensor(node.inputs[1])
    if target.shape[-1] < 3 or not bool(((target == 0) | (target == 1)).all()):
        return None
    return Finding(
        "critical",
        "Labels 0 and 1 where a loss takes the numbers of classes",
        "MultiLabelMarginLoss takes 0 and 1 for the first two classes, and knows no other.",
        "Take nn.MultiLabelSoftMarginLoss or nn.BCEWithLogitsLoss; or give the numbers of the "
        "classes that apply, and -1 behind them.",
    )


def _of_ctc(node: Node, traced: TracedPass) -> Iterator[Finding]:
    """Sequences that CTC cannot give: with blanks in them, or for want of steps."""
    if node.name not in CTC:
        return
    targets, steps, lengths = (_integers(one, traced) for one in node.arguments[1:4])
    blank = int(node.arguments[4]) if len(node.arguments) > 4 else 0
    rows = _sequences(targets, [int(one) for one in lengths.flatten()])
    with_blank = sum(bool((row == blank).any()) for row in rows)
    if with_blank:
        yield Finding(
            "critical",
            "The targets of CTC hold the blank",
            f"{with_blank} of {wording.count(len(rows), 'sequence')} contain class {blank}, which "
            "CTC takes for a pause: the model cannot give it as an answer, and the loss means "
            "nothing.",
            "Number the classes around the blank, or name another one: F.ctc_loss(..., blank=C). "
            "Where padding is meant, give target_lengths without it.",
        )
    needed = [len(row) + int((row[1:] == row[:-1]).sum()) for row in rows]
    short = sum(have < need for have, need in zip(steps.flatten().tolist(), needed, strict=False))
    if short >= _SHORT * len(rows):
        yield Finding(
            "critical" if 2 * short >= len(rows) else "warning",
            "Fewer steps than the targets of CTC need",
            f"{short} of {wording.count(len(rows), 'sequence')} have no alignment: each class "
            "takes a step, and a repeated one a blank before it. Their loss is infinite, which "
            "zero_infinity=True hides, and the model learns nothing from them.",
            "Shorten the input less: smaller strides, or targets in larger units. Logits are of "
            "[steps, samples, classes], and input_lengths count steps behind the strides.",
        )


def _integers(argument: Any, traced: TracedPass) -> Tensor:
    """Lengths or classes, which are given as a list or as a tensor."""
    if isinstance(argument, Made | Given):
        return traced.tensor(argument).detach().cpu()
    return torch.as_tensor(argument)


def _sequences(targets: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """The rows of padded targets, or the parts of joined ones, without their padding."""
    if targets.ndim > 1:
        return [row[:length] for row, length in zip(targets, lengths, strict=False)]
    ends = accumulate(lengths)
    return [targets[end - length : end] for end, length in zip(ends, lengths, strict=True)]
