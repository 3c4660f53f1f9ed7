"""Which loss the output of a model asks for, by what it is and by what the targets are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn import functional as F

from equipoise.diagnosis.refusals import labels_hint
from equipoise.instrument.batches import fields, oddity, tensors
from equipoise.training.losses import (
    UnsuitableBatchError,
    fit,
    laid_out_as,
    layout_hint,
    squared_error,
    unknown_class,
)

# Where outputs with names keep what is compared with targets.
_OUTPUTS = ("logits", "out", "output", "outputs", "pred", "preds", "prediction", "sample", "x",
            "prediction_logits", "start_logits", "last_hidden_state", "reconstruction",
            "reconstructed", "recon", "pooler_output")  # fmt: skip
# Autograd's names of what only moves numbers.
_RESHAPES = ("Squeeze", "Unsqueeze", "View", "UnsafeView", "Reshape", "Permute", "Transpose",
             "Alias", "Select", "ToCopy")  # fmt: skip
# Of segmentation sets: pixels that no class is given to.
_VOID = 255
_WHICH = "Give a loss of your own: loss_fn=, a function of (model, batch)."


@dataclass(frozen=True, slots=True)
class Objective:
    """A loss of an output and a target.

    Args:
        words: What it is.
        of: Takes output and target.
    """

    words: str
    of: Callable[[Any, Any], Tensor]


def beside_own_loss(output: Any, own: Objective, compared: Any) -> Objective:
    """The loss of outputs and targets that the model has not seen, plus a number that it returns.

    Such a number can only be a part of the loss: a penalty, a commitment to a code book.

    Raises:
        UnsuitableBatchError: If no output fits what it is compared with.

    Examples:
        >>> logits, penalty = torch.zeros(8, 5), torch.tensor(2.0, requires_grad=True)
        >>> own = own_loss((logits, penalty))
        >>> found = beside_own_loss((logits, penalty), own, torch.zeros(8, dtype=torch.int64))
        >>> found.words
        "cross-entropy of 5 classes of the output's [0] plus the number beside it"
    """
    main = by_targets(output, compared)
    return Objective(
        f"{main.words} plus the number beside it",
        lambda output, target: main.of(output, target) + own.of(output, target),
    )


def to_noise(output: Any) -> Objective:
    """A loss for want of targets: how far all outputs are from fixed noise.

    Raises:
        UnsuitableBatchError: If no output depends on the model's weights.

    Examples:
        >>> to_noise({"mean": torch.zeros(8, 2, requires_grad=True)}).words
        'squared error between the outputs and noise, for want of targets'
    """
    places = [
        i for i, x in enumerate(tensors(output)) if x.is_floating_point() and x.requires_grad
    ]
    if not places:
        raise UnsuitableBatchError(f"no output depends on the model's weights. {_WHICH}")

    def of(output: Any, _: Any) -> Tensor:
        generator, parts = torch.Generator().manual_seed(0), tensors(output)
        errors = [
            F.mse_loss(parts[i], torch.randn(parts[i].shape, generator=generator).to(parts[i]))
            for i in places
        ]
        return torch.stack(errors).mean()

    return Objective("squared error between the outputs and noise, for want of targets", of)


def own_loss(output: Any) -> Objective | None:
    """The loss that an output brings along, if it does.

    Examples:
        >>> box, kind = torch.tensor([1.0, 4.0], requires_grad=True).unbind()
        >>> found = own_loss({"box": box, "class": kind})
        >>> found.words, float(found.of({"box": box, "class": kind}, None).detach())
        ("the sum of the model's losses box, class", 5.0)
    """
    if _is_loss(output):
        return Objective("what the model returns, a single number", lambda output, _: output.sum())
    named = _named(output)
    if named is not None:
        if _is_loss(named.get("loss")):
            return Objective(
                "the model's own loss", lambda output, _: _parts(output)["loss"].sum()
            )
        losses = [name for name, value in named.items() if _is_loss(value)]
        if losses and (len(losses) == len(named) or all("loss" in str(name) for name in losses)):
            return Objective(
                f"the sum of the model's losses {', '.join(map(str, losses))}",
                lambda output, _: torch.stack([_parts(output)[n].sum() for n in losses]).sum(),
            )
        return None
    if isinstance(output, tuple | list):
        places = [i for i, value in enumerate(output) if _is_loss(value)]
        if len(places) == 1:
            (place,) = places
            return Objective("the model's own loss", lambda output, _: output[place].sum())
    return None


def _is_loss(value: Any) -> bool:
    """A single number with a graph; the sum over parallel replicas may have several."""
    return (
        isinstance(value, Tensor)
        and value.ndim == 0
        and value.is_floating_point()
        and value.requires_grad
    )


def by_targets(output: Any, target: Any) -> Objective:
    """The loss that output and target ask for.

    Raises:
        UnsuitableBatchError: If they fit no loss.

    Examples:
        >>> by_targets(torch.zeros(8, 5), torch.zeros(8, dtype=torch.int64)).words
        'cross-entropy of 5 classes'
        >>> by_targets(torch.zeros(8, 1), torch.zeros(8)).words
        'squared error'
    """
    if isinstance(output, Distribution):
        return _likelihood(output, target)
    place, scores = _scores(output)
    chosen = _by_tensors(scores, target)
    if place is None:
        return chosen

    def of(output: Any, target: Any) -> Tensor:
        return chosen.of(_at(output, place), target)

    shown = place if isinstance(place, str) else f"[{place}]"
    return Objective(f"{chosen.words} of the output's {shown}", of)


def _likelihood(output: Distribution, target: Any) -> Objective:
    """What a law of the targets is trained with."""
    if not isinstance(target, Tensor):
        raise UnsuitableBatchError(
            f"the model returned a {type(output).__name__}, and the batch has no targets that it "
            f"could be the law of. {_WHICH}"
        )
    output.log_prob(target)  # whether it fits
    return Objective(
        f"negative log-likelihood of the {type(output).__name__} that the model returns",
        lambda output, target: -output.log_prob(target).mean(),
    )


def with_criterion(criterion: Callable[[Any, Any], Any], name: str) -> Objective:
    """A loss of output and target that the user gave, such as ``nn.CrossEntropyLoss()``."""
    return Objective(f"{name}(output, target)", reduced(criterion))


def reduced(given: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A user's function, of whose several results the loss is taken, as the sum of a detector's.

    Which of them are losses, their gradients tell; where none are recorded, it is those of before.
    """
    chosen: list[Objective | None] = []

    def loss(first: Any, second: Any) -> Any:
        value = given(first, second)
        if not isinstance(value, Mapping | tuple | list):
            return value
        if torch.is_grad_enabled() or not chosen:
            chosen[:] = [own_loss(value)]
        (own,) = chosen
        return value if own is None else own.of(value, None)

    return loss


def _at(output: Any, place: str | int) -> Tensor:
    found: Tensor = output[place] if isinstance(place, int) else _parts(output)[place]
    return found


def _parts(output: Any) -> dict[str, Any]:
    return _named(output) or {}


def _named(output: Any) -> dict[str, Any] | None:
    """The parts of an output that have names, also of an object of the user's own class."""
    found = fields(output)
    if found is not None or isinstance(output, Tensor | tuple | list | Distribution):
        return found
    held = getattr(output, "__dict__", None) or {}
    return dict(held) if any(isinstance(value, Tensor) for value in held.values()) else None


def outputs(output: Any) -> Tensor:
    """The tensor of an output that is compared with targets."""
    return _scores(output)[1]


def _scores(output: Any) -> tuple[str | int | None, Tensor]:
    """The part of an output that is compared with targets."""
    if isinstance(output, Tensor):
        return None, output
    named = _named(output)
    if named is not None:
        held = [name for name, value in named.items() if isinstance(value, Tensor)]
        name = next((name for name in _OUTPUTS if name in held), held[0] if held else None)
        if name is not None:
            return name, named[name]
    elif isinstance(output, tuple | list):
        for i, value in enumerate(output):
            if isinstance(value, Tensor) and value.ndim:
                return i, value
    raise UnsuitableBatchError(
        f"the model returned {type(output).__name__}, in which no loss and no tensor of outputs "
        f"was found. {_WHICH}"
    )


def _by_tensors(output: Tensor, target: Any) -> Objective:
    for what, tensor in (("outputs", output), ("targets", target)):
        if isinstance(tensor, Tensor) and (odd := oddity(tensor)):
            raise UnsuitableBatchError(f"the {what} are {odd}: no loss fits them. {_WHICH}")
    if not output.is_floating_point():
        raise UnsuitableBatchError(
            f"the model returned outputs of {output.dtype}, which have no gradients. Return the "
            f"numbers that they are made of, such as logits. {_WHICH}"
        )
    if isinstance(target, Mapping | tuple | list):
        raise UnsuitableBatchError(
            f"the targets are a {type(target).__name__}, and the model returned no loss of its "
            f"own. {_WHICH}"
        )
    if not isinstance(target, Tensor):
        raise UnsuitableBatchError(f"the batch has no targets, and the model no loss. {_WHICH}")
    if target.shape == output.shape and _are_probabilities(target):
        return Objective(
            f"cross-entropy of {output.shape[1]} classes with probabilities",
            lambda output, target: F.cross_entropy(output, target.to(output.dtype)),
        )
    if not target.is_floating_point():
        return by_classes(output, target)
    if (
        (target.shape == output.shape or _is_one_logit(output, target))
        and _are_bits(target)
        and _varies(target)
    ):
        return _bits(output)
    if fit(output, target):
        return Objective("squared error", squared_error)
    raise _unfit(output, target)


def by_classes(output: Tensor, target: Tensor) -> Objective:
    """Whole numbers: classes along an axis of the output, bits, or counts."""
    shape = tuple(target.shape)
    if output.ndim == 3 and tuple(output.shape[:-1]) == shape:
        _check_classes(target, output.shape[-1])
        return Objective(
            f"cross-entropy of {output.shape[-1]} tokens at every position", _last_axis
        )
    for squeezed in (target, target.squeeze(1) if target.ndim > 1 else target):
        if output.ndim > 1 and shape_without(output, 1) == tuple(squeezed.shape):
            if output.shape[1] == 1:
                one = Objective("squared error", squared_error)  # of counts
                return _bits(output) if _are_bits(target) else one
            classes = output.shape[1]
            void = _has_void(squeezed, classes)
            if not void:
                _check_classes(squeezed, classes)
            extra = " at every position" if squeezed.ndim > 1 else ""
            note = f", {_VOID} ignored" if void else ""

            def of(output: Tensor, target: Tensor, void: bool = void) -> Tensor:
                if target.ndim == output.ndim:
                    target = target.squeeze(1)
                return F.cross_entropy(output, target.long(), ignore_index=_VOID if void else -100)

            return Objective(f"cross-entropy of {classes} classes{extra}{note}", of)
    if tuple(output.shape[:-1]) == shape:
        _check_classes(target, output.shape[-1])
        return Objective(f"cross-entropy of {output.shape[-1]} classes", _last_axis)
    if fit(output, target):
        if _are_bits(target):
            return _bits(output)
        return Objective("squared error", squared_error)
    raise _unfit(output, target)


def shape_without(tensor: Tensor, axis: int) -> tuple[int, ...]:
    """The shape without one axis."""
    return (*tensor.shape[:axis], *tensor.shape[axis + 1 :])


def _last_axis(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, -2), target.flatten().long())


def _is_one_logit(output: Tensor, target: Tensor) -> bool:
    """Whether outputs have one axis more than targets, of length 1: ``[N, 1]`` and ``[N]``."""
    return output.ndim > 1 and output.shape[1] == 1 and shape_without(output, 1) == target.shape


def _bits(output: Tensor) -> Objective:
    if _is_sigmoid(output):
        return Objective(
            "binary cross-entropy of probabilities",
            lambda output, target: F.binary_cross_entropy(
                output.clamp(0, 1), laid_out_as(output, target)
            ),
        )
    return Objective(
        "binary cross-entropy of logits",
        lambda output, target: F.binary_cross_entropy_with_logits(
            output, laid_out_as(output, target)
        ),
    )


def _is_sigmoid(output: Tensor) -> bool:
    """Whether the last operation but for reshapes is a sigmoid; values alone could be chance."""
    node = output.grad_fn
    while node is not None and node.name().startswith(_RESHAPES):
        node = node.next_functions[0][0]
    return node is not None and node.name().startswith("SigmoidBackward")


def _are_bits(target: Tensor) -> bool:
    return target.dtype == torch.bool or bool(((target == 0) | (target == 1)).all())


def _varies(target: Tensor) -> bool:
    return bool((target != target.flatten()[0]).any())


def _are_probabilities(target: Tensor) -> bool:
    """One-hot or smoothed labels: rows that sum to 1."""
    if target.ndim != 2 or target.shape[1] < 2 or target.is_complex():
        return False
    return bool((target >= 0).all() and (target.sum(1) - 1).abs().max() < 1e-3)


def _has_void(target: Tensor, classes: int) -> bool:
    beyond = target[target >= classes]
    return bool(beyond.numel() and target.ndim > 1 and (beyond == _VOID).all())


def _check_classes(target: Tensor, classes: int) -> None:
    error = unknown_class(target, classes)
    if error is not None:
        raise error


def _unfit(output: Tensor, target: Tensor) -> UnsuitableBatchError:
    hint = layout_hint(output, target)
    if output.ndim == 2 and 1 <= target.ndim <= 2 and len(output) == target.numel():
        hint = hint or f" {labels_hint(target)}".rstrip()
    return UnsuitableBatchError(
        f"the model returned shape {tuple(output.shape)}, the targets have shape "
        f"{tuple(target.shape)} ({str(target.dtype).removeprefix('torch.')}); no loss fits both."
        f"{hint} {_WHICH}"
    )
