"""An experiment of one training over all ranks, in which a rank may die; run under torchrun.

Usage: ``toy_big_experiment.py ARGUMENTS`` of the equipoise command.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from equipoise import layers
from equipoise.cli.main import main
from equipoise.training import mean_squared_error
from equipoise_papers.big.batches import ShuffledBatches
from equipoise_papers.big.distributed import ranks
from equipoise_papers.big.train import train_big
from equipoise_papers.experiments.experiment import Experiment
from equipoise_papers.experiments.torchrun import checkpoint_path
from equipoise_papers.experiments.verdict import Check, Verdict
from equipoise_papers.reproduction.catalogue import EXPERIMENTS
from equipoise_papers.sweeps.cell import Cell

STEPS, FATAL_STEP = 9, 6


@dataclass(frozen=True, slots=True)
class Losses:
    losses: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Fit(Cell[Losses]):
    """The training of a small network with batch norm."""

    seed: int

    def run(self):
        return fit(self)


def fit(cell):
    generator = torch.Generator().manual_seed(cell.seed)
    x = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(cell.seed)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    layers.convert(model, "batch", "synchronised", inplace=True)
    calls = []

    def loss_fn(model, batch):
        calls.append(1)
        die_if_asked(cell, len(calls))
        return mean_squared_error(model, batch)

    result = train_big(
        model,
        ShuffledBatches(x, x.sum(1, keepdim=True), 6, STEPS, cell.seed),
        loss_fn,
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        checkpoint=checkpoint_path(),
        checkpoint_every=2,
    )
    note(f"rank {ranks().rank} of {ranks().size}, cell {cell.seed}, from {result.resumed_at}")
    return Losses(result.history.losses)


def die_if_asked(cell, step):
    """Rank 1 is killed in the second cell, if that is asked for."""
    if "TOY_FATAL" in os.environ and (ranks().rank, cell.seed, step) == (1, 1, FATAL_STEP):
        os.kill(os.getpid(), signal.SIGKILL)


def note(line):
    folder = os.environ.get("TOY_NOTES")
    if folder:
        with (Path(folder) / "notes").open("a") as file:
            file.write(f"{line}\n")


def experiment(**changes):
    parts = {
        "name": "toy.big",
        "title": "One training",
        "claim": "It learns",
        "choices": (),
        "cells": lambda scale: (Fit(0), Fit(1)),
        "draw": lambda figure, results: figure.subplots(),
        "judge": lambda results: Verdict((Check("it learns", "yes", True),)),
        "big": True,
    }
    return Experiment(**(parts | changes))


if __name__ == "__main__":
    EXPERIMENTS["toy.big"] = experiment()
    raise SystemExit(main(sys.argv[1:]))
