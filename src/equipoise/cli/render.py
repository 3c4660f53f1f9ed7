"""Print what a subcommand returned."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence

from rich.console import Console

from equipoise import report
from equipoise.records import Checkup, Prediction, to_plain


def render(result: Checkup | Sequence[Prediction], args: Namespace) -> bool:
    """Print a result as tables or JSON; tell whether the user had interrupted the work."""
    if args.json:
        json.dump(to_plain(result), sys.stdout, indent=1, allow_nan=False)
        print()
    console = Console(stderr=args.json, highlight=False)
    if not isinstance(result, Checkup):
        if not args.json:
            report.print_predictions(result, console)
        return False
    if not args.json:
        report.print_checkup(result, console)
    if hasattr(args, "page"):  # stored before: only the page is made anew
        page = report.save_page(result, args.page)
    else:
        _, page = report.save(result, args.out)
    console.print(f"Report: {page}", soft_wrap=True, markup=False)
    return result.interrupted
