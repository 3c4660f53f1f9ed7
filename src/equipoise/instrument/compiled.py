"""Run what a model was compiled from, where hooks must be seen and values may change."""

from __future__ import annotations

import contextlib

import torch
from torch import nn


def eager(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Inside the block no compiled code runs, if any part of the model is compiled.

    Compiled code skips hooks or compiles them in, and need not notice that parameters and
    buffers were exchanged. Code compiled before serves again after the block.

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
