"""The check-up for a terminal of 80 columns or more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from equipoise.diagnosis.record import Block, Checkup, Comparison, Remedy
from equipoise.probes.conditioning import LayerConditioning
from equipoise.probes.gradient_growth import GradientGrowth
from equipoise.records import wording
from equipoise.records.finding import Finding, Severity
from equipoise.report.checkup.terminal.preconditioning import print_preconditioning, print_trial
from equipoise.report.checkup.terminal.second_order import print_second_order
from equipoise.report.checkup.terminal.smoothness import print_smoothness
from equipoise.report.checkup.words import overview
from equipoise.report.console import enumerated, heading, new_table, remark, text
from equipoise.report.pages import MARKS

if TYPE_CHECKING:
    from rich.console import Console

_STYLES: dict[Severity | None, str] = {
    "critical": "bold red",
    "warning": "bold yellow",
    "note": "bold cyan",
    "good": "bold green",
    None: "bold",
}
_ANSWER_STYLES = {"agrees": "green", "differs": "red", "unclear": "yellow"}
_VERIFICATION_STYLES = {"verified": "green", "not verified": "red", "not tried": "dim"}
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"

# Longer tables are excerpted: both ends of a network, where gradients are extreme.
_MOST_LAYERS, _END_LAYERS = 12, 5
_MOST_CONDITIONED = 8
_BAR_WIDTH = 14


def print_checkup(checkup: Checkup, console: Console) -> None:
    """Print a whole check-up.

    Names in it are printed as they are: neither as markup nor as control sequences.
    """
    checkup = wording.printable(checkup)
    _header(checkup, console)
    print_findings(checkup.findings, console)
    _comparisons(checkup.comparisons, console)
    if checkup.growth is not None:
        print_growth(checkup.growth, console)
    _blocks(checkup.blocks, console)
    _conditioning(checkup.conditioning, console)
    print_second_order(checkup.second_order, console)
    print_preconditioning(checkup.preconditioning, console)
    print_smoothness(checkup.smoothness, console)
    _remedies(checkup.remedies, console)
    print_trial(checkup.trial, console)
    console.print()


def _header(checkup: Checkup, console: Console) -> None:
    verdict = checkup.verdict
    style = _STYLES[verdict.severity]
    mark = MARKS[verdict.severity] if verdict.severity else "●"
    console.print()
    console.print(Text.assemble(("Equipoise check-up", "bold"), "  ", checkup.target))
    console.print()
    line = Table.grid(padding=(0, 1))
    line.add_row(Text(mark, style), Text(verdict.sentence, style))
    line.add_row("", Text(verdict.depths))
    console.print(Padding(line, (0, 1)))
    if checkup.interrupted:
        notice = "Interrupted: this is what was finished before."
        console.print(Padding(Text(notice, "bold yellow"), (0, 3)))
    console.print()
    facts = [
        ("data", checkup.data),
        ("device", checkup.device),
        ("batch size", f"{checkup.batch_size:,}"),
        ("parameters", f"{checkup.parameters:,}"),
        ("depth", wording.count(checkup.depth, "layer")),
        ("measured", f"{overview.sampling(checkup)}, {wording.number(checkup.seconds)} s"),
    ]
    grid = Table.grid(padding=(0, 2))
    for name, value in facts:
        grid.add_row(Text(name, "dim"), Text(value, overflow="fold"))
    console.print(Padding(grid, (0, 1)))


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """Print conclusions in their order."""
    heading("Findings", console)
    if not findings:
        console.print(Text(" none", "dim"))
    grid = Table.grid(padding=(0, 1))
    for i, finding in enumerate(findings):
        if i:
            grid.add_row()
        style = _STYLES[finding.severity]
        label = Text(f"{MARKS[finding.severity]} {finding.severity:<8}", style)
        grid.add_row(label, text(finding.title, "bold"))
        grid.add_row("", text(finding.detail))
        if finding.remedy is not None:
            grid.add_row("", text(f"→ {finding.remedy}", "cyan"))
    console.print(Padding(grid, (0, 1)))


def _comparisons(comparisons: Sequence[Comparison], console: Console) -> None:
    if not comparisons:
        return
    heading("Predicted and measured", console)
    table = new_table()
    table.add_column("quantity", overflow="fold", ratio=1)
    for name in ("predicted", "measured", "width", "z"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for comparison in comparisons:
        answer = comparison.outcome
        table.add_row(
            text(comparison.quantity),
            wording.spread(comparison.predicted),
            wording.spread(comparison.measured),
            wording.number(comparison.finite_width, 2),
            wording.deviation(comparison.z),
            Text(answer, _ANSWER_STYLES[answer]),
        )
    console.print(table)
    remark("width: what finite width alone may change; z: difference in errors", console)


def print_growth(growth: GradientGrowth, console: Console) -> None:
    """Print gradients and signals layer by layer."""
    heading("Gradients per layer", console)
    layers = growth.layers
    if growth.rate is not None:
        line = f" squared norm {wording.factor(growth.rate)} per layer on the way back"
        if growth.weight_rate is not None:
            line += f"; weights {wording.factor(growth.weight_rate)}"
        console.print(Text(line))
    values = [layer.gradient.value for layer in layers]
    excerpted = len(layers) > _MOST_LAYERS
    if excerpted:
        width = console.width - 4
        console.print(Text.assemble("\n ", ("input ", "dim")), end="")
        console.print(Text.assemble((sparkline(values, width - 14), "blue"), (" output", "dim")))
    table = new_table()
    table.add_column("#", justify="right", style="dim", no_wrap=True)
    table.add_column("layer", overflow="fold", ratio=1)
    table.add_column("‖∂E/∂h‖²", justify="right", no_wrap=True)
    table.add_column("log scale", no_wrap=True, min_width=_BAR_WIDTH)
    table.add_column("q", justify="right", no_wrap=True)
    table.add_column("c", justify="right", no_wrap=True)
    bars = log_bars(values, _BAR_WIDTH)
    for i, layer in enumerate(layers):
        if excerpted and _END_LAYERS <= i < len(layers) - _END_LAYERS:
            if i == _END_LAYERS:
                table.add_row("⋮", Text(f"{len(layers) - 2 * _END_LAYERS} more", "dim"))
            continue
        table.add_row(
            str(i + 1),
            text(layer.layer),
            wording.number(layer.gradient.value),
            Text(bars[i], "blue"),
            wording.number(layer.second_moment.value),
            wording.number(layer.correlation.value, 2),
        )
    console.print(table)
    remark("q: second moment of h; c: correlation between samples", console)


def _blocks(blocks: Sequence[Block], console: Console) -> None:
    if not blocks:
        return
    heading("Blocks", console)
    table = new_table()
    table.add_column("layers", overflow="fold", ratio=1)
    table.add_column("block", overflow="fold", ratio=1)
    table.add_column("batch", justify="right", no_wrap=True)
    table.add_column("predicted", justify="right", no_wrap=True)
    table.add_column("max depth", justify="right", no_wrap=True)
    groups = overview.merge_blocks(blocks)
    for group in groups:
        block = group.block
        table.add_row(
            text(group.name),
            text(group.chain),
            f"{block.batch_size:,}",
            wording.factor(None if block.rate is None else block.rate.value),
            wording.depth(block.max_depth),
        )
    console.print(table)
    for words, names in overview.remarks(groups).items():
        prefix = "" if len(names) == len(groups) else f"{enumerated(names)}: "
        remark(prefix + words, console)


def _conditioning(conditioning: Sequence[LayerConditioning], console: Console) -> None:
    if not conditioning:
        return
    heading("Conditioning of layers' inputs", console)
    ranked = overview.worst_first(conditioning)
    if ranked:
        table = new_table()
        table.add_column("layer", overflow="fold", ratio=1)
        for name in ("raw", "centred", "and scaled", "rank lost", "constant"):
            table.add_column(name, justify="right", no_wrap=True)
        for layer in ranked[:_MOST_CONDITIONED]:
            table.add_row(
                text(layer.layer),
                wording.number(layer.raw, 2),
                wording.number(layer.centred, 2),
                wording.number(layer.scaled, 2),
                f"{layer.zero_singular_values:,}",
                f"{layer.constant_features:,}",
            )
        console.print(table)
    if len(ranked) > _MOST_CONDITIONED:
        remark(f"the worst {_MOST_CONDITIONED} of {len(ranked)} layers", console)
    for reason, names in overview.skipped_by_reason(conditioning).items():
        remark(f"skipped {enumerated(names)}: {reason}", console)


def _remedies(remedies: Sequence[Remedy], console: Console) -> None:
    if not remedies:
        return
    heading("Remedies", console)
    grid = Table.grid(padding=(0, 1))
    for i, remedy in enumerate(remedies, start=1):
        state = overview.verification(remedy.verified)
        promise = (
            f"predicted {wording.factor(remedy.predicted_rate)} per layer, "
            f"trainable depth {wording.depth(remedy.predicted_depth)}"
        )
        if remedy.measured_rate is not None:
            promise += f"; measured {wording.factor(remedy.measured_rate)}"
        if i > 1:
            grid.add_row()
        grid.add_row(Text(f"{i}.", "dim"), text(remedy.change, "bold"))
        if remedy.code is not None:
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
    """Draw values on a log scale, a character each, or one for several if they are many.

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
    """Positions from 0 to 1 between the least and the largest drawable value."""

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
