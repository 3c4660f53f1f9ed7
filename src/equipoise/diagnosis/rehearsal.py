"""A loss on a batch, rehearsed before any work begins; its failures name the data."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

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


class Rehearsal(NamedTuple):
    """What a first pass has shown.

    Args:
        kept_bytes: Bytes that it keeps for its gradients; None where nothing tells.
        initialises_itself: Whether it sets parameters by its batch, and the next one leaves them,
            as with activation norms of flows and trees of NODE; moving averages move every time.
    """

    kept_bytes: int | None
    initialises_itself: bool


def rehearse(model: nn.Module, batch: Batch, loss: LossFunction, data: str) -> Rehearsal:
    """Run one batch forward and check the loss; the model is left as it was.

    Raises:
        ValueError: If the model fails, a batch norm has too few rows, or the loss is not a finite
            scalar, depends on no parameter, or calls another model.
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    before, marks = allocated(device), _marks(model)
    try:
        with untouched(model), counting_rows(model):
            value = loss(model, batch)
            set_anew = _marks(model)
            initialises_itself = not torch.equal(marks, set_anew)
            if initialises_itself:
                loss(model, batch)
                initialises_itself = torch.equal(_marks(model), set_anew)
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
    kept = None if before is None or after is None else max(0, after - before)
    return Rehearsal(kept, initialises_itself)


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


def _marks(model: nn.Module) -> Tensor:
    """Some numbers of each parameter."""
    dense = [p.detach() for p in model.parameters() if p.layout is torch.strided]
    firsts = [p.reshape(-1)[:_MARKED] for p in dense if not p.is_nested]
    some = [(x.abs() if x.is_complex() else x).double().cpu() for x in firsts]
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
