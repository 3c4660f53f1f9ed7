"""Two gloo processes train together; run as a script with a folder."""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from equipoise import layers
from equipoise.training import Evaluation, cross_entropy
from equipoise_papers.big.distributed import ranks
from equipoise_papers.big.layout import layout
from equipoise_papers.big.train import train_big
from papers_support.big_problems import STEPS, data, network, state, trained
from support.forked_ranks import together


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
    found["evaluated"] = {
        "sharded": evaluated(shard=shard),
        "wrapped": evaluated(wrap=DistributedDataParallel),
        "plain": evaluated(),
    }
    found["nothing"] = refused(
        lambda: trained(evaluate=lambda step: None, evaluate_at=(1,)), TypeError
    )
    for name, options in UNLIKE.items():
        found[name] = refused(partial(trained, **options(rank)))
    found["unstorable"] = refused(lambda: attached(folder / "odd.pt", Unstorable()))
    attached(folder / "fits.pt", Fitting(True))
    found["fits one rank"] = refused(lambda: attached(folder / "fits.pt", Fitting(rank == 0)))
    found["elastic, per rank"] = refused(
        lambda: trained(checkpoint=folder / "per-rank.pt", elastic=True, synchronise=False)
    )
    found["elastic, synchronised"] = refused(
        lambda: trained(checkpoint=folder / "per-rank.pt", elastic=True)
    )
    trained(checkpoint=folder / "apart.pt", synchronise=False)
    found["other norms"] = refused(lambda: trained(checkpoint=folder / "apart.pt"))
    found["groups of one"] = in_groups()
    found["another size"] = refused(lambda: cross_sizes(loss_is="mean"))
    found["another size, summed"] = refused(lambda: cross_sizes(loss_is="sum"))
    found["checkpoint of infinite weights"] = overflowing(rank, folder / "overflow.pt")
    return found


# Arguments that differ between the ranks.
UNLIKE = {
    "evaluate on one rank": lambda rank: {"evaluate": None if rank else at_step},
    "other moments": lambda rank: {"evaluate": at_step, "evaluate_at": (rank,)},
    "a listener on one rank": lambda rank: {"listener": None if rank else print},
    "other intervals": lambda rank: {"checkpoint_every": 5 + rank},
    "sum and mean": lambda rank: {"loss_is": ("sum", "mean")[rank]},
}


def at_step(step):
    return Evaluation(step, 0.0, None)


def evaluated(shard=None, wrap=None):
    """The steps at which evaluate was called, with a forward pass of the trained model."""
    model = layers.convert(network(), "batch", "synchronised").model
    if shard is not None:
        shard(model)
    whole = wrap(model) if wrap else model
    calls = []

    def evaluate(step):
        calls.append(step)
        whole.eval()
        with torch.no_grad():
            loss = whole(torch.ones(2, 4, dtype=torch.float64)).sum()
        whole.train()
        return Evaluation(step, float(loss) + dist.get_rank(), None)

    stepper = torch.optim.SGD(model.parameters(), lr=0.1)
    run = train_big(
        whole, data(), cross_entropy, stepper, evaluate=evaluate, evaluate_at=(0, 3, STEPS)
    )
    return calls, [(e.step, e.loss) for e in run.history.evaluations]


class Unstorable:
    def state_dict(self):
        return {"function": lambda: None}


class Fitting:
    """An object that may refuse its own state."""

    def __init__(self, fits):
        self.fits = fits

    def state_dict(self):
        return {"number": 1}

    def load_state_dict(self, state):
        if not self.fits:
            raise KeyError("number")


def attached(path, part):
    model = network(batch_norm=False)
    stepper = torch.optim.SGD(model.parameters(), lr=0.1)
    train_big(model, data(), cross_entropy, stepper, also={"part": part}, checkpoint=path)


def in_groups():
    """The statistics of batch norms synchronised within groups of one rank, of all, or of both."""
    group, _ = dist.new_subgroups(group_size=1)
    found = []
    for of in ([group], [None], [group, None]):
        norms = [layers.SynchronisedBatchNorm1d(2, process_group=g) for g in of]
        found.append(layout(nn.Sequential(*norms), 8, ranks(), engine="DDP").statistics)
    return found


class Shares:
    """Batches of which ranks get 2 and 6 samples, instead of the promised 4 and 4."""

    steps, batch_size, identity = 2, 8, {}

    def shares(self, start, here):
        rows = (2, 6)[here.rank]
        for _ in range(start, self.steps):
            yield torch.ones(rows, 4, dtype=torch.float64), torch.zeros(rows, dtype=torch.long)


def cross_sizes(**options):
    model = network(batch_norm=False)
    train_big(model, Shares(), cross_entropy, torch.optim.SGD(model.parameters(), 0.1), **options)


def overflowing(rank, path):
    """Rank 1 finds infinite gradients in step 5, behind a finite loss."""
    model = network(batch_norm=False)
    calls = []

    def loss_fn(model, batch):
        calls.append(1)
        loss = cross_entropy(model, batch)
        return Explosive.apply(loss) if rank == 1 and len(calls) == 5 else loss

    stepper = torch.optim.SGD(model.parameters(), lr=0.1)
    history = train_big(
        model, data(), loss_fn, stepper, checkpoint=path, checkpoint_every=1
    ).history
    dist.barrier()
    return history, torch.load(path, weights_only=True)["step"]


class Explosive(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.inf


def watched():
    """The ranks that listen and evaluate, and the run that all of them get."""
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
    """FSDP2 to step 5, then resumed from its checkpoint."""
    path = folder / "sharded.pt"

    def stop(step, loss):
        if step == 7:
            raise InterruptedError

    # Only rank 0 has the listener; the other rank must stop too, instead of waiting for it.
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


def refused(action, kind=ValueError):
    try:
        action()
    except kind as error:
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

    def alone_per_rank(rank):
        trained(checkpoint=folder / "per-rank.pt", synchronise=False)

    assert together(alone, 1, folder) == [1]
    assert together(alone_per_rank, 1, folder) == [0]
    (folder / "1.pt").write_bytes((folder / "alone.pt").read_bytes())
    assert together(work, 2, folder) == [0, 0]
    files = [folder / f"found-{rank}.pt" for rank in range(2)]
    torch.save([torch.load(f, weights_only=False) for f in files], folder / "results.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
