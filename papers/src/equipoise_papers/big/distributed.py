"""Processes that train together: how they start, what they share out, what they agree on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from equipoise_papers.parent import end_with_parent

Value = TypeVar("Value")

# Rank 0 evaluates and writes while the others wait; PyTorch's own limit is 10 to 30 minutes.
_TIMEOUT = timedelta(hours=2)


@dataclass(frozen=True, slots=True)
class Ranks:
    """One process among those that train together.

    Args:
        rank: Its number, from 0.
        size: How many there are.

    Examples:
        >>> [Ranks(rank, 3).share(8) for rank in range(3)]
        [slice(0, 2, None), slice(2, 5, None), slice(5, 8, None)]
    """

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which writes, evaluates and prints."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """Where this process computes: its GPU, or the CPU if there are more processes than GPUs.

        With :func:`process_group`, all processes compute on the same kind of device.
        """
        if dist.is_available() and dist.is_initialized():
            # process_group() starts gloo alone where there are too few GPUs.
            usable = "nccl" in dist.get_backend_config()
        else:
            usable = torch.cuda.is_available()
        if not usable:
            return torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device())

    def share(self, batch_size: int) -> slice:
        """This rank's rows of a joint batch; shares differ by one row at most."""
        return slice(
            batch_size * self.rank // self.size, batch_size * (self.rank + 1) // self.size
        )

    def share_sizes(self, batch_size: int) -> tuple[int, ...]:
        """Number of rows of every rank."""
        shares = (Ranks(rank, self.size).share(batch_size) for rank in range(self.size))
        return tuple(share.stop - share.start for share in shares)


def ranks() -> Ranks:
    """This process among its group; alone where ``torch.distributed`` is not in use."""
    if not (dist.is_available() and dist.is_initialized()):
        return Ranks()
    return Ranks(dist.get_rank(), dist.get_world_size())


def under_torchrun() -> bool:
    """Whether ``torchrun`` started this process, alone or with others."""
    return dist.is_available() and dist.is_torchelastic_launched()


@contextmanager
def process_group() -> Iterator[Ranks]:
    """Join the processes that ``torchrun`` started, and leave them at the end.

    If there is a GPU for every process, each gets one, with NCCL, and gloo for tensors on the
    CPU. Otherwise all compute on the CPU, with gloo. Without ``torchrun`` the process is alone
    and nothing is started. :attr:`Ranks.device` says where to compute.

    Examples:
        >>> with process_group() as here:  # in a plain interpreter
        ...     here
        Ranks(rank=0, size=1)
    """
    if not under_torchrun() or dist.is_initialized():
        yield ranks()
        return
    end_with_parent(os.getppid())  # ranks of a torchrun that was killed would write on
    local, on_this_machine = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    gpus = torch.cuda.is_available() and torch.cuda.device_count() >= on_this_machine
    if gpus:
        torch.cuda.set_device(local)
    # PyTorch documents both names without exporting them for type checkers.
    store, rank, size = next(dist.rendezvous("env://", timeout=_TIMEOUT))  # type: ignore[attr-defined]
    # torchrun keeps its store over restarts of its workers: without a prefix, restarted workers
    # would read the addresses of dead ones.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    own = dist.PrefixStore(attempt, store)  # type: ignore[attr-defined]
    backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
    dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=_TIMEOUT)
    try:
        yield ranks()
    finally:
        dist.destroy_process_group()


def leave_together(here: Ranks) -> None:
    """Wait until every rank is here, before any of them ends.

    A rank whose peers have gone may be aborted by the threads that still listen to them.
    """
    if here.size > 1:
        dist.barrier()


def joint_mean(loss: Tensor, share: float, here: Ranks) -> Tensor:
    r"""A loss whose value is the joint batch's and whose gradient is this rank's part of it.

    With :math:`\ell_r` the mean over the :math:`n_r` samples of rank r, of n in all,

    .. math:: \ell = \sum_r \frac{n_r}{n}\,\ell_r, \qquad
              \frac1R \sum_r \nabla\Big(R\,\frac{n_r}{n}\,\ell_r\Big) = \nabla \ell :

    the average that DDP and FSDP take over R ranks is the gradient of the joint mean, whether
    the shares are equal or not. The value is the same on every rank to the bit, so that all
    ranks notice a divergence in the same step.

    Args:
        loss: This rank's mean.
        share: :math:`n_r / n`.
        here: This rank.
    """
    if here.size == 1:
        return loss
    joint: Tensor = _JointMean.apply(loss, share, here.size)  # type: ignore[no-untyped-call]  # torch's
    return joint


class _JointMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, share: float, size: int) -> Tensor:
        ctx.factor = share * size
        joint = loss * share
        dist.all_reduce(joint)
        return joint

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad * ctx.factor, None, None


def from_rank_0(value: Value, here: Ranks) -> Value:
    """Send rank 0's value to every rank; it must be small and picklable."""
    if here.size == 1:
        return value
    carrier = [value]
    dist.broadcast_object_list(carrier, src=0)
    return carrier[0]


def from_all_ranks(value: Value, here: Ranks) -> list[Value]:
    """Send every rank's value to every rank; values must be small and picklable."""
    if here.size == 1:
        return [value]
    values: list[Any] = [None] * here.size
    dist.all_gather_object(values, value)
    return values


def require_same_on_all_ranks(arguments: Mapping[str, Any], here: Ranks) -> None:
    """Refuse arguments that differ between ranks. All ranks must call this.

    Args:
        arguments: Small and picklable values by their names.
        here: This rank.

    Raises:
        ValueError: On every rank, naming the argument and its values.
    """
    everyone = from_all_ranks(dict(arguments), here)
    for name in arguments:
        values = [theirs[name] for theirs in everyone]
        if any(value != values[0] for value in values):
            raise ValueError(
                f"the ranks differ in {name}: {', '.join(map(repr, values))}, by rank. Pass the "
                "same on every rank, also where only rank 0 uses it."
            )
