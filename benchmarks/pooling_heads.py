"""Whole second-order heads, from a channels-first map to the vector, as ratios to plain bilinear.

Run ``python benchmarks/pooling_heads.py [--quick] [--bare] [--size N D] [--blocks B]``. It times
forward and backward pass on rectified standard normal maps, float32, batch 8, one thread, in
process CPU time. Heads take turns in short blocks, so that other work on the machine slows all
alike; a ratio is the median over blocks of the ratio within a block. All heads end in the upper
triangle, signed root and unit norm, as plain bilinear pooling does; with ``--bare`` in the
triangle alone, which makes ratios larger.

The floor is the time of the operations that a head needs, at the rate of a matrix product measured
in the same turns; eigendecompositions, FFTs and passes over memory cannot reach that rate.
``saved`` is what autograd keeps beside the map and the head's own buffers, for the whole batch.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from equipoise.pooling.heads.base import PoolingHead
from equipoise.pooling.heads.bilinear import BilinearPool
from equipoise.pooling.heads.compact import CompactBilinearPool
from equipoise.pooling.heads.isqrt import ISQRTPool
from equipoise.pooling.heads.log_euclidean import LogEuclideanPool
from equipoise.pooling.heads.matrix_power import MatrixPowerPool
from equipoise.pooling.heads.run import RUNPool

SIZES = ((784, 128), (784, 256), (784, 512), (196, 512), (49, 512))
BATCH, SKETCH, STEPS = 8, 8192, 2
BASE, RUN, ISQRT = "bilinear", "RUN", "iSQRT 5"
TARGETS = {(784, 128): 1.15, (784, 256): 1.15, (784, 512): 1.15}  # RUN to bilinear
GAIN_SIZE, GAIN = (784, 512), 6.0  # iSQRT to RUN


@dataclass(frozen=True)
class Subject:
    """A head, the map it receives, and the operations it needs for one sample."""

    head: PoolingHead
    maps: Tensor
    operations: float


def step(subject: Subject) -> object:
    vector = subject.head(subject.maps)
    return torch.autograd.grad(vector, subject.maps, torch.ones_like(vector))


def subjects(N: int, D: int, d: int, *, bare: bool) -> dict[str, Subject]:
    maps = torch.randn(BATCH, D, N, generator=torch.Generator().manual_seed(0)).relu()
    maps = maps.unflatten(2, (-1, 7)).requires_grad_()
    ending = {"signed_root": not bare, "unit_norm": not bare}
    pooled, cube = 4 * N * D**2, D**3
    # Products of vectors with B (K + 1), S (2) and C (K), updates of B by rank 2, S by 2K + 2.
    run = (2 * (2 * STEPS + 3) + 2 * 2 + 2 * (2 * STEPS + 2)) * D**2
    compact = {
        f"{name}{' + RUN' if with_run else ''}": (
            CompactBilinearPool(D, size=d, method=method, run=with_run, **ending),
            with_run * run + sketch_operations(method, N, D, d),
        )
        for name, method in (("sketch", "tensor_sketch"), ("maclaurin", "random_maclaurin"))
        for with_run in (False, True)
    }
    heads = {
        BASE: (BilinearPool(D, **ending), pooled),
        RUN: (RUNPool(D, num_steps=STEPS, **ending), pooled + run),
        "RUN, mean start": (RUNPool(D, num_steps=STEPS, start="mean", **ending), pooled + run),
        "eigh root": (MatrixPowerPool(D, **ending), pooled + 19 * cube),
        "log-euclidean": (LogEuclideanPool(D, **ending), pooled + 19 * cube),
        ISQRT: (ISQRTPool(D, **ending), pooled + 72 * cube),
        **compact,
    }
    return {name: Subject(head, maps, count) for name, (head, count) in heads.items()}


def sketch_operations(method: str, N: int, D: int, d: int) -> float:
    """Of the cheaper of two routes."""
    if method == "tensor_sketch":
        return min(4 * N * D**2 + 4 * D**2, N * (10 * d * math.log2(d) + 10 * d))
    return min(4 * D**2 * (N + d), 8 * N * D * d)


def saved_bytes(subject: Subject) -> int:
    """Storages that autograd keeps beside the map and the buffers, each once."""
    storages = {}

    def pack(x: Tensor) -> Tensor:
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        kept = subject.head(subject.maps)
    for own in (subject.maps, *subject.head.buffers()):
        storages.pop(own.untyped_storage().data_ptr(), None)
    del kept  # alive until here: storages that are freed would be reused
    return sum(storages.values())


def block(call: Callable[[], object]) -> float:
    """Seconds of CPU time of a call, after one that fills the cache with its tensors."""
    call()
    begin = time.process_time()
    call()
    return time.process_time() - begin


def timings(given: dict[str, Subject], *, blocks: int) -> tuple[dict[str, list[float]], float]:
    """Seconds, one number per block, and operations per second of a matrix product."""
    square = torch.rand(BATCH, 256, 256, generator=torch.Generator().manual_seed(0))
    found: dict[str, list[float]] = {name: [] for name in given}
    products = []
    for _ in range(blocks):
        products.append(block(lambda: square @ square))
        for name, subject in given.items():
            found[name].append(block(partial(step, subject)))
    return found, BATCH * 2 * 256**3 / statistics.median(products)


def ratio(found: dict[str, list[float]], name: str, base: str) -> float:
    pairs = zip(found[name], found[base], strict=True)
    return statistics.median(mine / other for mine, other in pairs)


def table(
    size: tuple[int, int], given: dict[str, Subject], *, blocks: int
) -> tuple[dict[str, list[float]], list[str]]:
    found, rate = timings(given, blocks=blocks)
    lines = [
        f"{BATCH} x {size[0]} x {size[1]}; products at {rate / 1e9:.0f} GFLOP/s",
        f"{'':18} {'ms':>8} {'best':>8} {'ratio':>6} {'floor':>8} {'its ratio':>9} {'saved':>7}",
    ]
    for name, times in found.items():
        floor = BATCH * given[name].operations / rate
        lines.append(
            f"{name:18} {statistics.median(times) * 1e3:8.2f} {min(times) * 1e3:8.2f} "
            f"{ratio(found, name, BASE):6.2f} {floor * 1e3:8.2f} "
            f"{given[name].operations / given[BASE].operations:9.2f} "
            f"{saved_bytes(given[name]) / 2**20:7.2f}"
        )
    return found, lines


def verdicts(size: tuple[int, int], found: dict[str, list[float]]) -> Iterator[str]:
    if size in TARGETS:
        share = ratio(found, RUN, BASE)
        met = "met" if share <= TARGETS[size] else "MISSED"
        yield f"RUN takes {share:.2f} of bilinear, target {TARGETS[size]}: {met}"
    if size == GAIN_SIZE:
        gain = ratio(found, ISQRT, RUN)
        yield f"RUN is {gain:.1f} times faster than iSQRT, target {GAIN}: " + (
            "met" if gain >= GAIN else "MISSED"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small and short, nothing asserted")
    parser.add_argument("--bare", action="store_true", help="neither root nor norm")
    parser.add_argument("--size", type=int, nargs=2, metavar=("N", "D"), help="this one alone")
    parser.add_argument("--blocks", type=int, default=9, help="turns of every head")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = (tuple(options.size),) if options.size else ((49, 32),) if options.quick else SIZES
    dear = []
    for size in sizes:
        given = subjects(*size, 128 if options.quick else SKETCH, bare=options.bare)
        found, lines = table(size, given, blocks=2 if options.quick else options.blocks)
        print(*lines, *verdicts(size, found), sep="\n", flush=True)
        if ratio(found, RUN, "eigh root") >= 1:
            dear.append(size)
    if dear and not options.quick:
        raise SystemExit(f"RUN costs more than an eigendecomposition at {dear}")


if __name__ == "__main__":
    main()
