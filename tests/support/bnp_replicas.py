"""Two gloo processes that train together; run as a script, one process per rank.

Usage: ``bnp_replicas.py RANK RENDEZVOUS RESULT``. Rank 0 writes what the test compares.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from equipoise.preconditioners import BNP
from support.bnp_problems import OPTIMIZERS, batches, flat, mlp

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


def main(rank, rendezvous, result):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    alone = [dist.new_group([r]) for r in range(2)][rank]
    found = {f"ddp {case}": replicated(case, rank) for case in CASES}
    found["statistics apart"] = replicated("sgd", rank, alone)
    other = found["statistics apart"].clone()
    dist.all_reduce(other)
    found["drift"] = (other - 2 * found["statistics apart"]).abs().max()
    found |= {f"fsdp {case}": sharded(case, rank) for case in ("sgd", "adamw")}
    if rank == 0:
        torch.save(found, result)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
