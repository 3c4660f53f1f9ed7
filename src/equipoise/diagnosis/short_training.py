"""What the short trainings of a check-up share: optimisers, variants of a model, final losses."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from equipoise.numerics.checks import check_choice, check_size, check_whole
from equipoise.records.estimate import Estimate

MakeOptimizer: TypeAlias = Callable[..., torch.optim.Optimizer]
Attach: TypeAlias = Callable[[nn.Module, torch.optim.Optimizer], AbstractContextManager[Any]]

# Optimisers with the learning rates to try first. A factor of three between rates loses little.
ADAPTIVE: dict[str, tuple[MakeOptimizer, tuple[float, ...]]] = {
    "adam": (torch.optim.Adam, (0.0003, 0.001, 0.003, 0.01)),
    "adamw": (torch.optim.AdamW, (0.0003, 0.001, 0.003, 0.01)),
}
# Rates that may be tried beyond a grid.
EXTENSIONS = 2
# The final loss is the mean over this part of the steps, at least one.
LAST = 0.25
_LEAST_STEPS = 4

UNCHANGED = "unchanged"
NOT_TRAINED = Estimate(math.nan, math.nan, "not trained")


@dataclass(frozen=True, slots=True)
class Variant:
    """How the model, its inputs or its steps are changed before a training.

    Args:
        name: The change in words.
        change_model: Returns a changed copy of a model.
        change_inputs: Transforms the inputs of every batch.
        attach: Attaches something to a model and its optimiser for one training.
    """

    name: str
    change_model: Callable[[nn.Module], nn.Module] = lambda model: model
    change_inputs: Callable[[Tensor], Tensor] = lambda inputs: inputs
    attach: Attach = lambda model, optimizer: contextlib.nullcontext()

    def changed(self, batch: Any) -> Any:
        """Transform the inputs of a pair; other batches stay as they are."""
        if isinstance(batch, tuple) and len(batch) == 2 and isinstance(batch[0], Tensor):
            return self.change_inputs(batch[0]), batch[1]
        return batch


def check_options(
    optimizer: str, optimizers: Mapping[str, object], steps: int, seeds: int
) -> None:
    """Check the options that every short training has.

    Raises:
        ValueError: If the optimiser is unknown, or there are too few steps or seeds.
    """
    check_choice("optimizer", optimizer, optimizers)
    check_whole("steps", steps, _LEAST_STEPS)
    check_size(seeds=seeds)


def mean_over_seeds(losses: Sequence[float]) -> Estimate:
    """Mean and standard error over seeds; infinite if a loss is not finite, NaN without losses.

    Examples:
        >>> print(mean_over_seeds([1.0, 3.0]), mean_over_seeds([1.0, math.inf]))
        2.0 ± 1.0 ∞
    """
    method = "mean over seeds"
    if not losses:
        return Estimate(math.nan, math.nan, method)
    if not all(map(math.isfinite, losses)):
        return Estimate(math.inf, math.nan, method)
    error = statistics.stdev(losses) / math.sqrt(len(losses)) if len(losses) > 1 else math.nan
    return Estimate(statistics.fmean(losses), error, method)
