r"""What batch normalisation preconditioning would do to each layer's condition number.

The literature gives the gain as κ(D)², which is neither an estimate nor a bound: inputs have a
lower rank than columns, ε limits the scales, and preconditioning does not change the curvature S
of the loss. So the Hessian of one output unit is measured, before and after, where possible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from equipoise import preconditioners
from equipoise.diagnosis.preconditioning.record import LayerPreconditioning
from equipoise.diagnosis.preconditioning.sizes import (
    MOST_ENTRIES,
    MOST_POSITIONS,
    Layer,
    recorded_inputs,
    rows_of,
    single_layers,
)
from equipoise.instrument.batches import cast as cast_batch
from equipoise.instrument.copies import copied
from equipoise.instrument.progress import silent
from equipoise.instrument.random_states import seeded
from equipoise.instrument.snapshot import untouched
from equipoise.instrument.types import LossFunction, Progress
from equipoise.preconditioners.bnp.layer import WatchedLayer
from equipoise.preconditioners.bnp.settings import Settings
from equipoise.preconditioners.hessian.conditions import BlockConditions
from equipoise.preconditioners.hessian.preconditioner import Preconditioner, extended, im2col
from equipoise.records.wording import first_sentence

# A unit before a ReLU may be dead; then the next one is measured.
_UNITS = 4
_EPS = Settings().eps


def preconditioning(
    model: nn.Module,
    batch: Any,
    loss: LossFunction,
    *,
    hessian: bool = True,
    progress: Progress = silent,
) -> tuple[LayerPreconditioning, ...]:
    """Measure every layer that the preconditioner would use, and leave the model bit-identical.

    Args:
        model: In the mode it is trained in. Where samples share batch statistics on their way
            to the loss the Hessian does not have the form ĤᵀSĤ, and only inputs are measured.
        batch: What the loss takes.
        loss: ``loss(model, batch)``.
        hessian: Whether the Hessian of one unit is measured too, which takes the longest.
        progress: Called with a stage, finished and total layers.

    Returns:
        One record per layer, in the model's order.
    """
    model, batch = _in_float64(model, batch, loss)
    single = single_layers(model)
    found = []
    with untouched(model):

        def run() -> Tensor:
            # The same noise every time, so that inputs and curvature belong to one function.
            with seeded(0):
                return loss(model, batch)

        inputs = recorded_inputs(single, run)
        for number, layer in enumerate(single, start=1):
            found.append(_measure(layer, inputs.get(layer.name, ()), run if hessian else None))
            progress("preconditioning", number, len(single))
    return tuple(found)


def _in_float64(model: nn.Module, batch: Any, loss: LossFunction) -> tuple[nn.Module, Any]:
    """A copy in float64, where small singular values are not lost in rounding.

    Models that cannot be copied, or that mix in tensors of another type, are measured in their
    own type, and the record says so.
    """
    if any(p.device.type == "mps" for p in model.parameters()):
        return model, batch  # has no float64
    try:
        with seeded(0), torch.no_grad():
            twin = copied(model).double()
            wide = cast_batch(batch, torch.float64)
            with untouched(twin):
                loss(twin, wide)
    except Exception:  # users' code may raise anything
        return model, batch
    return twin, wide


def _measure(
    watched: WatchedLayer, calls: Sequence[Tensor], run: Callable[[], Tensor] | None
) -> LayerPreconditioning:
    layer = cast(Layer, watched.modules[0])
    bias = layer.bias is not None
    columns = layer.weight[0].numel() + bias
    if len(calls) != 1:
        return _not_measured(watched, 0, columns, f"it ran {len(calls)} times in a forward pass")
    (fed,) = calls
    rows = rows_of(layer, fed)
    if rows * columns > MOST_ENTRIES:
        return _not_measured(watched, rows, columns, f"{rows} × {columns} inputs are too many")
    if not bool(torch.isfinite(fed).all()):
        return _not_measured(watched, rows, columns, "its inputs are not finite")
    matrix = extended(_features(layer, fed), bias=bias)
    statistics = _statistics(layer, fed)
    transform = preconditioners.preconditioner(statistics, eps=_EPS, bias=bias)
    raw = preconditioners.preconditioner(statistics, bias=bias).scaling()
    unit = torch.finfo(fed.dtype).eps
    before = preconditioners.condition(matrix, rounding=unit)
    after = preconditioners.condition(transform.normalise(matrix), rounding=unit)
    hessian, reason = (
        (None, "asked for by hessian=True")
        if run is None
        else _hessian(layer, transform, rows // len(fed), run)
    )
    return LayerPreconditioning(
        layer=watched.name,
        kind=type(layer).__name__,
        rows=rows,
        columns=columns,
        rank=before.rank,
        inputs=before.value,
        inputs_after=after.value,
        promised=float(raw.max() / raw.min()) ** 2,
        hessian=math.nan if hessian is None else hessian.raw.value,
        hessian_after=math.nan if hessian is None else hessian.preconditioned.value,
        hessian_rank=0 if hessian is None else hessian.raw.rank,
        curvature=math.nan if hessian is None else hessian.curvature.value,
        reason=reason,
        computed_in=str(fed.dtype).removeprefix("torch."),
    )


def _not_measured(
    watched: WatchedLayer, rows: int, columns: int, reason: str
) -> LayerPreconditioning:
    kind, nan = type(watched.modules[0]).__name__, math.nan
    return LayerPreconditioning(
        watched.name, kind, rows, columns, 0, nan, nan, nan, nan, nan, 0, nan, reason
    )


def _features(layer: Layer, fed: Tensor) -> Tensor:
    """The rows of inputs; for a convolution, those of its first group."""
    if isinstance(layer, nn.Linear):
        return fed.reshape(-1, fed.shape[-1])
    return im2col(layer, fed)


def _statistics(layer: Layer, fed: Tensor) -> preconditioners.ColumnStatistics:
    if isinstance(layer, nn.Linear):
        return preconditioners.column_statistics(_features(layer, fed))
    return preconditioners.tap_statistics(layer, fed, exact=False)


def _hessian(
    layer: Layer,
    transform: Preconditioner,
    positions: int,
    run: Callable[[], Tensor],
) -> tuple[BlockConditions | None, str | None]:
    """Condition numbers of the first unit with any curvature, or why there are none."""
    if positions > MOST_POSITIONS:
        return None, f"curvature over {positions} output positions is beyond {MOST_POSITIONS}"
    for unit in range(min(_UNITS, layer.weight.shape[0])):
        if isinstance(layer, _ConvNd) and unit >= layer.out_channels // layer.groups:
            break  # the statistics are those of the first group
        try:
            block = preconditioners.hessian_block(layer, run, unit=unit)
        except (ValueError, RuntimeError) as error:
            return None, _short_reason(error)
        if bool(block.curvature.any()):
            return preconditioners.block_conditions(block, transform), None
    return None, "its first units have no curvature"


def _short_reason(error: Exception) -> str:
    text = first_sentence(error).removesuffix(".")
    if "influence each other" in text:
        return "samples share batch statistics on their way to the loss"
    return text
