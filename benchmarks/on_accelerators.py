"""Times on an accelerator, as ratios to what one would do otherwise.

Run ``python benchmarks/on_accelerators.py [--quick]``. Steps of SGD with BNP, and with batch norm,
to plain ones; second-order pooling by RUN to the matrix square root and to plain bilinear pooling;
the verdict's whole price in training steps. Variants take turns, in blocks that end with a
synchronisation; medians over the turns. Without an accelerator it times the CPU, and says so.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise import diagnosis, models, pooling
from equipoise.preconditioners import BNP

DEVICE = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
TURNS, BLOCK = 15, 10
# BNP takes its statistics at each of the first hundred steps. Seconds beyond which it is warm.
WARM_UP, PATIENCE = 120, 4.0
Variants = dict[str, Callable[[], object]]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    turns, block = (1, 1) if quick else (TURNS, BLOCK)
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else DEVICE.type
    print(f"{name}, torch {torch.__version__}\n")
    print("| case | variant | ms | to the first |", "|---|---|---|---|", sep="\n")
    for case, variants in cases(quick=quick):
        found = in_turns(variants, turns, block)
        base = found[next(iter(found))]
        for variant, times in found.items():
            ratio = statistics.median(a / b for a, b in zip(times, base, strict=True))
            print(
                f"| {case} | {variant} | {1e3 * statistics.median(times):.3f} | {ratio:.2f} |",
                flush=True,
            )


def in_turns(variants: Variants, turns: int, block: int) -> dict[str, list[float]]:
    """Seconds of one call of each, once a turn, after a warm-up."""
    for call in variants.values():
        begin = time.perf_counter()
        for _ in range(WARM_UP if turns > 1 else 1):
            call()
            if time.perf_counter() - begin > PATIENCE:
                break
    found: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(turns):
        for name, call in variants.items():
            found[name].append(seconds(call, block))
    return found


def seconds(call: Callable[[], object], block: int) -> float:
    """Seconds of one of a block of calls."""
    synchronise()
    begin = time.perf_counter()
    for _ in range(block):
        call()
    synchronise()
    return (time.perf_counter() - begin) / block


def synchronise() -> None:
    """Wait for the device."""
    if DEVICE.type != "cpu":
        torch.accelerator.synchronize()


def cases(*, quick: bool) -> Iterator[tuple[str, Variants]]:
    """Names, and what is timed."""
    for width, depth, rows in ((100, 3, 256), (1024, 6, 512), (4096, 6, 512)):
        if quick and width > 100:
            continue
        yield f"MLP {depth} × {width}, {rows} rows", perceptrons(width, depth, rows)
    for channels, rows in ((16, 128), (64, 128)):
        if quick:
            continue
        yield f"ResNet-18 of width {channels}, {rows} rows", residual(channels, rows)
    for channels in (64, 256, 512):
        if quick and channels > 64:
            continue
        yield f"pooling of 32 × {channels} × 28 × 28", heads(channels)
    if not quick:
        yield "verdict on a ResNet-18, 32 rows", verdict(64)


def step(model: nn.Module, x: Tensor, y: Tensor, *, every: int | None) -> Callable[[], object]:
    """A step of SGD; with BNP if its statistics are taken every so many steps."""
    model = model.to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    if every is not None:
        BNP(model, update_every=every).attach(optimizer)

    def call() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return call


def perceptrons(width: int, depth: int, rows: int) -> Variants:
    """Plain, with batch norm, and with BNP."""
    x = torch.randn(rows, 784, device=DEVICE)
    y = torch.randint(10, (rows,), device=DEVICE)

    def net(norm: str) -> nn.Module:
        return models.mlp(784, 10, depth=depth, width=width, norm=norm)

    return {
        "plain": step(net("none"), x, y, every=None),
        "batch norm": step(net("batch"), x, y, every=None),
        "BNP": step(net("none"), x, y, every=1),
        "BNP every 10 steps": step(net("none"), x, y, every=10),
    }


def residual(channels: int, rows: int) -> Variants:
    """A ResNet-18 without norms, with batch norm, and with BNP."""
    x = torch.randn(rows, 3, 32, 32, device=DEVICE)
    y = torch.randint(10, (rows,), device=DEVICE)

    def net(norm: str) -> nn.Module:
        return models.resnet18(width=channels, norm=norm)

    return {
        "plain": step(net("none"), x, y, every=None),
        "batch norm": step(net("batch"), x, y, every=None),
        "BNP": step(net("none"), x, y, every=1),
        "BNP every 10 steps": step(net("none"), x, y, every=10),
    }


def heads(channels: int) -> Variants:
    """Forward and backward passes of second-order heads."""
    x = torch.randn(32, channels, 28, 28, device=DEVICE).relu_().requires_grad_()
    kinds = {
        "bilinear": pooling.BilinearPool(channels),
        "RUN": pooling.RUNPool(channels),
        "iSQRT": pooling.ISQRTPool(channels),
        "square root by eigenvectors": pooling.MatrixPowerPool(channels),
    }

    def passes(head: nn.Module) -> Callable[[], object]:
        head = head.to(DEVICE)
        return lambda: torch.autograd.grad(head(x).square().sum(), x)

    return {name: passes(head) for name, head in kinds.items()}


def verdict(channels: int) -> Variants:
    """One training step, and the whole verdict."""
    x = torch.randn(32, 3, 32, 32, device=DEVICE)
    y = torch.randint(10, (32,), device=DEVICE)
    model = models.resnet18(width=channels).to(DEVICE)
    return {
        "training step": step(models.resnet18(width=channels), x, y, every=None),
        "verdict": lambda: diagnosis.trainability(model, (x, y), device=DEVICE, depth=False),
    }


if __name__ == "__main__":
    main()
