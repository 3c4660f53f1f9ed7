"""Time, CPU time and saved bytes of a forward and a backward pass, methods in turns."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

Forward = Callable[[Tensor], Tensor]
Pass = Callable[[], None]

WARM_UPS = 2
# A quick method has several tries in a turn: at the first one the caches hold another method's
# data.
_TRIES, _QUICK = 3, 0.02


@dataclass(frozen=True, slots=True)
class Turns:
    """Seconds of every turn of one method.

    Args:
        wall: Elapsed time.
        cpu: CPU time of this process on all cores; with a GPU, that of the host.
    """

    wall: tuple[float, ...]
    cpu: tuple[float, ...]

    def on(self, device: torch.device) -> tuple[float, ...]:
        """The time to compare: CPU time, which other programs do not lengthen, or a GPU's time."""
        return self.cpu if device.type == "cpu" else self.wall


def forward_backward(forward: Forward, inputs: Tensor) -> Pass:
    """A pass with an upstream gradient of ones, ready to be timed again and again."""
    leaf = inputs.detach().requires_grad_()
    with torch.no_grad():
        ones = torch.ones_like(forward(leaf))

    def one() -> None:
        torch.autograd.grad(forward(leaf), leaf, ones)

    return one


def in_turns(passes: Mapping[str, Pass], turns: int, device: torch.device) -> dict[str, Turns]:
    """Time every method in every turn, so that all see the same load of the machine."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in passes}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for turn in range(WARM_UPS + turns):
            for name, one in passes.items():
                best = _best(one, device)
                if turn >= WARM_UPS:
                    found[name].append(best)
    finally:
        if collecting:
            gc.enable()
    return {
        name: Turns(tuple(wall for wall, _ in both), tuple(cpu for _, cpu in both))
        for name, both in found.items()
    }


def saved_bytes(forward: Forward, inputs: Tensor) -> int:
    """Bytes that autograd keeps for the backward pass, beside the input and the layer's own.

    Storages are counted once, however many tensors share them.
    """
    leaf = inputs.detach().requires_grad_()
    own = [leaf]
    if isinstance(forward, nn.Module):
        own += [*forward.parameters(), *forward.buffers()]
    known = {tensor.untyped_storage().data_ptr() for tensor in own}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        output = forward(leaf)
    del output  # only now: freed storages could get the addresses of later ones
    return sum(kept.values())


def machine_rates(device: torch.device) -> tuple[float, float]:
    """Operations per second of a matrix product, and bytes per second of a copy, at best."""
    size = 1024
    one = torch.ones(size, size, device=device)
    many = torch.ones(2**24, device=device)
    into = torch.empty_like(many)

    def multiply() -> None:
        torch.mm(one, one)

    def copy() -> None:
        into.copy_(many)

    found = in_turns({"multiply": multiply, "copy": copy}, 5, device)
    moved = 2 * many.numel() * many.element_size()
    product, copied = (min(found[name].on(device)) for name in ("multiply", "copy"))
    return 2 * size**3 / product, moved / copied


def _best(one: Pass, device: torch.device) -> tuple[float, float]:
    tries: list[tuple[float, float]] = []
    while len(tries) < _TRIES:
        begin = _now(device)
        one()
        end = _now(device)
        tries.append((end[0] - begin[0], end[1] - begin[1]))
        if tries[0][0] > _QUICK:
            break
    return min(wall for wall, _ in tries), min(cpu for _, cpu in tries)


def _now(device: torch.device) -> tuple[float, float]:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter(), time.process_time()
