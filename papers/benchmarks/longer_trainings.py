"""Train the benchmark's networks that did not train, eight times as long.

Run ``python papers/benchmarks/longer_trainings.py [--records DIR] [--file FILE] [--limit N]``.
What is computed is written to the file as it comes, cheap networks first, and a second run goes on
where the first ended; the repository's file is the default. ``--limit`` ends after so many
networks. A network takes seconds to minutes on one core.
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path

import torch

from equipoise_papers.reproduction.archive import packed_records
from equipoise_papers.reproduction.compute import collect
from equipoise_papers.reproduction.folders import cell_store
from equipoise_papers.reproduction.outputs import finished
from equipoise_papers.trainability import longer
from equipoise_papers.trainability.experiment import EXPERIMENT
from equipoise_papers.trainability.outcome import outcomes

KEPT = Path(__file__).parents[1] / "docs" / "reproduction" / "records"
FILE = Path(__file__).parents[1] / "docs" / "longer_trainings.json"


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=Path, metavar="DIR")
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--limit", type=int, metavar="N")
    parser.add_argument("--quick", action="store_true", help="train none, and say how many wait")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.records is None:
        results = packed_records(KEPT, EXPERIMENT, "small")
    else:
        results = finished(collect(EXPERIMENT, "small", cell_store(EXPERIMENT, args.records)))
    known = longer.read(args.file)
    waiting = list(longer.missing(outcomes(results), known))
    print(f"{len(known)} networks known, {len(waiting)} to train")
    for one in islice(waiting, 0 if args.quick else args.limit):
        known[longer.key(one.network)] = found = longer.progress_of(one.network, results)
        longer.write(args.file, known)
        print(f"{longer.key(one.network):8} {one.progress:7.2f} then {max(found):.2f}", flush=True)


if __name__ == "__main__":
    main()
