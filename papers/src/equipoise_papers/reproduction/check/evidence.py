"""Whether differences between published and new records are noise, or the code has changed.

Rounding differs between processors and versions of PyTorch, and a training multiplies it: after a
hundred steps, a network is another one. If that is all, the published and the new record of a cell
are two draws from one distribution, and nothing tells which is which. Two consequences are tested
for each field, over the cells whose records differ by more than rounding:

**Bias.** Differences are as often positive as negative, and their mean is zero, by Student's t.
Each is divided by a yardstick that does not change if the two records change places: the standard
deviation of the published seeds and the new record, or the size of both numbers where a cell has
no other seeds. ``n`` signs are all equal with probability 2^(1 - n), so that no p-value below that
is believed: differences that are one last digit each would have no scatter at all.

**Range.** At worst, the new record is like that of one more seed. It is then the smallest or the
largest of k + 1 values with a probability of 2 / (k + 1) at most, where k seeds are published.
Cells outside the range are counted, one of each group that differs by the seed alone, and the
count is compared with independent events of these probabilities. A number that is missing or not
finite counts as larger than all others, so that trainings that newly diverge are seen.

Both hold for any distribution, but for Student's t, which scatter with heavy tails makes less
ready to see a bias, not more. All tests of a check share its level equally (Bonferroni); those of
so few cells that they could not reach their share are not counted (Tarone).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scipy.special import stdtr, stdtrit

from equipoise_papers.judging import standard_error
from equipoise_papers.reproduction.check.record import Evidence, Question, Yardstick

# Fewer cells are no test.
_FEWEST = 2


@dataclass(frozen=True, slots=True)
class Pair:
    """One field of one cell, published and new.

    Args:
        field: The field.
        group: What cells have in common that differ by the seed alone.
        published: Mean of the published numbers; ``None`` if no two finite numbers differ.
        new: Mean of the new ones.
        relative: Mean difference of the numbers, each relative to its size.
        seeds: The same mean of each published seed, this cell's among them.
        published_outcomes: Of the same seeds, the mean of all numbers, infinite if one of them is
            not finite.
        new_outcome: The new one.
    """

    field: str
    group: str
    published: float | None
    new: float | None
    relative: float | None
    seeds: tuple[float, ...]
    published_outcomes: tuple[float, ...]
    new_outcome: float

    @property
    def yardstick(self) -> Yardstick:
        """What the difference is divided by."""
        return "spread" if len(self.seeds) > 1 else "size"

    @property
    def scaled(self) -> float | None:
        """The difference in yardsticks; ``None`` if there is none.

        Examples:
            >>> Pair("loss", "", 1.0, 3.0, 1.0, (1.0,), (1.0,), 3.0).scaled  # of a mean size of 2
            1.0
            >>> round(Pair("loss", "", 1.0, 2.0, 0.7, (1.0, 3.0), (1.0, 3.0), 2.0).scaled, 9)
            1.0
        """
        if self.published is None or self.new is None or self.yardstick == "size":
            return self.relative
        # With the new one, as otherwise a published record that stands out would shrink its own
        # difference, and the differences of the others would lean to its other side.
        spread = statistics.stdev([*self.seeds, self.new])
        return (self.new - self.published) / spread if spread else 0.0


@dataclass(frozen=True, slots=True)
class Test:
    """A test before its level is known.

    Args:
        field: Of the record.
        question: Which of the two.
        yardstick: Of the differences.
        cells: Cells that entered.
        value: Mean difference in yardsticks, or share outside the range.
        error: Standard error of the mean; of a range, the share that chance gives.
        p: Probability that chance alone gives this or more.
        smallest_p: The smallest that so many cells can give.
    """

    field: str
    question: Question
    yardstick: Yardstick
    cells: int
    value: float
    error: float
    p: float
    smallest_p: float

    __test__ = False  # not one of pytest's

    def at(self, level: float) -> Evidence:
        """Decide."""
        margin = self.error
        if self.question == "bias":
            margin *= -float(stdtrit(self.cells - 1, level / 2))
        return Evidence(
            field=self.field,
            question=self.question,
            yardstick=self.yardstick,
            cells=self.cells,
            value=self.value,
            margin=margin,
            p=self.p,
            smallest_p=self.smallest_p,
            changed=self.p <= level,
        )


def field_tests(pairs: Sequence[Pair]) -> tuple[Test, ...]:
    """Test every field of one kind of cells.

    Args:
        pairs: Fields of cells that differ by more than rounding.
    """
    found: list[Test | None] = []
    for field, yardstick in dict.fromkeys((pair.field, pair.yardstick) for pair in pairs):
        members = [p for p in pairs if (p.field, p.yardstick) == (field, yardstick)]
        found.append(bias(members))
        found.append(outside(members))
    return tuple(test for test in found if test is not None)


def bias(pairs: Sequence[Pair]) -> Test | None:
    """Whether the mean difference of a field is away from zero; ``None`` for fewer than two.

    Examples:
        >>> shifts = [1.0, 1.1, 0.9, 1.0, 1.2, 0.8]
        >>> pairs = [Pair("x", "", 5.0, 5.0 + s, s, (5.0,), (5.0,), 5.0 + s) for s in shifts]
        >>> bias(pairs).p  # by Student's t alone 4e-6, but six signs are equal once in 32
        0.03125
    """
    gaps = [scaled for pair in pairs if (scaled := pair.scaled) is not None]
    if len(gaps) < _FEWEST:
        return None
    mean, error = statistics.fmean(gaps), standard_error(gaps)
    smallest = 2.0 ** (1 - len(gaps))
    # Without any scatter there is no error, and the number of signs decides alone.
    t = -abs(mean) / error if error else -math.inf if mean else 0.0
    p = 2 * float(stdtr(len(gaps) - 1, t))
    first = pairs[0]
    return Test(
        first.field,
        "bias",
        first.yardstick,
        len(gaps),
        mean,
        error,
        max(p, smallest),
        smallest,
    )


def outside(pairs: Sequence[Pair]) -> Test | None:
    """Whether too many new values lie outside the range of the published seeds.

    Examples:
        >>> seeds = (1.0, 2.0, 3.0)
        >>> pairs = [Pair("loss", str(n), 1.0, 9.0, 1.6, seeds, seeds, 9.0) for n in range(4)]
        >>> outside(pairs).p  # chance gives one half each
        0.0625
    """
    groups = {pair.group: pair for pair in reversed(pairs) if len(pair.published_outcomes) > 1}
    if len(groups) < _FEWEST:
        return None
    members = list(groups.values())
    chances = [2 / (len(pair.published_outcomes) + 1) for pair in members]
    count = sum(
        not min(pair.published_outcomes) <= pair.new_outcome <= max(pair.published_outcomes)
        for pair in members
    )
    first = pairs[0]
    return Test(
        first.field,
        "range",
        first.yardstick,
        len(members),
        count / len(members),
        statistics.fmean(chances),
        at_least(count, chances),
        math.prod(chances),
    )


def at_least(count: int, chances: Iterable[float]) -> float:
    """Probability that so many of independent events happen.

    Examples:
        >>> at_least(1, [0.5, 0.5]), at_least(2, [0.5, 0.25])
        (0.75, 0.125)
    """
    exactly = [1.0]  # probability of 0, 1, 2, … events
    for chance in chances:
        none = [probability * (1 - chance) for probability in exactly] + [0.0]
        one = [0.0] + [probability * chance for probability in exactly]
        exactly = [a + b for a, b in zip(none, one, strict=True)]
    return min(1.0, math.fsum(exactly[count:]))


def shared_level(tests: Sequence[Test], family: float) -> float:
    """Level of each test, so that all together are wrong with the family's probability at most.

    Args:
        tests: All tests of a check.
        family: Level of the whole check.

    Examples:
        >>> weak = Test("loss", "bias", "spread", 2, 1.0, 0.1, 0.5, 0.5)
        >>> strong = Test("loss", "bias", "spread", 30, 1.0, 0.1, 1e-6, 1e-9)
        >>> shared_level([weak, weak, strong, strong], 0.01)
        0.005
    """
    count = 1
    while sum(test.smallest_p <= family / count for test in tests) > count:
        count += 1
    return family / count
