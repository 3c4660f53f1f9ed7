"""The check-up for a terminal of 80 columns or more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from equipoise.diagnosis.record import Checkup, Comparison, LayerPrediction
from equipoise.probes.record import GradientGrowth, LayerConditioning
from equipoise.records import wording
from equipoise.report.checkup.terminal.fix import print_fix
from equipoise.report.checkup.terminal.optimizer import print_optimizer
from equipoise.report.checkup.terminal.preconditioning import print_preconditioning
from equipoise.report.checkup.terminal.second_order import print_second_order
from equipoise.report.checkup.terminal.smoothness import print_smoothness
from equipoise.report.checkup.words import first_screen, overview
from equipoise.report.console import (
    STYLES,
    excerpt,
    heading,
    new_table,
    print_findings,
    print_header,
    remark,
    text,
)
from equipoise.report.pages import MARKS

if TYPE_CHECKING:
    from rich.console import Console

_OUTCOME_STYLES = {"agrees": "green", "differs": "red", "undecided": "yellow"}
_VERIFICATION_STYLES = {"verified": "green", "not verified": "red", "not tried": "dim"}
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"

_MOST_CONDITIONED = 8
_BAR_WIDTH = 14


def print_checkup(checkup: Checkup, console: Console, *, full: bool = False) -> None:
    """Print a check-up's first screen, or all of it.

    Names in it are printed literally: neither as markup nor as control sequences.
    """
    checkup = wording.printable(checkup)
    if not full:
        _first_screen(checkup, console)
        return
    facts = {
        "data": checkup.data,
        "device": checkup.device,
        "batch size": f"{checkup.batch_size:,}",
        "parameters": f"{checkup.parameters:,}",
        "depth": wording.count(checkup.depth, "layer"),
        "predicted": overview.coverage(checkup),
        "assumed": "; ".join(checkup.assumptions) or "nothing",
        "measured": f"{overview.sampling(checkup)}, {wording.number(checkup.seconds)} s",
    }
    _header(checkup, facts, console)
    print_fix(checkup.fix, console)
    print_findings(checkup.findings, console)
    _comparisons(checkup.comparisons, console)
    if checkup.growth is not None:
        print_growth(checkup.growth, console, overview.predictions(checkup))
    _attribution(checkup, console)
    _conditioning(checkup.conditioning, console)
    print_optimizer(checkup.optimizer, console)
    print_second_order(checkup.second_order, console)
    print_preconditioning(checkup.preconditioning, console)
    print_smoothness(checkup.smoothness, console)
    _remedies(checkup, console)
    console.print()


def _header(checkup: Checkup, facts: dict[str, str], console: Console) -> None:
    verdict = checkup.verdict
    print_header(
        "check-up",
        checkup.target,
        (verdict.sentence, verdict.details),
        facts,
        console,
        severity=verdict.severity,
        interrupted=checkup.interrupted,
    )


def _first_screen(checkup: Checkup, console: Console) -> None:
    facts = {
        "data": f"{checkup.data}, batches of {checkup.batch_size:,}, on {checkup.device}",
        "assumed": first_screen.assumed(checkup),
    }
    _header(checkup, facts, console)
    print_fix(checkup.fix, console)
    if checkup.growth is not None and len(checkup.growth.layers) > 1:
        values = [layer.gradient.value for layer in checkup.growth.layers]
        line = sparkline(values, console.width - 18)
        console.print(Text.assemble("\n ", ("input ", "dim"), (line, "blue"), (" output", "dim")))
        remark(first_screen.measured(checkup), console)
    console.print()
    grid = Table.grid(padding=(0, 1))
    for finding in checkup.headlines:
        mark = Text(MARKS[finding.severity], STYLES[finding.severity])
        grid.add_row(mark, text(finding.title, "bold"))
        grid.add_row("", text(finding.detail if finding.remedy is None else f"→ {finding.remedy}"))
    console.print(Padding(grid, (0, 1)))
    code = first_screen.remedy_as_code(checkup)
    if code:
        console.print()
        console.print(Padding(text(code, "cyan"), (0, 3)))
    # These were asked for.
    print_preconditioning(checkup.preconditioning, console)
    print_smoothness(checkup.smoothness, console)
    console.print()
    remark(f"{first_screen.rest(checkup)} The whole report: --full, or show(full=True)", console)


def _comparisons(comparisons: Sequence[Comparison], console: Console) -> None:
    if not comparisons:
        return
    heading("Predicted and measured", console)
    table = new_table(["quantity"], ("predicted", "measured", "z", "outcome"))
    for comparison in comparisons:
        table.add_row(
            text(comparison.quantity),
            wording.spread(comparison.predicted),
            wording.spread(comparison.measured),
            wording.deviation(comparison.z),
            Text(comparison.outcome, _OUTCOME_STYLES[comparison.outcome]),
        )
    console.print(table)
    remark(
        "z: difference in standard errors, below 3 if theory and measurement agree",
        console,
    )


def print_growth(
    growth: GradientGrowth,
    console: Console,
    predictions: Sequence[LayerPrediction | None] = (),
) -> None:
    """Print gradients and signals layer by layer, beside what is predicted, if anything is."""
    heading("Gradients per layer", console)
    if growth.rate is not None:
        line = (
            f"Towards the input the squared norm changes {wording.factor(growth.rate)} per layer"
        )
        if growth.weight_rate is not None:
            line += f" (weight gradients: {wording.factor(growth.weight_rate)})"
        console.print(Padding(text(line), (0, 1)))
    values = [layer.gradient.value for layer in growth.layers]
    bars = log_bars(values, _BAR_WIDTH)
    theory = ("predicted",) if any(predictions) else ()
    table = new_table(["layer"], (*theory, "‖∂E/∂h‖²", "log scale", "q", "c"))
    bar = table.columns[2 + len(theory)]
    bar.justify, bar.min_width = "left", _BAR_WIDTH
    for row in excerpt(growth.layers, _largest_step(values)):
        if isinstance(row, int):
            table.add_row(Text(f"⋮ {row} more", "dim"))
            continue
        number, layer = row
        gradient = [_predicted(predictions[number - 1])] if theory else []
        table.add_row(
            text(f"{number} {layer.layer}"),
            *gradient,
            wording.number(layer.gradient.value),
            Text(bars[number - 1], "blue"),
            wording.number(layer.second_moment.value),
            wording.number(layer.correlation.value, 2),
        )
    if len(table.rows) < len(growth.layers):
        line = sparkline(values, console.width - 18)
        console.print(Text.assemble("\n ", ("input ", "dim"), (line, "blue"), (" output", "dim")))
    console.print(table)
    remark(
        "h: a layer's pre-activation; q: its mean square; c: correlation between two samples, "
        "1 if they are indistinguishable",
        console,
    )


def _largest_step(values: Sequence[float]) -> tuple[int, ...]:
    """The two neighbours whose values differ by the largest factor."""
    logs = [math.log(value) if 0 < value < math.inf else math.nan for value in values]
    steps = [(abs(b - a), i) for i, (a, b) in enumerate(pairwise(logs)) if not math.isnan(b - a)]
    return (max(steps)[1], max(steps)[1] + 1) if steps else ()


def _predicted(prediction: LayerPrediction | None) -> str:
    if prediction is None or prediction.gradient is None:
        return "–"
    return wording.number(prediction.gradient.value)


def _attribution(checkup: Checkup, console: Console) -> None:
    shares = overview.attribution(checkup)
    if shares:
        heading("Where gradients grow", console)
        table = new_table(["operations"], ("count", "on the way", "each", "together"))
        for share in shares:
            table.add_row(
                text(share.kind),
                f"{share.operations:,}",
                wording.number(share.met),
                wording.factor(share.each),
                wording.factor(math.exp(min(share.log_gain, 700))),
            )
        console.print(table)
        remark(
            "By theory, of gradient times activation, towards the input; on the way: how many of "
            "them the gradient passes, the rest goes around",
            console,
        )
    for reason, names in overview.cuts(checkup).items():
        remark(f"Theory is cut at {wording.listed(names, 3)}: {reason}", console)


def _conditioning(conditioning: Sequence[LayerConditioning], console: Console) -> None:
    if not conditioning:
        return
    heading("Condition numbers of layers' inputs", console)
    ranked = overview.worst_first(conditioning)
    if ranked:
        table = new_table(["layer"], ("raw", "centred", "and scaled", "rank lost", "constant"))
        for layer in ranked[:_MOST_CONDITIONED]:
            kappas = (layer.raw, layer.centred, layer.scaled)
            table.add_row(
                text(layer.layer),
                *(overview.condition(layer, value, 2) for value in kappas),
                "–" if layer.rank_lost is None else f"{layer.rank_lost:,}",
                f"{layer.constant_features:,}",
            )
        console.print(table)
        remark(
            "Lower is easier to train. rank lost: directions without a gradient; constant: inputs "
            "that do not vary over the batch",
            console,
        )
        if said := overview.sampled(ranked):
            remark(said, console)
    if len(ranked) > _MOST_CONDITIONED:
        remark(f"The worst {_MOST_CONDITIONED} of {len(ranked)} layers.", console)
    for reason, names in overview.skipped_by_reason(conditioning).items():
        remark(f"Skipped {wording.listed(names)}: {reason}", console)


def _remedies(checkup: Checkup, console: Console) -> None:
    if not checkup.remedies and checkup.proposal is None:
        return
    heading("Remedies", console)
    grid = Table.grid(padding=(0, 1))
    if checkup.proposal is not None:
        grid.add_row(Text("–", "dim"), text(overview.change(checkup.proposal), "bold"))
        grid.add_row("", text("\n".join(checkup.proposal.code), "cyan"))
        grid.add_row("", text(overview.promise(checkup.proposal)))
    for i, remedy in enumerate(checkup.remedies, start=1):
        state = overview.verification(remedy.verified)
        promise = (
            f"predicted growth {wording.factor(remedy.predicted_rate)} per layer, trains with "
            f"{wording.percent(remedy.predicted_probability)}"
        )
        if remedy.measured_rate is not None:
            promise += f"; measured {wording.factor(remedy.measured_rate)}"
        if i > 1 or checkup.proposal is not None:
            grid.add_row()
        grid.add_row(Text(f"{i}.", "dim"), text(remedy.change, "bold"))
        grid.add_row("", text(remedy.code, "cyan"))
        grid.add_row("", Text.assemble(promise, " – ", (state, _VERIFICATION_STYLES[state])))
    console.print(Padding(grid, (0, 1)))


def log_bars(values: Sequence[float], width: int) -> list[str]:
    """Draw a bar per value on a common log scale of at least one decade.

    Examples:
        >>> log_bars([100.0, 1.0, float("nan")], 3)
        ['███', '▏', '']
    """
    scale = _LogScale(values)
    bars = []
    for value in values:
        share = scale.position(value)
        if share is None:
            bars.append("")
            continue
        eighths = max(1, round(share * width * 8))
        rest = _EIGHTHS[eighths % 8] if eighths % 8 else ""
        bars.append("█" * (eighths // 8) + rest)
    return bars


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw values on a log scale, one character for each, or for several if they are many.

    Examples:
        >>> sparkline([1000.0, 100.0, 10.0, 1.0, float("nan")], 10)
        '█▆▃▁·'
    """
    size = -(-len(values) // max(1, width))
    logarithms = [_logarithm(value) for value in values]
    means: list[float] = []
    for start in range(0, len(values), size):
        known = [x for x in logarithms[start : start + size] if x is not None]
        means.append(10 ** (sum(known) / len(known)) if known else math.nan)
    scale = _LogScale(means)
    shares = [scale.position(value) for value in means]
    return "".join("·" if s is None else _LEVELS[round(s * (len(_LEVELS) - 1))] for s in shares)


class _LogScale:
    """Positions from 0 to 1 between the smallest and the largest value that can be drawn."""

    def __init__(self, values: Sequence[float]) -> None:
        known = [x for x in map(_logarithm, values) if x is not None]
        self.high = max(known, default=0.0)
        self.low = min(*known, self.high - 1) if known else -1.0

    def position(self, value: float) -> float | None:
        logarithm = _logarithm(value)
        if logarithm is None:
            return None
        return (logarithm - self.low) / (self.high - self.low)


def _logarithm(value: float) -> float | None:
    return math.log10(value) if math.isfinite(value) and value > 0 else None
