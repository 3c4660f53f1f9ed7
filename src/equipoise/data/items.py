"""What users' loaders and data sets yield, as batches of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from equipoise.instrument.batches import is_pair, plain, shape_of, tensors
from equipoise.instrument.types import Batch
from equipoise.records.exceptions import text_of
from equipoise.records.wording import first_sentence, with_article

_WRAP = "Wrap it in a function that yields batches of tensors."


def stacked(samples: list[Any], name: str) -> Batch:
    """Samples of a data set as one batch.

    Raises:
        ValueError: If they do not stack, or what they stack to is no batch.
    """
    try:
        batch = default_collate([_with_tensors(plain(sample)) for sample in samples])
    except (TypeError, RuntimeError, ValueError, KeyError) as error:
        raise ValueError(
            f"{name}: samples do not stack to a batch ({text_of(error)}). Make the data set "
            "return tensors of one shape, or pass a DataLoader with a collate_fn."
        ) from error
    return as_batch(batch, name)


def as_plain(item: object, name: str) -> Any:
    """What a loader yields, in tensors and Python's own containers.

    Raises:
        ValueError: If it is nested too deep, or holds an array of another kind of numbers.
    """
    try:
        return plain(item)
    except RecursionError as error:
        raise ValueError(f"{name} is nested too deep, or holds itself. {_WRAP}") from error
    except (TypeError, ValueError) as error:  # of an array, such as one of long doubles
        raise ValueError(
            f"{name} holds an array that PyTorch cannot take: {first_sentence(error)}"
        ) from error


def _with_tensors(sample: Any) -> Any:
    """A dictionary with tensors in the place of lists of numbers, as tokenizers return them.

    PyTorch's collate function would make one tensor of the first number of every sample, one of
    the second, and so on.
    """
    if not isinstance(sample, Mapping):
        return sample
    return {
        name: torch.tensor(value, device="cpu") if _are_numbers(value) else value
        for name, value in sample.items()
    }


def _are_numbers(value: object) -> bool:
    return (
        isinstance(value, list) and all(isinstance(x, int | float) for x in value) and value != []
    )


def as_batch(item: object, name: str) -> Batch:
    """What a loader yields, as a batch.

    Raises:
        ValueError: If it holds no tensor, is a single sample, or targets do not fit its inputs.
    """
    batch = as_plain(item, name)
    if isinstance(batch, list):  # what PyTorch's collate function makes of a pair
        batch = tuple(batch)
    if not tensors(batch):
        raise ValueError(f"{name} yields batches without a tensor: {_form(item)}. {_WRAP}")
    if _is_sample_with_target(batch):
        raise ValueError(
            f"{name} yields single samples, the first with the target {batch[1]}; batches are "
            "expected. Give a DataLoader of it, DataLoader(samples, batch_size=64); a number that "
            "belongs to a whole batch may stand in a dictionary."
        )
    if is_pair(batch):
        inputs, targets = batch
        if not _belong_together(inputs, targets):
            raise ValueError(
                f"{name} yields inputs of shape {shape_of(inputs)} with targets of shape "
                f"{shape_of(targets)}; expected one target for each input. Give tensors that "
                "are no pair, as points inside and on the boundary, in a dictionary."
            )
    return batch


def _belong_together(inputs: Tensor, targets: Tensor) -> bool:
    """Whether there is a target for each input, or for each of its steps, one after the other.

    Sentences and their translations may have their words first, and then as many columns.
    """
    if not inputs.ndim or not targets.ndim:
        return False
    are_words = not (inputs.is_floating_point() or targets.is_floating_point())
    if are_words and inputs.ndim == targets.ndim == 2 and inputs.size(1) == targets.size(1):
        return True
    count = targets.size(0)  # nested tensors have a size, and no length
    if count == inputs.size(0):
        return True
    return inputs.ndim > 1 and not inputs.is_nested and count == inputs.size(0) * inputs.size(1)


def _is_sample_with_target(item: object) -> bool:
    """A tensor and one label; a fraction may be a weight of the whole batch."""
    if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], Tensor)):
        return False
    return isinstance(item[1], int) or (isinstance(item[1], Tensor) and not item[1].ndim)


def _form(item: object) -> str:
    kind = type(item).__name__
    if isinstance(item, tuple | list):
        return f"{with_article(kind)} of {len(item)}"
    if isinstance(item, Mapping):
        return f"{with_article(kind)} with the keys {list(item)}"
    return with_article(kind)
