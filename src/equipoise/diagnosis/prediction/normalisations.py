"""Read a recorded normalisation: its input, the axes it normalises over, its parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from equipoise.instrument.forward import first_tensor
from equipoise.instrument.recording.operations import Operation
from equipoise.instrument.snapshot import untouched
from equipoise.theory.simulation.networks import Normaliser

_ARGUMENTS = {
    "batch_norm": (
        "input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps",
    ),
    "layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
    "rms_norm": ("input", "normalized_shape", "weight", "eps"),
    "group_norm": ("input", "num_groups", "weight", "bias", "eps"),
    "instance_norm": (
        "input", "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum",
        "eps",
    ),
}  # fmt: skip
# torch.batch_norm takes its arguments in another order than torch.nn.functional.batch_norm.
_PLAIN_BATCH_NORM = (
    "input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Normalisation:
    """One call of a normaliser.

    Args:
        normaliser: Which kind.
        given: Its input.
        weight: Its scales, if any.
        bias: Its shifts, if any.
        eps: Its ε.
        rows: For batch norm, the rows that share statistics; otherwise rows that are normalised
            separately.
        features: Channels, or features that are normalised together.
        group_size: Features per group of group norm.
        reason: Why theory does not apply; ``None`` if it does.
    """

    normaliser: Normaliser
    given: Tensor
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    rows: int
    features: int
    group_size: int | None = None
    reason: str | None = None

    @property
    def is_convolution(self) -> bool:
        """Whether batch statistics run over positions of feature maps."""
        return self.normaliser == "batch norm" and self.given.ndim > 2


def is_normalisation(operation: Operation) -> bool:
    """Whether an operation is one that :func:`read` understands."""
    return operation.name in _ARGUMENTS


def read(operation: Operation) -> Normalisation:
    """Bind the arguments of a recorded normalisation."""
    plain = operation.function is torch.batch_norm
    names = _PLAIN_BATCH_NORM if plain else _ARGUMENTS[operation.name]
    bound = dict(zip(names, operation.arguments, strict=False)) | operation.keywords
    given = cast(Tensor, bound["input"])
    features, group_size, reason = _features(operation.name, bound, given)
    eps = bound.get("eps", 1e-5)
    if eps is None:  # rms_norm's default
        eps = torch.finfo(given.dtype).eps
    return Normalisation(
        normaliser=cast("Normaliser", operation.name.replace("_", " ")),
        given=given,
        weight=bound.get("weight"),
        bias=bound.get("bias"),
        eps=float(eps),
        rows=given.numel() // features,
        features=features,
        group_size=group_size,
        reason=reason,
    )


def batch_covariance(
    model: nn.Module, batch: Any, forward: Callable[[nn.Module, Any], Any], norm: nn.Module
) -> NDArray[np.float64]:
    """Second moments of a batch's rows at a normaliser's input, mean over channels.

    Returns:
        A matrix of shape ``[rows, rows]``. The model does not change.
    """
    found: list[Tensor] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        h = first_tensor(args, kwargs)
        if h is not None and not found:
            rows = h.detach().double().movedim(1, -1).reshape(-1, h.shape[1])
            found.append(rows @ rows.T / h.shape[1])

    handle = norm.register_forward_pre_hook(note, with_kwargs=True)
    try:
        with untouched(model), torch.no_grad():
            forward(model, batch)
    finally:
        handle.remove()
    return np.asarray(found[0].cpu().numpy())


def _features(
    name: str, bound: dict[str, Any], given: Tensor
) -> tuple[int, int | None, str | None]:
    """Features, group size, and why theory does not apply, or None if it does."""
    if name == "batch_norm":
        in_training = bound.get("training", False)
        evaluating = "it normalises by running statistics, as in evaluation"
        return given.shape[1], None, None if in_training else evaluating
    if name == "instance_norm":
        reason = "instance norm takes its statistics over the positions of one sample"
        return given.shape[1], None, reason
    if name == "group_norm":
        return given.shape[1], *_groups(given, int(bound["num_groups"]))
    shape = cast("Sequence[int]", bound["normalized_shape"])
    features = 1
    for size in shape:
        features *= size
    return features, None, None


def _groups(given: Tensor, groups: int) -> tuple[int, str | None]:
    size = given.shape[1] // groups
    if given.ndim > 2:
        return size, "group norm over positions of feature maps, for which no theory is derived"
    if size < 4:
        return size, f"groups of {size} features are too small: group norm needs at least 4"
    return size, None
