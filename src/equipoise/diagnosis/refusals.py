"""What is said of a batch on which a model or its loss fails, or gives no number."""

from __future__ import annotations

import math
import os
import re
import traceback
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from equipoise.instrument.batches import fields, is_pair, oddity, shape_of, shapes, tensors
from equipoise.instrument.memory import asked_for, lacks_memory
from equipoise.instrument.types import Batch
from equipoise.records.exceptions import exit_in_words, text_of
from equipoise.records.wording import count, first_sentence, listed, said

# What PyTorch, and those who write like it, say of tensors that do not fit.
_OF_SHAPES = re.compile(r"shape|\bsizes?\b|dimension|\bdim\b|channels|\d-?D\b", re.IGNORECASE)
# What PyTorch's losses and distributions say, and what is meant as a rule.
_KNOWN = (
    (
        re.compile(r"var has negative entr|constraint (GreaterThan|Positive)"),
        "Take softplus or exp of the layer's outputs first: variances and scales are positive.",
    ),
    (
        re.compile(r"'indices' to have one of the following scalar types.* for embedding"),
        "An embedding takes whole numbers, such as the tokens of the data 'text:64': give "
        "x.long() if the inputs are tokens.",
    ),
    (
        re.compile(r"elements of input should be between 0 and 1"),
        "nn.BCELoss takes probabilities: take nn.BCEWithLogitsLoss for logits, or a sigmoid "
        "before the loss.",
    ),
    (
        re.compile(r"backward through the graph a second time"),
        "Does the loss or the model call backward() itself? Leave that to the training. Does it "
        "keep a state from one batch to the next? Detach what is kept.",
    ),
    (
        re.compile(r"modified by an inplace operation"),
        "Does the loss or the model change weights, or what a layer has returned, in place, as a "
        "step does? Leave steps to the training, and write x = x + y instead of x += y.",
    ),
)
# What a linear layer says of inputs with another number of features.
_OF_FEATURES = re.compile(r"cannot be multiplied \(\d+x(\d+) and (\d+)x\d+\)")
# What an embedding says of a row that it lacks.
_OF_ROWS = re.compile(r"^index out of range in self$")
# What layers say of pixels that are still bytes, and of other whole numbers.
_OF_WHOLE = re.compile(
    r"(Input type \(|same dtype, but got: )((un)?signed char|((long|short) )?int)\b"
    r"|same dtype, but got (Byte|Char|Long|Int|Short) and"
    r"|not implemented for '(Byte|Char|Long|Int|Short)'"
)
_OF_CLASSES = re.compile(r"multi-target not supported|(dtype|scalar type).*\bLong\b")
# How PyTorch goes on when an operation has no kernel for a type of tensors.
_OF_BACKENDS = re.compile(r"\. This could be because the operator doesn't exist .*")
_COLUMNS = 3
_SHAPE = "Give data of the shape that the model takes, such as 'random:3x32x32:10'."
_CALL = (
    "If it takes more than the batch, as a recurrent state, or is called otherwise, give a loss "
    "that is a function of (model, batch) and calls it as your training does."
)


# What a check-up takes at its peak, in peaks of a training step: 2.0 where logits are by far the
# largest, 2.8 of a GPT, 3.4 of a ResNet-18 on images of 96 × 96.
_STEPS_OF_MEMORY = "2 to 4"


class FailedOnBatchError(ValueError):
    """The model or the loss raised something, which is the cause of this."""


def failed(
    batch: Batch, data: str, error: Exception, *, call_is_assumed: bool = False
) -> FailedOnBatchError:
    """Say what a model or a loss raised, on which shapes, and what to do.

    Args:
        batch: It was given.
        data: Where the batch comes from.
        error: What was raised.
        call_is_assumed: Whether no loss of the user's says how the model is called.
    """
    if lacks_memory(error):
        where = f"on a batch of {data} with inputs of shape {shape_in_words(batch)}"
        return FailedOnBatchError(f"{where}, {too_little_memory(error)}")
    words = _OF_BACKENDS.sub(".", first_sentence(error))
    if not isinstance(error, RuntimeError):  # PyTorch's own, which says nothing by its name
        words = f"{type(error).__name__}: {words}" if text_of(error) else words
    frames = traceback.extract_tb(error.__traceback__)
    by_torch = bool(frames) and f"{os.sep}torch{os.sep}" in frames[-1].filename
    remedy = _remedy(batch, text_of(error)) if by_torch else ""
    if not remedy and _may_be_a_sample(batch):
        remedy = (
            "If these are single samples, give a DataLoader of them: DataLoader(samples, "
            "batch_size=64)."
        )
    elif by_torch and not remedy and _OF_SHAPES.search(words):
        remedy = _SHAPE
    is_of_call = remedy == _SHAPE or (not remedy and isinstance(error, TypeError))
    if call_is_assumed and is_of_call:
        remedy = f"{remedy} {_CALL}".lstrip()
    return FailedOnBatchError(
        f"the model or the loss failed on a batch of {data} with inputs of shape "
        f"{shape_in_words(batch)}: {words} {remedy}".rstrip()
    )


def too_little_memory(error: BaseException) -> str:
    """What to do where memory does not suffice.

    Examples:
        >>> print(too_little_memory(MemoryError()))
        memory does not suffice. A check-up takes 2 to 4 times what a training step takes: give
        batches of fewer samples.
    """
    asked = asked_for(error)
    return (
        f"memory does not suffice{f' for {asked} more' if asked else ''}. A check-up takes "
        f"{_STEPS_OF_MEMORY} times what a training step takes: give batches of fewer samples."
    )


def in_words(error: BaseException) -> str:
    """What was raised after the rehearsal, and what to do about it if that is known.

    Examples:
        >>> in_words(RuntimeError("no way back"))
        'RuntimeError: no way back.'
    """
    if isinstance(error, ValueError):
        return text_of(error).strip()
    if isinstance(error, SystemExit):
        return exit_in_words(error)
    if lacks_memory(error):
        return too_little_memory(error)
    words = said(error)
    return next((f"{words} {remedy}" for known, remedy in _KNOWN if known.search(words)), words)


def _remedy(batch: Batch, words: str) -> str:
    """What to do about a complaint that is known; empty of another."""
    for name, tensor in _named(batch):
        if found := oddity(tensor):
            return f"Of the batch, {name} is {found}."
    if _OF_CLASSES.search(words) and is_pair(batch) and (found := labels_hint(batch[1])):
        return found
    if _OF_ROWS.search(words):
        return _of_rows(batch)
    inputs = tensors(batch[0] if is_pair(batch) else batch)
    if (features := _OF_FEATURES.search(words)) and len(inputs) == 1:
        return _of_features(inputs[0], given=int(features[1]), taken=int(features[2]))
    if _OF_WHOLE.search(words) and not all(x.is_floating_point() for x in inputs):
        return "The inputs are whole numbers: give x.float(), or x.float() / 255 of pixels."
    if re.search(r"\bnan\b", words):  # the sign is not the cause
        return ""
    return next((remedy for known, remedy in _KNOWN if known.search(words)), "")


def _may_be_a_sample(batch: Batch) -> bool:
    """Whether it holds one number, such as a label, beside longer tensors."""
    if isinstance(batch, tuple):
        return len(batch) == 2 and isinstance(batch[1], float)
    dimensions = [x.ndim for x in tensors(batch)]
    return isinstance(batch, Mapping) and 0 in dimensions and max(dimensions) > 0


def _of_rows(batch: Batch) -> str:
    whole = [
        x for x in tensors(batch) if not (x.is_floating_point() or x.is_complex()) and x.numel()
    ]
    largest = max((int(x.max()) for x in whole), default=0)
    return (
        "An embedding has too few rows: the largest number in the batch is "
        f"{largest}, and positions are counted from 0, too. Raise num_embeddings."
    )


def _of_features(samples: Tensor, *, given: int, taken: int) -> str:
    """What to do where a layer is given another number of features than it takes."""
    shape = samples.shape[1:]
    if len(shape) > 1 and taken == math.prod(shape):
        product = "×".join(map(str, shape))
        return (
            f"A layer takes the {product} = {taken} numbers of a sample as one row: begin the "
            "model with nn.Flatten()."
        )
    return (
        f"A layer takes {taken} features and is given {given}: change it, or give data of the "
        "shape that the model takes, such as 'random:3x32x32:10'."
    )


def labels_hint(target: Tensor) -> str:
    """How to bring labels to the form that cross-entropy takes; empty if there are none.

    Examples:
        >>> labels_hint(torch.zeros(8, 1))
        'Cross-entropy takes labels of shape [samples] and type int64, and these have shape [8, 1]
        and type float32: give y.squeeze(1).long().'
        >>> labels_hint(torch.rand(8, 1))
        ''
    """
    is_column = target.ndim == 2 and target.shape[1] == 1
    is_float = target.is_floating_point()
    if is_float and bool((target != target.round()).any()):
        return ""
    change = ".squeeze(1)" * is_column + ".long()" * is_float
    kind = str(target.dtype).removeprefix("torch.")
    return (
        f"Cross-entropy takes labels of shape [samples] and type int64, and these have shape "
        f"{list(target.shape)} and type {kind}: give y{change}."
        if change
        else ""
    )


def refuse_unreadable(batch: Batch, data: str) -> None:
    """Refuse tensors that no model can read: without numbers, or of several lengths.

    Raises:
        ValueError: Naming the tensor.
    """
    for name, tensor in _named(batch):
        if tensor.is_meta or (tensor.is_nested and tensor.layout is torch.strided):
            raise ValueError(f"{name} of a batch of {data} is {oddity(tensor)}.")


def refuse_missing(batch: Batch, data: str) -> None:
    """Say which part of a batch holds what is no number.

    Raises:
        ValueError: If one does.
    """
    for name, tensor in _named(batch):
        if oddity(tensor):
            continue
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            missing = ~torch.isfinite(tensor)
            bad = int(missing.sum())
            raise ValueError(
                f"{name} of a batch of {data}, of shape {list(tensor.shape)}, holds "
                f"{count(bad, 'number')} that {'is' if bad == 1 else 'are'} infinite or missing "
                f"(nan){_columns(missing)}. Fill or drop them."
            )


def _named(batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a batch, and what to call them."""
    named = fields(batch)
    if named is not None and all(isinstance(value, Tensor) for value in named.values()):
        yield from ((f"{name!r}", value) for name, value in named.items())
        return
    words = {1: " (the inputs)", 2: " (the targets)"} if is_pair(batch) else {}
    for place, tensor in enumerate(tensors(batch), 1):
        yield f"tensor {place}{words.get(place, '')}", tensor


def _columns(missing: Tensor) -> str:
    """In which columns of a table they stand."""
    if missing.ndim != 2:
        return ""
    columns = [str(int(place)) for place in missing.any(0).nonzero()]
    if len(columns) == 1:
        return f", in column {columns[0]}"
    return f", in columns {listed(columns, _COLUMNS)} of {missing.shape[1]}"


def shape_in_words(batch: Batch) -> str:
    """Of the inputs of a pair, and of all tensors of another batch."""
    return shape_of(batch[0]) if is_pair(batch) else shapes(batch)
