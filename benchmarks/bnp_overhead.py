"""Step time of BNP and of batch norm, relative to plain SGD, beside the count of operations.

Run ``python benchmarks/bnp_overhead.py [--quick]``. The 2×100 network on 784 inputs and the
5-layer CNN take steps of SGD on one thread, variants in turns, so that other work on the machine
meets all alike. The timing is that of ``equipoise reproduce lange2022.table1``. The floor is the
ratio of floating point operations; small layers are bound by the number of calls instead.
"""

from __future__ import annotations

import argparse

import torch

from equipoise_papers.lange2022.timing import table1

# The project's budget, as ratios to plain SGD. What is asserted is that BNP costs less than batch
# norm of the same inputs, which it does at 256 and 512 rows.
TARGETS = {
    ("fc", 16, "BNP every 10 steps"): 1.35,
    ("fc", 256, "BNP by step()"): 1.3,
    ("fc", 256, "BNP every 10 steps"): 1.1,
}


def report(network: str, timing: table1.Timing) -> None:
    target = TARGETS.get((network, timing.batch_size, timing.variant))
    met = (
        "" if target is None else f"{target:.2f} {'met' if timing.median <= target else 'MISSED'}"
    )
    print(
        f"{network:5} {timing.batch_size:5} {timing.variant:18} {timing.milliseconds:9.3f} "
        f"{timing.ratio:6.2f} {timing.median:7.2f} {timing.floor:6.2f}  {met}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="one turn of the smallest batches, nothing asserted"
    )
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    print("net    rows variant                   ms  ratio  median  floor  target")
    dearer = []
    for cell in table1.cells("smoke" if quick else "small"):
        batches = table1.BATCHES[cell.network]
        found = (row for batch in (batches[:1] if quick else batches) for row in cell.at(batch))
        timings = table1.Timings(tuple(found))
        for timing in timings.rows:
            report(cell.network, timing)
        dearer += [
            (cell.network, rows)
            for rows in sorted({timing.batch_size for timing in timings.rows})
            if rows >= 128 and timings.ratio(rows, "BNP") > timings.ratio(rows, "BN and input")
        ]
    if dearer and not quick:
        raise SystemExit(f"BNP costs more than batch norm of the same inputs at {dearer}")


if __name__ == "__main__":
    main()
