"""Two gloo processes normalise shares of a batch; run as a script with a folder."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

from equipoise import layers
from equipoise.layers.synchronised_batch_norm import synchronised_batch_norm
from support.forked_ranks import together

SHAPES = {1: (6, 3), 2: (7, 3, 2, 2), 3: (4, 3, 2, 1, 2)}
# Rows of rank 0; the rest are rank 1's.
SPLITS = {"equal": 3, "uneven": 1, "one rank has none": 0}
MOMENTA = (0.1, 1.0, None)


def problem(dims, dtype=torch.float64, offset=0.0):
    """A joint batch with means far from 0, and what its output is weighed with."""
    generator = torch.Generator().manual_seed(dims)
    x, v = torch.randn(2, *SHAPES[dims], generator=generator, dtype=torch.float64)
    return (3 * x + 5 + offset).to(dtype), v.to(dtype)


def layer(dims, kind, dtype=torch.float64, **options):
    names = {True: layers, False: nn}
    prefix = "SynchronisedBatchNorm" if kind else "BatchNorm"
    made = getattr(names[kind], f"{prefix}{dims}d")(3, dtype=dtype, **options)
    with torch.no_grad():
        made.weight.copy_(torch.linspace(0.5, 1.5, 3))
        made.bias.copy_(torch.linspace(-1, 1, 3))
    return made


def traced(made, x, v, steps=2):
    """Outputs, gradients and statistics after some passes over x."""
    x = x.clone().requires_grad_()
    for _ in range(steps):
        y = made(x)
    (y * v).sum().backward()
    return {
        "y": y.detach(),
        "x": x.grad,
        "weight": made.weight.grad,
        "bias": made.bias.grad,
        **{name: value.clone() for name, value in made.named_buffers()},
    }


def curvature(function, x, v):
    """Gradient of the squared gradient: a second derivative."""
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad((function(x).pow(3) * v).sum(), x, create_graph=True)
    return torch.autograd.grad((first.square() * v).sum(), x)[0]


def share(rank, rows, *tensors):
    part = slice(0, rows) if rank == 0 else slice(rows, None)
    return [t[part] for t in tensors]


def cases(rank):
    found = {}
    for dims in SHAPES:
        for name, rows in SPLITS.items():
            for momentum in MOMENTA:
                made = layer(dims, True, momentum=momentum)
                found[dims, name, momentum] = traced(made, *share(rank, rows, *problem(dims)))
    x, v = share(rank, 3, *problem(1))
    found["curvature"] = curvature(lambda x: synchronised_batch_norm(x, None, None)[0], x, v)
    x, v = share(rank, 3, *problem(1, torch.float32, offset=1e4))
    found["far from 0"] = traced(layer(1, True, torch.float32), x, v, steps=1)
    found["evaluation"] = layer(1, True).eval()(x.double())
    found["apart"] = traced(layer(1, False), *share(rank, 3, *problem(1)))
    found["one value"] = refusal(share(rank, 1, problem(1)[0][:1])[0])
    return found


def refusal(x):
    try:
        layer(1, True)(x)
    except ValueError as error:
        return str(error)
    return None


def main(folder):
    def work(rank):
        torch.save(cases(rank), folder / f"{rank}.pt")

    assert together(work, 2, folder) == [0, 0]
    torch.save([torch.load(folder / f"{rank}.pt") for rank in range(2)], folder / "results.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
