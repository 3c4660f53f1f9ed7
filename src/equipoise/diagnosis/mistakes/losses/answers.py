"""Losses that are larger for right answers than for answers that say nothing.

The outputs of the last layer are replaced by what labels, or pairs of alike inputs, ask for, and
the operations behind it are repeated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

import torch
from torch import Tensor

from equipoise.diagnosis.mistakes.repeated import loss_with
from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.diagnosis.sources import DRAWN, following, is_same
from equipoise.diagnosis.trainability.entrance import leading_to
from equipoise.instrument.batches import tensors
from equipoise.instrument.recording.graph import Given, Made, Node
from equipoise.records import wording
from equipoise.records.finding import Finding

# Part of a loss by which it may rise where answers are as good as none.
_EQUAL = 1e-3
# Of fewer samples, labels and pairs tell little.
_SAMPLES = 4
# Part of the distance to other samples at which the inputs of one sample are alike, and of how
# many standard errors the difference has to be.
_ALIKE, _SURE = 0.85, 5.0
# Classes and columns that are tried, to see whether columns stand for classes, columns of which
# one may be that of the class in another order, and part of a change by which others are alike.
_CLASSES, _COLUMNS, _ENOUGH, _AS_GOOD = 4, 6, 4, 0.1
# Part of a vector by which answers differ that are nearly one.
_NEARLY = 0.3
# Scores of an answer that is certain.
_FAR = 30.0
_TITLE = "The loss is larger for right answers than for none"


def right_answers(traced: TracedPass) -> Finding | None:
    """A loss that rewards what it is to punish, by labels or by pairs of inputs.

    Nothing is said where the loss takes more of the samples than outputs and labels, such as what
    a teacher has told or what was drawn, or more weights.

    Args:
        traced: The pass on a batch whose first axes are those of samples.
    """
    layers = [] if traced.loss_is_assumed else traced.last_layers
    taken = taken_behind(layers, traced)
    if taken is None:
        return None
    outputs = [Made(node.number, 0) for node in layers]
    if not taken:
        return _of_pairs(outputs, traced)
    (labels, *others) = taken
    if others or len(outputs) > 1 or labels.ndim != 1 or labels.is_floating_point():
        return None
    return _of_labels(outputs[0], labels, traced)


def taken_behind(layers: Sequence[Node], traced: TracedPass) -> list[Tensor] | None:
    """Tensors of the batch that the loss takes beside what these layers give.

    None if it takes weights, other than single numbers, or what is drawn.
    """
    known = tensors(traced.batch)
    outputs = {node.number for node in layers}
    after = list(following(outputs, traced.graph.nodes))
    inside = outputs | {node.number for node in after}
    result = traced.graph.result
    if result is None or result.node not in inside:
        return None
    found = dict[int, Tensor]()
    for source in (one for node in after for one in node.inputs):
        if isinstance(source, Made) and source.node in inside:
            continue
        if isinstance(source, Made) and _is_drawn(source, traced):
            return None
        for given in traced.given_of(source):
            if given.kind == "parameter" and given.value.numel() > 1:
                return None
            for place, x in enumerate(known):
                if is_same(x, given.value):
                    found[place] = x
    return [*found.values()]


def _is_drawn(source: Made, traced: TracedPass) -> bool:
    behind = leading_to(traced.graph, source.node)
    return any(traced.nodes[number].name in DRAWN for number in behind)


def _of_labels(output: Made, labels: Tensor, traced: TracedPass) -> Finding | None:
    values = traced.tensor(output).detach()
    if values.ndim != 2 or len(values) != len(labels) or len(labels) < _SAMPLES:
        return None
    places = torch.unique(labels, return_inverse=True)[1]
    if int(places.max()) == 0:
        return None
    if _has_pairs(output, len(values), traced):
        if int(places.max()) + 1 == len(labels):
            return None  # no two samples are to be alike
        return _of_classes_told_apart(output, places, traced)
    if int(labels.min()) < 0 or int(labels.max()) >= values.shape[1]:
        return None
    if any(_takes_for_numbers(node, labels) for node in traced.graph.nodes):
        return None
    return _of_scores(output, labels, traced)


def _has_pairs(output: Made, samples: int, traced: TracedPass) -> bool:
    """Whether what follows has a number, or a vector, for every pair of samples."""
    return any(
        tuple(x.shape[:2]) == (samples, samples)
        for node in following({output.node}, traced.graph.nodes)
        for x in node.outputs[:1]
    )


def _takes_for_numbers(node: Node, labels: Tensor) -> bool:
    """Whether an operation computes with labels, as of counts."""
    gives_numbers = any(x.is_floating_point() for x in node.outputs)
    is_copy = node.is_pointwise or node.name == "_to_copy"
    return (
        gives_numbers
        and is_copy
        and any(isinstance(one, Given) and is_same(one.value, labels) for one in node.inputs)
    )


def _of_scores(output: Made, labels: Tensor, traced: TracedPass) -> Finding | None:
    """A loss that does not fall as the score of the right class goes from -1 over 0 to 1."""
    like = traced.tensor(output).detach()
    right = torch.nn.functional.one_hot(labels.long(), like.shape[1]).to(like)
    losses = _losses(traced, [{output: by * right} for by in (-1.0, 0.0, 1.0)])
    if losses is None:
        return None
    wrong, none, told = losses
    if not (_exceeds(told, none) or _exceeds(none, wrong)):
        return None
    if not _has_a_score_for_each_class(output, labels, traced):
        return None
    if wrong < none < told and _takes_energies(output, labels, none, traced):
        return Finding(
            "warning",
            "The loss asks for the lowest score of the right class",
            "It falls as that score does, and as those of other classes rise, and is least where "
            "it is by far the lowest: outputs are taken with the other sign.",
            "If they are energies, predict by argmin. If they are scores, take the minus away.",
        )
    if wrong < none < told and _says_what_it_is_not(output, labels, none, traced):
        return Finding(
            "note",
            "The loss asks for a low score of the labelled class, and for no other",
            "It falls as that score does, and no other class is preferred to the rest: labels are "
            "taken to say what samples are not.",
            "If they are complementary labels, that is meant. If they say what samples are, take "
            "F.cross_entropy; the likelihood of the class is log(p), and not log(1 - p).",
        )
    return Finding(
        "critical",
        _TITLE,
        "With the score of the right class at -1, 0 and 1, and those of the others at 0, it is "
        f"{', '.join(map(wording.number, losses))}: it should fall from each to the next.",
        "Look for a minus, for classes of another order, and for a margin in degrees or with sine "
        "and cosine exchanged: cos(angle + margin) is cosine * cos(margin) - sine * sin(margin).",
    )


def _has_a_score_for_each_class(output: Made, labels: Tensor, traced: TracedPass) -> bool:
    """Whether, of the columns of a class's samples, one counts otherwise than the others.

    Columns of codes, of embeddings and of thresholds do not stand for classes. The one is that of
    the label, or another if classes have another order, which three columns do not tell.
    """
    like = traced.tensor(output).detach()
    kinds = torch.unique(labels.long())
    columns, tells = kinds[:_COLUMNS], False
    for kind in kinds[:_CLASSES]:
        own = (labels == kind).to(like)[:, None]
        hot = torch.nn.functional.one_hot(columns, like.shape[1]).to(like)
        losses = _losses(
            traced, [{output: torch.zeros_like(like)}, *({output: own * one} for one in hot)]
        )
        if losses is None:
            return False
        none, *scored = losses
        others = [loss for loss, column in zip(scored, columns, strict=True) if column != kind]
        if len(columns) >= _ENOUGH:
            others = scored
        usual = sorted(others)[len(others) // 2]
        most = max(abs(loss - none) for loss in scored)
        differ = [loss for loss in others if abs(loss - usual) > _AS_GOOD * most]
        if len(differ) > (len(columns) >= _ENOUGH):
            return False
        tells |= any(abs(loss - usual) > _AS_GOOD * most for loss in scored)
    return tells  # embeddings may be turned, for all classes


def _takes_energies(output: Made, labels: Tensor, none: float, traced: TracedPass) -> bool:
    """Whether outputs are scores with the other sign throughout, as in the cross-entropy of -E.

    Right answers of the other sign are the best then, and no score of another class is as good,
    though it helps.
    """
    like = traced.tensor(output).detach()
    kinds, places = torch.unique(labels.long(), return_inverse=True)
    right, wrong = (
        torch.nn.functional.one_hot(one, like.shape[1]).to(like)
        for one in (kinds[places], kinds.roll(1)[places])
    )
    answers = (-_FAR * right, -2 * _FAR * right, _FAR * wrong)
    losses = _losses(traced, [{output: one} for one in answers])
    if losses is None:
        return False
    best, beyond, other = losses
    is_least = not _exceeds(best, beyond, none)
    return is_least and _exceeds(none, other, none) and _exceeds(other, best, none)


def _says_what_it_is_not(output: Made, labels: Tensor, none: float, traced: TracedPass) -> bool:
    """Whether labels are complementary: only that the labelled class is excluded counts.

    Either any other answer is as good, however sure, or a sure one is no better than none, as of
    estimates without bias. A likelihood with its sign turned rewards sure other answers without
    bound.
    """
    like = traced.tensor(output).detach()
    kinds, places = torch.unique(labels.long(), return_inverse=True)
    if len(kinds) < _CLASSES:
        return False
    one_hot = torch.nn.functional.one_hot
    own = one_hot(labels.long(), like.shape[1]).to(like)
    others = [one_hot(kinds.roll(k)[places], like.shape[1]).to(like) for k in (1, 2, 3)]
    losses = _losses(
        traced,
        [
            {output: x}
            for x in (_FAR * own, -_FAR * own, -2 * _FAR * own, *(_FAR * one for one in others))
        ],
    )
    if losses is None:
        return False
    told, excluded, farther, *sure = losses
    won = none - excluded
    if not won > 0:
        return False
    if abs(farther - excluded) <= _EQUAL * won:
        if told - none <= 2 * (like.shape[1] - 1) * won:
            return False  # a probability without its minus, of which no logarithm is taken
        return max(abs(one - excluded) for one in sure) <= _AS_GOOD * won
    return min(sure) >= none - _AS_GOOD * won


def _of_classes_told_apart(output: Made, places: Tensor, traced: TracedPass) -> Finding | None:
    """A loss that prefers one answer for all samples to one answer for each class."""
    like = traced.tensor(output).detach()
    directions = _directions(int(places.max()) + 1, like)
    losses = _losses(
        traced, [{output: directions[places]}, {output: directions[torch.zeros_like(places)]}]
    )
    if losses is None or not _exceeds(*losses):
        return None
    return _of_likeness(
        f"With one vector for each class it is {wording.number(losses[0])}, and with the same "
        f"vector for all samples {wording.number(losses[1])}."
    )


def _of_likeness(detail: str) -> Finding:
    return Finding(
        "critical",
        _TITLE,
        f"{detail} What is alike is driven apart.",
        "Where a loss takes distances, give it distances: 1 - cosine, or (a - b).norm(); a cosine "
        "is largest for what is alike.",
    )


def _of_pairs(outputs: Sequence[Made], traced: TracedPass) -> Finding | None:
    """A loss that prefers outputs of different samples to be alike to those of one sample.

    One pair of the batch's tensors has to hold inputs that are alike, sample by sample, as an
    anchor and what is of its kind, or two views. Critics, with one output, compare no samples.
    """
    roots = [one for output in outputs for one in traced.given_of(output)]
    given = [x for x in tensors(traced.batch) if any(is_same(one.value, x) for one in roots)]
    samples = len(given[0]) if given else 0
    if samples < _SAMPLES or len({x.shape for x in given}) != 1 or given[0].ndim < 2:
        return None
    alike = [pair for pair in combinations(range(len(given)), 2) if _are_alike(*pair, given)]
    places = _places(outputs, given, traced) or []
    if len(alike) != 1 or len(places) != len(given):
        return None
    if traced.tensor(outputs[0]).shape[1] == 1:
        return None
    ((first, second),) = alike
    own = _directions(samples, traced.tensor(outputs[0]).detach())

    def answers(parts: Mapping[int, Tensor]) -> Mapping[Made, Tensor]:
        all_of_them = [parts.get(place, own.roll(2, 0)) for place in range(len(given))]
        if len(outputs) == 1:
            return {outputs[0]: torch.cat([all_of_them[place] for place in places])}
        return {made: all_of_them[place] for made, place in zip(outputs, places, strict=True)}

    losses = _losses(
        traced,
        [answers({first: own, second: own}), answers({first: own, second: own.roll(1, 0)})],
    )
    if losses is None:
        return None
    if _exceeds(*losses):
        return _of_likeness(
            f"With equal outputs for both inputs of a sample that are alike it is "
            f"{wording.number(losses[0])}, and with equal ones for inputs of different samples "
            f"{wording.number(losses[1])}."
        )
    if not all(traced.depends_on_weights(one) for one in outputs):
        return None  # what a frozen network tells of the one view is a target, and no answer
    same = own[:1].expand_as(own)
    nearly = {first: same + _NEARLY * own, second: same + _NEARLY * own.roll(1, 0)}
    every = dict.fromkeys(range(len(given)), same)
    collapsed = _losses(traced, [answers(every), answers(every | nearly)])
    if traced.takes_detached or collapsed is None or collapsed[0] > losses[0]:
        return None
    if collapsed[1] > sum(losses) / 2:
        return None  # as of whitened outputs, which are all alike only where none differs
    if not _exceeds(*reversed(losses)):
        return None  # it does not ask that they are alike
    return Finding(
        "critical",
        "One answer for all inputs is as good as the right ones",
        f"With equal outputs for both inputs of a sample that are alike, and others for each "
        f"sample, the loss is {wording.number(losses[0])}; with the same output for all samples, "
        f"{wording.number(collapsed[0])}: nothing keeps them apart, and training ends there.",
        "Add what tells samples apart, as the others of the batch in a cross-entropy of "
        "similarities, or their variance; or stop the gradient of one side, behind a predictor.",
    )


def _places(
    outputs: Sequence[Made], given: Sequence[Tensor], traced: TracedPass
) -> list[int] | None:
    """Which of the inputs each output is of, or each part of the only one; None if of several."""
    roots = [[*traced.given_of(output)] for output in outputs]
    places = [
        [k for root in some for k, x in enumerate(given) if is_same(root.value, x)]
        for some in roots
    ]
    samples, every = len(given[0]), [*range(len(given))]
    shapes = {tuple(traced.tensor(output).shape) for output in outputs}
    rows = {shape[0] for shape in shapes if len(shape) == 2}
    if len(shapes) != 1 or sorted(place for one in places for place in one) != every:
        return None
    if len(outputs) == 1:
        return every if rows == {samples * len(given)} else None
    return [one[0] for one in places if len(one) == 1] if rows == {samples} else None


def _are_alike(first: int, second: int, given: Sequence[Tensor]) -> bool:
    """Whether rows of two tensors are nearer to each other than to those of other samples."""
    one, other = (given[k].detach().double().flatten(1) for k in (first, second))
    own, apart = (one - other).norm(dim=1), (one - other.roll(1, 0)).norm(dim=1)
    nearer = apart - own
    error = float(nearer.std()) / math.sqrt(len(nearer))
    is_near = float(own.mean()) < _ALIKE * float(apart.mean())
    return is_near and float(nearer.mean()) > _SURE * error


def _directions(count: int, like: Tensor) -> Tensor:
    """Vectors of the length of those that a layer gives, at right angles if there are so many."""
    size = like.shape[1]
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(max(count, size), size, generator=generator, dtype=torch.float64)
    if count <= size:
        drawn = torch.linalg.qr(drawn.t())[0].t()
    length = float(like.double().norm(dim=1).mean())
    return (length * torch.nn.functional.normalize(drawn)[:count]).to(like)


def _losses(traced: TracedPass, answers: Sequence[Mapping[Made, Tensor]]) -> list[float] | None:
    losses = [loss_with(traced.graph, one) for one in answers]
    return losses if all(map(math.isfinite, losses)) else None


def _exceeds(loss: float, other: float, scale: float = 0.0) -> bool:
    return loss - other > _EQUAL * max(abs(loss), abs(other), abs(scale))
