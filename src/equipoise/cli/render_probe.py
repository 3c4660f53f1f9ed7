"""Print and store what ``equipoise probe`` found."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from rich.console import Console

from equipoise.records import to_plain
from equipoise.report.probe_page import save_probe
from equipoise.report.terminal_probe import print_probe

if TYPE_CHECKING:
    from equipoise.records.probe import Probe


def render_probe(probe: Probe, args: Namespace) -> bool:
    """Print a probe as tables or JSON; tell whether the user had interrupted the work."""
    console = Console(stderr=args.json, highlight=False)
    if args.json:
        json.dump(to_plain(probe), sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        print_probe(probe, console)
    _, page = save_probe(probe, args.out)
    console.print(f"Report: {page}", soft_wrap=True, markup=False)
    return probe.interrupted
