"""Judge parameters by the laws that an init function draws, or that their modules do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from equipoise.diagnosis.initialisation.judgement.found import Found, Judgement, blocks_of
from equipoise.diagnosis.initialisation.judgement.slips import explained, slips_of
from equipoise.diagnosis.initialisation.laws import LEAST_ELEMENTS, Law, form_z, mean_z, scale_z
from equipoise.records import wording

_NEUTRAL = {0.0: "zeros_", 1.0: "ones_"}


def by_laws(
    parameters: Sequence[Found], laws: Mapping[str, Law], rule: str, limit: float
) -> dict[str, Judgement]:
    """Compare parameters with the laws that an init function draws."""
    named = [one for one in parameters if one.name in laws]
    places = blocks_of(named)
    judged = {one.name: _by_law(one, laws[one.name], rule, limit) for one in named}
    slips = {
        one.name: slips_of(one.layer, laws[one.name].std, None, places[one.name], limit)
        for one in named
        if judged[one.name].verdict == "mis-scaled"
    }
    return judged | {
        one.name: explained(one, judged[one.name], slips) for one in named if one.name in slips
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


def by_own_resets(parameters: Sequence[Found], limit: float) -> dict[str, Judgement]:
    """Compare parameters with what their modules' resets draw, and with zeros and ones."""
    return {one.name: _alone(one, limit) for one in parameters}


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
