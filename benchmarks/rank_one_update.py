"""Time and saved memory of RUN's own backward pass, against autograd and beside the byte floor.

Run ``python benchmarks/rank_one_update.py [--quick]``. Forward and backward pass of the factor
form on rectified Gaussian features, batch 8, float32, one thread, in process CPU time. Variants
take turns in short blocks, so that other work on the machine slows all alike; a ratio is the
median over blocks of the ratio within a block. Autograd's time is that of the faster of two forms.

The floor is the work that no implementation avoids: the forward pass reads F and writes F_K (one
copy), the backward pass reads F and G and writes the gradient (one sum). RUN itself reads F 2K + 2
times forwards, F and G together 2K + 3 times backwards, and adds 2K + 1 products of two vectors.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from equipoise.pooling.run.factor import run_factor
from equipoise.pooling.run.inputs import gaussian_start
from equipoise.pooling.run.iteration import unit

SIZES = ((784, 512), (196, 512), (784, 128))
BATCH = 8
TARGET = 0.5  # of autograd's time, at the first size
KINDS = ("exact", "constant direction", "plain=True")


@dataclass(frozen=True)
class Problem:
    """Features, start, and the gradient of the output."""

    features: Tensor
    start: Tensor
    gradient: Tensor


def problem(positions: int, channels: int) -> Problem:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(BATCH, positions, channels, generator=generator).relu()
    start = gaussian_start(channels, generator)
    return Problem(features.requires_grad_(), start, torch.ones(features.shape))


def floor(given: Problem) -> object:
    features = given.features.detach()
    return features.clone(), features + given.gradient


def forward(given: Problem, kind: str, num_steps: int) -> Tensor:
    return run_factor(
        given.features,
        given.start,
        num_steps=num_steps,
        differentiate_direction=kind != "constant direction",
        plain=kind == "plain=True",
    )


def step(given: Problem, kind: str, num_steps: int) -> object:
    updated = forward(given, kind, num_steps)
    return updated, torch.autograd.grad(updated, given.features, given.gradient)


def rows(given: Problem, num_steps: int) -> object:
    """Autograd at its best: row vectors, and baddbmm for a cheaper backward pass."""
    F = given.features
    v, _ = unit(given.start.expand(BATCH, 1, -1))
    for _ in range(num_steps):
        w, _ = unit(torch.bmm(v, F.mT))
        v, _ = unit(torch.bmm(w, F))
    updated = torch.baddbmm(F, torch.bmm(v, F.mT).mT, v, alpha=-0.5)
    return updated, torch.autograd.grad(updated, F, given.gradient)


def columns(given: Problem, num_steps: int) -> object:
    """The formulas as they stand on paper: column vectors, autograd."""
    F, v = given.features, given.start.expand(BATCH, -1)[..., None]
    for _ in range(num_steps):
        w = F @ v
        w = w / w.norm(dim=1, keepdim=True)
        v = F.mT @ w
        v = v / v.norm(dim=1, keepdim=True)
    updated = F - 0.5 * (F @ v) @ v.mT
    return updated, torch.autograd.grad(updated, F, given.gradient)


def variants(given: Problem) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "floor", partial(floor, given)
    for K in (1, 2):
        for kind in KINDS:
            yield f"{kind} K={K}", partial(step, given, kind, K)
        yield f"autograd, baddbmm K={K}", partial(rows, given, K)
        yield f"autograd, columns K={K}", partial(columns, given, K)


def saved(given: Problem, kind: str, num_steps: int) -> int:
    """Bytes that autograd keeps beside the features, storages counted once."""
    storages = {}

    def pack(x: Tensor) -> Tensor:
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        kept = forward(given, kind, num_steps)
    storages.pop(given.features.untyped_storage().data_ptr(), None)
    del kept  # alive until here: storages that are freed would be reused
    return sum(storages.values())


def budget(given: Problem, num_steps: int) -> int:
    """(K + 1)(N + D) + 2K numbers a sample, in bytes."""
    _, N, D = given.features.shape
    return 4 * BATCH * ((num_steps + 1) * (N + D) + 2 * num_steps)


def block(call: Callable[[], object], repetitions: int) -> float:
    """Seconds of CPU time per call."""
    call()  # the cache holds this variant's tensors, not its predecessor's
    begin = time.process_time()
    for _ in range(repetitions):
        call()
    return (time.process_time() - begin) / repetitions


def timings(given: Problem, *, blocks: int) -> dict[str, list[float]]:
    """Seconds per call, one number per block."""
    calls = dict(variants(given))
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(blocks):
        for name, call in calls.items():
            found[name].append(block(call, 3))
    return found


def ratio(found: dict[str, list[float]], name: str, base: str) -> float:
    pairs = zip(found[name], found[base], strict=True)
    return statistics.median(mine / other for mine, other in pairs)


def to_autograd(found: dict[str, list[float]], name: str, K: int | str) -> float:
    """Ratio to the faster of two ways to let autograd do it."""
    return max(ratio(found, name, f"{form} K={K}") for form in ("plain=True", "autograd, baddbmm"))


def table(given: Problem, found: dict[str, list[float]]) -> Iterator[str]:
    yield f"{' x '.join(map(str, given.features.shape))}"
    yield f"{'':24} {'ms':>7} {'best':>7} {'/floor':>7} {'/autograd':>9} {'MiB':>6} {'budget':>6}"
    for name, times in found.items():
        line = f"  {name:22} {statistics.median(times) * 1e3:7.2f} {min(times) * 1e3:7.2f}"
        kind, _, K = name.partition(" K=")
        if K:
            line += f" {ratio(found, name, 'floor'):7.1f} {to_autograd(found, name, K):9.2f}"
        if kind in KINDS:
            kept = saved(given, kind, int(K)) / 2**20
            line += f" {kept:6.3f} {budget(given, int(K)) / 2**20:6.3f}"
        yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small and short, nothing asserted")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    dear = []
    for size in [(49, 32)] if quick else SIZES:
        given = problem(*size)
        found = timings(given, blocks=3 if quick else 15)
        print(*table(given, found), sep="\n")
        for K in (1, 2):
            share = to_autograd(found, f"exact K={K}", K)
            if size == SIZES[0]:
                verdict = "met" if share <= TARGET else "MISSED"
                print(f"  K={K}: {share:.2f} of autograd's best, target {TARGET}: {verdict}")
            if share >= 1:
                dear.append((*size, K))
    if dear and not quick:
        raise SystemExit(f"RUN's own backward pass is slower than autograd's at {dear}")


if __name__ == "__main__":
    main()
