"""Print what a subcommand returned."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TypeAlias

from rich.console import Console

from equipoise import report
from equipoise.cli.render_reproduction import show_all, show_report
from equipoise.records import Checkup, Prediction, SpectrumPrediction, to_plain
from equipoise.records.experiments import Catalogue, Reproductions
from equipoise.records.reproduction import AllReproductions, PublishedReport

Result: TypeAlias = (
    Checkup
    | Catalogue
    | Reproductions
    | AllReproductions
    | PublishedReport
    | Sequence[Prediction]
    | Sequence[SpectrumPrediction]
)


def render(result: Result, args: Namespace) -> bool:
    """Print a result as tables or JSON; tell whether the user had interrupted the work."""
    if args.json:
        json.dump(to_plain(result), sys.stdout, indent=1, allow_nan=False)
        print()
    console = Console(stderr=args.json, highlight=False)
    if isinstance(result, Checkup):
        return _checkup(result, args, console)
    if isinstance(result, AllReproductions):
        show_all(result, console)
        return False
    if isinstance(result, PublishedReport):
        show_report(result, console)
        return False
    if args.json:
        return False
    if isinstance(result, Catalogue | Reproductions):
        from equipoise.experiments import show  # --help does not wait for torch

        show(result, console)
        return False
    spectra = [row for row in result if isinstance(row, SpectrumPrediction)]
    if spectra and args.markdown:
        print(report.spectra_markdown(spectra))
    elif spectra:
        report.print_spectra(spectra, console)
    else:
        report.print_predictions([r for r in result if isinstance(r, Prediction)], console)
    return False


def _checkup(result: Checkup, args: Namespace, console: Console) -> bool:
    if not args.json:
        report.print_checkup(result, console)
    if hasattr(args, "page"):  # stored before: only the page is made anew
        page = report.save_page(result, args.page)
    else:
        _, page = report.save(result, args.out)
    console.print(f"Report: {page}", soft_wrap=True, markup=False)
    return result.interrupted
