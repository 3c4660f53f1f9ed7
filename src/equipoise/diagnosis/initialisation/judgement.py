"""Judge each parameter: by the law that an init function draws, or by what its siblings follow.

Without an init function, two comparisons stand for the intention. Layers at the same place of
repeated blocks have one standard deviation, whatever it is. Layers of one kind follow one rule;
those that do not are exceptions, unless what they follow is a known mistake.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear as _OutputOfAttention

from equipoise.diagnosis.initialisation.intended import Own, drawn_values
from equipoise.diagnosis.initialisation.laws import (
    LEAST_ELEMENTS,
    Law,
    form_of,
    form_z,
    law_of,
    mean_z,
    scale_z,
)
from equipoise.diagnosis.initialisation.record import Form, Verdict
from equipoise.diagnosis.initialisation.rules import (
    CONSTANT,
    DEFAULT,
    FAN_IN,
    FAN_OUT,
    Layer,
    Rule,
    consensus,
    fans,
)
from equipoise.records import wording

_KINDS: dict[str, tuple[type[nn.Module], ...]] = {
    "transposed convolution": (_ConvTransposeNd,),
    "convolution": (_ConvNd,),
    "linear": (nn.Linear,),
    "embedding": (nn.Embedding, nn.EmbeddingBag),
}
_NEUTRAL = {0.0: "zeros_", 1.0: "ones_"}
# A head that no init function met is of no concern if it is within this factor of the others.
_ABOUT = 1.5
# Ratios that a slip of a known kind gives, beside those of the depth.
_SLIPS = {
    math.sqrt(2): "a gain of √2 too much",
    1 / math.sqrt(2): "a gain of √2, that of ReLU, too little",
    math.sqrt(3): "√3, as if a standard deviation had been taken for the bound of a uniform law",
    1 / math.sqrt(3): "1/√3, as if the bound of a uniform law had been taken for its deviation",
}


class Slip(NamedTuple):
    """A mistake that would explain what was found."""

    verdict: Verdict
    words: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a parameter was meant to be, and what it is.

    Args:
        verdict: As in the record.
        intended: Mean and standard deviation; NaN if not known.
        rule: The intention in words.
        z: Of the standard deviation.
        explanation: What it follows instead.
    """

    verdict: Verdict
    intended: tuple[float, float] = (math.nan, math.nan)
    rule: str = ""
    z: float = math.nan
    explanation: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A parameter as it is.

    Args:
        layer: Its law and shape, and the law of its module's own reset.
        kind: What it is compared with: parameters of the same kind.
        parameter: Itself.
        module: The module that owns it.
        inside: The classes that the module is inside of, the outermost first, without PyTorch's.
    """

    layer: Layer
    kind: str
    parameter: Tensor
    module: nn.Module
    inside: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of the parameter."""
        return self.layer.name

    @property
    def tensor(self) -> Tensor:
        """Its values."""
        return self.parameter.detach()

    @property
    def place(self) -> tuple[str, str, tuple[int, ...]]:
        """The same for parameters at one place of repeated blocks."""
        return self.kind, re.sub(r"\d+", "*", self.name), self.layer.shape

    @property
    def is_matrix(self) -> bool:
        """Whether it has inputs and outputs, and is more than one factor for each channel."""
        return sum(size > 1 for size in self.layer.shape) >= 2


def describe(
    name: str,
    module: nn.Module,
    parameter: Tensor,
    drawn: Own | None,
    inside: tuple[str, ...] = (),
) -> Found:
    """What is to be known of a parameter before it is judged.

    Args:
        name: Of the parameter.
        module: The module that owns it.
        parameter: Itself.
        drawn: What a reset draws for it.
        inside: The classes that the module is inside of, the outermost first, without PyTorch's.
    """
    own = None if drawn is None else drawn.law
    values = drawn_values(module, parameter)
    law = law_of(values)
    fan_in, fan_out = fans(parameter) if parameter.ndim >= 2 else (1, 1)
    form: Form = form_of(values, law) if math.isfinite(law.std) else "other"
    own_z = math.inf if own is None else max(scale_z(law, own), form_z(law, own), key=abs)
    groups = int(getattr(module, "groups", 1)) if isinstance(module, _ConvNd) else 1
    by_part = drawn is not None and drawn.by_part
    shape = tuple(parameter.shape)
    layer = Layer(name, law, form, shape, fan_in, fan_out, own, own_z, groups, by_part)
    return Found(layer, _kind(name, module, parameter), parameter, module, inside)


def _kind(name: str, module: nn.Module, parameter: Tensor) -> str:
    if parameter.ndim >= 2:
        for kind, classes in _KINDS.items():
            if isinstance(module, classes):
                return kind
    return f"{type(module).__name__}.{name.rpartition('.')[2]}"


def by_laws(
    parameters: Sequence[Found], laws: Mapping[str, Law], rule: str, limit: float
) -> dict[str, Judgement]:
    """Compare parameters with the laws that an init function draws."""
    named = [one for one in parameters if one.name in laws]
    places = blocks_of(named)
    judged = {one.name: _by_law(one, laws[one.name], rule, limit) for one in named}
    slips = {
        one.name: _slips(one.layer, laws[one.name].std, None, places[one.name], limit)
        for one in named
        if judged[one.name].verdict == "mis-scaled"
    }
    return judged | {
        one.name: _explained(one, judged[one.name], slips) for one in named if one.name in slips
    }


def _by_law(one: Found, law: Law, rule: str, limit: float) -> Judgement:
    found, z = one.layer.law, scale_z(one.layer.law, law)
    judgement = Judgement("as intended", (law.mean, law.std), rule, z)
    if law.std > 0 and found.count < LEAST_ELEMENTS:
        return replace(judgement, verdict="not judged", explanation="it has too few elements")
    if abs(z) > limit:
        return replace(judgement, verdict="mis-scaled")
    if abs(mean_z(found, law)) > limit:
        known = law.mean if abs(law.mean) > 3 * law.std / math.sqrt(law.count) else 0.0
        why = f"mean {wording.number(found.mean, 2)} instead of {wording.number(known, 2)}"
        return replace(judgement, verdict="shifted", explanation=why)
    if form_z(found, law) > limit:
        why = f"a law of another form, {one.layer.form}"
        return replace(judgement, verdict="reshaped", explanation=why)
    return judgement


def by_siblings(parameters: Sequence[Found], limit: float) -> dict[str, Judgement]:
    """Compare parameters with others at the same place, and with others of their kind."""
    judged = by_own_resets(parameters, limit)
    matrices = [one for one in parameters if one.is_matrix]
    in_place: dict[str, Judgement] = {}
    for place in _groups((one.place, one) for one in matrices):
        in_place |= _in_place(place, limit)
    judged |= {name: j for name, j in in_place.items() if judged[name].verdict == "not judged"}
    for kind in _groups((_comparable(one), one) for one in matrices):
        judged |= _in_kind(kind, limit)
    return judged | {name: j for name, j in in_place.items() if j.verdict != "as intended"}


def _comparable(one: Found) -> object:
    """The same for parameters that a rule may have in common.

    Tables of other lengths of vectors are added to other things: those of words to each other, a
    table of relative positions to attention's scores.
    """
    return one.kind, one.layer.shape[1:] if one.kind == "embedding" else ()


def by_own_resets(parameters: Sequence[Found], limit: float) -> dict[str, Judgement]:
    """Compare parameters with what their modules' resets draw, and with zeros and ones."""
    return {one.name: _alone(one, limit) for one in parameters}


def blocks_of(parameters: Iterable[Found]) -> dict[str, int]:
    """How many parameters stand at the place of each."""
    return {one.name: len(g) for g in _groups((p.place, p) for p in parameters) for one in g}


def _groups(pairs: Iterable[tuple[object, Found]]) -> list[list[Found]]:
    groups: dict[object, list[Found]] = defaultdict(list)
    for key, one in pairs:
        groups[key].append(one)
    return list(groups.values())


def _alone(one: Found, limit: float) -> Judgement:
    own, law = one.layer.own, one.layer.law
    if own is not None and abs(one.layer.own_z) < limit:
        intended = (own.mean, own.std)
        return Judgement("as intended", intended, _own_words(one), scale_z(law, own))
    if law.is_constant and law.mean in _NEUTRAL and not one.is_matrix:
        return Judgement("as intended", (law.mean, 0.0), _NEUTRAL[law.mean], 0.0)
    return Judgement("not judged", explanation="nothing to compare it with")


def _own_words(one: Found) -> str:
    is_torch = type(one.module).__module__.startswith("torch.")
    return "PyTorch's default" if is_torch else "its module's reset_parameters"


def _in_kind(kind: Sequence[Found], limit: float) -> dict[str, Judgement]:
    """Judge layers of one kind by the rule that most follow.

    Identities, Dirac kernels and other matrices with more zeros than numbers are no draws of it.
    """
    kind = [one for one in kind if one.layer.law.is_constant or not one.layer.law.is_sparse]
    rule = consensus([one.layer for one in kind], limit)
    if rule is None:
        return {}
    judged, places = _compared(kind, rule, rule.words, limit), blocks_of(kind)
    together = {one.place for one in kind if places[one.name] > 1}
    usual = [one.layer.law for one in kind if _follows(rule, one.layer, limit)]
    of_one_place = _is_of_one_place(kind, rule, limit)
    of_blocks = _is_of_blocks(kind, rule, limit)
    parts = _unmet(kind, rule, limit)
    alike = _drawn_alike(parts, rule, limit)
    for one in kind:
        judgement = judged[one.name]
        outside = of_blocks and not _is_in_a_block(one)
        common = (
            one.layer.law.is_constant or one.place in together or outside or _is_end(one, kind)
        )
        elsewhere = judgement.verdict == "missed" and (
            of_one_place
            or outside
            or _is_of_other_parts(one, kind, rule, limit)
            or _is_of_another_class(one, parts)
            or _is_a_head(one, kind, rule)
            or _is_of_attention(one, kind, rule, limit)
        )
        apart = judgement.verdict == "mis-scaled" and (
            _is_drawn_apart(one.layer.law, usual, limit) or one.name in alike
        )
        if (
            elsewhere
            or apart
            or (common and judgement.verdict in ("mis-scaled", "residual scaling"))
        ):
            judged[one.name] = replace(judgement, verdict="exception")
    return judged


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


def _in_place(place: Sequence[Found], limit: float) -> dict[str, Judgement]:
    """Judge layers at one place of repeated blocks by the standard deviation of most."""
    drawn = [one for one in place if not one.layer.law.is_constant]
    rule = consensus([one.layer for one in drawn], limit, (CONSTANT,))
    if rule is None:
        return {}
    outside = [one for one in drawn if abs(rule.z(one.layer)) >= limit]
    if len(outside) == 1 and outside[0] in (place[0], place[-1]) and _is_chain(place):
        return {}  # the first and the last layer of a chain often have a scale of their own
    words = f"std {wording.number(rule.gain, 2)}, as in most of {len(drawn)} blocks"
    return _compared(drawn, rule, words, limit)


def _compared(
    layers: Sequence[Found], rule: Rule, words: str, limit: float
) -> dict[str, Judgement]:
    """Judge layers by a rule."""
    places = blocks_of(layers)
    slips = {
        one.name: _slips(one.layer, rule.std(one.layer), rule, places[one.name], limit)
        for one in layers
        if abs(rule.z(one.layer)) >= limit
    }
    judged = {}
    for one in layers:
        intended, z = (0.0, rule.std(one.layer)), rule.z(one.layer)
        judgement = Judgement("as intended", intended, words, z)
        is_off = one.name in slips and not _is_drawn_by_part(one, limit)
        judged[one.name] = _explained(one, judgement, slips) if is_off else judgement
    return judged


def _is_drawn_by_part(one: Found, limit: float) -> bool:
    """Whether the part of the model that a layer belongs to draws it so, in a reset of its own."""
    return one.layer.by_part and abs(one.layer.own_z) < limit


def _is_chain(place: Sequence[Found]) -> bool:
    """Whether layers follow each other directly, as in one ``nn.Sequential``."""
    return len({one.name.rsplit(".", 2)[0] for one in place}) == 1


def _is_end(one: Found, kind: Sequence[Found]) -> bool:
    """Whether a layer is the first or last of its kind, or none takes what it gives."""
    if one in (kind[0], kind[-1]):
        return True
    outputs, inputs, *_ = one.layer.shape
    others = [other.layer.shape for other in kind if other is not one]
    return all(outputs != s[1] for s in others) or all(inputs != s[0] for s in others)


def _explained(one: Found, judgement: Judgement, slips: Mapping[str, Sequence[Slip]]) -> Judgement:
    """Of the slips that explain a layer, take that which explains most others that are off."""
    usual = Counter(slip for several in slips.values() for slip in several)
    verdict, words = max(slips[one.name], key=lambda slip: usual[slip])
    law, intended = one.layer.law, judgement.intended[1]
    sizes = [wording.number(std, 2) for std in (law.std, intended)]
    why = f"std {sizes[0]} instead of {sizes[1]}: {words}"
    return replace(judgement, verdict=verdict, explanation=why)


def _slips(layer: Layer, std: float, rule: Rule | None, blocks: int, limit: float) -> list[Slip]:
    """What a layer may follow instead of a standard deviation, the most likely first."""
    law = layer.law

    def follows(factor: float) -> bool:
        return abs(scale_z(law, law.of_size(factor * std))) < limit

    if law.is_constant:
        return [Slip("mis-scaled", f"all elements are {wording.number(law.mean)}")]
    found = []
    is_own = abs(layer.own_z) < limit and not layer.by_part
    if is_own and (rule is None or rule.scaling is not DEFAULT):
        found.append(Slip("missed", "what its module's reset_parameters draws"))
    root = math.sqrt(layer.fan_in / layer.fan_out)
    for meant, taken, factor in ((FAN_IN, FAN_OUT, root), (FAN_OUT, FAN_IN, 1 / root)):
        possible = root != 1 and (rule is None or rule.scaling is meant)
        if possible and follows(factor):
            found.append(Slip("fan mode", f"it follows {taken.name}, not {meant.name}"))
    for branches in sorted({blocks, 2 * blocks} - {1, 2}):
        if follows(math.sqrt(branches)):
            found.append(Slip("residual scaling", f"it lacks the factor 1/√{branches}"))
        if follows(branches**-0.5):
            found.append(Slip("residual scaling", f"it has a factor 1/√{branches}"))
    if std > 0 and follows(std):
        found.append(Slip("mis-scaled", "a variance was given for a standard deviation"))
    if std > 0 and follows(std**-0.5):
        found.append(Slip("mis-scaled", "a standard deviation was given for a variance"))
    found += [Slip("mis-scaled", words) for factor, words in _SLIPS.items() if follows(factor)]
    times = f"{wording.number(law.std / std)} times as large" if std > 0 else "not constant"
    return [*found, Slip("mis-scaled", times)]
