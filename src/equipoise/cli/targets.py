"""Strings of the command line become a model factory, a loss and a device."""

from __future__ import annotations

import ast
import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, cast

import torch
from torch import Tensor, nn

from equipoise.data.resolve import importing, resolve
from equipoise.data.source import Source
from equipoise.diagnosis.inputs.adapt import CRITERIA, Loss
from equipoise.models.mlp import mlp
from equipoise.records.wording import closest, first_sentence

# Deep enough for gradients to differ by e^12: past half of what still trains.
_DEPTH, _WIDTH = 64, 128
_BATCH_SIZE = 64

Build = Callable[[], nn.Module]


def choose_target(
    spec: str | None, arguments: Sequence[str], source: Source, batch_size: int
) -> tuple[str, Build]:
    """Return the model's name and its factory; the default model fits the data.

    Raises:
        ValueError: If the factory cannot be imported or called, or an argument is malformed.
    """
    keywords = dict(_keyword(argument) for argument in arguments)
    if spec is None:
        settings: dict[str, Any] = {"depth": _DEPTH, "width": _WIDTH} | keywords
        name = f"batch-normalised ReLU network, {settings['depth']} × {settings['width']}"
        ((x, y),) = source.batches(batch_size, 1, torch.Generator().manual_seed(0))
        classes = source.classes or (y[0].numel() if y.is_floating_point() else int(y.max()) + 1)
        return name, lambda: mlp(x[0].numel(), classes, **settings)
    found = resolve(spec)
    name = f"{spec} {' '.join(arguments)}".strip()
    if isinstance(found, nn.Module):
        if arguments:
            raise ValueError(
                f"{spec} is a model, not a factory, and takes no --arg {arguments[0]}. Point to a "
                "callable that builds it."
            )
        return name, lambda: copy.deepcopy(found)
    if not callable(found):
        raise ValueError(
            f"{spec} is a {type(found).__name__}, not a model factory. Point to a callable that "
            "returns a torch.nn.Module."
        )

    def build() -> nn.Module:
        with importing(spec):  # factories may import late
            return cast(nn.Module, found(**keywords))

    return name, build


def choose_batch_size(given: int | None, source: Source) -> int:
    """The given one, or the usual one as far as there are samples: data may be one small batch."""
    if given is not None:
        return given
    return min(_BATCH_SIZE, len(source)) if isinstance(source, Sized) else _BATCH_SIZE


def tell_batch_size(given: int | None, source: Source, found: int) -> None:
    """Say on standard error that a loader's batches have a size of their own."""
    if given is not None and source.fixed_batches and found != given:
        print(f"batches of {found}, as the loader makes them, not of {given}.", file=sys.stderr)


# Where trainings keep the weights in their checkpoints.
_WEIGHTS = ("state_dict", "model_state_dict", "model", "module", "net", "weights")
# What wrappers put before the names of weights.
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.")


def _unreadable(error: Exception) -> str:
    """Why PyTorch cannot read a file; of what is no pickle at all it says nothing of use."""
    if isinstance(error, OSError | RuntimeError | UnpicklingError):
        return first_sentence(error)
    return "torch.save has not written it."


def with_checkpoint(build: Build, path: Path) -> Build:
    """Load a checkpoint into the models of a factory.

    Raises:
        ValueError: If the file cannot be read, holds no weights, or those of another model.
    """
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise ValueError(f"there is no checkpoint {str(path)!r}.") from error
    except Exception as error:  # of pickle, zip and torch
        raise ValueError(
            f"cannot read the checkpoint {str(path)!r}: {_unreadable(error)} Save the weights "
            "alone, with torch.save(model.state_dict(), path)."
        ) from error
    weights = _weights_of(held)
    if weights is None:
        keys = list(held) if isinstance(held, Mapping) else type(held).__name__
        raise ValueError(f"the checkpoint {str(path)!r} holds no weights, but {keys}.")

    def loaded() -> nn.Module:
        model = build()
        wanted = model.state_dict().keys()
        for found in _renamed(weights):
            if found.keys() == wanted:
                model.load_state_dict(found)
                return model
        missing = sorted(wanted - weights.keys())[:3]
        extra = sorted(weights.keys() - wanted)[:3]
        raise ValueError(
            f"the checkpoint {str(path)!r} is of another model: it lacks {missing} and has "
            f"{extra}. Give the factory the --arg values that it was trained with."
        )

    return loaded


def _weights_of(held: object) -> dict[str, Tensor] | None:
    if not isinstance(held, Mapping):
        return None
    if held and all(isinstance(value, Tensor) for value in held.values()):
        return dict(held)
    for name in _WEIGHTS:
        inner = _weights_of(held.get(name))
        if inner is not None:
            return inner
    return None


def _renamed(weights: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """The weights, and the weights without what wrappers put before their names."""
    yield weights
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in weights):
            yield from _renamed({k.removeprefix(prefix): v for k, v in weights.items()})


def choose_loss(spec: str) -> Loss | None:
    """Return a loss function, or None to choose by the targets.

    Raises:
        ValueError: If the name is unknown or does not lead to a callable.
    """
    if spec == "auto":
        return None
    if spec in CRITERIA:
        return spec
    if ":" not in spec:
        known = ", ".join(["auto", *CRITERIA])
        raise ValueError(
            f"unknown loss {spec!r}; known are {known}, and file.py:name.{closest(spec, CRITERIA)}"
        )
    found = resolve(spec)
    if not callable(found):
        raise ValueError(
            f"{spec} is a {type(found).__name__}; a loss is a function of (model, batch)."
        )
    return found


def _keyword(argument: str) -> tuple[str, Any]:
    name, equals, text = argument.partition("=")
    if not equals or not name.isidentifier():
        raise ValueError(f"--arg takes NAME=VALUE, such as depth=50, got {argument!r}.")
    try:
        return name, ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return name, text
