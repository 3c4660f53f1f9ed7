"""Compiled models: run them uncompiled, so that hooks run and values may change."""

from __future__ import annotations

import contextlib

import torch
from torch import nn


def eager(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Run the model uncompiled inside the block, if any part of it is compiled.

    Compiled code skips hooks or compiles them in, and may not notice that parameters and buffers
    were exchanged. After the block, code compiled before is used again.

    Examples:
        >>> model = nn.Linear(2, 1)
        >>> type(eager(model)).__name__
        'nullcontext'
    """
    if any(
        hasattr(module, "_orig_mod") or module._compiled_call_impl is not None
        for module in model.modules()
    ):
        stance: contextlib.AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
        return stance
    return contextlib.nullcontext()


def uncompiled_name(name: str) -> str:
    """The name that a module or parameter had before its model was compiled.

    Examples:
        >>> uncompiled_name("_orig_mod.encoder.weight")
        'encoder.weight'
    """
    return ".".join(part for part in name.split(".") if part != "_orig_mod")
