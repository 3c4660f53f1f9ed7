"""Matrix roots, logarithms and compact maps: time forward and backward, beside the flop floor.

Run ``python benchmarks/matrix_roots.py [--quick] [--keep-freed-memory]``. Features are rectified
standard normal numbers in float32; the roots receive their second moments, batch 8, and the
gradient of a sum.
One thread, process CPU time; methods take turns, so that other work on the machine slows all of
them alike, and the median over the turns is printed, with its ratio to the first method of a
group. With ``--keep-freed-memory`` glibc keeps freed memory, which shows the methods without page
faults: these take a few per cent of the time of roots, but up to three quarters of that of FFTs
of every position.

The floor is the time of the multiplications and additions that a method needs, at the rate of a
matrix product measured in the same turns. An eigendecomposition and an FFT cannot reach that
rate. ``saved`` is what autograd keeps beside the input.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.pooling.matrices import bilinear
from equipoise.pooling.roots.newton_schulz import sqrt_newton_schulz
from equipoise.pooling.roots.powers import log_euclidean, matrix_power
from equipoise.pooling.sketches.random_maclaurin import RandomMaclaurin
from equipoise.pooling.sketches.tensor_sketch import TensorSketch

POSITIONS = 784
# The sketch through the matrix must be this many times faster than by FFT.
SKETCH_TARGET = 10.0


@dataclass(frozen=True)
class Method:
    """What is timed, on which input, and the operations it needs for one sample."""

    function: Callable[[Tensor], Tensor]
    inputs: Tensor
    operations: float


def as_printed(matrix: Tensor) -> Tensor:
    """Five Newton-Schulz steps with Y, Z and T on autograd's tape."""
    identity = torch.eye(matrix.shape[-1])
    c = matrix.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    Y = matrix / c
    T = 0.5 * (3 * identity - Y)
    Y, Z = Y @ T, T
    for k in range(1, 5):
        T = 0.5 * (3 * identity - Z @ Y)
        Y = Y @ T
        Z = T @ Z if k < 4 else Z
    return c.sqrt() * Y


def roots(channels: int, *, batch: int) -> dict[str, Method]:
    features = rectified(batch, POSITIONS, channels)
    matrix = features.mT @ features / POSITIONS
    product = 2 * channels**3
    eigen = 9.5 * product  # 9 D³ decompose, 2 D³ put together again, 8 D³ backward
    return {
        "newton-schulz 5": Method(sqrt_newton_schulz, matrix, 36 * product),
        "  plain": Method(lambda A: sqrt_newton_schulz(A, plain=True), matrix, 36 * product),
        "  as printed": Method(as_printed, matrix, 36 * product),
        "eigh root": Method(matrix_power, matrix, eigen),
        "log-euclidean": Method(lambda A: log_euclidean(A, eps=1e-3), matrix, eigen),
    }


def compact(positions: int, channels: int, size: int, *, batch: int) -> dict[str, Method]:
    N, D, d = positions, channels, size
    features, generator = rectified(batch, N, D), torch.Generator().manual_seed(0)
    sketch, maclaurin = (
        kind(D, d, generator=generator) for kind in (TensorSketch, RandomMaclaurin)
    )
    # Two real transforms of 2.5 d log2(d) forward, two backward; 10 operations to multiply.
    transforms = N * (4 * 2.5 * d * math.log2(d) + 10 * d)
    return {
        "sketch by gram": Method(
            lambda F: sketch.of_matrix(bilinear(F, scale="none")),
            features,
            4 * N * D**2 + 4 * D**2,
        ),
        "sketch by fft": Method(sketch.of_positions, features, transforms),
        "maclaurin by gram": Method(
            lambda F: maclaurin.of_matrix(bilinear(F, scale="none")),
            features,
            4 * D**2 * (N + d),
        ),
        "maclaurin directly": Method(maclaurin.of_positions, features, 8 * N * D * d),
    }


def rectified(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).relu()


def run(method: Method) -> None:
    inputs = method.inputs.detach().requires_grad_()
    value = method.function(inputs)
    torch.autograd.grad(value, inputs, torch.ones_like(value))


def seconds(call: Callable[[], object]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def timings(methods: dict[str, Method], unit: Tensor, *, turns: int) -> dict[str, list[float]]:
    """CPU seconds of every turn; "product" is a product of the unit matrices."""
    calls = {name: lambda m=m: run(m) for name, m in methods.items()}
    calls["product"] = lambda: unit @ unit
    for call in calls.values():
        call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            found[name].append(seconds(call))
    return found


def saved_bytes(method: Method) -> int:
    """Storages that autograd keeps beside the input, each once."""
    inputs = method.inputs.detach().requires_grad_()
    kept = [inputs]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        method.function(inputs)
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}
    del storages[inputs.untyped_storage().data_ptr()]
    return sum(storages.values())


def report(title: str, methods: dict[str, Method], *, turns: int) -> dict[str, float]:
    """Print a group; median seconds by method."""
    unit = rectified(8, 256, 256)
    found = timings(methods, unit, turns=turns)
    rate = 8 * 2 * 256**3 / statistics.median(found.pop("product"))
    medians = {name: statistics.median(times) for name, times in found.items()}
    base = next(iter(medians.values()))
    print(f"{title}; products at {rate / 1e9:.0f} GFLOP/s")
    print(f"{'':20} {'ms':>8} {'ratio':>6} {'best ms':>8} {'floor ms':>8} {'saved MiB':>9}")
    for name, median in medians.items():
        method = methods[name]
        floor = len(method.inputs) * method.operations / rate
        print(
            f"{name:20} {median * 1e3:8.2f} {median / base:6.2f} {min(found[name]) * 1e3:8.2f} "
            f"{floor * 1e3:8.2f} {saved_bytes(method) / 2**20:9.1f}"
        )
    return medians


def keep_freed_memory() -> None:
    """Set glibc's thresholds for mapping and trimming to 1 GiB, where there is glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
            mallopt(parameter, 1 << 30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing asserted")
    parser.add_argument("--keep-freed-memory", action="store_true", help="no page faults")
    options = parser.parse_args()
    quick = options.quick
    torch.set_num_threads(1)
    if options.keep_freed_memory:
        keep_freed_memory()
    turns = 2 if quick else 9
    for channels in (32,) if quick else (128, 256, 512):
        report(f"roots of 8 x {channels} x {channels}", roots(channels, batch=8), turns=turns)
    sizes = [(49, 32, 128)] if quick else [(196, 512, 8192), (784, 512, 8192)]
    for size in sizes:
        title = "compact maps of 2 x {} x {} to {}".format(*size)
        medians = report(title, compact(*size, batch=2), turns=turns)
    gain = medians["sketch by fft"] / medians["sketch by gram"]
    if not (quick or options.keep_freed_memory) and gain < SKETCH_TARGET:
        raise SystemExit(f"the sketch through the matrix is only {gain:.1f} times faster")


if __name__ == "__main__":
    main()
