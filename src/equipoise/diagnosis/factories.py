"""What a factory of models returns, refused where nothing could be done with it."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from equipoise.diagnosis.inputs.adapt import warm_up
from equipoise.diagnosis.refusals import failed
from equipoise.instrument.batches import tensors
from equipoise.instrument.criteria import needed_arguments
from equipoise.instrument.kept_batches import copied
from equipoise.instrument.random_states import seeded
from equipoise.instrument.types import Batch
from equipoise.records.wording import first_sentence, said

_WEIGHTED = (nn.Linear, _ConvNd)


def printing_once(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A factory that prints when it is first called, and not for every initialisation."""
    has_built = False

    @functools.wraps(build, updated=())
    def quiet() -> nn.Module:
        nonlocal has_built
        again = (
            contextlib.redirect_stdout(io.StringIO()) if has_built else contextlib.nullcontext()
        )
        with again:
            model = build()
        has_built = True
        return model

    return quiet


def built(build: Callable[[], nn.Module]) -> nn.Module:
    """Call a factory.

    Raises:
        ValueError: If it raises, or returns what is no module that can be listed, measured and
            trained.
    """
    try:
        model = build()
    except (Exception, SystemExit) as error:  # an exit would end the check-up without a word
        raise ValueError(f"the model factory raised {said(error)} {_remedy(build)}") from error
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"the model factory returned {type(model).__name__}, not a torch.nn.Module. Point "
            "to a callable that builds and returns the model."
        )
    try:
        modules = list(model.named_modules())
    except RecursionError as error:
        raise ValueError(
            "the model's modules are nested too deep for PyTorch to list them. Put them side by "
            "side in one nn.Sequential."
        ) from error
    except TypeError as error:  # PyTorch keeps modules in sets
        raise ValueError(
            f"PyTorch cannot list the model's modules: {first_sentence(error)} A class that "
            "defines __eq__ needs __hash__ too, such as __hash__ = nn.Module.__hash__."
        ) from error
    kinds = ("parameter", model.named_parameters()), ("buffer", model.named_buffers())
    for kind, named in kinds:
        for name, tensor in named:
            if tensor.is_meta:
                raise ValueError(
                    f"the model's {kind} {name!r} is on the meta device and holds no numbers. "
                    "Build the model on a real device, or call to_empty() and initialise it."
                )
            lazy = isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer)
            if kind == "parameter" and not lazy and tensor.is_inference():
                raise ValueError(
                    f"the model's parameter {name!r} was made under torch.inference_mode() and "
                    "cannot be trained. Build the model outside of it."
                )
    for name, module in modules:
        weight = getattr(module, "weight", None) if isinstance(module, _WEIGHTED) else None
        lazy = isinstance(weight, nn.UninitializedParameter)
        if isinstance(weight, nn.Parameter) and not lazy and not weight.numel():
            raise ValueError(
                f"layer {name!r} has a weight of shape {list(weight.shape)}: nothing flows "
                "through it. Give it at least one feature on either side."
            )
    return model


def _remedy(build: Callable[[], nn.Module]) -> str:
    if needed_arguments(build):
        return (
            "It is called without arguments: give the model itself, or a function that builds it, "
            "such as lambda: Model(config)."
        )
    return (
        "Call it by hand with the same arguments to see where, and twice if it works once: it may "
        "change a configuration it is given."
    )


def fresh(build: Callable[[], nn.Module], batch: Batch, seed: int | None = None) -> nn.Module:
    """Call the factory and move the model to the batch's device; lazy layers take its shapes.

    Args:
        build: The factory.
        batch: A batch that the model takes.
        seed: Seed to build with; by default the current random state.

    Raises:
        ValueError: If the factory raises, or does not return a module.
    """
    with seeded(seed) if seed is not None else contextlib.nullcontext():
        device = next((x.device for x in tensors(batch)), torch.device("cpu"))
        model = _moved(built(build), device)
        if any(isinstance(p, nn.UninitializedParameter) for p in model.parameters()):
            try:
                warm_up(model, copied(batch))
            except Exception as error:
                raise failed(batch, "the data", error) from error
        return model


def _moved(model: nn.Module, device: torch.device) -> nn.Module:
    try:
        return model.to(device)
    except RecursionError as error:
        raise ValueError(
            "the model's modules are nested too deep, or one is inside itself, such as a parent "
            "that a child keeps as an attribute. Keep it in a list there, or as a weak reference."
        ) from error


def draws_new_weights(model: nn.Module, other: nn.Module) -> bool:
    """Whether two calls of a factory gave different weights; a factory with a checkpoint does not.

    Raises:
        ValueError: If they gave different architectures.
    """
    mine, others = (
        {name: x.shape for name, x in (*m.named_parameters(), *m.named_buffers())}
        for m in (model, other)
    )
    if mine != others:
        raise ValueError(
            "the model factory returned another architecture when it was called again. Make it "
            "build the same layers each time; only weights may be random."
        )
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return any(not torch.equal(p.detach(), q.detach()) for p, q in pairs)
