"""What a first check-up of well-known models costs, and what its first screen says.

Run ``python benchmarks/first_minute.py [--quick] [NAME …]``; it prints the table of
``docs/checkup.md``. Each model is checked by ``eq.checkup(model, batch)``, without anything else:
how it takes the batch and what its loss is are found. A step is one forward and one backward pass
of the same model and batch; the check-up should cost at most 25 of them and 3 seconds. Both are
processor seconds on one thread. Models are small retypings and batches have 16 samples, so that
the seconds that do not depend on the model weigh most.
"""

from __future__ import annotations

import argparse

import torch

from architectures import ARCHITECTURES, Architecture
from checked_models import Checked, checked, on_one_thread, summary

BATCH = 16
QUICK = ("residual_mlp",)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="architectures; all by default")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    on_one_thread()
    chosen = args.names or (QUICK if args.quick else [one.name for one in ARCHITECTURES])
    print("| model | loss that was found | a step | the check-up | within price | verdict |")
    print("|---|---|---|---|---|---|")
    print("\n" + summary([row(one) for one in ARCHITECTURES if one.name in chosen]))


def row(architecture: Architecture) -> Checked:
    """Check one model and print its line."""
    torch.manual_seed(0)
    model = architecture.build()
    found = checked(model, architecture.batch(BATCH, torch.Generator().manual_seed(0)))
    verdict = found.error if found.found is None else found.found.verdict.sentence
    print(
        f"| {architecture.name} | {found.loss} | {found.step:.3f} s | {found.cost} | {verdict} |",
        flush=True,
    )
    return found


if __name__ == "__main__":
    main()
