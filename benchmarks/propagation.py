"""Predictions for every operation of public architectures, against measurements.

Run ``python benchmarks/propagation.py [--quick] [NAME …]``; it prints the table of
``docs/propagation.md``. Architectures are small retypings with widths of 64 and more. Errors are
ln(predicted/measured) of the mean squared gradient, accumulated from the loss, and of the second
moment; predictions and measurements are averaged over three initialisations of real size, each on
its own batch: noise images or random tokens at two batch sizes and, for models of images, random
crops of two photographs. The error per layer is the difference between consecutive operations. An
operation counts as predicted if its moments came from theory. Times are those of theory alone, for
one initialisation, on one thread. ``--time`` compares them with that of a pass, on deep models and
large maps.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections import defaultdict
from itertools import pairwise
from typing import Any

import torch

from architectures import ARCHITECTURES, DEEP, Architecture
from equipoise.instrument.recording.tracer import trace
from equipoise.theory.propagation.propagate import propagate
from equipoise.theory.propagation.sites import Site

SEEDS = 3
BATCHES = (16, 4)
QUICK = ("se_resnet",)
LARGE_MAPS = ("resnet18_preactivation", "vgg16_batch_norm", "mobilenet_v2", "unet_batch_norm")
TURNS = 5
# Copies of what another operation gave.
COPIES = {"detach", "alias", "clone", "view", "_unsafe_view", "transpose", "permute", "t"}


def photographs(size: int, side: int, generator: torch.Generator) -> torch.Tensor:
    """Random crops of scikit-learn's two photographs, standardised, ``[N, 3, side, side]``."""
    from sklearn.datasets import load_sample_images

    pictures = [torch.tensor(image).permute(2, 0, 1) for image in load_sample_images().images]
    crops = []
    for number in range(size):
        picture = pictures[number % len(pictures)]
        high, wide = (
            int(torch.randint(extent - side + 1, (), generator=generator))
            for extent in picture.shape[1:]
        )
        crops.append(picture[:, high : high + side, wide : wide + side].float())
    x = torch.stack(crops)
    return (x - x.mean()) / x.std()


def is_of_images(batch: Any) -> bool:
    """Whether the input is a batch of images with three channels."""
    x = batch[0]
    return isinstance(x, torch.Tensor) and x.ndim == 4 and x.shape[1] == 3


def sites(
    architecture: Architecture, batch_size: int, seeds: int, *, real: bool
) -> tuple[list[list[Site]], float]:
    """The sites of every initialisation, by operation, and seconds of theory."""
    found: dict[int, list[Site]] = defaultdict(list)
    seconds = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        model = architecture.build()
        generator = torch.Generator().manual_seed(seed)
        batch = architecture.batch(batch_size, generator)
        if real:
            batch = photographs(batch_size, batch[0].shape[-1], generator), *batch[1:]
        graph = trace(model, batch, architecture.loss)
        begin = time.process_time()
        propagation = propagate(graph)
        seconds.append(time.process_time() - begin)
        for site in propagation.sites:
            if site.operation not in COPIES:
                found[site.node].append(site)
    # What follows the logits is the loss.
    last = max(node for node, group in found.items() if group[0].second_moment is not None)
    return [group for node, group in found.items() if node <= last], statistics.median(seconds)


def errors(groups: list[list[Site]]) -> tuple[list[float], list[float]]:
    """ln(predicted/measured) of second moments and of gradients, averaged over seeds."""
    moments, gradients = [], []
    for group in groups:
        q = [(s.second_moment, s.measured_second_moment) for s in group]
        g = [(s.gradient, s.measured_gradient) for s in group if not s.is_start]
        for pairs, into in ((q, moments), (g, gradients)):
            ratios = [math.log(a / b) for a, b in pairs if a and b]
            if ratios:
                into.append(statistics.mean(ratios))
    return moments, gradients


def within(groups: list[list[Site]]) -> list[bool]:
    """Whether the error of each operation, averaged over seeds, is within twice the stated one."""
    found = []
    for group in groups:
        pairs = [(s.gradient, s.measured_gradient) for s in group if not s.is_start]
        ratios = [math.log(a / b) for a, b in pairs if a and b]
        if ratios and math.isfinite(group[0].error):
            found.append(abs(statistics.mean(ratios)) <= 2 * group[0].error)
    return found


def row(
    architecture: Architecture,
    batch_size: int,
    seeds: int,
    covered: list[bool],
    *,
    real: bool = False,
) -> str:
    """One line of the table; ``covered`` collects which operations are within their errors."""
    groups, seconds = sites(architecture, batch_size, seeds, real=real)
    covered += within(groups)
    predicted = sum(group[0].second_moment is not None for group in groups)
    moments, gradients = errors(groups)
    steps = sorted(abs(b - a) for a, b in pairwise(gradients))
    moments, gradients = (list(map(abs, found)) for found in (moments, gradients))
    measured = [s.measured_gradient for group in groups for s in group if s.measured_gradient]
    span = math.log(max(measured) / min(measured))
    return (
        f"| {architecture.name} | {batch_size}{' photographs' if real else ''} | "
        f"{predicted} of {len(groups)} | {statistics.median(moments):.3f} | {span:.1f} | "
        f"{statistics.median(gradients):.3f} | {max(gradients):.2f} | "
        f"{statistics.median(steps):.3f} | {steps[int(0.95 * len(steps))]:.2f} | {seconds:.1f} s |"
    )


def times(architecture: Architecture, batch_size: int, turns: int) -> str:
    """One line of medians over turns, each with weights of its own."""
    found = []
    for seed in range(turns + 1):
        torch.manual_seed(seed)
        model = architecture.build()
        batch = architecture.batch(batch_size, torch.Generator().manual_seed(seed))
        clock = [time.process_time()]
        architecture.loss(model, batch).backward()
        clock.append(time.process_time())
        graph = trace(model, batch, architecture.loss)
        clock.append(time.process_time())
        propagate(graph)
        clock.append(time.process_time())
        found.append([after - before for before, after in pairwise(clock)])
    step, tracing, theory = (statistics.median(c) for c in zip(*found[1:], strict=True))
    return (
        f"| {architecture.name} | {batch_size} | {tracing:.2f} s | {theory:.2f} s | "
        f"{theory / step:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="architectures; all by default")
    parser.add_argument("--quick", action="store_true", help="one architecture, one seed")
    parser.add_argument("--time", action="store_true", help="seconds instead of errors")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.time:
        timed = [*DEEP, *(a for a in ARCHITECTURES if a.name in LARGE_MAPS)]
        print("| architecture | batch | trace | theory | theory / pass |\n|---|---|---|---|---|")
        for architecture in timed[1:2] if arguments.quick else timed:
            print(times(architecture, BATCHES[0], 1 if arguments.quick else TURNS), flush=True)
        return
    names = arguments.names or (QUICK if arguments.quick else [a.name for a in ARCHITECTURES])
    unknown = set(names) - {a.name for a in ARCHITECTURES}
    if unknown:
        parser.error(
            f"no architecture {sorted(unknown)}; there are {[a.name for a in ARCHITECTURES]}"
        )
    print(
        "| architecture | batch | predicted | q | span of ln G | ln G, median | worst | "
        "per layer, median | 95 % | theory |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    covered: dict[str, list[bool]] = defaultdict(list)
    for architecture in ARCHITECTURES:
        if architecture.name in names:
            for batch_size in BATCHES[:1] if arguments.quick else BATCHES:
                seeds = 1 if arguments.quick else SEEDS
                into = covered[f"batch {batch_size}"]
                print(row(architecture, batch_size, seeds, into), flush=True)
            if is_of_images(architecture.batch(2, torch.Generator())) and not arguments.quick:
                into = covered["photographs"]
                print(row(architecture, BATCHES[0], SEEDS, into, real=True), flush=True)
    for kind, inside in covered.items():
        print(f"\n{kind}: {sum(inside) / len(inside):.1%} within twice the stated error")


if __name__ == "__main__":
    main()
