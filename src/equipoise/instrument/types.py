"""The types of a loss function, a batch and a progress callback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor, nn

LossFunction: TypeAlias = Callable[[nn.Module, Any], Tensor]
"""``loss_fn(model, batch)`` returns a scalar."""

Batch: TypeAlias = Any
"""What a loader yields: a pair (input, target), or any nest of tensors."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with the stage, the number of finished steps and that of all steps."""
