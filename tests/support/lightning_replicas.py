"""Lightning trains on two processes; run as a script, which forks them.

Usage: ``lightning_replicas.py FOLDER``, where ``results.pt`` gets the weights. Two forks import
Lightning once; it takes longer than all they do.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from equipoise.integrations.lightning import BNPCallback, EquipoiseMonitor
from support.bnp_problems import batches, flat
from support.lightning_problems import Regression, fit


class Shared(Regression):
    """Each process takes its half of every batch."""

    def training_step(self, batch, index):
        halves = zip(*(part.chunk(2) for part in batch), strict=True)
        return super().training_step(list(halves)[self.global_rank], index)


def main(folder):
    torch.set_num_threads(1)
    model = Shared("adamw")
    options = {"strategy": "ddp_fork", "devices": 2, "use_distributed_sampler": False}
    callbacks = BNPCallback(), EquipoiseMonitor(every=3, growth=True)
    fit(model, batches(8, rows=64), *callbacks, **options)
    torch.save(flat(model.net), folder / "results.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
