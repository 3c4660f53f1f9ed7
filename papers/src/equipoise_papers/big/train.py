"""One training over all processes of ``torchrun``, which ``kill -9`` does not change."""

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

from equipoise.training.loop import train
from equipoise.training.losses import LossFunction
from equipoise.training.record import Evaluation, History
from equipoise_papers.big import sharded
from equipoise_papers.big.arguments import (
    check_attachments,
    check_buffers,
    check_options,
    check_share,
)
from equipoise_papers.big.batches import Batches
from equipoise_papers.big.distributed import Ranks, joint_mean, of_leader, ranks, require_alike
from equipoise_papers.big.keeper import Keeper, Progress
from equipoise_papers.big.layout import Engine, Layout, layout
from equipoise_papers.big.parts import Parts, Stateful


@dataclass(frozen=True, slots=True)
class BigRun:
    """What a big training left behind, the same on every rank.

    Args:
        history: Losses of the joint batches, and evaluations, of all its parts together.
        layout: How samples and batch statistics were spread; print it.
        resumed_at: Steps that a checkpoint had when this part began; ``None`` if it had none.
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
    or not. With batch norm that holds if its statistics are synchronised, see kind
    ``"synchronised"`` of :func:`equipoise.layers.convert`; otherwise each rank normalises its
    share by itself. The returned layout says which.

    Killed at any moment and started again, training ends with the same bits: model, optimizer,
    scheduler, what is named in ``also``, random states of every rank and the place in the data
    are in the checkpoint.

    Arguments must be the same on every rank, also those of which rank 0 alone makes use.

    Args:
        model: Where it is to be trained, in the mode that it is in. Ranks begin with rank 0's
            weights. A model that ``fully_shard`` has split, or that is in
            ``DistributedDataParallel`` already, is taken as it is; with more than two ranks the
            latter resumes to the bit only with ``find_unused_parameters=True``.
        batches: Which samples each step takes, such as
            :class:`~equipoise.training.ShuffledBatches`. The first tensor of a batch has a row
            for each sample.
        loss_fn: ``loss_fn(model, batch)``, a scalar.
        optimizer: Of the model's parameters.
        scheduler: Stepped after every step.
        also: Other objects with a state, by name, such as ``{"bnp": bnp}``; ``{}`` if what is
            attached to the optimizer has none. An attached BNP that is not named is noticed;
            of other hooks it cannot be known whether they have a state.
        loss_is: Whether ``loss_fn`` is a mean over samples, or a sum. Each rank's mean is
            weighed with its number of samples, whether or not all of them count in it.
        checkpoint: A file that all ranks see; its folder is made. If it is there, training goes
            on from it.
        checkpoint_every: Steps from one checkpoint to the next, at least 1.
        elastic: Whether a checkpoint of another number of ranks is accepted. The samples of
            each step are the same then; sums are rounded in another order, ranks that are new
            keep their own random states, and statistics per rank are over other shares.
        listener: Called on rank 0 after each step with its number (from 1) and its joint loss.
        evaluate: Called on rank 0 with the number of steps, at each of ``evaluate_at``. With a
            model that ``fully_shard`` has split, or that is in ``DistributedDataParallel``
            already, it is called on every rank, for whose forward passes ranks must meet; rank
            0's value counts.
        evaluate_at: Numbers of steps; 0 is before the first.

    Raises:
        CheckpointError: On every rank, before any step, if the checkpoint is damaged, cannot
            be written, or belongs to another training.
        TypeError: If ``evaluate`` returns no :class:`~equipoise.records.Evaluation`.
        ValueError: If there are fewer samples in a batch than ranks, or on a rank than
            promised, ``checkpoint_every`` is below 1, arguments differ between ranks, FSDP2
            would leave batch norms with unlike statistics, or something is attached to the
            optimizer whose state a checkpoint would lack.

    Examples:
        >>> import torch
        >>> from equipoise.training import ShuffledBatches, mean_squared_error
        >>> x = torch.linspace(-1, 1, 8).reshape(8, 1)
        >>> model = nn.Linear(1, 1)
        >>> run = train_big(model, ShuffledBatches(x, 3 * x, 4, steps=200, seed=0),
        ...                 mean_squared_error, torch.optim.SGD(model.parameters(), lr=0.5))
        >>> round(model.weight.item(), 3)
        3.0
        >>> print(run.layout)
        one process: 4 samples a step.
    """
    here, inner = ranks(), _inner(model)
    alike = {
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
    require_alike(alike, here)
    check_options(loss_is, checkpoint_every)
    if checkpoint is not None:
        check_attachments(optimizer, also)
    engine = _engine(inner, here)
    plan = layout(inner, batches.batch_size, here, engine=engine, loss_is=loss_is)
    check_buffers(plan)
    parts = Parts(inner, optimizer, scheduler, also or {}, batches, plan, here)
    path = None if checkpoint is None else Path(checkpoint)
    keeper = Keeper(parts, path, checkpoint_every, elastic)
    wrapped = _wrapped(model, plan, resumable=path is not None)
    found = keeper.begin()
    history = train(
        wrapped,
        keeper.follow(batches.shares(found.step, here)),
        _joint(loss_fn, keeper, loss_is),
        optimizer,
        scheduler=scheduler,
        listener=None if listener is None else _later(listener, keeper),
        evaluate=None if evaluate is None else _agreed(evaluate, keeper, meet=_meets(model)),
        evaluate_at=tuple(step - found.step for step in evaluate_at),
    )
    _share_buffers(inner, plan)
    return BigRun(_whole(history, keeper, found), plan, found.step or None)


def _inner(model: nn.Module) -> nn.Module:
    wrapped = isinstance(model, DistributedDataParallel)
    return cast(nn.Module, model.module) if wrapped else model


def _engine(inner: nn.Module, here: Ranks) -> Engine:
    if sharded.is_sharded(inner):
        return "FSDP2"
    return "DDP" if here.size > 1 else "one process"


def _meets(model: nn.Module) -> bool:
    """Whether a forward pass is a collective operation, in evaluation mode too."""
    return isinstance(model, DistributedDataParallel) or sharded.is_sharded(model)


def _wrapped(model: nn.Module, plan: Layout, *, resumable: bool) -> nn.Module:
    if plan.engine != "DDP" or isinstance(model, DistributedDataParallel):
        return model
    device = next(model.parameters()).device
    return DistributedDataParallel(
        model,
        device_ids=None if device.type == "cpu" else [device],
        # Otherwise DDP lays its buckets out anew after its first step, which is another one after
        # a resumption, and three or more ranks then add some gradients in another order. PyTorch
        # says on stderr that this costs a look at the graph.
        find_unused_parameters=resumable and len(plan.shares) > 2,
    )


def _share_buffers(inner: nn.Module, plan: Layout) -> None:
    """DDP gives ranks rank 0's buffers before each forward pass, but not after the last."""
    if plan.engine == "DDP":
        for buffer in inner.buffers():
            dist.broadcast(buffer, src=0)


def _joint(loss_fn: LossFunction, keeper: Keeper, loss_is: Literal["mean", "sum"]) -> LossFunction:
    here = keeper.parts.here
    sizes = keeper.parts.layout.shares
    share = sizes[here.rank] / sum(sizes) if loss_is == "mean" else 1.0

    def joint(model: nn.Module, batch: Any) -> Tensor:
        if loss_is == "mean" and here.size > 1:
            check_share(batch, sizes[here.rank])
        loss = joint_mean(loss_fn(model, batch), share, here)
        keeper.losses.append(loss.detach())
        return loss

    return joint


def _later(listener: Callable[[int, float], None], keeper: Keeper) -> Callable[[int, float], None]:
    start = keeper.found.step

    def told(step: int, loss: float) -> None:
        with keeper.paused():
            listener(start + step, loss)

    # A listener makes the loop look at every loss, so all ranks have one or none has: they must
    # notice a divergence at the same step.
    return told if keeper.parts.here.leads else _ignore


def _ignore(step: int, loss: float) -> None:
    """Listen to nothing."""


def _agreed(
    evaluate: Callable[[int], Evaluation], keeper: Keeper, *, meet: bool
) -> Callable[[int], Evaluation]:
    here, start = keeper.parts.here, keeper.found.step

    def evaluated(step: int) -> Evaluation:
        with keeper.paused():
            mine: object = evaluate(start + step) if meet or here.leads else None
            found = of_leader(mine, here)
        if not isinstance(found, Evaluation):
            raise TypeError(
                f"evaluate must return an equipoise.records.Evaluation, got "
                f"{type(found).__name__} at step {start + step}."
            )
        keeper.evaluations.append(found)
        return found

    return evaluated


def _whole(history: History, keeper: Keeper, found: Progress) -> History:
    diverged_at = history.diverged_at
    return History(
        found.losses + history.losses,
        found.seconds + history.seconds - keeper.writing,
        found.evaluations + history.evaluations,
        None if diverged_at is None else found.step + diverged_at,
    )
