"""Run the ``training_step`` of a LightningModule once more, without its side effects.

Lightning is not imported: the module is known by its methods.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


class _Stop(Exception):  # noqa: N818  # ends a training step, and is no error
    """Raised by the first backward pass of a manual optimisation."""

    def __init__(self, loss: Tensor) -> None:
        super().__init__()
        self.loss = loss


def training_step(model: nn.Module, batch: Any) -> Any:
    """What a ``training_step`` returns, and of a dictionary its ``"loss"``.

    It logs nothing. With manual optimisation it ends at the first ``manual_backward``, and the
    loss that this is given is returned.
    """
    with _without_trainer(model):
        try:
            found: Any = model.training_step(*_step_arguments(model, batch))  # type: ignore[operator]
        except _Stop as stop:
            return stop.loss
    return found.get("loss") if isinstance(found, dict) else found


def _step_arguments(model: nn.Module, batch: Any) -> tuple[Any, ...]:
    signature = inspect.signature(model.training_step)  # type: ignore[arg-type]
    arguments: tuple[Any, ...] = (batch, 0)
    parameters = list(signature.parameters)
    if "optimizer_idx" in parameters or "dataloader_idx" in parameters:
        return (batch, 0, 0)
    return arguments[: len(parameters)] if len(parameters) < len(arguments) else arguments


class _Inert:
    """Stands for an optimiser of a manual optimisation: whatever is called does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> _Inert:
        return self

    def __iter__(self) -> Iterator[_Inert]:
        return iter((self, self))

    def __getitem__(self, _: Any) -> _Inert:
        return self

    def __enter__(self) -> _Inert:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def _stop(loss: Tensor, *_: Any, **__: Any) -> None:
    raise _Stop(loss)


@contextmanager
def _without_trainer(model: nn.Module) -> Iterator[None]:
    """Inside the block logging does nothing, and a backward pass by hand ends the step."""
    nothing = _Inert()
    replaced: dict[str, Any] = {
        "log": nothing,
        "log_dict": nothing,
        "optimizers": lambda *_, **__: nothing,
        "lr_schedulers": lambda *_, **__: nothing,
        "toggle_optimizer": nothing,
        "untoggle_optimizer": nothing,
        "manual_backward": _stop,
    }
    before = {name: model.__dict__[name] for name in replaced if name in model.__dict__}
    model.__dict__.update(replaced)
    try:
        yield
    finally:
        for name in replaced:
            model.__dict__.pop(name, None)
        model.__dict__.update(before)
