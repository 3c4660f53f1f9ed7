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
import statistics
import time
from typing import Any

import torch

import equipoise as eq
from architectures import ARCHITECTURES, Architecture
from equipoise.diagnosis.price import SECONDS, STEPS

BATCH, TURNS = 16, 3
QUICK = ("residual_mlp",)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="architectures; all by default")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    chosen = args.names or (QUICK if args.quick else [one.name for one in ARCHITECTURES])
    print("| model | loss that was found | a step | the check-up | within price | verdict |")
    print("|---|---|---|---|---|---|")
    found = [row(one) for one in ARCHITECTURES if one.name in chosen]
    works, cheap = (sum(column) for column in zip(*found, strict=True))
    print(
        f"\n{works} of {len(found)} work, {cheap} of them within {STEPS} steps and {SECONDS:g} s."
    )


def row(architecture: Architecture) -> tuple[bool, bool]:
    """Check one model and print its line; whether it works, and within its price."""
    torch.manual_seed(0)
    model = architecture.build()
    batch = architecture.batch(BATCH, torch.Generator().manual_seed(0))
    step = step_seconds(architecture, model, batch)
    begin = time.process_time()
    try:
        found = eq.checkup(model, batch)
    except Exception as error:  # the table tells which models fail, and how
        print(
            f"| {architecture.name} | – | {step:.3f} s | – | – | {one_line(error)} |", flush=True
        )
        return False, False
    seconds = time.process_time() - begin
    within = seconds <= STEPS * step + SECONDS
    loss = next((words for words in found.assumptions if words.startswith("loss")), "–")
    print(
        f"| {architecture.name} | {loss.removeprefix('loss: ')} | {step:.3f} s | {seconds:.1f} s "
        f"| {'yes' if within else 'no'} | {found.verdict.sentence} |",
        flush=True,
    )
    return True, within


def step_seconds(architecture: Architecture, model: Any, batch: Any) -> float:
    """Median processor time of one forward and backward pass, after one that warms up."""
    times = []
    for _ in range(1 + TURNS):
        begin = time.process_time()
        architecture.loss(model, batch).backward()
        times.append(time.process_time() - begin)
    model.zero_grad()
    return statistics.median(times[1:])


def one_line(error: Exception) -> str:
    """The error's first line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


if __name__ == "__main__":
    main()
