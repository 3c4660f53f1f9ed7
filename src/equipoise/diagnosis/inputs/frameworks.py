"""Models that bring their own training: those of Lightning, and trainers of Hugging Face.

They are known by their methods, so that none of the packages is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from equipoise.instrument.copies import copied
from equipoise.instrument.training_step import training_step
from equipoise.records.wording import said, with_article
from equipoise.training.losses import UnsuitableBatchError


@dataclass(frozen=True, slots=True)
class Given:
    """What a user gave, taken apart.

    Args:
        build: Makes a model.
        data: Data that came with the model; None without.
        compute_loss: The loss that came with it; None without.
        words: What was taken from where.
    """

    build: Callable[[], nn.Module]
    data: Any = None
    compute_loss: Callable[[nn.Module, Any], Any] | None = None
    words: tuple[str, ...] = ()


def taken_apart(subject: Any) -> Given:
    """Find the model, and what comes with it, in a trainer, a module or a factory.

    Raises:
        ValueError: If it is none of these.
    """
    if is_trainer(subject):
        return _of_trainer(subject)
    if isinstance(subject, nn.Module):
        return Given(lambda: copy_without_trainer(subject))
    if callable(subject):
        return Given(subject)
    kind, held = type(subject).__name__, isinstance(getattr(subject, "model", None), nn.Module)
    raise ValueError(
        f"the model is {with_article(kind)}; expected a torch.nn.Module, a class or a function "
        "without arguments that makes one, a LightningModule, or a Hugging Face Trainer."
        f"{' Give its .model, its loader and its loss.' if held else ''}"
    )


def is_trainer(subject: Any) -> bool:
    """Whether it is a Hugging Face Trainer, or one of its relatives."""
    return not isinstance(subject, nn.Module | type) and all(
        callable(getattr(subject, name, None)) for name in ("get_train_dataloader", "compute_loss")
    )


def _of_trainer(trainer: Any) -> Given:
    model, make = trainer.model, getattr(trainer, "model_init", None)

    def build() -> nn.Module:
        made = copy_without_trainer(model) if make is None else make()
        return made.train() if isinstance(made, nn.Module) else made

    return Given(
        build,
        _TrainerData(trainer),
        lambda model, batch: trainer.compute_loss(model, dict(batch)),
        ("loss: the Trainer's compute_loss",),
    )


class _TrainerData:
    """A Trainer's loader, made only if no other data are given."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def train_dataloader(self) -> Any:
        return self._trainer.get_train_dataloader()


def is_lightning(model: nn.Module) -> bool:
    """Whether a module trains itself by ``training_step``."""
    return all(
        callable(getattr(model, name, None)) for name in ("training_step", "configure_optimizers")
    )


def own_data(model: nn.Module) -> Any:
    """The module itself, if it makes a loader for training; else None."""
    if not is_lightning(model):
        return None
    trainer = getattr(model, "_trainer", None)
    module = getattr(trainer, "datamodule", None)
    if module is not None:
        return module
    hook = getattr(type(model), "train_dataloader", None)
    # Lightning's own one only raises.
    own = hook is not None and not hook.__module__.startswith(("lightning", "pytorch_lightning"))
    return model if own else None


def copy_without_trainer(model: nn.Module) -> nn.Module:
    """Copy a module, but not the trainer that it is attached to.

    Raises:
        ValueError: If it cannot be copied.
    """
    trainer = getattr(model, "_trainer", None)
    memo: dict[int, Any] = {} if trainer is None else {id(trainer): None}
    try:
        return copied(model, memo)
    except Exception as error:
        raise ValueError(
            f"the model cannot be copied ({said(error).rstrip('.')}). Give a function that "
            "builds it, such as lambda: Net()."
        ) from error


def step_loss(model: nn.Module, batch: Any) -> Tensor:
    """The loss of a LightningModule's ``training_step``, without a trainer.

    With manual optimisation it is the first loss that the step passes to ``manual_backward``.

    Raises:
        UnsuitableBatchError: If the step returns no loss.
    """
    found = training_step(model, batch)
    if not isinstance(found, Tensor):
        raise UnsuitableBatchError(
            f"training_step returned {type(found).__name__}, not a loss. Return the loss, or give "
            "one: loss_fn=, a function of (model, batch)."
        )
    return found
