"""One pass in evaluation, with a look at what every module takes and gives."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.instrument.forward import with_gradients_inside
from equipoise.instrument.random_states import RandomStates, seeded
from equipoise.instrument.snapshot import untouched
from equipoise.instrument.trees import leaves
from equipoise.instrument.types import LossFunction

# Name of a module, the module, its arguments, and what it gave.
Look = Callable[[str, nn.Module, Any, Any], None]


class TooLongError(Exception):
    """A pass takes longer than its patience."""


def evaluate_once(
    model: nn.Module,
    loss_fn: LossFunction,
    batch: Any,
    look: Look,
    *,
    patience: float,
    prepare: Callable[[nn.Module], None] = lambda model: None,
) -> tuple[Tensor, ...]:
    """Run a model in evaluation, without gradients and with seeded random numbers.

    Args:
        model: Left bit for bit as it is.
        loss_fn: Runs it on a batch.
        batch: What it is run on.
        look: Called after every module, the model's own call (named ``""``) included.
        patience: Seconds that the pass may take.
        prepare: Changes the model for this pass.

    Returns:
        The random states that the pass leaves.

    Raises:
        TooLongError: If it takes longer than its patience.

    Examples:
        >>> seen = []
        >>> _ = evaluate_once(
        ...     nn.Sequential(nn.Linear(2, 1)),
        ...     lambda model, x: model(x).sum(),
        ...     torch.ones(3, 2),
        ...     lambda name, module, given, output: seen.append((name, len(output))),
        ...     patience=10.0,
        ... )
        >>> seen
        [('0', 3), ('', 3)]
    """
    end = time.perf_counter() + patience

    def after(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if time.perf_counter() > end:
                raise TooLongError(f"a pass in evaluation takes more than {patience:g} s")
            look(name, module, (args, kwargs), output)

        return hook

    with untouched(model), torch.no_grad(), seeded(0):
        model.eval()
        prepare(model)
        with ExitStack() as hooks:
            for name, module in model.named_modules():
                hooks.enter_context(module.register_forward_hook(after(name), with_kwargs=True))
            with_gradients_inside(lambda: loss_fn(model, batch))
        return RandomStates(model).torch_states()


def rows_of_samples(values: Any, count: int, *, whole: bool = False) -> list[Tensor]:
    """The floating-point tensors among values that have one row for each sample.

    Args:
        values: Such as the arguments of a call.
        count: How many samples there are.
        whole: Whether to give those of whole numbers and flags as well, as floating-point numbers,
            and complex ones as pairs.
    """
    found = [x for x in leaves(values) if isinstance(x, Tensor) and x.ndim and len(x) == count]
    if whole:
        found = [torch.view_as_real(x.resolve_conj()) if x.is_complex() else x for x in found]
        return [x if x.is_floating_point() else x.double() for x in found]
    return [x for x in found if x.is_floating_point()]
