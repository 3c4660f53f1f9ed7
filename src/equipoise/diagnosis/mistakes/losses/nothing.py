"""Losses that compare outputs with nothing, so that an answer for all inputs is the best."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import product

import torch
from torch import Tensor

from equipoise.diagnosis.mistakes.repeated import loss_with
from equipoise.diagnosis.mistakes.traced_pass import TracedPass, place_of
from equipoise.diagnosis.sources import DRAWN, PRODUCTS, is_trained, kinds_of
from equipoise.diagnosis.trainability.entrance import leading_to
from equipoise.instrument import untouched
from equipoise.instrument.memory import pass_on_lack_of_memory
from equipoise.instrument.random_states import seeded
from equipoise.instrument.recording.graph import Given, Made, Node
from equipoise.records.finding import Finding

# How far outputs are moved, to see whether the loss falls in proportion.
_FAR = 20.0
# Numbers of a parameter that may weigh losses, and part of a loss that is nothing.
_FEW, _NOTHING = 16, 1e-3
# Part of a change by which it may be another, as rounding makes it.
_ROUNDING = 0.02
# To which parts outputs are shrunk.
_SHRUNK = (1.0, 0.5, 0.1, 0.0)
# How far outputs are moved from zero, and which part of the rise both ways may differ by, as by
# terms of the third order.
_STEP, _SKEW = 0.03, 0.1
# Outputs that are tried on both sides of zero, at most.
_MOST_APART = 4
_WEIGHTS = {"parameter"}
_TITLE = "The loss compares outputs with nothing"


def compared_with_nothing(traced: TracedPass) -> Finding | None:
    """A loss of outputs alone that falls without bound, or is least where all are zero.

    As a mean of outputs, the likelihood of a flow without its log-determinants or with these
    turned, or distances of pairs that are all to be alike. Critics have one output, and count
    what is real and what is not with opposite signs; where numbers are taken without their
    gradient, that is what keeps outputs apart.
    """
    weight = _weight_that_wins(traced)
    if weight is not None:
        return _finding_of_weight(weight)
    outputs = [] if traced.takes_detached else outputs_behind(traced)
    if not outputs or is_a_closed_loop(traced) or judges_what_others_make(traced):
        return None
    if _is_won_by_all_alike(outputs, traced):
        return Finding(
            "critical",
            _TITLE,
            "The same number for all samples and features brings it to zero: the targets are all "
            "alike, and none comes from the batch.",
            "Look at how targets are made: numbers that are cast to bool or to whole ones, or "
            "zeros that were to be filled.",
        )
    for made in outputs:
        if _falls_without_bound(made, traced):
            node = traced.nodes[made.node]
            return Finding(
                "critical",
                _TITLE,
                f"It falls in proportion to what {node.name}{place_of(node)} gives, of shape "
                f"{list(node.outputs[made.index].shape)}, for all samples and features alike, and "
                "without bound.",
                "Compare outputs with targets, such as by F.cross_entropy or F.mse_loss; of a "
                "normalising flow, subtract the log-determinants from the error.",
            )
    if not all(is_moved_at_will(made, traced) for made in outputs):
        return None  # what whitens outputs changes with them
    if not _is_least_at_zero(outputs, traced):
        return None
    return Finding(
        "critical",
        _TITLE,
        "No target and no input enters it, and it is least where all outputs are zero: the best "
        "answer is the same whatever is given.",
        "For a normalising flow, subtract the log-determinants: the loss is the mean of "
        "0.5 * (z**2).sum(1) - log_determinant. To pairs that should be alike, add pairs that "
        "should not.",
    )


def _weight_that_wins(traced: TracedPass) -> str | None:
    """A parameter of few numbers, in the loss, that alone brings it to zero or far below."""
    loss, nodes = traced.graph.loss, traced.after_layers
    few = {
        source.name: None
        for node in nodes
        if node.name not in PRODUCTS and not _is_of_a_layer(node, traced)
        for source in node.inputs
        if is_trained(source) and source.value.numel() <= _FEW
    }
    for name in few if math.isfinite(loss) else ():
        for sign in (1.0, -1.0):
            far, farther = (_loss_with(name, sign * by * _FAR, traced) for by in (1, 2))
            is_zero = 0 <= farther <= far <= _NOTHING * loss
            falls = far < min(0.0, loss) and abs(farther - 2 * far + loss) <= _ROUNDING * abs(far)
            if is_zero or falls:
                return name
    return None


def _is_of_a_layer(node: Node, traced: TracedPass) -> bool:
    """Whether it adds a bias to a product, or multiplies data by a vector, as energies do."""
    if node.name == "add":
        origins = [traced.origin_of(one) for one in node.inputs]
        return any(one is not None and one.name in PRODUCTS for one in origins)
    return node.name in ("mv", "dot") and not all(
        traced.depends_on_weights(one) for one in node.inputs
    )


def _loss_with(name: str, number: float, traced: TracedPass) -> float:
    with untouched(traced.model), seeded(0), torch.no_grad():
        dict(traced.model.named_parameters())[name].data.fill_(number)
        try:
            return float(traced.loss_fn(traced.model, traced.batch))
        except (RuntimeError, ValueError) as error:  # a law of a negative deviation
            pass_on_lack_of_memory(error)
            return math.inf


def _finding_of_weight(name: str) -> Finding:
    return Finding(
        "critical",
        "A weight of the loss makes it small, whatever the outputs are",
        f"With {name} far from where it is, the loss becomes zero, or falls without bound, for "
        "the same outputs: training moves this weight, and the rest has no reason to learn.",
        "Give a learned weight a term that holds it back, as in exp(-s) * loss + s, or keep it "
        "fixed.",
    )


def _is_won_by_all_alike(outputs: list[Made], traced: TracedPass) -> bool:
    loss = traced.graph.loss
    (first, *others) = (traced.tensor(made).detach() for made in outputs)
    if others or first.ndim < 2 or first.shape[1] < 2 or not loss > 0:
        return False
    up, down = (
        loss_with(traced.graph, {outputs[0]: torch.full_like(first, by)}) for by in (_FAR, -_FAR)
    )
    return 0 <= min(up, down) <= _NOTHING * loss and max(up, down) > loss


def outputs_behind(traced: TracedPass) -> list[Made]:
    """What the loss is made of, behind the layers; none if it takes the batch or draws as well."""
    result = traced.graph.result
    if result is None:
        return []
    leading = leading_to(traced.graph, result.node)
    found = dict[Made | Given, None]()
    behind = set[int]()
    for node in traced.after_layers:
        if node.name in PRODUCTS or node.number not in leading:
            continue
        if node.name in DRAWN or any(_is_given(node, traced)):
            return []
        if any(is_trained(one) and one.value.ndim > 1 for one in node.inputs):
            return []  # as the log-determinant of a linear flow
        behind.add(node.number)
        for source in node.inputs:
            is_before = isinstance(source, Made) and source.node not in behind
            if is_before and traced.depends_on_weights(source) and _leads(source, traced):
                found[source] = None
    return [one for one in found if isinstance(one, Made)] if result.node in behind else []


def is_a_closed_loop(traced: TracedPass) -> bool:
    """Whether weights are given what they have made of data, as a controller the state it moves.

    Its actions are bounded by what the states obey, and differ with the states that were given.
    """
    behind: dict[int, frozenset[str]] = {}
    for node in traced.graph.nodes:
        made = [one.node for one in node.inputs if isinstance(one, Made)]
        before = frozenset[str]().union(*(behind[one] for one in made))
        own = {
            given.name
            for one in (node.inputs if node.name in PRODUCTS else ())
            if kinds_of(one, traced.kinds) == {"parameter"}
            for given in traced.given_of(one)
            if given.value.ndim > 1 and given.value.requires_grad
        }
        if own & before:
            return True
        behind[node.number] = before | own
    return False


def judges_what_others_make(traced: TracedPass) -> bool:
    """Whether the same last layer takes data alone, and what other trained weights make of them.

    So a generator matches the features of a critic, which another optimiser moves.
    """
    made_of: dict[int, frozenset[str]] = {}
    judged: dict[frozenset[str], set[frozenset[str]]] = {}
    last = {node.number for node in traced.last_layers}
    for node in traced.graph.nodes:
        every = frozenset[str]()
        for one in node.inputs:
            if isinstance(one, Made):
                found = made_of[one.node]
            else:
                found = frozenset({one.name} if is_trained(one) else ())
            every = every if found <= every else every | found
        made_of[node.number] = every
        if node.number in last:
            kinds = [kinds_of(one, traced.kinds) for one in node.inputs]
            own = [one for one, kind in zip(node.inputs, kinds, strict=True) if kind == _WEIGHTS]
            names = frozenset(given.name for one in own for given in traced.given_of(one))
            judged.setdefault(names, set()).add(every)
    return any(one < other for every in judged.values() for one in every for other in every)


def _is_given(node: Node, traced: TracedPass) -> Iterator[bool]:
    """Of what is taken in place, whether it is of the batch, or made by weights that are kept."""
    for source in node.inputs:
        if isinstance(source, Made):
            inside = traced.nodes[source.node]
            if inside.number in traced.before_layers or inside.name in PRODUCTS:
                yield not traced.depends_on_weights(source) and traced.is_of(source)
        else:
            yield traced.is_of(source)


def _leads(source: Made | Given, traced: TracedPass) -> bool:
    """Whether data have made it, and the loss has a gradient there."""
    if isinstance(source, Given):
        return False
    gradients = traced.nodes[source.node].gradients
    has_gradient = source.index < len(gradients) and gradients[source.index] is not None
    return has_gradient and traced.is_of(source)


def _falls_without_bound(made: Made, traced: TracedPass) -> bool:
    values = traced.tensor(made).detach()
    if values.ndim < 2 or values.shape[1] < 2 or not values.is_floating_point():
        return False
    if not is_moved_at_will(made, traced):
        return False
    for sign in (1.0, -1.0):
        near, far, farther = (
            loss_with(traced.graph, {made: torch.full_like(values, sign * by)})
            for by in (_FAR, 2 * _FAR, 4 * _FAR)
        )
        expected = 2 * (far - near)
        if near > far and abs(farther - far - expected) <= _ROUNDING * abs(expected):
            return _counts_all_alike(made, traced)
    return False


def is_moved_at_will(made: Made, traced: TracedPass) -> bool:
    """Whether weights of its own that are trained gave it, if a product did.

    Critics that are kept have bounds, and so have correlations, as products of two outputs.
    """
    node = traced.nodes[made.node]
    return node.name not in PRODUCTS or any(
        traced.tensor(one).requires_grad and kinds_of(one, traced.kinds) == {"parameter"}
        for one in node.inputs
    )


def _counts_all_alike(made: Made, traced: TracedPass) -> bool:
    """Whether no sample and no feature counts with the other sign, or not at all."""
    values = traced.tensor(made).detach()
    changes = []
    for row in (0, -1):
        for column in (0, -1):
            moved = values.clone()
            moved[row, column] += _FAR
            changes.append(loss_with(traced.graph, {made: moved}) - traced.graph.loss)
    return all(change > 0 for change in changes) or all(change < 0 for change in changes)


def _is_least_at_zero(outputs: list[Made], traced: TracedPass) -> bool:
    layers = {node.number for node in traced.graph.nodes if node.name in PRODUCTS}
    fixed = layers | traced.before_layers

    def loss_of(values: dict[Made, Tensor]) -> float:
        return loss_with(traced.graph, values, fixed)

    given = {made: traced.tensor(made).detach() for made in outputs}
    shrunk = [loss_of({made: by * x for made, x in given.items()}) for by in _SHRUNK]
    *others, least = shrunk
    if not (all(math.isfinite(loss) for loss in shrunk) and shrunk == sorted(shrunk)[::-1]):
        return False
    if any(loss_of(dict(zip(outputs, told, strict=True))) < least for told in _apart(given)):
        return False
    fall = others[0] - least
    generator = torch.Generator().manual_seed(0)
    zero = {made: torch.zeros_like(x) for made, x in given.items()}
    for made, x in given.items():
        for draw in (torch.ones(x.shape), torch.randn(x.shape, generator=generator)):
            step = _STEP * draw.to(x)
            up, down = (loss_of(zero | {made: by * step}) for by in (1.0, -1.0))
            rise = up + down - 2 * least
            if min(up, down) < least or abs(up - down) > _SKEW * rise:
                return False
    return fall > _ROUNDING * abs(others[0])


def _apart(given: Mapping[Made, Tensor]) -> Iterator[list[Tensor]]:
    """Outputs that are alike in part, as those of anchors and of what is of their kind."""
    shapes = {x.shape for x in given.values()}
    first = next(iter(given.values()))
    drawn = torch.randn(first.shape, generator=torch.Generator().manual_seed(1)).to(first)
    if len(shapes) > 1 or len(given) > _MOST_APART:
        return
    if len(given) > 1:
        for signs in product((1.0, -1.0), repeat=len(given)):
            yield [sign * drawn for sign in signs]
    elif not len(first) % 2:
        yield [drawn[::2].repeat_interleave(2, 0)]
        yield [drawn[::2].repeat(2, *[1] * (drawn.ndim - 1))]
