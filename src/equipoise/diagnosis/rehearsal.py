"""A loss on a batch, rehearsed before any work begins; its failures name the data."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.diagnosis.refusals import (
    FailedOnBatchError,
    failed,
    refuse_missing,
    shape_in_words,
)
from equipoise.instrument.graph_nodes import graph_nodes
from equipoise.instrument.loss_value import UnfitLossError, checked_loss
from equipoise.instrument.memory import allocated
from equipoise.instrument.normalisers import is_batch_norm
from equipoise.instrument.recording.origins import origin_in_words
from equipoise.instrument.snapshot import untouched
from equipoise.instrument.types import Batch, LossFunction
from equipoise.training.losses import UnsuitableBatchError

# Numbers of a parameter that tell whether it was set anew.
_MARKED = 16


@dataclass(frozen=True, slots=True)
class LossOnData:
    """A loss whose failures name the data and the shapes of the batch, whenever they come."""

    of: LossFunction
    data: str

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """Evaluate the loss, and check that it is one number."""
        try:
            value = self.of(model, batch)
        except UnsuitableBatchError:
            raise
        except Exception as error:
            raise failed(batch, self.data, error) from error
        return checked_loss(value)


def rehearse(model: nn.Module, batch: Batch, loss: LossFunction, data: str) -> int | None:
    """Run one batch forward and check the loss.

    Returns:
        Bytes that the pass keeps for its gradients; None where nothing tells.

    Raises:
        ValueError: If the model fails, a batch norm has too few rows, or the loss is not a finite
            scalar, depends on no parameter, or calls another model.
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    before = allocated(device)
    try:
        with untouched(model), counting_rows(model):
            value = loss(model, batch)
    except (UnsuitableBatchError, UnfitLossError, FailedOnBatchError):
        raise
    except Exception as error:
        raise failed(batch, data, error) from error
    value, after = checked_loss(value), allocated(device)
    if torch.is_grad_enabled() and not value.requires_grad:
        raise ValueError(
            "the loss depends on no trainable parameter. Does the model detach its output, take "
            "its argmax, or run under torch.no_grad()?"
        )
    _refuse_another_model(model, batch, loss, value)
    if not torch.isfinite(value):
        refuse_missing(batch, data)
        where = origin_in_words(
            model, batch, loss, "Check the scale of the data and of the initial weights."
        )
        raise ValueError(
            f"the loss is {value.item()} on a batch of {data} with inputs of shape "
            f"{shape_in_words(batch)}{where}"
        )
    return None if before is None or after is None else max(0, after - before)


def _refuse_another_model(
    model: nn.Module, batch: Batch, loss: LossFunction, value: Tensor
) -> None:
    """Refuse a loss that leaves the model it is given alone, and calls one that it knows itself.

    Raises:
        ValueError: If no module of the model runs, and parameters of others have gradients.
    """
    own = set(map(id, model.parameters()))
    used = (getattr(node, "variable", None) for node in graph_nodes(value))
    trained = [leaf for leaf in used if isinstance(leaf, nn.Parameter)]
    if not trained or any(id(leaf) in own for leaf in trained):
        return
    ran: list[nn.Module] = []
    with untouched(model), contextlib.ExitStack() as hooks:
        for module in model.modules():  # a list or a checkpoint may hide parameters, but not runs
            note = module.register_forward_pre_hook(lambda module, _: ran.append(module))
            hooks.enter_context(note)
        loss(model, batch)
    if not ran:
        raise ValueError(
            "the loss calls another model than the one that it is given, a copy of yours. Call "
            "its first argument, as in lambda model, batch: criterion(model(batch[0]), batch[1]). "
            "Where a trainer calls a model of its own, set that first: trainer.model = model."
        )


def initialises_itself(model: nn.Module, batch: Batch, loss: LossFunction) -> bool:
    """Whether the first pass sets parameters by its batch, and the next one leaves them.

    As activation norms of flows do, and trees of NODE; moving averages move in every pass. Looked
    at are some numbers of each parameter.
    """
    marks = [_marks(model)]
    with untouched(model):
        for _ in range(2):
            loss(model, batch)
            marks.append(_marks(model))
            if torch.equal(*marks[-2:]):
                break
    return len(marks) == 3 and torch.equal(*marks[1:])


def _marks(model: nn.Module) -> Tensor:
    some = [p.detach().reshape(-1)[:_MARKED].double().cpu() for p in model.parameters()]
    # What is not finite is to be equal to itself.
    return torch.cat(some).nan_to_num(nan=math.pi) if some else torch.zeros(0)


@contextlib.contextmanager
def counting_rows(model: nn.Module) -> Iterator[None]:
    """Refuse batch norms in training mode that see one row, before PyTorch does."""

    def check(module: nn.Module, args: tuple[Any, ...]) -> None:
        given = args[0] if args else None
        if not (module.training and isinstance(given, Tensor) and given.ndim > 1):
            return
        rows = given.numel() // max(given.shape[1], 1)
        if rows < 2:
            raise UnsuitableBatchError(
                f"batch size {given.shape[0]} is too small for a model with batch norm: with "
                "one row there is no variance to divide by, and PyTorch refuses it. Use "
                "batches of 2 or more, or another norm: "
                'equipoise.apply(model, "norm=group:8").'
            )

    with contextlib.ExitStack() as hooks:
        for module in filter(is_batch_norm, model.modules()):
            hooks.enter_context(module.register_forward_pre_hook(check))
        yield
