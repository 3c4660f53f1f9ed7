"""Find the loss that a model is trained with, by trying the ways in which it may take a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.diagnosis.inputs import objectives
from equipoise.diagnosis.inputs.calls import Call, calls, is_input, takes_time
from equipoise.diagnosis.inputs.frameworks import is_lightning, step_loss
from equipoise.diagnosis.inputs.objectives import Objective
from equipoise.instrument.criteria import (
    is_criterion,
    needed_arguments,
    says_what_it_takes,
    takes_only_one,
)
from equipoise.instrument.forward import recording_gradients, with_gradients_inside
from equipoise.instrument.kept_batches import copied
from equipoise.instrument.snapshot import untouched
from equipoise.instrument.types import LossFunction
from equipoise.records.wording import closest
from equipoise.training.losses import UnsuitableBatchError, squared_error

Loss: TypeAlias = LossFunction | nn.Module | Callable[..., Any] | str
"""A function of (model, batch) or of (output, target), or a name."""

CRITERIA: dict[str, Callable[[Any, Any], Tensor]] = {
    "cross-entropy": lambda output, target: objectives.by_classes(output, target).of(
        output, target
    ),
    "mse": squared_error,
}
# Steps of the noise schedule of diffusions, and the last one's variance of noise per step.
_TIMES, _FIRST_NOISE, _LAST_NOISE = 1000, 1e-4, 0.02


@dataclass(frozen=True, slots=True)
class AdaptedLoss:
    """A loss as a function of model and batch.

    Args:
        call: How the model takes the batch.
        objective: What is made of its output.
        inputs_as_target: Whether the output is compared with the input.
    """

    call: Call
    objective: Objective
    inputs_as_target: bool = False

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """Run the model on the batch, and return the loss."""
        output = self.call.run(model, batch)
        if self.inputs_as_target:
            return self.objective.of(output, self.call.inputs_of(batch)[0])
        return self.objective.of(output, self.call.target_of(batch))


@dataclass(frozen=True, slots=True)
class Found:
    """A loss, and what was assumed to find it.

    Args:
        loss: ``loss(model, batch)``.
        words: The assumptions.
        is_assumed: Whether it is neither the user's nor the model's own.
    """

    loss: LossFunction
    words: tuple[str, ...]
    is_assumed: bool = False


def check_loss(given: object) -> None:
    """Refuse unknown names of losses, classes, and functions that do not take two arguments.

    Raises:
        ValueError: Naming those that are known.

    Examples:
        >>> check_loss(lambda model, x, y: None)
        Traceback (most recent call last):
        ValueError: the loss needs 3 arguments, 'model', 'x' and 'y', and is called with two: ...
    """
    if isinstance(given, type):
        raise ValueError(
            f"the loss is the class {given.__name__}. Give an instance, {given.__name__}()."
        )
    if given is not None and not isinstance(given, str) and not callable(given):
        raise ValueError(
            f"the loss is {given!r:.60}, which cannot be called. Give a function of (model, "
            f"batch), a criterion of (output, target), or a name: {', '.join(CRITERIA)}."
        )
    if isinstance(given, str) and given not in CRITERIA:
        raise ValueError(
            f"unknown loss {given!r}; known are {', '.join(CRITERIA)}, and functions of (model, "
            f"batch).{closest(given, CRITERIA)}"
        )
    if takes_only_one(given):
        raise ValueError(
            "the loss takes one argument, and is called with two: (model, batch). It has to call "
            "the model that it is given, as in lambda model, batch: criterion(model(batch[0]), "
            "batch[1])."
        )
    needed = needed_arguments(given)
    if len(needed) > 2:
        names = f"{', '.join(map(repr, needed[:-1]))} and {needed[-1]!r}"
        raise ValueError(
            f"the loss needs {len(needed)} arguments, {names}, and is called with two: (model, "
            "batch), where batch is what the loader yields, or (output, target)."
        )


def find_loss(
    model: nn.Module,
    batch: Any,
    given: Loss | None = None,
    checks: Callable[[nn.Module], AbstractContextManager[None]] = lambda model: nullcontext(),
) -> Found:
    """Find the loss of a model on a batch; the model is left untouched.

    Args:
        model: In the mode it is trained in.
        batch: What the loader yields.
        given: What the user gave: ``loss(model, batch)``, a criterion of (output, target), or a
            name; by default the model's own loss, or what outputs and targets ask for.
        checks: Entered while the model runs.

    Raises:
        UnsuitableBatchError: If outputs and targets fit no loss.
        Exception: What the model raised, if it takes the batch in no way.

    Examples:
        >>> found = find_loss(nn.Linear(3, 2), (torch.ones(4, 3), torch.tensor([0, 1, 1, 0])))
        >>> found.words
        ('loss: cross-entropy of 2 classes between model(batch[0]) and batch[1]',)
    """
    if given is None and is_lightning(model):
        return Found(step_loss, ("loss: the module's own training_step",))
    criterion: Callable[[Any, Any], Any] | None = None
    if isinstance(given, str):
        criterion, name = CRITERIA[given], given
    elif given is not None:
        criterion, name = given, str(getattr(given, "__name__", type(given).__name__))
        if not _takes_outputs(given, model, batch, checks):
            return Found(_reduced(given), ())
    first: Exception | None = None
    unfit: Exception | None = None
    for call in calls(model, batch):
        try:
            with untouched(model), checks(model), recording_gradients():
                output = call.run(model, batch)
                found = _adapted(
                    call, output, batch, None if criterion is None else (criterion, name)
                )
        except UnsuitableBatchError as error:
            unfit = unfit or error
        except Exception as error:  # another way to call it may fit
            first = first or error
        else:
            assumed = criterion is None and "own" not in found.objective.words
            return Found(found, (_words(found),), assumed)
    if criterion is None and takes_time(model):
        return _denoising()
    if criterion is None and unfit is not None:
        found_without = _for_want_of_targets(model, batch, checks)
        if found_without is not None:
            return found_without
    raise unfit or first or UnsuitableBatchError("the batch holds nothing to call the model with.")


def _takes_outputs(
    given: Callable[..., Any],
    model: nn.Module,
    batch: Any,
    checks: Callable[[nn.Module], AbstractContextManager[None]],
) -> bool:
    """Whether a loss takes (output, target): by its arguments' names, or else by what works."""
    named = is_criterion(given)
    if says_what_it_takes(given):
        return named

    def works(run: Callable[[], Any]) -> bool:
        try:
            with untouched(model), checks(model), recording_gradients():
                run()
        except Exception:  # the other form may
            return False
        return True

    def compares() -> bool:
        return any(
            works(partial(_compare, given, call, model, batch))
            for call in calls(model, batch)
            if call.target is not None
        )

    def runs() -> bool:
        return works(lambda: given(model, copied(batch)))

    likely, other = (compares, runs) if named else (runs, compares)
    return named if likely() or not other() else not named


def _compare(given: Callable[..., Any], call: Call, model: nn.Module, batch: Any) -> None:
    given(call.run(model, batch), call.target_of(batch))


def warm_up(model: nn.Module, batch: Any) -> None:
    """Give lazy layers their shapes.

    Raises:
        Exception: What the model raised, if it takes the batch in no way.
    """
    first: Exception | None = None
    with torch.no_grad():
        if is_lightning(model):
            step_loss(model, batch)
            return
        for call in calls(model, batch):
            try:
                call.run(model, batch)
            except Exception as error:
                first = first or error
            else:
                return
    if first is not None:
        raise first


def _adapted(
    call: Call, output: Any, batch: Any, given: tuple[Callable[[Any, Any], Any], str] | None
) -> AdaptedLoss:
    target = call.target_of(batch)
    if given is not None:
        objective = objectives.with_criterion(*given)
        objective.of(output, target)  # whether it fits
        return AdaptedLoss(call, objective)
    own, inputs = objectives.own_loss(output), call.inputs_of(batch)
    if own is not None:
        return _beside(call, own, output, target, inputs) or AdaptedLoss(call, own)
    if target is None and len(inputs) == 1 and is_input(inputs[0]):
        rebuilt = objectives.by_targets(output, inputs[0])
        return AdaptedLoss(call, rebuilt, inputs_as_target=True)
    return AdaptedLoss(call, objectives.by_targets(output, target))


def _beside(
    call: Call, own: Objective, output: Any, target: Any, inputs: list[Any]
) -> AdaptedLoss | None:
    """With what the model has not seen, where a number stands beside outputs that fit it."""
    if not isinstance(output, tuple | list) or any(value is target for value in inputs):
        return None
    rebuilds = target is None and len(inputs) == 1 and is_input(inputs[0])
    if rebuilds:
        shapes = [x.shape for x in output if isinstance(x, Tensor)]
        if inputs[0].shape not in shapes:
            return None
        target = inputs[0]
    if target is None:
        return None
    try:
        both = objectives.beside_own_loss(output, own, target)
    except UnsuitableBatchError:
        return None
    return AdaptedLoss(call, both, inputs_as_target=rebuilds)


def _for_want_of_targets(
    model: nn.Module, batch: Any, checks: Callable[[nn.Module], AbstractContextManager[None]]
) -> Found | None:
    """A loss of the outputs alone, if the batch has no targets and the model runs on it."""
    tried = calls(model, batch)
    if any(call.target is not None for call in tried):
        return None
    for call in tried:
        try:
            with untouched(model), checks(model), recording_gradients():
                found = AdaptedLoss(call, objectives.to_noise(call.run(model, batch)))
        except Exception:  # another way to call it may fit
            continue
        return Found(found, (f"{_words(found)}; give yours as loss_fn=",), is_assumed=True)
    return None


def _words(found: AdaptedLoss) -> str:
    call, objective = found.call, found.objective
    if found.inputs_as_target:
        return f"loss: {objective.words} between {call.words} and its input (no targets)"
    if "own" in objective.words or "model" in objective.words or call.target is None:
        return f"loss: {objective.words}, from {call.words}"
    return f"loss: {objective.words} between {call.words} and {call.target_words}"


def _reduced(given: Callable[..., Any]) -> LossFunction:
    """The user's function, of whose several results the loss is taken."""
    return objectives.reduced(
        lambda model, batch: with_gradients_inside(lambda: given(model, batch))
    )


def _denoising() -> Found:
    """What diffusions are trained with: the noise is to be told from the noisy input."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x = batch if isinstance(batch, Tensor) else next(iter(_values(batch)))
        keep = torch.linspace(_FIRST_NOISE, _LAST_NOISE, _TIMES, device=x.device)
        kept = (1 - keep).cumprod(0)
        t = torch.randint(_TIMES, (len(x),), device=x.device)
        noise, share = torch.randn_like(x), kept[t].reshape(-1, *[1] * (x.ndim - 1)).to(x.dtype)
        output = model(share.sqrt() * x + (1 - share).sqrt() * noise, t)
        return F.mse_loss(objectives.outputs(output), noise)

    return Found(
        loss,
        (
            "loss: squared error of the predicted noise, from model(noisy batch, t) at random "
            f"times t < {_TIMES} of a linear schedule",
        ),
        is_assumed=True,
    )


def _values(batch: Any) -> Any:
    values = batch.values() if isinstance(batch, Mapping) else batch
    return (value for value in values if is_input(value))
