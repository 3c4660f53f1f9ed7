"""What a big training refuses: options, attachments and batches that would spoil it unnoticed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from equipoise_papers.big.layout import Layout


def check_options(loss_is: str, checkpoint_every: int) -> None:
    """Refuse what no training can do.

    Raises:
        ValueError: If an option is none of those that there are.
    """
    if loss_is not in ("mean", "sum"):
        raise ValueError(f'loss_is must be "mean" or "sum", got {loss_is!r}.')
    if checkpoint_every < 1:
        raise ValueError(f"checkpoint_every must be at least 1, got {checkpoint_every}.")


def check_buffers(plan: Layout) -> None:
    """Refuse batch norms whose running statistics would differ between ranks.

    Raises:
        ValueError: If nobody keeps them alike.
    """
    if plan.engine == "FSDP2" and plan.statistics not in ("none", "joint"):
        raise ValueError(
            "fully_shard does not keep batch norms of several ranks alike. Before it, call "
            'model = equipoise.layers.convert(model, "batch", "synchronised").model.'
        )


def check_attachments(optimizer: Optimizer, also: Mapping[str, Any] | None) -> None:
    """Refuse to keep checkpoints without the state of what is attached to the optimizer.

    Whether a hook has a state can be known of BNP's alone. Of others it is taken on trust, once
    ``also`` is given, that they have none or are named.

    Raises:
        ValueError: If a state would be forgotten.
    """
    # PyTorch has no public way to ask.
    pre, post = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    hooks = [*pre.values(), *post.values()]
    if hooks and also is None:
        raise ValueError(
            "something is attached to the optimizer, such as BNP, and a checkpoint without its "
            'state would not resume exactly. Name it: also={"bnp": bnp}; or say that it has no '
            "state: also={}."
        )
    named = (also or {}).values()
    kept = [value for part in named for value in getattr(part, "__dict__", {}).values()]
    if any(not _is_among(hook, kept) for hook in hooks):
        raise ValueError(
            "a BNP that also does not name is attached to the optimizer, and a checkpoint without "
            'its statistics would not resume exactly. Name it: also={"bnp": bnp}.'
        )


def _is_among(hook: Any, kept: list[Any]) -> bool:
    # BNP's hooks know the banks of its statistics; rooms do not import each other for a type.
    banks = getattr(getattr(hook, "__self__", None), "banks", None)
    return banks is None or any(value is banks for value in kept)


def check_share(batch: Any, expected: int) -> None:
    """Refuse a rank's part of a batch if its mean would be weighed wrongly.

    Args:
        batch: Its first tensor, if it has one with dimensions, has a row for each sample.
        expected: How many that are.

    Raises:
        ValueError: If there are more or fewer.
    """
    first = _first_tensor(batch)
    if first is not None and first.ndim and len(first) != expected:
        raise ValueError(
            f"a batch has {len(first)} samples on this rank, where batches.batch_size promises "
            f"{expected}; the mean over all ranks would be weighed wrongly. Yield shares of "
            "Ranks.share_sizes(batch_size)."
        )


def _first_tensor(batch: Any) -> Tensor | None:
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if not isinstance(batch, list | tuple):
        return None
    return next((t for t in map(_first_tensor, batch) if t is not None), None)
