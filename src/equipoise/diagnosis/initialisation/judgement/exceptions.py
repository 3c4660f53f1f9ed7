"""Layers that may follow another rule than most of their kind, as they were meant to."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch.nn.modules.linear import NonDynamicallyQuantizableLinear as _OutputOfAttention

from equipoise.diagnosis.initialisation.judgement.found import Found, Judgement, blocks_of
from equipoise.diagnosis.initialisation.laws import Law, form_z
from equipoise.diagnosis.initialisation.rules import (
    FAN_AVERAGE,
    FAN_IN,
    FAN_OUT,
    GAINS,
    Layer,
    Rule,
    consensus,
)

# A head that no init function met is of no concern if it is within this factor of the others.
_ABOUT = 1.5
# How Xavier's and Kaiming's functions scale.
_NAMED = (FAN_IN, FAN_OUT, FAN_AVERAGE)


def exceptions(
    kind: Sequence[Found], rule: Rule, judged: Mapping[str, Judgement], limit: float
) -> list[str]:
    """Names of the layers that do not follow the rule of their kind, and may not be meant to.

    Args:
        kind: The layers, in the order of the model.
        rule: What most of them follow.
        judged: What each is judged to be by that rule alone.
        limit: Most standard errors between what follows the rule and the rule.
    """
    places = blocks_of(kind)
    together = {one.place for one in kind if places[one.name] > 1}
    usual = [one.layer.law for one in kind if _follows(rule, one.layer, limit)]
    of_one_place = _is_of_one_place(kind, rule, limit)
    of_blocks = _is_of_blocks(kind, rule, limit)
    parts = _unmet(kind, rule, limit)
    alike = _drawn_alike(parts, rule, limit)

    def is_exception(one: Found) -> bool:
        verdict, law = judged[one.name].verdict, one.layer.law
        outside = of_blocks and not _is_in_a_block(one)
        missed = verdict == "missed" and (
            of_one_place
            or outside
            or _is_of_other_parts(one, kind, rule, limit)
            or _is_of_another_class(one, parts)
            or _is_a_head(one, kind, rule)
            or _is_of_attention(one, kind, rule, limit)
        )
        apart = verdict == "mis-scaled" and (
            _is_drawn_apart(law, usual, limit) or one.name in alike
        )
        by_class = verdict in ("mis-scaled", "fan mode") and _is_drawn_by_its_class(
            one, parts, limit
        )
        alone = verdict in ("mis-scaled", "residual scaling") and (
            law.is_constant or one.place in together or outside or _is_end(one, kind)
        )
        return missed or apart or by_class or alone

    return [one.name for one in kind if is_exception(one)]


def _is_drawn_apart(law: Law, usual: Sequence[Law], limit: float) -> bool:
    """Whether a layer is drawn smaller by another function than its siblings, so on purpose.

    The form of siblings with fewer elements is not known as well, and only the largest counts.
    """
    if law.is_constant or not all(law.std < other.std for other in usual):
        return False
    enough = min(law.count, max((other.count for other in usual), default=0))
    return all(
        form_z(replace(law, sample=law.sample * (other.std / law.std)), other) > limit
        for other in usual
        if other.count >= enough
    )


def _is_of_attention(one: Found, kind: Sequence[Found], rule: Rule, limit: float) -> bool:
    """Whether PyTorch's attention has drawn it, as of all heads that no init function has met.

    Vision transformers of torchvision draw their perceptrons anew, and attention not.
    """
    outputs = [other for other in kind if isinstance(other.module, _OutputOfAttention)]
    met = any(_follows(rule, other.layer, limit) for other in outputs)
    return isinstance(one.module, _OutputOfAttention) and not met


def _is_of_one_place(kind: Sequence[Found], rule: Rule, limit: float) -> bool:
    """Whether a rule is that of one place in repeated blocks, which have another place beside it.

    Then the initialisation goes by the place, and says nothing of layers outside the blocks. Two
    layers of a block whose names differ by a number, one of them all zeros, are two places.
    """

    def place(one: Found) -> object:
        return one.place, one.layer.law.is_constant

    places = {place for place, count in Counter(map(place, kind)).items() if count > 1}
    follow = {place(one) for one in kind if _follows(rule, one.layer, limit)}
    return len(follow) == 1 and follow < places


def _is_of_blocks(kind: Sequence[Found], rule: Rule, limit: float) -> bool:
    """Whether a rule is that of repeated blocks alone, which may draw their weights themselves."""
    places, follow = blocks_of(kind), [one for one in kind if _follows(rule, one.layer, limit)]
    return all(_is_in_a_block(one) and places[one.name] > 1 for one in follow)


def _is_in_a_block(one: Found) -> bool:
    """Whether it belongs to a module that is numbered, and is not numbered itself."""
    *path, owner, _ = ["", *one.name.split(".")]
    return any(part.isdecimal() for part in path) and not owner.isdecimal()


def _is_of_other_parts(one: Found, kind: Sequence[Found], rule: Rule, limit: float) -> bool:
    """Whether a rule is that of other parts of a model, of which none has a part with this layer.

    The heads of a detector have an init function of their own, and its trunk PyTorch's defaults: a
    part of several layers that no call of the function has met is meant so.
    """

    def part(layer: Found) -> str:
        return layer.name.partition(".")[0]

    own = [layer for layer in kind if part(layer) == part(one) and not layer.layer.law.is_constant]
    has_own_name = not part(one).isdecimal()  # no block of a sequence
    met = any(_follows(rule, layer.layer, limit) for layer in own)
    return has_own_name and len(own) > 1 and not met


def _unmet(kind: Sequence[Found], rule: Rule, limit: float) -> dict[tuple[str, ...], list[Found]]:
    """The layers inside of each class, and of the classes around it, where none follows a rule."""
    parts: dict[tuple[str, ...], list[Found]] = defaultdict(list)
    met = set[tuple[str, ...]]()
    for one in kind:
        classes = [one.inside[:depth] for depth in range(1, len(one.inside) + 1)]
        for inside in classes:
            parts[inside].append(one)
        if _follows(rule, one.layer, limit):
            met.update(classes)
    return {inside: layers for inside, layers in parts.items() if inside not in met}


def _is_of_another_class(one: Found, parts: Mapping[tuple[str, ...], Sequence[Found]]) -> bool:
    """Whether a rule is that of parts of other classes, of which none is met in this one's.

    MaxxViT draws its transformers and leaves ConvNeXt's blocks to PyTorch's defaults, with the
    perceptrons inside of them, which are of the same class as those of transformers.
    """
    depths = range(1, len(one.inside) + 1)
    return any(len(parts.get(one.inside[:depth], ())) > 1 for depth in depths)


def _is_drawn_by_its_class(
    one: Found, parts: Mapping[tuple[str, ...], Sequence[Found]], limit: float
) -> bool:
    """Whether a class of the model draws all its layers by one function of ``torch.nn.init``.

    The embedding of a series does so with its only convolution, in a model that leaves the others
    to PyTorch's defaults, or draws them by their outputs.
    """
    named = [Rule(scaling, gain) for scaling in _NAMED for gain in GAINS]
    depths = range(1, len(one.inside) + 1)
    layers = [parts[inside] for depth in depths if (inside := one.inside[:depth]) in parts]
    return any(
        all(_follows(rule, x.layer, limit) for x in some) for some in layers for rule in named
    )


def _drawn_alike(
    parts: Mapping[tuple[str, ...], Sequence[Found]], rule: Rule, limit: float
) -> frozenset[str]:
    """Layers of parts that follow another rule, and none of them this one.

    Feature pyramids draw their convolutions by their inputs, behind a ResNet that draws them by
    their outputs; heads may do so together. Layers of one shape tell no scaling from another.
    """
    together = {one.name: one for layers in parts.values() for one in layers}
    found = set[str]()
    for layers in (*parts.values(), [*together.values()]):
        theirs = consensus([one.layer for one in layers], limit)
        shapes = {one.layer.shape for one in layers}
        if theirs is None or theirs.scaling is rule.scaling or len(shapes) < 2:
            continue
        if theirs.is_simple:
            found.update(one.name for one in layers if _follows(theirs, one.layer, limit))
    return frozenset(found)


def _is_a_head(one: Found, kind: Sequence[Found], rule: Rule) -> bool:
    """Whether it is the last layer, of about the intended size: heads are put on afterwards."""
    std, intended = one.layer.law.std, rule.std(one.layer)
    return one is kind[-1] and intended / _ABOUT < std < intended * _ABOUT


def _follows(rule: Rule, layer: Layer, limit: float) -> bool:
    return not layer.law.is_constant and abs(rule.z(layer)) < limit


def _is_end(one: Found, kind: Sequence[Found]) -> bool:
    """Whether a layer is the first or last of its kind, or none takes what it gives."""
    if one in (kind[0], kind[-1]):
        return True
    outputs, inputs, *_ = one.layer.shape
    others = [other.layer.shape for other in kind if other is not one]
    return all(outputs != s[1] for s in others) or all(inputs != s[0] for s in others)
