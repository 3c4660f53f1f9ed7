r"""Condition numbers of the inputs of layers.

The Hessian of the loss with respect to one output unit's bias and weights is
:math:`\hat H^T S \hat H` with :math:`\hat H = [\mathbf 1, H]`, where H has one row of inputs per
sample (and output position). Batch normalisation preconditioning centres and scales the columns
of H.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.instrument import modules
from equipoise.instrument.forward import (
    first_tensor,
    rows_of,
    run_on_batch,
    within_transform,
)
from equipoise.instrument.kept_batches import apart
from equipoise.instrument.snapshot import untouched
from equipoise.instrument.types import Progress
from equipoise.instrument.unfold import unfold
from equipoise.numerics.checks import check_positive, check_whole
from equipoise.numerics.conditioning import ExtendedSpectra, extended_spectra
from equipoise.numerics.options import named_options
from equipoise.numerics.precision import widest
from equipoise.probes.record import LayerConditioning

# Multiplications of three decompositions of a matrix, over rows·columns².
_DECOMPOSITION = 10.0
_FEWEST_ROWS = 32
# With fewer rows the smallest singular values are those of the sample: twice as many Gaussian rows
# as columns have a condition number of (√2 + 1)/(√2 - 1) = 5.8 by chance alone, as many as columns
# one of thousands. So have half as many, on their range.
ROWS_PER_COLUMN = 2
# Of a grouped convolution, the groups that are measured where the effort is limited: of all rows,
# and of a sample.
_MOST_GROUPS, _GROUPS = 16, 4
# Larger Gram matrices take minutes to diagonalise on a CPU.
_LARGEST = 4096
# Most numbers of Ĥ in memory at once; in float64, 1 GiB.
_MOST_ENTRIES = 2**27

# Calls of a layer that are looked at, where inputs of the first are constant.
_CALLS = 2


@named_options
def conditioning(
    model: nn.Module,
    batch: Any,
    *,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    largest: int = _LARGEST,
    effort: float | None = None,
    progress: Progress | None = None,
) -> tuple[LayerConditioning, ...]:
    r"""Condition number of every linear and convolutional layer's extended input matrix.

    With U centring the columns and D dividing them by their standard deviations,

    .. math:: \kappa(\hat H), \quad \kappa(\hat H U), \quad \kappa(\hat H U D), \quad \kappa(D),

    each the ratio of the largest to the smallest *nonzero* singular value; singular values that
    rounding of the activations explains count as zero. A batch with fewer rows than columns leaves
    singular values at zero: they are counted, and the condition number is that on the range.

    Args:
        model: Any module; it runs once, in the mode it is in, and is left bit-identical.
        batch: What the user's loader yields.
        forward: ``forward(model, batch)`` runs the model; by default the model is called with
            the batch, with its first element if it is a tuple or list, or with keywords if it
            is a mapping.
        largest: Layers whose smaller side, rows or columns, exceeds this are skipped.
        effort: Multiplications that all layers together may take; where a layer would take more
            than its share of what is left, a random sample of rows is measured, at least twice
            as many as columns or at most half as many, and of many groups of a convolution some.
            By default all are.
        progress: Called with the stage, finished layers and their total number.

    Returns:
        One record per layer, in order of execution; a layer that runs more than once is
        measured at its first call, or at the second if fewer of its inputs are constant there, as
        those of recurrent layers are before the first step. For a convolution, H is the unfolded
        input, and the worst conditioned of its groups is reported.

    Raises:
        ValueError: If ``largest`` is less than 2, or ``effort`` is not positive.

    Examples:
        >>> layer = nn.Linear(2, 1)
        >>> (record,) = conditioning(layer, torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, -2.0]]))
        >>> record.rows, record.columns, round(record.scaled, 3)
        (3, 3, 3.732)

    References:
        [lange2022], Sections 2 and 3.
    """
    check_whole("largest", largest, 2)
    if effort is not None:
        check_positive(effort=effort)
    watched: dict[nn.Module, str] = {
        module: name
        for module, name in modules.names(model).items()
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd)
    }
    found: dict[nn.Module, LayerConditioning] = {}
    calls: dict[nn.Module, int] = {}
    left = effort

    def hook(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        nonlocal left
        inputs = first_tensor(args, kwargs)
        # A copy that the model makes of itself has its hooks, too.
        is_watched = module in watched and calls.get(module, 0) < _CALLS
        before = found.get(module)
        is_first = before is None or before.constant_features > 0
        if is_watched and is_first and inputs is not None and not within_transform():
            calls[module] = calls.get(module, 0) + 1
            share = None if left is None else left / max(1, len(watched) - len(found))
            rows = rows_of(inputs.detach())
            dense = rows if rows.layout is torch.strided else rows.to_dense()
            one = _measure(watched[module], module, dense, output, largest, share)
            has_fewer = before is not None and one.constant_features < before.constant_features
            if before is None or (has_fewer and one.skipped is None):
                found[module] = one
            if left is not None and share is not None and one.skipped is None:
                smaller = min(one.rows, one.columns)
                left -= min(share, _DECOMPOSITION * one.rows * one.columns * smaller)
            if progress is not None:
                progress("measuring conditioning", len(found), len(watched))

    with ExitStack() as hooks, untouched(model), torch.no_grad():
        for module in watched:
            hooks.enter_context(module.register_forward_hook(hook, with_kwargs=True))
        run, given = apart(forward or run_on_batch, batch)
        run(model, given)
    return tuple(found.values())


def _measure(
    name: str, module: nn.Module, inputs: Tensor, output: Any, largest: int, effort: float | None
) -> LayerConditioning:
    kind = type(module).__name__
    if not inputs.ndim or not inputs.numel():
        raise ValueError(
            f"{name or kind} is given {'no rows' if inputs.ndim else 'a number'} instead of rows "
            "of features. Give a batch with samples."
        )
    if inputs.is_complex():
        return _skipped(name, kind, 0, 0, "its inputs are complex numbers")
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        return _skipped(name, kind, 0, 0, "transposed convolutions have no unfolded matrix")
    if isinstance(module, nn.modules.conv._ConvNd):
        if inputs.ndim == len(module.kernel_size) + 1:
            inputs, output = inputs[None], output[None]  # a single sample
        features = module.weight[0].numel()
        positions = _positions(module, inputs)
        if positions is None or positions != output.shape[2:]:
            reason = "its forward method pads or changes the input before the convolution"
            return _skipped(name, kind, 0, features + 1, reason)
        rows = len(inputs) * positions.numel()
    else:
        features = inputs.shape[-1]
        rows = inputs.numel() // features
    taken = rows if effort is None else _affordable(rows, features, effort)
    if taken < rows:
        return _sampled(name, module, inputs, rows, features, taken)
    if min(rows, features) > largest or rows * features > _MOST_ENTRIES:
        reason = f"{rows} × {features} is beyond the limit of {largest}"
        return _skipped(name, kind, rows, features + 1, reason)
    exact = widest(inputs.device)
    if isinstance(module, nn.modules.conv._ConvNd):
        matrices = unfold(module, inputs.to(exact))  # [groups, rows, features]
    else:
        matrices = inputs.to(exact).reshape(1, rows, features)
    if not torch.isfinite(matrices).all():
        return _skipped(name, kind, rows, features + 1, "its inputs are not finite")
    unit = torch.finfo(inputs.dtype).eps
    if effort is not None:
        matrices = matrices[:: -(-len(matrices) // _MOST_GROUPS)]
    spectra = [extended_spectra(matrix, unit=unit) for matrix in matrices]
    worst = max(spectra, key=lambda s: s.raw)
    return _record(name, kind, rows, features + 1, worst)


def _affordable(rows: int, columns: int, effort: float) -> int:
    """How many rows can be decomposed, three times in three forms, with so many multiplications.

    Examples:
        >>> _affordable(10**6, 100, 2e7), _affordable(50, 100, 1e7)
        (200, 50)
        >>> _affordable(10**6, 100, 1e7)  # 100 rows would have a condition number of their own
        50
    """
    many = effort / (_DECOMPOSITION * columns**2)  # with more rows than columns
    few = (effort / (_DECOMPOSITION * columns)) ** 0.5
    if min(many, rows) < ROWS_PER_COLUMN * columns and many < rows:
        many = min(few, columns / ROWS_PER_COLUMN)
    return min(rows, max(_FEWEST_ROWS, int(many)))


def _sampled(
    name: str, module: nn.Module, inputs: Tensor, rows: int, features: int, taken: int
) -> LayerConditioning:
    kind, generator = type(module).__name__, torch.Generator().manual_seed(0)
    chosen = torch.randint(rows, (taken,), generator=generator, device="cpu")
    chosen = torch.unique(chosen)
    order = torch.randperm(len(chosen), generator=generator, device="cpu")
    chosen = chosen[order].to(inputs.device)
    if isinstance(module, nn.modules.conv._ConvNd):
        matrices = unfold(module, inputs, chosen)
    else:
        matrices = inputs.reshape(1, rows, features)[:, chosen]
    if not torch.isfinite(matrices).all():
        return _skipped(name, kind, rows, features + 1, "its inputs are not finite")
    unit = torch.finfo(inputs.dtype).eps
    exact = matrices.to(widest(inputs.device))
    spectra = [extended_spectra(matrix, unit=unit) for matrix in exact[:_GROUPS]]
    number = max(range(len(spectra)), key=lambda i: spectra[i].raw)
    worst = spectra[number]
    part = len(chosen) // 2
    if len(chosen) > features:  # half of them may be about as many as columns
        part = max(part, 3 * features // 2)
    half = extended_spectra(exact[number, :part], unit=unit)
    record = _record(name, kind, len(chosen), features + 1, worst)
    error = abs(math.log(worst.raw / half.raw))
    return replace(record, sampled_from=rows, sampling_error=error)


def _positions(module: nn.modules.conv._ConvNd, inputs: Tensor) -> torch.Size | None:
    """Shape of the map that the convolution makes of its input; None if it cannot take it."""
    try:
        with torch.no_grad():
            weight = module.weight.to("meta")
            return module._conv_forward(inputs[:1].to("meta"), weight, None).shape[2:]
    except RuntimeError:
        return None


def _record(
    name: str, kind: str, rows: int, columns: int, spectra: ExtendedSpectra
) -> LayerConditioning:
    return LayerConditioning(
        layer=name,
        kind=kind,
        rows=rows,
        columns=columns,
        raw=spectra.raw,
        centred=spectra.centred,
        scaled=spectra.scaled,
        scale_spread=spectra.scale_spread,
        zero_singular_values=columns - spectra.rank,
        constant_features=spectra.constant_features,
        method=spectra.method,
    )


def _skipped(name: str, kind: str, rows: int, columns: int, reason: str) -> LayerConditioning:
    nan = float("nan")
    return LayerConditioning(name, kind, rows, columns, nan, nan, nan, nan, 0, 0, "none", reason)
