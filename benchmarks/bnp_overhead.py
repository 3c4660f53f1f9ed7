"""Step time of BNP and of batch norm, relative to plain SGD, beside what bounds it from below.

Run ``python benchmarks/bnp_overhead.py [--quick]``. The 2×100 network on 784 inputs and the
5-layer CNN take steps of SGD on one thread, variants in turns, so that other work on the machine
meets all alike. The timing is that of ``equipoise reproduce lange2022.table1``.

Three floors stand beside the times. ``floor`` is the ratio of floating point operations. ``calls``
counts the operations of PyTorch in a step, forward, backward and update, and ``MB`` what they read
and write: small layers are bound by the calls, of 2 to 10 µs each, and large ones by the bytes.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from equipoise_papers.lange2022.timing import table1, timed

# The project's budget, as ratios to plain SGD. What is asserted is that BNP costs less than batch
# norm of the same inputs, which it does at 256 and 512 rows.
TARGETS = {
    ("fc", 16, "BNP every 10 steps"): 1.35,
    ("fc", 256, "BNP by step()"): 1.3,
    ("fc", 256, "BNP every 10 steps"): 1.1,
}


@dataclass
class Cost:
    """What the operations of a step come to."""

    calls: float = 0
    bytes: float = 0


class Counting(TorchDispatchMode):
    """Counts operations but views, and the bytes of their arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.cost = Cost()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        if not func.is_view and func is not torch.ops.aten.detach.default:
            touched = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, Tensor)]
            self.cost.calls += 1
            self.cost.bytes += sum(t.numel() * t.element_size() for t in touched)
        return out


def cost(cell: timed.TimedNetwork, variant: str, batch_size: int, quick: bool) -> Cost:
    """Mean over ten steps, once the first hundred are over; of one step after two if quick."""
    _, step = cell.stepper(variant, batch_size)
    for _ in range(100 if "every" in variant and not quick else 2):
        step()
    counted = 1 if quick else 10
    with Counting() as counting:
        for _ in range(counted):
            step()
    return Cost(counting.cost.calls / counted, counting.cost.bytes / counted)


def report(cell: timed.TimedNetwork, timing: timed.Timing, quick: bool) -> None:
    target = TARGETS.get((cell.network, timing.batch_size, timing.variant))
    met = (
        "" if target is None else f"{target:.2f} {'met' if timing.median <= target else 'MISSED'}"
    )
    found = cost(cell, timing.variant, timing.batch_size, quick)
    print(
        f"{cell.network:5} {timing.batch_size:5} {timing.variant:18} {timing.milliseconds:9.3f} "
        f"{timing.ratio:6.2f} {timing.median:7.2f} {timing.floor:6.2f} {found.calls:6.0f} "
        f"{found.bytes / 1e6:6.1f}  {met}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="one turn of the smallest batches, nothing asserted"
    )
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    print("net    rows variant                   ms  ratio  median  floor  calls     MB  target")
    dearer = []
    for cell in table1.cells("smoke" if quick else "small"):
        if cell.device != "cpu":
            continue
        batches = timed.BATCHES[cell.network]
        found = (row for batch in (batches[:1] if quick else batches) for row in cell.at(batch))
        timings = timed.Timings(tuple(found))
        for timing in timings.rows:
            report(cell, timing, quick)
        dearer += [
            (cell.network, rows)
            for rows in sorted({timing.batch_size for timing in timings.rows})
            if rows >= 128 and timings.ratio(rows, "BNP") > timings.ratio(rows, "BN and input")
        ]
    if dearer and not quick:
        raise SystemExit(f"BNP costs more than batch norm of the same inputs at {dearer}")


if __name__ == "__main__":
    main()
