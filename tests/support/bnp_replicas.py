"""Two gloo processes that train together; run as a script, which forks them.

Usage: ``bnp_replicas.py FOLDER``. Rank 0 writes ``results.pt``, which the test compares.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from equipoise import BNP
from support.bnp_problems import OPTIMIZERS, batches, flat, mlp
from support.forked_ranks import together

CASES = {
    "sgd": ("sgd", {}),
    "adamw": ("adamw", {}),
    "rare": ("adam", {"update_every": 3}),
    "paper": ("sgd", {"preset": "paper"}),
}
STEPS, ROWS = 8, 64


def train_share(model, module, optimizer, rank):
    """Every rank takes its rows of each batch; the gradients are averaged."""
    for x, y in batches(STEPS, rows=ROWS):
        optimizer.zero_grad()
        share = slice(rank * ROWS // 2, (rank + 1) * ROWS // 2)
        mse_loss(model(x[share]), y[share]).backward()
        optimizer.step()
    return module


def replicated(case, rank, process_group=None):
    name, options = CASES[case]
    module = mlp()
    model = DistributedDataParallel(module)
    optimizer = OPTIMIZERS[name](model.parameters())
    BNP(model, process_group=process_group, **options).attach(optimizer)
    return flat(train_share(model, module, optimizer, rank))


def sharded(case, rank):
    """FSDP2: 7, 6 and 3 output units on two processes, so uneven shards."""
    name, options = CASES[case]
    module = mlp()
    for index in (0, 2, 4):
        fully_shard(module[index])
    fully_shard(module)
    optimizer = OPTIMIZERS[name](module.parameters())
    BNP(module, **options).attach(optimizer)
    train_share(module, module, optimizer, rank)
    return torch.cat([p.full_tensor().detach().flatten() for p in module.parameters()])


def replica(rank, folder):
    own_group = [dist.new_group([r]) for r in range(2)][rank]
    found = {f"ddp {case}": replicated(case, rank) for case in CASES}
    found["statistics apart"] = replicated("sgd", rank, own_group)
    other = found["statistics apart"].clone()
    dist.all_reduce(other)
    found["drift"] = (other - 2 * found["statistics apart"]).abs().max()
    found |= {f"fsdp {case}": sharded(case, rank) for case in ("sgd", "adamw")}
    if rank == 0:
        torch.save(found, folder / "results.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    raise SystemExit(any(together(replica, 2, folder, folder)))
