"""What the numbers of an experiment say about the source's claim, and how near they are to it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Outcome = Literal[
    "holds",
    "partly open",
    "mixed",
    "fails",
    "undecided",
    "not testable here",
    "incomplete",
    "not judged",
]
Fidelity = Literal["same setting", "reduced", "stand-in data"]
# To a question that some of the sentences answer.
Answer = Literal["yes", "partly", "no", "undecided"]


@dataclass(frozen=True, slots=True)
class Check:
    """One sentence, compared with our numbers.

    Args:
        claim: What should hold.
        found: What was found.
        holds: Whether it does; ``None`` if the numbers do not decide it.
        ours: Whether the sentence is ours and not the source's, so that no verdict depends on it.

    Examples:
        >>> ours(Check("2 + 2 = 4", "4", True)).sentence
        'not in the paper: 2 + 2 = 4'
    """

    claim: str
    found: str
    holds: bool | None
    ours: bool = False

    @property
    def sentence(self) -> str:
        """The claim, and whose it is."""
        return f"not in the paper: {self.claim}" if self.ours else self.claim

    @property
    def answer(self) -> str:
        """``yes``, ``no`` or ``undecided``."""
        return "undecided" if self.holds is None else "yes" if self.holds else "no"


def ours(check: Check) -> Check:
    """Mark a check as one of a sentence that the source does not have."""
    return replace(check, ours=True)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the numbers say about a claim, on two axes that are never fused.

    Args:
        checks: The claim, sentence by sentence.
        left_out: What the source's setting has and ours has not.
        fidelity: Whether the setting is the source's, a smaller one, or one with other data.

    Examples:
        >>> Verdict((Check("2 + 2 = 4", "4", True), Check("2 + 2 = 5", "4", False))).outcome
        'mixed'
    """

    checks: tuple[Check, ...]
    left_out: tuple[str, ...] = ()
    fidelity: Fidelity = "same setting"

    @property
    def outcome(self) -> Outcome:
        """What became of the source's claim; see :func:`outcome_of`."""
        return outcome_of(self.checks)


def outcome_of(checks: tuple[Check, ...]) -> Outcome:
    """Combine the checks of the source's sentences; those of ours do not count.

    ``holds`` if all do; ``fails`` if one is refuted and none holds, ``mixed`` if one is refuted
    and another holds; ``partly open`` if none is refuted, some hold and others are undecided;
    ``undecided`` if none is decided.

    Examples:
        >>> outcome_of((Check("a", "", True), Check("b", "", None)))
        'partly open'
        >>> outcome_of((Check("a", "", False), Check("b", "", None)))
        'fails'
    """
    answers = [check.holds for check in checks if not check.ours]
    if not answers:
        return "not judged"
    if False in answers:
        return "mixed" if True in answers else "fails"
    if None in answers:
        return "partly open" if True in answers else "undecided"
    return "holds"


def answer_of(checks: tuple[Check, ...]) -> Answer | None:
    """Answer a question whose "yes" is what the checks say; ``None`` if there are none.

    Examples:
        >>> answer_of((Check("a", "", True), Check("b", "", False)))
        'partly'
    """
    answers: dict[Outcome, Answer] = {
        "holds": "yes",
        "mixed": "partly",
        "fails": "no",
        "partly open": "undecided",
        "undecided": "undecided",
    }
    return answers.get(outcome_of(checks))


def deciding(checks: tuple[Check, ...]) -> Check | None:
    """The check that a verdict rests on: the first refuted one, else an open one, else the first.

    Examples:
        >>> deciding((Check("a", "", True), Check("b", "", False))).claim
        'b'
    """
    theirs = [check for check in checks if not check.ours]
    for answer in (False, None, True):
        found = next((check for check in theirs if check.holds is answer), None)
        if found is not None:
            return found
    return None
