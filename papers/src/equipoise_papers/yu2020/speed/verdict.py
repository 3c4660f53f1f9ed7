"""Check the paper's speed-ups and complexities, and our own limit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from equipoise_papers.experiments.verdict import Check, Verdict
from equipoise_papers.yu2020.speed.cells import (
    WIDE,
    Quartiles,
    TimedSize,
    Timings,
    by_channels,
    on_device,
)
from equipoise_papers.yu2020.speed.counting import operations_of_products
from equipoise_papers.yu2020.speed.methods import (
    EIGEN,
    NEWTON,
    PLAIN,
    RUN1,
    RUN2,
    SVD_ROOT,
    Method,
    Part,
    methods_of,
)

# The paper's speed-ups, on a GPU: over Newton-Schulz, and over the SVD in compact pooling.
_OVER_NEWTON, _OVER_SVD = 330.0, 5400.0


def judge(results: Mapping[TimedSize, Timings]) -> Verdict:
    """Check the paper's speed-ups and complexities, and our own limit."""
    if any(cell.turns < 5 for cell in results):
        return Verdict((), left_out=("smoke times two turns only; it is not judged",))
    on_cpu, on_gpu = on_device(results, "cpu"), on_device(results, "cuda")
    # Factors are claimed of GPUs, and decided there alone.
    judged = on_gpu or on_cpu
    where = "a GPU" if on_gpu else "one thread of a CPU"
    newton = [_speed_up(found, "head", NEWTON) for found in judged.values()]
    alone = [_speed_up(found, "normalisation", NEWTON) for found in judged.values()]
    checks = (
        Check(
            f"{_OVER_NEWTON:g} times as fast as Newton–Schulz in full bilinear pooling "
            "(the paper's GPU, end to end)",
            f"on {where}: whole heads {_range(newton)} times, normalisation alone "
            f"{_range(alone)} times",
            _on_a_gpu(judged, max(time.median for time in newton) >= _OVER_NEWTON),
        ),
        Check(
            "RUN is faster than Newton–Schulz at every size, alone and as a head",
            f"on {where} at least {_least(alone).words()} and {_least(newton).words()} times",
            _all_above([*alone, *newton], 1.0),
        ),
        _svd(judged, where),
        _complexity(on_cpu),
        _premise(judged, where),
        _overhead(judged, where),
    )
    return Verdict(checks, _left_out(judged), fidelity="reduced")


def _left_out(results: Mapping[TimedSize, Timings]) -> tuple[str, ...]:
    sizes = sorted({(cell.positions, cell.channels) for cell in results})
    batches = " or ".join(str(size) for size in sorted({cell.batch for cell in results}))
    no_gpu = "timings on a GPU: here one thread of a CPU"
    return (
        *(() if on_device(results, "cuda") else (no_gpu,)),
        "the paper's network, sizes and batches, which were not available: here heads on "
        f"N × D = {', '.join(f'{N} × {D}' for N, D in sizes)}, batch {batches}",
        "compact pooling with an SVD: here the SVD is timed as a normalisation alone",
    )


def _speed_up(found: Timings, part: Part, method: str) -> Quartiles:
    return found.times_slower(part, method, RUN1)


def _svd(judged: Mapping[TimedSize, Timings], where: str) -> Check:
    ratios = [_speed_up(found, "normalisation", SVD_ROOT) for found in judged.values()]
    return Check(
        f"{_OVER_SVD:g} times as fast as normalising by SVD in compact pooling (the paper's GPU)",
        f"on {where}: {_range(ratios)} times, normalisation alone",
        _on_a_gpu(judged, max(ratio.median for ratio in ratios) >= _OVER_SVD),
    )


def _complexity(on_cpu: Mapping[TimedSize, Timings]) -> Check:
    """Operations decide, as they run; what a CPU's time makes of them is told beside them."""
    once, twice, newton = (_normalisation(name) for name in (RUN1, RUN2, NEWTON))
    side, channels = 8, 16

    def factor(method: Method, longer: int = 1, wider: int = 1) -> float:
        """By how much operations grow with √N and D."""
        more = operations_of_products(method, longer * side, wider * channels)
        return more / operations_of_products(method, side, channels)

    of_runs = [(factor(run, longer=2), factor(run, wider=2)) for run in (once, twice)]
    rows = side**2 * channels
    steps = [operations_of_products(run, side, channels) / rows for run in (once, twice)]
    cubes = operations_of_products(newton, side, channels) / channels**3
    return Check(
        "RUN takes O(KDN) operations, Newton–Schulz O(KD³)",
        "those of matrix products, forward and backward, counted as they run: "
        f"{RUN1} {steps[0]:g} ND, {RUN2} {steps[1]:g} ND, {NEWTON} {cubes:g} D³; on one thread "
        f"of a CPU {_powers(on_cpu)}",
        of_runs == [(4, 2)] * 2
        and steps[1] <= 2 * steps[0]
        and (factor(newton, longer=2), factor(newton, wider=2)) == (1, 8),
    )


def _normalisation(name: str) -> Method:
    (found,) = [method for method in methods_of("normalisation") if method.name == name]
    return found


def _powers(on_cpu: Mapping[TimedSize, Timings]) -> str:
    """The power of D with which times grow between its largest two; less is bound by calls."""
    (small, before), (large, after) = list(by_channels(on_cpu).items())[-2:]
    powers = []
    for method in (RUN1, NEWTON):
        less, more = (t.milliseconds("normalisation", method) for t in (before, after))
        ends = ((more.low, less.high), (more.median, less.median), (more.high, less.low))
        power = Quartiles(*(math.log(b / a) / math.log(large / small) for b, a in ends))
        powers.append(f"{method} takes time that grows as D to the {power.words()}")
    return ", ".join(powers)


def _premise(judged: Mapping[TimedSize, Timings], where: str) -> Check:
    ratios = [found.times_slower("head", EIGEN, NEWTON) for found in judged.values()]
    return Check(
        "the premise, a statement about GPUs: a decomposition is slower than Newton–Schulz",
        f"on {where} the eigen root's head takes {_range(ratios)} of the time of iSQRT's",
        _on_a_gpu(judged, min(ratio.median for ratio in ratios) > 1),
    )


def _on_a_gpu(judged: Mapping[TimedSize, Timings], holds: bool) -> bool | None:
    """What a GPU's times say of a sentence about GPUs; those of a CPU decide nothing."""
    return holds if all(cell.device == "cuda" for cell in judged) else None


def _overhead(judged: Mapping[TimedSize, Timings], where: str) -> Check:
    wide = [f for c, f in judged.items() if (c.positions, c.channels) == WIDE]
    ratios = [found.times_slower("head", RUN1, PLAIN) for found in wide]
    worst = max(ratios, key=lambda ratio: ratio.median)
    above = worst.above(1.15)
    return Check(
        "RUN adds at most 15 % to plain bilinear pooling at 784 × 512",
        f"on {where} {worst.words()} times plain bilinear",
        None if above is None else not above,
        ours=True,
    )


def _all_above(ratios: Sequence[Quartiles], bound: float) -> bool | None:
    """Whether all are above; refuted by one that is not, undecided if one is so."""
    found = [ratio.above(bound) for ratio in ratios]
    return False if False in found else None if None in found else True


def _least(ratios: Sequence[Quartiles]) -> Quartiles:
    return min(ratios, key=lambda ratio: ratio.low)


def _range(ratios: Sequence[Quartiles]) -> str:
    medians = [ratio.median for ratio in ratios]
    return f"{min(medians):.3g} to {max(medians):.3g}"
