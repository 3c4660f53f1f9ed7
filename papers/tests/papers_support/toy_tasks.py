"""Cells of a few milliseconds that workers can import, and a sweep for other processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch

from equipoise.cli import main
from equipoise_papers.commands import reproduce
from equipoise_papers.sweeps.backends import Engine
from equipoise_papers.sweeps.cell import Cell
from equipoise_papers.sweeps.grid import sweep
from equipoise_papers.sweeps.store import CellStore, digest


@dataclass(frozen=True, slots=True)
class Total:
    """A sum whose last bits depend on the order of summation, and the threads that added."""

    value: float
    threads: int


@dataclass(frozen=True, slots=True)
class Draw(Cell[Total]):
    """A product of random matrices; a negative seed fails.

    Args:
        seed: Of the matrices.
        log: File that gets a line whenever the cell is computed.
        trap: File that, while it exists, makes the cell kill its process.
        seconds: How long it takes besides.
    """

    seed: int
    log: str = ""
    trap: str = ""
    seconds: float = 0.0

    def run(self) -> Total:
        if self.log:
            with Path(self.log).open("a") as log:
                log.write(f"{self.seed} {os.getpid()}\n")
        time.sleep(self.seconds)
        if self.trap and Path(self.trap).exists():
            os.kill(os.getpid(), signal.SIGKILL)
        if self.seed < 0:
            raise FloatingPointError("the loss is nan")
        generator = torch.Generator().manual_seed(self.seed)
        factor = torch.randn(300, 300, generator=generator)
        return Total(float((factor @ factor).exp().sum()), torch.get_num_threads())


def store_in(folder: Path) -> CellStore:
    return CellStore(folder, "toy.totals")


def sweep_in(folder: Path, cells: tuple[Draw, ...], jobs: int) -> None:
    sweep(store_in(folder), cells, engine=Engine(jobs=jobs))


def interruptible_sweep_in(folder: Path, cells: tuple[Draw, ...], jobs: int) -> None:
    """The same, whatever a shell that runs tests in the background has said about Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        sweep_in(folder, cells, jobs)


def command_in(folder: Path, cells: tuple[Draw, ...], jobs: int, printed: Path) -> None:
    """The same as a subcommand that ends like ``equipoise reproduce``."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with printed.open("w") as file:
        os.dup2(file.fileno(), 2)
    command = SimpleNamespace(
        __doc__="Sweep.",
        ENDS_WITHIN=reproduce.ENDS_WITHIN,
        configure=lambda parser: None,
        run=lambda args: sweep_in(folder, cells, jobs),
    )
    main._commands = lambda: ({"toy": command}, {})
    raise SystemExit(main.main(["toy"]))


def rewrite(path: Path, old: str, new: str) -> None:
    """Change a record's file as if another computation had written it: with its checksum."""
    text = path.read_text()
    assert old in text
    document = json.loads(text.replace(old, new))
    del document["checksum"]
    document["checksum"] = digest(document)
    path.write_text(json.dumps(document, indent=1) + "\n")


def records(results):
    """Everything of some results but how long they took."""
    return {cell: (result.record, result.failure) for cell, result in results.items()}


def computed(log: Path) -> list[int]:
    """Seeds of the cells that were computed, in the order of their beginning."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [int(line.split()[0]) for line in lines]
