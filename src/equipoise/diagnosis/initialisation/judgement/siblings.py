"""Judge parameters by what their siblings follow.

Without an init function, two comparisons stand for the intention. Layers at the same place of
repeated blocks have one standard deviation, whatever it is. Layers of one kind follow one rule;
those that do not are exceptions, unless what they follow is a known mistake.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from equipoise.diagnosis.initialisation.judgement.exceptions import exceptions
from equipoise.diagnosis.initialisation.judgement.found import Found, Judgement, blocks_of, grouped
from equipoise.diagnosis.initialisation.judgement.laws import by_own_resets
from equipoise.diagnosis.initialisation.judgement.slips import explained, slips_of
from equipoise.diagnosis.initialisation.rules import CONSTANT, Rule, consensus
from equipoise.records import wording

# What is within this factor of the size of its siblings does as well, whatever it was drawn by.
_ABOUT = 1.1
# Part of its input that a layer hands on which starts as good as at zero: NCSN++ has 10⁻⁵.
_NOTHING = 1e-3


def by_siblings(parameters: Sequence[Found], limit: float) -> dict[str, Judgement]:
    """Compare parameters with others at the same place, and with others of their kind."""
    judged = by_own_resets(parameters, limit)
    matrices = [one for one in parameters if one.is_matrix and not one.is_rescaled]
    in_place: dict[str, Judgement] = {}
    for place in grouped((one.place, one) for one in matrices):
        in_place |= _in_place(place, limit)
    judged |= {name: j for name, j in in_place.items() if judged[name].verdict == "not judged"}
    for kind in grouped((_comparable(one), one) for one in matrices):
        judged |= _in_kind(kind, limit)
    return judged | {name: j for name, j in in_place.items() if j.verdict != "as intended"}


def _comparable(one: Found) -> object:
    """The same for parameters that a rule may have in common.

    Tables of other lengths of vectors are added to other things: those of words to each other, a
    table of relative positions to attention's scores.
    """
    return one.kind, one.layer.shape[1:] if one.kind == "embedding" else ()


def _in_kind(kind: Sequence[Found], limit: float) -> dict[str, Judgement]:
    """Judge layers of one kind by the rule that most follow.

    Identities, Dirac kernels and other matrices with more zeros than numbers are no draws of it.
    """
    kind = [one for one in kind if one.layer.law.is_constant or not one.layer.law.is_sparse]
    rule = consensus([one.layer for one in kind], limit)
    if rule is None:
        return {}
    judged = _compared(kind, rule, rule.words, limit)
    return judged | {
        name: replace(judged[name], verdict="exception")
        for name in exceptions(kind, rule, judged, limit)
    }


def _in_place(place: Sequence[Found], limit: float) -> dict[str, Judgement]:
    """Judge layers at one place of repeated blocks by the standard deviation of most."""
    drawn = [one for one in place if not _is_nearly_zero(one)]
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
        one.name: slips_of(one.layer, rule.std(one.layer), rule, places[one.name], limit)
        for one in layers
        if abs(rule.z(one.layer)) >= limit and not _is_about(one, rule)
    }
    judged = {}
    for one in layers:
        intended, z = (0.0, rule.std(one.layer)), rule.z(one.layer)
        judgement = Judgement("as intended", intended, words, z)
        is_off = one.name in slips and not _is_drawn_by_part(one, limit)
        judged[one.name] = explained(one, judgement, slips) if is_off else judgement
    return judged


def _is_nearly_zero(one: Found) -> bool:
    """Whether it is all zeros, or so small that a branch that ends in it starts at nothing."""
    law = one.layer.law
    return law.is_constant or law.std * math.sqrt(one.layer.fan_in) < _NOTHING


def _is_about(one: Found, rule: Rule) -> bool:
    """Whether a layer is so near to a rule that it does no harm, as after a few steps."""
    std = one.layer.law.std
    return rule.std(one.layer) / _ABOUT < std < rule.std(one.layer) * _ABOUT


def _is_drawn_by_part(one: Found, limit: float) -> bool:
    """Whether the part of the model that a layer belongs to draws it so, in a reset of its own."""
    return one.layer.by_part and abs(one.layer.own_z) < limit


def _is_chain(place: Sequence[Found]) -> bool:
    """Whether layers follow each other directly, as in one ``nn.Sequential``."""
    return len({one.name.rsplit(".", 2)[0] for one in place}) == 1
