"""Two gloo processes train together; run as a script with a folder."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from big_problems import STEPS, data, network, state, trained
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from equipoise.records import Evaluation
from equipoise.training import CheckpointError, cross_entropy, train_big
from forked_ranks import together


def summed(model, batch):
    return cross_entropy(model, batch) * len(batch[0]) / 8


def shard(model):
    for index in (0, 1, 4):
        fully_shard(model[index])
    fully_shard(model)


CASES = {
    "momentum": {},
    "adamw": {"optimizer": "adamw"},
    "uneven shares": {"batch_size": 7},
    "no batch norm, uneven": {"batch_size": 5, "batch_norm": False},
    "wrapped already": {"wrap": DistributedDataParallel},
    "summed": {"loss_fn": summed, "loss_is": "sum"},
    "sharded": {"shard": shard},
    "sharded adamw": {"shard": shard, "optimizer": "adamw"},
    "per rank": {"synchronise": False},
}


def cases(rank, folder):
    found = {"layouts": {}}
    for name, options in CASES.items():
        model, run = trained(**options)
        found[name] = state(model, run)
        found["layouts"][name] = str(run.layout)
    found["watched"] = watched()
    found["diverged"] = diverging(rank)
    found["sharded, resumed"] = sharded_and_resumed(folder)
    found["elastic"] = refused(lambda: trained(checkpoint=folder / "alone.pt"))
    found["elastic, allowed"] = state(*trained(checkpoint=folder / "alone.pt", elastic=True))
    found["unwritable"] = refused(lambda: trained(checkpoint=folder / "alone.pt" / "x.pt"))
    found["not shared"] = refused(lambda: trained(checkpoint=folder / f"{rank}.pt", elastic=True))
    found["fsdp"] = refused(lambda: trained(synchronise=False, shard=shard))
    return found


def watched():
    """Which ranks listen and evaluate, and what all of them get."""
    heard = []
    model = network()
    run = train_big(
        model,
        data(),
        cross_entropy,
        torch.optim.SGD(model.parameters(), lr=0.1),
        listener=lambda step, loss: heard.append((step, loss)),
        evaluate=lambda step: Evaluation(step, dist.get_rank(), None),
        evaluate_at=(0, 3, STEPS),
    )
    return {"heard": heard, "run": run}


def diverging(rank):
    """A loss that is infinite on one rank alone."""
    model = network()
    calls = []

    def loss_fn(model, batch):
        calls.append(1)
        loss = cross_entropy(model, batch)
        return loss / 0 if rank == 1 and len(calls) == 4 else loss

    run = train_big(model, data(), loss_fn, torch.optim.SGD(model.parameters(), lr=0.1))
    return run.history


def sharded_and_resumed(folder):
    """FSDP2 to step 5, then anew from its checkpoint."""
    path = folder / "sharded.pt"

    def stop(step, loss):
        if step == 7:
            raise InterruptedError

    # Rank 0 alone listens; the other must stop too, and not wait for it.
    loss = failing_at(8) if dist.get_rank() else cross_entropy
    options = {"shard": shard, "checkpoint": path, "checkpoint_every": 5}
    with contextlib.suppress(InterruptedError):
        trained(**options, listener=stop, loss_fn=loss)
    dist.barrier()
    return {"resumed": state(*trained(**options)), "whole": state(*trained(shard=shard))}


def failing_at(call):
    calls = []

    def loss_fn(model, batch):
        calls.append(1)
        if len(calls) == call:
            raise InterruptedError
        return cross_entropy(model, batch)

    return loss_fn


def refused(action):
    try:
        action()
    except (CheckpointError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def main(folder):
    def alone(rank):
        trained(checkpoint=folder / "alone.pt", checkpoint_every=5, listener=stop_at(7))

    def stop_at(last):
        def listener(step, loss):
            if step == last:
                raise InterruptedError

        return listener

    def work(rank):
        torch.save(cases(rank, folder), folder / f"found-{rank}.pt")

    assert together(alone, 1, folder) == [1]
    (folder / "1.pt").write_bytes((folder / "alone.pt").read_bytes())
    assert together(work, 2, folder) == [0, 0]
    files = [folder / f"found-{rank}.pt" for rank in range(2)]
    torch.save([torch.load(f, weights_only=False) for f in files], folder / "results.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
