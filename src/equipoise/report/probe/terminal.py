"""A probe for a terminal of 80 columns or more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from equipoise.records import wording
from equipoise.report.checkup.terminal.overview import print_growth
from equipoise.report.checkup.terminal.smoothness import print_smoothness
from equipoise.report.console import (
    excerpt,
    heading,
    new_table,
    print_findings,
    print_header,
    remark,
    text,
)
from equipoise.report.probe import words

if TYPE_CHECKING:
    from rich.console import Console

    from equipoise.diagnosis.record import Probe
    from equipoise.probes.hessian.record import Hessian
    from equipoise.probes.record import Landscape, LayerShift


def print_probe(probe: Probe, console: Console, *, full: bool = True) -> None:
    """Print a whole probe; names in it are printed literally."""
    probe = wording.printable(probe)
    facts = {
        "data": probe.data,
        "device": probe.device,
        "batch size": f"{probe.batch_size:,}",
        "parameters": f"{probe.parameters:,}",
        **{name[0].lower() + name[1:]: value for name, value in words.facts(probe).items()},
        "time": f"{wording.number(probe.seconds)} s",
    }
    verdict = (words.sentence(probe), words.rate(probe))
    print_header("probe", probe.target, verdict, facts, console, interrupted=probe.interrupted)
    if probe.findings:
        print_findings(probe.findings, console)
    if probe.landscape is not None:
        _landscape(probe.landscape, probe.rate, console)
    print_smoothness(probe.training, console)
    if probe.shift is not None:
        _shift(probe.shift.layers, console)
    if probe.hessian is not None:
        _hessian(probe.hessian, console)
    if probe.growth is not None:
        print_growth(probe.growth, console)
    console.print()


def _landscape(found: Landscape, rate: float, console: Console) -> None:
    heading("Along the gradient, at initialisation", console)
    heads = ("step η", "in steps", "loss", "gradient change", "relative", "cosine")
    table = new_table(numbers=heads)
    for row in words.points(found, rate):
        table.add_row(*row)
    console.print(table)
    remark("in steps: η over the learning rate; cosine: with the gradient at η = 0", console)


def _shift(layers: Sequence[LayerShift], console: Console) -> None:
    heading("Internal covariate shift, at initialisation", console)
    table = new_table(["layer"], ("‖gradient‖", "change", "relative", "cosine"))
    for row in excerpt(layers):
        if isinstance(row, int):
            table.add_row(Text(f"⋮ {row} more", "dim"))
        else:
            table.add_row(text(row[1].layer), *words.shift(row[1]))
    console.print(table)
    remark(
        "change: of a layer’s gradient when all earlier layers take one step; cosine 1 means no "
        "shift",
        console,
    )


def _hessian(hessian: Hessian, console: Console) -> None:
    heading("Curvature (eigenvalues of the Hessian), at initialisation", console)
    table = new_table(["parameters of"], ("how many", "largest", "smallest"))
    for row in excerpt(words.blocks(hessian)):
        if isinstance(row, int):
            table.add_row(Text(f"⋮ {row} more", "dim"))
            continue
        _, block = row
        ends = (wording.spread(block.largest), wording.spread(block.smallest))
        table.add_row(text(block.block), f"{block.parameters:,}", *ends)
    console.print(table)
    if not hessian.converged:
        remark("Not all eigenvalues converged; their errors say how far off they may be.", console)
