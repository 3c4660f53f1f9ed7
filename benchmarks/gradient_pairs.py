"""Correlations of gradients at pairs of rows, predicted and measured.

Run ``python benchmarks/gradient_pairs.py [--quick]``; it prints the table of
``docs/propagation.md``: for the normalisers of three architectures the mean product of two
derivatives over their mean square, at neighbouring positions of one sample, at any two positions
of one sample, and at one position of two samples. Averages of three initialisations, batch 16.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict

import numpy as np
import torch
from numpy.typing import NDArray

from architectures import ARCHITECTURES, Architecture
from equipoise.instrument.recording.graph import Graph
from equipoise.instrument.recording.tracer import trace
from equipoise.theory.propagation.backward import backward, of_tensor
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.forward import Forward
from equipoise.theory.propagation.values.moments import Moments

NAMES = ("resnet18_preactivation", "mobilenet_v2", "mlp_mixer")
NORMS = ("native_batch_norm", "native_layer_norm")
SEEDS, BATCH = 3, 16

Correlations = tuple[float, float, float]


def correlations(pairs: Exchangeable, sizes: tuple[int, ...]) -> Correlations:
    """Neighbours, two positions of one sample, two samples."""
    total, places = pairs.mean_diagonal, len(pairs.same)
    if places == 1:
        return float("nan"), float("nan"), float(np.diagonal(pairs.diff).mean()) / total
    near = pairs.same[neighbours(sizes)].mean()
    same = (pairs.same.sum() - np.trace(pairs.same)) / (places * (places - 1))
    return float(near) / total, float(same) / total, float(np.diagonal(pairs.diff).mean()) / total


def neighbours(sizes: tuple[int, ...]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Pairs of positions that differ by one along the last axis."""
    index = np.arange(int(np.prod(sizes))).reshape(sizes)
    return index[..., :-1].ravel(), index[..., 1:].ravel()


def found(graph: Graph) -> dict[str, tuple[Correlations, Correlations]]:
    """By the name of the normaliser: predicted and measured ones of what it gives."""
    forward = Forward(graph)
    for node in graph.nodes:
        forward.step(node)
    back = backward(graph, forward)
    result = {}
    for node in graph.nodes:
        value, gradient = forward.values[node.number][0], node.gradients[0]
        if node.name not in NORMS or not isinstance(value, Moments) or gradient is None:
            continue
        sizes = tuple(atom.size for atom in value.order) or (1,)
        measured = of_tensor(gradient, value)
        predicted = back.gradients[id(value)]
        result[node.module] = (
            correlations(predicted.pairs, sizes),
            correlations(measured, sizes),
        )
    return result


def table(architecture: Architecture, seeds: int) -> list[str]:
    """Lines of the table for one architecture."""
    groups: dict[str, list[tuple[Correlations, Correlations]]] = defaultdict(list)
    for seed in range(seeds):
        torch.manual_seed(seed)
        model = architecture.build()
        batch = architecture.batch(BATCH, torch.Generator().manual_seed(seed))
        for name, pair in found(trace(model, batch, architecture.loss)).items():
            groups[name].append(pair)
    lines = []
    for name, pairs in groups.items():
        cells = []
        for kind in range(3):
            means = [statistics.mean(pair[side][kind] for pair in pairs) for side in (0, 1)]
            cells.append("–" if np.isnan(means).any() else f"{means[0]:+.3f} / {means[1]:+.3f}")
        lines.append(f"| {architecture.name} | {name} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one architecture, one seed")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    print("| architecture | normaliser | neighbours | one sample | two samples |")
    print("|---|---|---|---|---|")
    for architecture in ARCHITECTURES:
        if architecture.name in (NAMES[-1:] if quick else NAMES):
            print("\n".join(table(architecture, 1 if quick else SEEDS)), flush=True)


if __name__ == "__main__":
    main()
