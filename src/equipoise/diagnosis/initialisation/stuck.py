"""Weights that have no gradient, and will have none whatever else is trained."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.instrument import LossFunction, untouched
from equipoise.instrument.forward import recording_gradients
from equipoise.records import wording
from equipoise.records.finding import Finding

# Length of a step along each tensor's gradient, and steps at most: each wakes another layer.
_STEP, _MOST = 0.01, 16
# Passes without news after which there will be none: branches may be left out at random.
_QUIET = 3
# Shares of the matrices' numbers from which those without a gradient are no detail, and from which
# they may be experts that no batch has used.
_MUCH, _SOME = 0.5, 0.1
_NAMES = 3


@dataclass(frozen=True, slots=True)
class Stuck:
    """Names of matrices that no training moves, in the model's order.

    Args:
        zero: They start at zero, and each waits for another that does.
        silent: They do not; the loss does not depend on them wherever the others go.
        part: The same of less than half of all, the first among them: training goes on behind.
        drawn: Initialisations that were looked at.
        awake: In how many of these the silent ones have a gradient.
    """

    zero: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    part: tuple[str, ...] = ()
    drawn: int = 1
    awake: int = 0

    def __bool__(self) -> bool:
        return bool(self.zero or self.silent)

    @property
    def sentence(self) -> str:
        """What follows for training, without a full stop."""
        what = "Most" if self.silent else "Part"
        if self.awake:
            return f"{what} of it never trains in {self.which}"
        return f"{what} of it will never train"

    @property
    def which(self) -> str:
        """In how many initialisations, of those that were looked at."""
        return f"{self.drawn - self.awake} of {wording.count(self.drawn, 'initialisation')}"

    @property
    def words(self) -> str:
        """What is so, in a clause."""
        parts = []
        if self.zero:
            parts.append(f"{_named(self.zero)} will stay at zero")
        if self.silent:
            there = " there" if self.awake else ""
            parts.append(f"{_named(self.silent)} will have no gradient{there}")
        return f"{' and '.join(parts)}, whatever is trained"


def stuck(
    model: nn.Module,
    loss_fn: LossFunction,
    batches: Iterable[Any],
    without_gradient: Collection[str] = (),
) -> Stuck:
    """Matrices without a gradient, also when all that have one have moved.

    Where one of two factors starts at zero, the first step moves it and the second one the other;
    where both do, as in two successive layers, each waits for the other. Units that are silent
    for every sample, as ReLUs behind a large negative bias, let no gradient through either, nor
    do operations whose derivative is zero: then the first matrix has none, nor have others.
    Parts that these batches do not use, such as experts, are no finding, nor are they where they
    are run and multiplied by zero.

    Args:
        model: It is left bit for bit as it is.
        loss_fn: Its loss on a batch.
        batches: Those that are tried; drawn only if there is something to try.
        without_gradient: Parameters whose gradient a pass has shown to be zero.
    """
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad and p.numel()}
    matrices = [name for name, p in trained.items() if p.ndim > 1]
    zero = [name for name in matrices if not bool(trained[name].any())]
    silent = [name for name in matrices if name in without_gradient and name not in zero]
    if _share(trained, matrices, {*zero, *silent}) < _SOME:
        silent = []
    if not (zero or silent):
        return Stuck()
    with untouched(model), recording_gradients():
        tried = list(batches)
        waiting = _waiting_after_steps({*zero, *silent}, trained, model, loss_fn, tried)
        waits_for_none = _waiting_when_drawn(waiting & {*zero}, trained, model, loss_fn, tried)
    zero = [name for name in zero if name not in waits_for_none]
    silent = [name for name in matrices if name in {*silent, *waits_for_none}]
    share = _share(trained, matrices, waiting)
    still_zero, still_silent = (
        tuple(name for name in names if name in waiting) for names in (zero, silent)
    )
    if share >= _MUCH:
        return Stuck(still_zero, still_silent)
    is_part = share >= _SOME and not _is_repeated(matrices[0], waiting, trained)
    return Stuck(still_zero, part=still_silent if is_part else ())


def drawn_again(
    found: Stuck, models: Iterable[nn.Module], loss_fn: LossFunction, batches: Iterable[Any]
) -> Stuck:
    """Count in which other initialisations the silent weights have a gradient.

    As where the last unit of a density is a ReLU, which is dead or alive by chance.

    Args:
        found: What is so in one initialisation.
        models: Others; they are left bit for bit as they are.
        loss_fn: Their loss on a batch.
        batches: Those that are tried.
    """
    tried, drawn, awake = list(batches), found.drawn, found.awake
    for model in models:
        trained = {name: p for name, p in model.named_parameters() if name in found.silent}
        with untouched(model), recording_gradients():
            gradients = (_gradients(loss_fn(model, batch), trained) for batch in tried)
            awake += any(bool(one.any()) for some in gradients for one in some.values())
        drawn += 1
    return replace(found, drawn=drawn, awake=awake)


def _waiting_after_steps(
    names: Set[str],
    trained: Mapping[str, Tensor],
    model: nn.Module,
    loss_fn: LossFunction,
    batches: Sequence[Any],
) -> set[str]:
    """Which of these have no gradient on any batch, while all that have one move; it moves them.

    Steps end where several in a row wake no parameter that had no gradient before. Only a step
    that wakes none on its own batch is followed by a look at the others.
    """
    waiting, awake, quiet = set(names), set[str](), 0
    for number in range(_MOST):
        seen, depends, moved = set[str](), set[str](), dict[str, Tensor]()
        for place in range(len(batches)):
            found = _gradients(loss_fn(model, batches[(number + place) % len(batches)]), trained)
            seen |= {name for name, gradient in found.items() if bool(gradient.any())}
            depends |= found.keys()
            if place == 0:  # those of several may cancel
                moved = found
            woken = bool(seen - awake) and number < _MOST - 1
            if waiting <= seen or woken:
                break  # the other batches can tell nothing more, or nothing yet
        else:
            waiting &= depends
        waiting -= seen
        quiet = quiet + 1 if seen <= awake else 0
        awake |= seen
        if not waiting or quiet == _QUIET:
            break
        _step(trained, moved)
    return waiting


def _waiting_when_drawn(
    names: Set[str],
    trained: Mapping[str, Tensor],
    model: nn.Module,
    loss_fn: LossFunction,
    batches: Sequence[Any],
) -> set[str]:
    """Which of these have no gradient when they are not zero either; it draws them.

    As a user's bias in a difference of two scores of that user, where it cancels.
    """
    if not names:
        return set()
    generator = torch.Generator().manual_seed(0)
    for name in names:
        values = trained[name].data
        drawn = torch.randn(values.shape, generator=generator) / values[0].numel() ** 0.5
        values.copy_(drawn)
    seen = set[str]()
    for batch in batches:
        found = _gradients(loss_fn(model, batch), trained)
        seen |= {name for name, gradient in found.items() if bool(gradient.any())}
        if names <= seen:
            break
    return set(names) - seen


def _share(trained: Mapping[str, Tensor], matrices: Sequence[str], names: Set[str]) -> float:
    """Which part of all numbers these matrices hold; none where the first is not among them."""
    if not names or matrices[0] not in names:
        return 0.0
    sizes = {name: trained[name].numel() for name in matrices}
    return sum(sizes[name] for name in names) / sum(sizes.values())


def _is_repeated(name: str, waiting: Set[str], trained: Mapping[str, Tensor]) -> bool:
    """Whether a matrix of the same place in another module is trained, as that of an expert."""

    def place(name: str) -> tuple[str, torch.Size]:
        return re.sub(r"\d+", "*", name), trained[name].shape

    return any(place(other) == place(name) for other in trained.keys() - waiting)


def _gradients(loss: Tensor, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradients of the parameters that a loss depends on."""
    if not loss.requires_grad:  # nothing of it is trained
        return {}
    found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    return {
        name: gradient if gradient.layout is torch.strided else gradient.to_dense()
        for name, gradient in zip(trained, found, strict=True)
        if gradient is not None
    }


def _step(trained: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
    """Move every tensor along its gradient, by the same distance."""
    for name, gradient in gradients.items():
        largest = gradient.abs().max()
        if largest > 0 and bool(torch.isfinite(largest)):
            trained[name].data.sub_(gradient / largest * _STEP)


def conclude_stuck(found: Stuck) -> list[Finding]:
    """The findings about weights that never move."""
    findings = []
    if found.zero:
        findings.append(
            Finding(
                "critical",
                f"{_weights(found.zero, 'stay')} at zero for ever",
                f"Zero at the start, and without a gradient when all other weights have moved: "
                f"{wording.listed(found.zero, _NAMES)}. Each waits for another that is zero as "
                "well.",
                "Start one of two successive layers, or of two factors, away from zero.",
            )
        )
    silent = found.silent or found.part
    if silent:
        findings.append(
            Finding(
                "critical" if found.silent else "warning",
                f"{_weights(silent, 'have')} no gradient, whatever is trained"
                + (f", in {found.which}" if found.awake else ""),
                "On every batch that was tried the gradient is zero at "
                f"{wording.listed(silent, _NAMES)}, even after all other weights have moved. "
                "Either units are silent for every sample, as ReLUs behind a large negative bias; "
                "or an operation has a derivative of zero, as round(), a clamp beyond its bounds "
                "or a softmax of one number; or gradients are too small for their type.",
                "Look for such an operation behind the last of these layers, and for layers whose "
                "outputs are all zero or all equal: start their biases at zero, scale their "
                "weights, or take an activation without a flat side. "
                + (
                    "Or draw the weights again where this is so."
                    if found.awake
                    else "Freeze what is not to be trained, with requires_grad_(False)."
                ),
            )
        )
    return findings


def _named(names: Sequence[str]) -> str:
    return f"the weight{'s' * (len(names) > 1)} {wording.listed(names, _NAMES)}"


def _weights(names: Sequence[str], verb: str) -> str:
    one = {"stay": "stays", "have": "has"}[verb]
    return f"{wording.count(len(names), 'weight')} that {one if len(names) == 1 else verb}"
