"""Mistakes that would explain what a layer follows instead of what was intended."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from equipoise.diagnosis.initialisation.judgement.found import Found, Judgement
from equipoise.diagnosis.initialisation.laws import scale_z
from equipoise.diagnosis.initialisation.record import Verdict
from equipoise.diagnosis.initialisation.rules import DEFAULT, FAN_IN, FAN_OUT, Layer, Rule
from equipoise.records import wording

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


def explained(one: Found, judgement: Judgement, slips: Mapping[str, Sequence[Slip]]) -> Judgement:
    """Of the slips that explain a layer, take that which explains most others that are off."""
    usual = Counter(slip for several in slips.values() for slip in several)
    verdict, words = max(slips[one.name], key=lambda slip: usual[slip])
    law, intended = one.layer.law, judgement.intended[1]
    sizes = [wording.number(std, 2) for std in (law.std, intended)]
    why = f"std {sizes[0]} instead of {sizes[1]}: {words}"
    return replace(judgement, verdict=verdict, explanation=why)


def slips_of(layer: Layer, std: float, rule: Rule | None, blocks: int, limit: float) -> list[Slip]:
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
