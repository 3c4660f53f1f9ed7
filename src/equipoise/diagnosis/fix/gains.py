"""Compare a remedy with the model as it is, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.special import stdtrit

from equipoise.diagnosis.fix.record import Gain
from equipoise.diagnosis.fix.runs import WORTHWHILE, Run
from equipoise.diagnosis.short_training import mean_over_seeds

# Of a two-sided interval that holds 9 of 10 cases, one end is exceeded in 1 of 20.
_CONFIDENCE = 0.95


def gain_record(name: str, plain: Sequence[Run], changed: Sequence[Run]) -> Gain:
    r"""Compare a remedy with the model as it is, on the seeds that both were trained with.

    With d the differences of scores over n seeds, the interval is
    :math:`\bar d \pm t_{0.95}\,s_d/\sqrt n`. A gain of less than a hundredth of the loss is no
    help, however sure it is.
    """
    before = {run.seed: run.score for run in plain}
    pairs = [(before[run.seed], run.score) for run in changed if run.seed in before]
    finite = [b - a for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    difference = mean_over_seeds(finite)
    width = math.nan
    if len(finite) > 1:
        width = float(stdtrit(len(finite) - 1, _CONFIDENCE)) * difference.error
    low, high = difference.value - width, difference.value + width
    helps: bool | None
    if any(math.isinf(b) for _, b in pairs):
        helps = ahead = False
    elif len(pairs) < 2:
        helps, ahead = None, False
    elif any(math.isinf(a) for a, _ in pairs):
        # It trains where the model as it is diverges, if it does; a finite loss may be any.
        helps = ahead = all(run.has_learned for run in changed if run.seed in before)
    else:
        least = WORTHWHILE * abs(mean_over_seeds([a for a, _ in pairs]).value)
        ahead = difference.value < 0 and -difference.value >= least
        helps = ahead and high < 0
    return Gain(name, difference, low, high, helps, ahead)


def may_be_better(best: Sequence[Run], other: Sequence[Run]) -> bool:
    """Whether another arm may be better than the best one by what is worth a change."""
    least = WORTHWHILE * abs(mean_over_seeds([run.score for run in best]).value)
    return gain_record("", best, other).low < -least
