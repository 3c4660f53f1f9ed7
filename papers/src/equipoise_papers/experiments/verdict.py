"""What the numbers of an experiment say about the source's claim."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Outcome = Literal[
    "reproduced", "partly", "not reproduced", "undecided", "incomplete", "not judged"
]


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
    """What the numbers say about a claim.

    Args:
        checks: The claim, sentence by sentence.
        left_out: Parts of the published figure that were not attempted.

    Examples:
        >>> Verdict((Check("2 + 2 = 4", "4", True), Check("2 + 2 = 5", "4", False))).outcome
        'partly'
    """

    checks: tuple[Check, ...]
    left_out: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """``reproduced`` only if the source's whole claim holds and nothing was left out."""
        answers = [check.holds for check in self.checks if not check.ours]
        if not answers:
            return "not judged"
        if any(answers):
            return "reproduced" if all(answers) and not self.left_out else "partly"
        return "undecided" if None in answers else "not reproduced"
