"""How samples, gradients and batch statistics of a step are spread over processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch.distributed as dist
from torch import nn

from equipoise.instrument import normalisers
from equipoise_papers.big.distributed import Ranks

# Over which samples batch norms compute their statistics.
Statistics = Literal["none", "joint", "per group", "per rank", "mixed"]
Engine = Literal["one process", "DDP", "FSDP2"]


@dataclass(frozen=True, slots=True)
class Layout:
    """How one step's samples, gradients and batch statistics are spread over processes.

    Args:
        engine: What averages gradients.
        shares: Samples of each rank in a step.
        statistics: Whether batch norms see the joint batch, the shares of a group of ranks, or
            a rank's share; ``mixed`` if the model has several kinds, ``none`` if it has no
            batch norm.
        loss_is: Whether loss and gradients are means over samples, or sums.

    Examples:
        >>> print(Layout("DDP", (64, 64), "per rank"))
        DDP over 2 ranks: 128 samples a step, 64 on each. Gradients are means over all 128.
        Batch norm per rank: statistics over 64 of the 128 samples, running statistics are
        rank 0's.
        >>> print(Layout("DDP", (3, 4), "joint"))
        DDP over 2 ranks: 7 samples a step, 3 to 4 on each. Gradients are means over all 7.
        Batch norm synchronised: statistics over all 7 samples, as in one process.
    """

    engine: Engine
    shares: tuple[int, ...]
    statistics: Statistics
    loss_is: Literal["mean", "sum"] = "mean"

    @property
    def batch_size(self) -> int:
        """Samples that one step learns from: the effective batch."""
        return sum(self.shares)

    def __str__(self) -> str:
        ranks = len(self.shares)
        if ranks == 1:
            first = f"{self.engine}: {self.batch_size} samples a step."
        else:
            first = (
                f"{self.engine} over {ranks} ranks: {self.batch_size} samples a step, "
                f"{self._share} on each. Gradients are {self.loss_is}s over all "
                f"{self.batch_size}."
            )
        return "\n".join(line for line in (first, self._batch_norms()) if line)

    @property
    def _share(self) -> str:
        least, most = min(self.shares), max(self.shares)
        return str(least) if least == most else f"{least} to {most}"

    def _batch_norms(self) -> str:
        if self.statistics == "none":
            return ""
        if len(self.shares) == 1:
            return f"Batch norm: statistics over all {self.batch_size} samples."
        if self.statistics == "joint":
            return (
                f"Batch norm synchronised: statistics over all {self.batch_size} samples, as in "
                "one process."
            )
        which, over = {
            "per rank": ("per rank", self._share),
            "per group": ("synchronised within groups of ranks", "a group's part"),
            "mixed": ("of several kinds", "parts"),
        }[self.statistics]
        return (
            f"Batch norm {which}: statistics over {over} of the {self.batch_size} samples, "
            "running statistics are rank 0's."
        )


def layout(
    model: nn.Module,
    batch_size: int,
    here: Ranks,
    *,
    engine: Engine,
    loss_is: Literal["mean", "sum"] = "mean",
) -> Layout:
    """Describe a model's steps.

    Raises:
        ValueError: If there are fewer samples than ranks.
    """
    if batch_size < here.size:
        raise ValueError(
            f"a batch of {batch_size} samples is too small for {here.size} ranks, each of which "
            f"needs one. Start at most {batch_size} processes."
        )
    return Layout(engine, here.share_sizes(batch_size), _statistics(model, here), loss_is)


def batch_norms(model: nn.Module) -> list[str]:
    """The kinds of a model's batch norms, independent of the number of ranks."""
    kinds = {hasattr(module, "process_group") for module in _batch_norms(model)}
    return sorted("synchronised" if kind else "by themselves" for kind in kinds)


def _batch_norms(model: nn.Module) -> list[nn.Module]:
    """Modules that normalise by statistics over samples, PyTorch's and the library's."""
    return [m for m in model.modules() if normalisers.shares_batch_statistics(m)]


def _statistics(model: nn.Module, here: Ranks) -> Statistics:
    kinds = {_statistics_of(module, here) for module in _batch_norms(model)}
    return "none" if not kinds else kinds.pop() if len(kinds) == 1 else "mixed"


def _statistics_of(module: nn.Module, here: Ranks) -> Statistics:
    if here.size == 1:
        return "joint"
    # Synchronised batch norms, PyTorch's and the library's, have a group; None is all ranks.
    if not hasattr(module, "process_group"):
        return "per rank"
    group: Any = module.process_group
    size = here.size if group is None else dist.get_world_size(group)
    return "joint" if size == here.size else "per rank" if size == 1 else "per group"
