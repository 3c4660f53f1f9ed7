"""A probe for a terminal of 80 columns or more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from equipoise.records import wording
from equipoise.report.checkup.terminal.overview import print_findings, print_growth
from equipoise.report.checkup.terminal.smoothness import print_smoothness
from equipoise.report.console import heading, new_table, remark, text
from equipoise.report.probe import words

if TYPE_CHECKING:
    from rich.console import Console

    from equipoise.diagnosis.probe import Probe
    from equipoise.probes.covariate_shift import LayerShift
    from equipoise.probes.hessian.record import Hessian, HessianSpectrum

Row = TypeVar("Row")

# Longer tables are excerpted: both ends of a network.
_MOST_LAYERS, _END_LAYERS = 14, 6


def print_probe(probe: Probe, console: Console) -> None:
    """Print a whole probe; names in it are printed as they are."""
    probe = wording.printable(probe)
    _header(probe, console)
    if probe.findings:
        print_findings(probe.findings, console)
    _landscape(probe, console)
    print_smoothness(probe.training, console)
    if probe.shift is not None:
        _shift(probe.shift.layers, console)
    if probe.hessian is not None:
        _hessian(probe.hessian, console)
    if probe.growth is not None:
        print_growth(probe.growth, console)
    console.print()


def _header(probe: Probe, console: Console) -> None:
    console.print()
    console.print(Text.assemble(("Equipoise probe", "bold"), "  ", probe.target))
    console.print()
    console.print(Padding(text(words.sentence(probe), "bold"), (0, 1)))
    console.print(Padding(text(words.rate(probe)), (0, 1)))
    if probe.interrupted:
        notice = "Interrupted: this is what was finished before."
        console.print(Padding(Text(notice, "bold yellow"), (0, 1)))
    console.print()
    facts = {
        "data": probe.data,
        "device": probe.device,
        "batch size": f"{probe.batch_size:,}",
        "parameters": f"{probe.parameters:,}",
        **{name.lower(): value for name, value in words.facts(probe).items()},
        "time": f"{wording.number(probe.seconds)} s",
    }
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        grid.add_row(Text(name, "dim"), text(value))
    console.print(Padding(grid, (0, 1)))


def _landscape(probe: Probe, console: Console) -> None:
    if probe.landscape is None:
        return
    heading("Along the gradient, at the start", console)
    table = new_table()
    for name in ("step η", "in rates", "loss", "gradient change", "over its length", "cosine"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in words.points(probe):
        table.add_row(*row)
    console.print(table)


def _shift(layers: Sequence[LayerShift], console: Console) -> None:
    heading("Internal covariate shift, at the start", console)
    table = new_table()
    table.add_column("layer", overflow="fold", ratio=1)
    for name in ("‖gradient‖", "change", "over length", "cosine"):
        table.add_column(name, justify="right", no_wrap=True)
    for layer in _excerpt(layers):
        if layer is None:
            table.add_row(Text(f"⋮ {len(layers) - 2 * _END_LAYERS} more", "dim"))
        else:
            table.add_row(text(layer.layer), *words.shift(layer))
    console.print(table)
    remark("of a layer’s gradient when earlier layers take a step; cosine 1: no shift", console)


def _hessian(hessian: Hessian, console: Console) -> None:
    heading("Curvature (eigenvalues of the Hessian), at the start", console)
    table = new_table()
    table.add_column("block", overflow="fold", ratio=1)
    for name in ("parameters", "largest", "smallest"):
        table.add_column(name, justify="right", no_wrap=True)
    blocks = words.blocks(hessian)
    for block in _excerpt(blocks):
        if block is None:
            table.add_row(Text(f"⋮ {len(blocks) - 2 * _END_LAYERS} more", "dim"))
        else:
            table.add_row(text(block.block), *_eigenvalues(block))
    console.print(table)
    if not hessian.converged:
        remark("not all converged: the errors say how far off they may be", console)


def _eigenvalues(block: HessianSpectrum) -> tuple[str, ...]:
    ends = (wording.spread(block.largest), wording.spread(block.smallest))
    return (f"{block.parameters:,}", *ends)


def _excerpt(rows: Sequence[Row]) -> list[Row | None]:
    """The first and the last rows, and ``None`` for those between."""
    if len(rows) <= _MOST_LAYERS:
        return list(rows)
    return [*rows[:_END_LAYERS], None, *rows[-_END_LAYERS:]]
