"""One small training with everything that has a state, for one process or several."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn

from equipoise import layers
from equipoise.preconditioners import BNP
from equipoise.training import Evaluation, cross_entropy
from equipoise_papers.big.batches import ShuffledBatches
from equipoise_papers.big.train import train_big

SAMPLES, BATCH, STEPS, EVERY = 22, 8, 12, 5


def generator(seed):
    return torch.Generator().manual_seed(seed)


def noisy(inputs, draws):
    """An augmentation."""
    return inputs + 0.1 * torch.randn(inputs.shape, generator=draws, dtype=inputs.dtype)


def data(batch_size=BATCH, steps=STEPS, transform=noisy):
    g = generator(0)
    x = 2 * torch.randn(SAMPLES, 4, generator=g, dtype=torch.float64) + 1
    y = torch.randint(3, (SAMPLES,), generator=g)
    return ShuffledBatches(x, y, batch_size, steps, seed=3, transform=transform)


def network(dropout=0.0, batch_norm=True):
    """Linear, batch norm, linear, with seeded weights."""
    norm = nn.BatchNorm1d(6, dtype=torch.float64) if batch_norm else nn.Identity()
    model = nn.Sequential(
        nn.Linear(4, 6, dtype=torch.float64),
        norm,
        nn.Tanh(),
        nn.Dropout(dropout),
        nn.Linear(6, 3, dtype=torch.float64),
    )
    g = generator(1)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=g, dtype=p.dtype) / p.shape[-1] ** 0.5)
    return model


OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}


def with_draws(model, batch):
    """A loss that draws from Python's and NumPy's global generators, as users' code may."""
    factor = 1 + 0.1 * random.random() + 0.1 * np.random.random()  # noqa: NPY002
    return factor * cross_entropy(model, batch)


def seed_everything(rank):
    """As a user does at the top of a script, with another seed on every rank."""
    torch.manual_seed(10 + rank)
    random.seed(20 + rank)
    np.random.seed(30 + rank)  # noqa: NPY002


def trained(
    optimizer="momentum",
    *,
    synchronise=True,
    bnp=True,
    batch_size=BATCH,
    loss_fn=cross_entropy,
    shard=None,
    wrap=None,
    **options,
):
    """Train the network; returns it with its run."""
    model = network(batch_norm=options.pop("batch_norm", True))
    model = layers.convert(model, "batch", "synchronised").model if synchronise else model
    if shard is not None:
        shard(model)
    stepper = OPTIMIZERS[optimizer](model.parameters())
    if bnp:
        options["also"] = {"bnp": BNP(model).attach(stepper)}
    batches = data(batch_size)
    run = train_big(wrap(model) if wrap else model, batches, loss_fn, stepper, **options)
    return model, run


def state(model, run):
    """Losses and model, to be compared between one process and several."""
    return {
        "losses": torch.tensor(run.history.losses, dtype=torch.float64),
        **{
            name: value.full_tensor() if hasattr(value, "full_tensor") else value.clone()
            for name, value in model.state_dict().items()
        },
    }


def interruptible(rank, path=None, loss_fn=with_draws):
    """A training with dropout, draws from all global generators, and all that has a state."""
    seed_everything(rank)
    model = layers.convert(network(dropout=0.3), "batch", "synchronised").model
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    bnp = BNP(model, update_every=2).attach(optimizer)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [4, 9], gamma=0.5)
    run = train_big(
        model,
        data(),
        loss_fn,
        optimizer,
        scheduler=scheduler,
        also={"bnp": bnp},
        checkpoint=path,
        checkpoint_every=EVERY,
        evaluate=lambda step: Evaluation(step, float(model[0].weight.detach().sum()), None),
        evaluate_at=range(STEPS + 1),
    )
    return everything(run, model, optimizer, scheduler, bnp)


def everything(run, model, optimizer, scheduler, bnp):
    """All final states of this rank, random states included."""
    return {
        "resumed at": run.resumed_at,
        "losses": run.history.losses,
        "evaluations": [(e.step, e.loss) for e in run.history.evaluations],
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "bnp": bnp.state_dict(),
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),  # noqa: NPY002
    }


def differences(a, b, place=""):
    """Places where two nested states differ in any bit."""
    if isinstance(a, torch.Tensor):
        return [] if a.dtype == b.dtype and torch.equal(a, b) else [place]
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return [place]
        return [d for key in a for d in differences(a[key], b[key], f"{place}/{key}")]
    if isinstance(a, list | tuple):
        if len(a) != len(b):
            return [place]
        pairs = zip(a, b, strict=True)
        return [d for i, (v, w) in enumerate(pairs) for d in differences(v, w, f"{place}/{i}")]
    return [] if a == b else [place]
