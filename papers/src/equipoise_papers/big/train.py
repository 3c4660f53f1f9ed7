"""One training over all processes of ``torchrun``, which resumes to the bit after a kill."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from equipoise.instrument import LossFunction
from equipoise.training import Evaluation, History, train
from equipoise_papers.big.batches import Batches
from equipoise_papers.big.checkpoint import Checkpointer
from equipoise_papers.big.distributed import (
    Ranks,
    from_rank_0,
    joint_mean,
    ranks,
    require_same_on_all_ranks,
)
from equipoise_papers.big.layout import Engine, Layout, layout
from equipoise_papers.big.state import Stateful, TrainingState, is_split


@dataclass(frozen=True, slots=True)
class BigRun:
    """A finished training, the same on every rank.

    Args:
        history: Losses of the joint batches, and evaluations, those before a resumption included.
        layout: How samples and batch statistics were spread; print it.
        resumed_at: Steps that the checkpoint had when this process began; ``None`` without one.
    """

    history: History
    layout: Layout
    resumed_at: int | None


def train_big(
    model: nn.Module,
    batches: Batches,
    loss_fn: LossFunction,
    optimizer: Optimizer,
    *,
    scheduler: LRScheduler | None = None,
    also: Mapping[str, Stateful] | None = None,
    loss_is: Literal["mean", "sum"] = "mean",
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 1000,
    elastic: bool = False,
    listener: Callable[[int, float], None] | None = None,
    evaluate: Callable[[int], Evaluation] | None = None,
    evaluate_at: Sequence[int] = (),
) -> BigRun:
    r"""Train on every rank's share of each batch, from the last checkpoint on.

    It is :func:`equipoise.training.train` on the joint batch: with R ranks gradients are
    averaged by ``DistributedDataParallel`` such that the step is
    :math:`\nabla \frac1n \sum_{i \le n} \ell_i`, whether the shares of the n samples are equal
    or not. With batch norm that holds if its statistics are synchronised, by
    ``equipoise.layers.convert(model, "batch", "synchronised")``; otherwise each rank normalises
    its share alone. The returned layout says which.

    Killed at any moment and started again, training ends with the same bits: model, optimizer,
    scheduler, the objects in ``also``, random states of every rank and the place in the data
    are in the checkpoint.

    Arguments must be the same on every rank, also those that only rank 0 uses.

    Args:
        model: On the device where it is trained, in the mode that it keeps. Ranks begin with
            rank 0's weights. A model that ``fully_shard`` has split, or that is in
            ``DistributedDataParallel`` already, is taken as it is; with more than two ranks the
            latter resumes to the bit only with ``find_unused_parameters=True``.
        batches: Which samples each step takes, such as
            :class:`~equipoise_papers.big.ShuffledBatches`. The first tensor of a batch has a row
            for each sample.
        loss_fn: ``loss_fn(model, batch)``, a scalar.
        optimizer: Of the model's parameters.
        scheduler: Stepped after every step.
        also: Other objects with a state, by name, such as ``{"bnp": bnp}``; ``{}`` if what is
            attached to the optimizer has none. An attached BNP that is missing is noticed; of
            other hooks it cannot be known whether they have a state.
        loss_is: Whether ``loss_fn`` is a mean over samples, or a sum. Each rank's mean is
            weighted with its number of samples, whether or not all of them count in it.
        checkpoint: A file that all ranks see; its folder is made. If it exists, training
            continues from it.
        checkpoint_every: Steps from one checkpoint to the next, at least 1.
        elastic: Whether a checkpoint of another number of ranks is accepted. The samples of
            each step are the same then, but not the bits: sums are rounded in another order,
            new ranks keep their own random states, and statistics per rank are over other
            shares.
        listener: Called on rank 0 after each step with its number (from 1) and its joint loss.
        evaluate: Called on rank 0 with the number of steps, at each of ``evaluate_at``. Forward
            passes of a model that ``fully_shard`` has split, or that is in
            ``DistributedDataParallel`` already, need all ranks: with such a model it is called
            on every rank, and rank 0's value counts.
        evaluate_at: Numbers of steps; 0 is before the first.

    Raises:
        CheckpointError: On every rank, before any step, if the checkpoint is damaged, cannot
            be written, or belongs to another training.
        TypeError: If ``evaluate`` returns no :class:`~equipoise.training.Evaluation`.
        ValueError: If there are fewer samples in a batch than ranks, or on a rank than
            promised, ``checkpoint_every`` is below 1, arguments differ between ranks, FSDP2
            would leave batch norms with different statistics, or something is attached to the
            optimizer whose state a checkpoint would lack.

    Examples:
        >>> import torch
        >>> from equipoise.training import mean_squared_error
        >>> from equipoise_papers.big import ShuffledBatches
        >>> x = torch.linspace(-1, 1, 8).reshape(8, 1)
        >>> model = nn.Linear(1, 1)
        >>> run = train_big(model, ShuffledBatches(x, 3 * x, 4, steps=200, seed=0),
        ...                 mean_squared_error, torch.optim.SGD(model.parameters(), lr=0.5))
        >>> round(model.weight.item(), 3)
        3.0
        >>> print(run.layout)
        one process: 4 samples a step.
    """
    here, unwrapped = ranks(), _unwrapped(model)
    arguments = {
        "whether there is a listener": listener is not None,
        "whether there is an evaluate": evaluate is not None,
        "whether there is a checkpoint": checkpoint is not None,
        "evaluate_at": tuple(evaluate_at),
        "checkpoint_every": checkpoint_every,
        "elastic": elastic,
        "loss_is": loss_is,
        "also": None if also is None else sorted(also),
        "batches.steps": batches.steps,
        "batches.identity": batches.identity | {"batch size": batches.batch_size},
    }
    require_same_on_all_ranks(arguments, here)
    _check_options(loss_is, checkpoint_every)
    if checkpoint is not None:
        _check_attached(optimizer, also)
    engine = _engine(unwrapped, here)
    plan = layout(unwrapped, batches.batch_size, here, engine=engine, loss_is=loss_is)
    _check_batch_norms(plan)
    state = TrainingState(unwrapped, optimizer, scheduler, also or {}, batches, plan, here)
    path = None if checkpoint is None else Path(checkpoint)
    checkpointer = Checkpointer(state, path, every=checkpoint_every, elastic=elastic)
    wrapped = _in_ddp(model, plan, resumable=path is not None)
    checkpointer.begin()
    past = checkpointer.past
    recent = train(
        wrapped,
        checkpointer.follow(batches.shares(past.count, here)),
        _joint_loss(loss_fn, checkpointer, loss_is),
        optimizer,
        scheduler=scheduler,
        listener=None if listener is None else _on_rank_0(listener, checkpointer),
        evaluate=None
        if evaluate is None
        else _same_for_all(evaluate, checkpointer, on_all_ranks=_forward_needs_all_ranks(model)),
        evaluate_at=tuple(step - past.count for step in evaluate_at),
    )
    seconds = checkpointer.seconds
    _broadcast_buffers(unwrapped, plan)
    history = History(
        past.losses + recent.losses,
        seconds,
        past.evaluations + recent.evaluations,
        None if recent.diverged_at is None else past.count + recent.diverged_at,
    )
    return BigRun(history, plan, past.count or None)


def _unwrapped(model: nn.Module) -> nn.Module:
    in_ddp = isinstance(model, DistributedDataParallel)
    return cast(nn.Module, model.module) if in_ddp else model


def _engine(unwrapped: nn.Module, here: Ranks) -> Engine:
    if is_split(unwrapped):
        return "FSDP2"
    return "DDP" if here.size > 1 else "one process"


def _forward_needs_all_ranks(model: nn.Module) -> bool:
    return isinstance(model, DistributedDataParallel) or is_split(model)


def _in_ddp(model: nn.Module, plan: Layout, *, resumable: bool) -> nn.Module:
    if plan.engine != "DDP" or isinstance(model, DistributedDataParallel):
        return model
    device = next(model.parameters()).device
    return DistributedDataParallel(
        model,
        device_ids=None if device.type == "cpu" else [device],
        # Without it DDP rearranges its buckets after its first step, which is another step after
        # a resumption, and three or more ranks then add some gradients in another order. PyTorch
        # warns on stderr that it traverses the graph in every step.
        find_unused_parameters=resumable and len(plan.shares) > 2,
    )


def _broadcast_buffers(unwrapped: nn.Module, plan: Layout) -> None:
    """DDP sends rank 0's buffers to all ranks before each forward pass, not after the last."""
    if plan.engine == "DDP":
        for buffer in unwrapped.buffers():
            dist.broadcast(buffer, src=0)


def _joint_loss(
    loss_fn: LossFunction, checkpointer: Checkpointer, loss_is: Literal["mean", "sum"]
) -> LossFunction:
    here, sizes = checkpointer.state.here, checkpointer.state.layout.shares
    share = sizes[here.rank] / sum(sizes) if loss_is == "mean" else 1.0

    def joint_loss(model: nn.Module, batch: Any) -> Tensor:
        if loss_is == "mean" and here.size > 1:
            _check_share(batch, sizes[here.rank])
        loss = joint_mean(loss_fn(model, batch), share, here)
        checkpointer.losses.append(loss.detach())
        return loss

    return joint_loss


def _on_rank_0(
    listener: Callable[[int, float], None], checkpointer: Checkpointer
) -> Callable[[int, float], None]:
    start, leads = checkpointer.past.count, checkpointer.state.here.leads

    # The other ranks have a listener too, one that does nothing: with a listener, the loop looks
    # at every loss, and all ranks must notice a divergence in the same step.
    def listen(step: int, loss: float) -> None:
        if leads:
            with checkpointer.watch.paused():
                listener(start + step, loss)

    return listen


def _same_for_all(
    evaluate: Callable[[int], Evaluation], checkpointer: Checkpointer, *, on_all_ranks: bool
) -> Callable[[int], Evaluation]:
    """An evaluation of which every rank gets rank 0's value."""
    here, start = checkpointer.state.here, checkpointer.past.count

    def evaluated(step: int) -> Evaluation:
        with checkpointer.watch.paused():
            mine: object = evaluate(start + step) if on_all_ranks or here.leads else None
            found = from_rank_0(mine, here)
        if not isinstance(found, Evaluation):
            raise TypeError(
                f"evaluate must return an equipoise.training.Evaluation, got "
                f"{type(found).__name__} at step {start + step}."
            )
        checkpointer.evaluations.append(found)
        return found

    return evaluated


def _check_options(loss_is: str, checkpoint_every: int) -> None:
    if loss_is not in ("mean", "sum"):
        raise ValueError(f'loss_is must be "mean" or "sum", got {loss_is!r}.')
    if checkpoint_every < 1:
        raise ValueError(f"checkpoint_every must be at least 1, got {checkpoint_every}.")


def _check_batch_norms(plan: Layout) -> None:
    """Refuse batch norms whose running statistics would differ between ranks."""
    if plan.engine == "FSDP2" and plan.statistics not in ("none", "joint"):
        raise ValueError(
            "fully_shard does not keep batch norms of several ranks alike. Before it, call "
            'model = equipoise.layers.convert(model, "batch", "synchronised").model.'
        )


def _check_attached(optimizer: Optimizer, also: Mapping[str, Any] | None) -> None:
    """Refuse to keep checkpoints without the state of what is attached to the optimizer.

    Only BNP's hooks are known to have a state. Other hooks are taken to have none, or to be in
    ``also``, once it is given.
    """
    # PyTorch has no public list of an optimizer's hooks.
    pre, post = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    hooks = [*pre.values(), *post.values()]
    if hooks and also is None:
        raise ValueError(
            "something is attached to the optimizer, such as BNP, and a checkpoint without its "
            'state would not resume exactly. Name it: also={"bnp": bnp}; or say that it has no '
            "state: also={}."
        )
    named = (also or {}).values()
    attributes = [value for part in named for value in getattr(part, "__dict__", {}).values()]
    for hook in hooks:
        # A BNP and its hooks share one collection of statistics, the hooks as `banks`.
        banks = getattr(getattr(hook, "__self__", None), "banks", None)
        if banks is not None and not any(value is banks for value in attributes):
            raise ValueError(
                "a BNP that also does not name is attached to the optimizer, and a checkpoint "
                'without its statistics would not resume exactly. Name it: also={"bnp": bnp}.'
            )


def _check_share(batch: Any, expected: int) -> None:
    """Refuse a rank's part of a batch if it has another size than its weight in the joint mean."""
    first = _first_tensor(batch)
    if first is not None and first.ndim and len(first) != expected:
        raise ValueError(
            f"a batch has {len(first)} samples on this rank, where batches.batch_size promises "
            f"{expected}; the mean over all ranks would be weighted wrongly. Yield shares of "
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
