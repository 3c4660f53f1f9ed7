"""Train networks whose weights are so small that their first gradients nearly vanish.

Run ``python papers/benchmarks/faint_trainings.py [--file FILE] [--limit N] [--quick]``. What is
computed is written to the file as it comes, and a second run goes on where the first ended; the
repository's file is the default. A network takes some six seconds on one core.
``calibrate_trainability.py`` reads the file.
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path

import torch

from equipoise_papers.trainability import faint

FILE = Path(__file__).parents[1] / "docs" / "faint_trainings.json"


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--limit", type=int, default=30, metavar="N")
    parser.add_argument("--quick", action="store_true", help="train none, and say how many wait")
    args = parser.parse_args()
    torch.set_num_threads(1)
    known = faint.read(args.file)
    print(f"{len(known)} networks known, {max(0, args.limit - len(known))} to train")
    if args.quick:
        return
    for network in islice(faint.networks(), len(known), args.limit):
        known.append(one := faint.look(network, faint.progress_of(network)))
        faint.write(args.file, known)
        print(f"{one.measured[faint.NAME]:5.1f} {one.progress}", flush=True)


if __name__ == "__main__":
    main()
