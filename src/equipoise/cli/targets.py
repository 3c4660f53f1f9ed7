"""Strings of the command line become a model factory, a loss and a device."""

from __future__ import annotations

import ast
import inspect
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from equipoise import data
from equipoise.cli.arguments import DEPTH
from equipoise.cli.flags import in_flags
from equipoise.cli.progress import bars
from equipoise.data.resolve import importing, resolve
from equipoise.data.source import Samples, Source
from equipoise.diagnosis.fix.options import OPTIMIZERS
from equipoise.diagnosis.inputs.adapt import CRITERIA, Loss
from equipoise.diagnosis.optimizer.given import OptimizerOf
from equipoise.diagnosis.record import Examination
from equipoise.instrument.batches import is_pair, shapes
from equipoise.instrument.copies import copied
from equipoise.models.mlp import mlp
from equipoise.records.wording import closest, first_sentence, with_article

_WIDTH = 128
_BATCH_SIZE = 64
# Batches in which the default model looks for the last class.
_SEEN = 16

Build = Callable[[], nn.Module]
R = TypeVar("R", bound=Examination)


def examine(function: Callable[..., R], args: Namespace, **options: object) -> R:
    """Call a function of the library with what ``arguments.add_inputs`` has declared.

    Args:
        function: Such as ``checkup`` or ``measure``.
        args: The arguments.
        options: Further ones of the function.

    Raises:
        ValueError: If the model, the data or the loss cannot be used.
    """
    source = data.load(args.data, data_dir=args.data_dir, download=args.download)
    batch_size = choose_batch_size(args.batch_size, source)
    name, build = choose_target(args.target, args.arg, source, batch_size)
    if args.checkpoint is not None:
        build = with_checkpoint(build, args.checkpoint)
    with bars() as progress:
        found = function(
            build,
            source,
            loss_fn=choose_loss(args.loss),
            batch_size=batch_size,
            device=args.device,
            target=name,
            progress=progress,
            **options,
        )
    tell_batch_size(args.batch_size, source, found.batch_size)
    return in_flags(found)


def choose_target(
    spec: str | None, arguments: Sequence[str], source: Source, batch_size: int
) -> tuple[str, Build]:
    """Return the model's name and its factory; the default model fits the data.

    Raises:
        ValueError: If the factory cannot be imported or called, or an argument is malformed.
    """
    keywords = dict(_keyword(argument) for argument in arguments)
    if spec is None:
        settings: dict[str, Any] = {"depth": DEPTH, "width": _WIDTH} | keywords
        name = f"batch-normalised ReLU network, {settings['depth']} × {settings['width']}"
        inputs, outputs = _sizes(source, batch_size)
        return name, lambda: mlp(inputs, outputs, **settings)
    found = resolve(spec)
    name = f"{spec} {' '.join(arguments)}".strip()
    if isinstance(found, nn.Module):
        if arguments:
            raise ValueError(
                f"{spec} is a model, not a factory, and takes no --arg {arguments[0]}. Point to a "
                "callable that builds it."
            )
        return name, lambda: copied(found)
    if not callable(found):
        held = isinstance(getattr(found, "model", None), nn.Module)
        raise ValueError(
            f"{spec} is {with_article(type(found).__name__)}, not a model factory. Point to a "
            f"torch.nn.Module{f', such as {spec}.model,' if held else ''} or to a callable that "
            "returns one."
        )

    _check_keywords(spec, found, keywords)

    def build() -> nn.Module:
        with importing(spec):  # factories may import late
            return cast(nn.Module, found(**keywords))

    return name, build


def _check_keywords(spec: str, factory: Callable[..., Any], keywords: Mapping[str, Any]) -> None:
    """Refuse arguments that a factory does not take, and the lack of those that it needs.

    Raises:
        ValueError: Naming those that it takes.
    """
    try:
        taken = inspect.signature(factory).parameters
    except (ValueError, TypeError):  # some built-in callables have none
        return
    named = {
        name: one
        for name, one in taken.items()
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    }
    any_name = any(one.kind is one.VAR_KEYWORD for one in taken.values())
    for name in keywords:
        if name not in named and not any_name:
            raise ValueError(
                f"{spec} takes no argument {name!r} (--arg {name}={keywords[name]})."
                f"{closest(name, named)} It takes {', '.join(named) or 'none'}."
            )
    for name, one in named.items():
        if one.default is one.empty and name not in keywords:
            raise ValueError(
                f"{spec} needs an argument {name!r}: give --arg {name}=VALUE, or point to a "
                "function without arguments that builds the model."
            )


def _sizes(source: Source, batch_size: int) -> tuple[int, int]:
    """Inputs and outputs of a network that fits the data.

    Raises:
        ValueError: If they are no numbers with a class or numbers as the target of each.
    """
    drawn = source.batches(batch_size, 1, torch.Generator().manual_seed(0))
    batch = next(drawn)
    if not is_pair(batch):
        raise _needs_target(source, f"a {type(batch).__name__} of {shapes(batch)}")
    if not batch[0].is_floating_point():
        raise _needs_target(source, f"inputs of {batch[0].dtype}")
    x, y = batch
    if source.classes is not None:
        return x[0].numel(), source.classes
    if y.is_floating_point():
        return x[0].numel(), y[0].numel()
    if y.ndim != 1:
        raise _needs_target(source, f"targets of shape {list(y.shape)}")
    if isinstance(source, Samples):
        return x[0].numel(), int(source.targets.max()) + 1
    # One batch of ten may lack the last class of ten.
    seen = source.batches(batch_size, _SEEN, torch.Generator().manual_seed(0))
    return x[0].numel(), max(int(targets.max()) for _, targets in seen) + 1


def _needs_target(source: Source, found: str) -> ValueError:
    return ValueError(
        "the default model takes pairs of float inputs and their classes or numbers, but "
        f"{source.name} yields {found}. Give a TARGET of yours, file.py:factory, that takes them."
    )


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
            f"{spec} is {with_article(type(found).__name__)}; a loss is a function of (model, "
            "batch)."
        )
    return found


def choose_optimizer(spec: str | None) -> OptimizerOf | None:
    """Return the user's own optimiser, or None without one and for a name that trainings know.

    Raises:
        ValueError: If the name is unknown or does not lead to a callable.
    """
    if spec is None or spec in OPTIMIZERS:
        return None
    if ":" not in spec:
        raise ValueError(
            f"unknown optimizer {spec!r}; known are {', '.join(OPTIMIZERS)}, and file.py:name of "
            f"a function of the model.{closest(spec, OPTIMIZERS)}"
        )
    found = resolve(spec)
    if not callable(found):
        raise ValueError(
            f"{spec} is {with_article(type(found).__name__)}; an optimizer is given as a function "
            "of the model."
        )
    return cast(OptimizerOf, found)


def _keyword(argument: str) -> tuple[str, Any]:
    name, equals, text = argument.partition("=")
    if not equals or not name.isidentifier():
        raise ValueError(f"--arg takes NAME=VALUE, such as depth=50, got {argument!r}.")
    try:
        return name, ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return name, text
