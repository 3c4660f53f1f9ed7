"""Print the state of sweeps."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from rich.console import Console

from equipoise.records import to_plain
from equipoise.records.experiments import Gathered, SweepStatus


def render_sweeps(result: SweepStatus | Gathered, args: Namespace) -> None:
    """Print as tables or JSON."""
    if args.json:
        json.dump(to_plain(result), sys.stdout, indent=1, allow_nan=False)
        print()
        return
    from equipoise.experiments.sweep_tables import show_sweeps  # --help does not wait for torch

    show_sweeps(result, Console(highlight=False))
