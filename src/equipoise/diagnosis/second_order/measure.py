"""What second-order pooling layers do to the spectrum of their features, and what they cost."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.diagnosis.second_order.matrices import (
    Call,
    Layer,
    direction,
    matrices,
    own_run,
    pooling_layers,
    recorded_calls,
)
from equipoise.diagnosis.second_order.record import MatrixSpectrum, SecondOrderPooling
from equipoise.instrument.clock import wait_for
from equipoise.instrument.random_states import seeded
from equipoise.instrument.snapshot import untouched
from equipoise.instrument.types import LossFunction
from equipoise.records.estimate import Estimate

# Samples whose matrices are decomposed: 512 channels take 0.05 s each on a CPU.
_SAMPLES = 16
_TOP = 5
_TURNS = 7
# Ticks of the clock that a whole pass takes, at least.
_TICKS = 4


def second_order(
    model: nn.Module, batch: Any, loss: LossFunction
) -> tuple[SecondOrderPooling, ...]:
    r"""Measure every second-order pooling layer, and leave the model bit-identical.

    Reported are the spectra of each sample's second moments :math:`B = F^\top F / N` and of the
    matrix that the layer makes of them; the share
    :math:`\hat v^\top B\hat v / \operatorname{tr} B` and the eigen-residual of the direction
    :math:`\hat v` that RUN shrinks or would shrink; and the layer's part of the time of a forward
    and backward pass.

    Args:
        model: In the mode it is trained in.
        batch: What the loss takes.
        loss: ``loss(model, batch)``.

    Returns:
        One record per layer, in the model's order; none if there is no such layer.

    Examples:
        >>> from equipoise.pooling import RUNPool
        >>> model = nn.Sequential(RUNPool(2, eta=1.0, start="mean"), nn.Linear(3, 1))
        >>> maps = torch.tensor([[[[2.0, 0.0]], [[0.0, 1.0]]]])
        >>> found, = second_order(model, maps, lambda model, x: model(x).sum())
        >>> [round(share, 2) for share in found.before.top], round(found.eigen_residual, 2)
        ([0.8, 0.2], 0.02)

    References:
        [yu2020]
    """
    layers = pooling_layers(model)
    if not layers:
        return ()
    # The cost includes the backward pass, even if the caller has disabled gradients.
    with untouched(model), torch.enable_grad():
        parameters = [p for p in model.parameters() if p.requires_grad]

        def whole() -> Tensor:
            with seeded(0):
                return loss(model, batch)

        with recorded_calls(list(layers.values())) as calls:
            value = whole()
        upstream = _upstream(value, calls)

        def pass_through() -> None:
            torch.autograd.grad(whole(), parameters, allow_unused=True)

        return tuple(
            _measure(name, layer, calls[layer], upstream[layer], pass_through)
            for name, layer in layers.items()
        )


def _upstream(value: Tensor, calls: dict[Layer, list[Call]]) -> dict[Layer, list[Tensor | None]]:
    """Gradient of the loss with respect to every output; None where no gradient passes."""
    outputs = [call.output for found in calls.values() for call in found]
    graded = [output for output in outputs if output.requires_grad and value.requires_grad]
    found = torch.autograd.grad(value, graded, allow_unused=True) if graded else ()
    by_output = {id(output): one for output, one in zip(graded, found, strict=True)}
    return {
        layer: [by_output.get(id(call.output)) for call in one] for layer, one in calls.items()
    }


def _measure(
    name: str,
    layer: Layer,
    calls: list[Call],
    upstream: list[Tensor | None],
    whole: Callable[[], None],
) -> SecondOrderPooling:
    if len(calls) != 1:
        return _not_measured(name, layer, f"it ran {len(calls)} times in a forward pass")
    (call,), (gradient,) = calls, upstream
    if not bool(torch.isfinite(call.features).all()):
        return _not_measured(name, layer, "its features are not finite")
    if call.features.shape[-2] == 0:
        return _not_measured(name, layer, "it has no positions")
    features = call.features[:_SAMPLES]
    mask = None if call.mask is None else call.mask[:_SAMPLES]
    before, after = matrices(layer, features, mask)
    found = direction(layer, features, mask)
    unit = torch.finfo(call.args[0].dtype).eps
    reason = (
        None if gradient is not None else "no gradient passes through it, so its cost is unknown"
    )
    return SecondOrderPooling(
        layer=name,
        kind=type(layer).__name__,
        samples=len(features),
        positions=features.shape[-2],
        channels=features.shape[-1],
        before=_spectrum(before, unit),
        after=_spectrum(after, unit),
        direction_share=float(found.share.median()),
        eigen_residual=float(found.residual.median()),
        shrinks=own_run(layer) is not None,
        cost=None if gradient is None else _cost(layer, call, gradient, whole),
        reason=reason,
    )


def _not_measured(name: str, layer: Layer, reason: str) -> SecondOrderPooling:
    kind, nan = type(layer).__name__, math.nan
    shrinks = own_run(layer) is not None
    return SecondOrderPooling(name, kind, 0, 0, 0, None, None, nan, nan, shrinks, None, reason)


def _spectrum(matrix: Tensor, unit: float) -> MatrixSpectrum:
    """Medians over samples; a zero matrix has rank 0 and no condition number."""
    values = torch.linalg.eigvalsh(matrix.detach().double()).abs()
    values = values.sort(dim=-1, descending=True).values  # [samples, D]
    kept = values > values.shape[-1] * unit * values[:, :1]
    smallest = torch.where(kept, values, math.inf).amin(-1)
    shares = values / values.sum(-1, keepdim=True)
    return MatrixSpectrum(
        top=tuple(shares[:, :_TOP].nanmedian(0).values.tolist()),
        condition=float((values[:, 0] / smallest).median()) if kept.any() else math.nan,
        rank=float(kept.sum(-1).double().median()),
    )


def _cost(layer: Layer, call: Call, gradient: Tensor, whole: Callable[[], None]) -> Estimate:
    """Time of the layer alone over that of a whole pass, measured in turns."""
    leaf, *others = (arg.detach() for arg in call.args if isinstance(arg, Tensor))
    leaf.requires_grad_()
    inputs = [leaf, *(p for p in layer.parameters() if p.requires_grad)]

    def alone() -> None:
        torch.autograd.grad(layer(leaf, *others), inputs, gradient, allow_unused=True)

    times = 1  # how often both are done in a turn, where the clock is coarse; this warms up, too
    while _seconds(whole, times, leaf.device) < _TICKS * _clock(leaf.device).resolution:
        times *= 2
    _seconds(alone, times, leaf.device)
    ratios = []
    for _ in range(_TURNS):
        part = _seconds(alone, times, leaf.device)
        ratios.append(part / _seconds(whole, times, leaf.device))
    # The standard error of a median of normal values is 1.25 times that of their mean.
    error = 1.25 * statistics.stdev(ratios) / math.sqrt(len(ratios))
    return Estimate(statistics.median(ratios), error, f"CPU time, {_TURNS} turns")


@dataclass(frozen=True, slots=True)
class _Clock:
    now: Callable[[], float]
    resolution: float


def _clock(device: torch.device) -> _Clock:
    """CPU time, which other programs do not lengthen; elsewhere, elapsed time."""
    if device.type == "cpu":
        return _Clock(time.process_time, time.get_clock_info("process_time").resolution)
    return _Clock(time.perf_counter, time.get_clock_info("perf_counter").resolution)


def _seconds(work: Callable[[], None], times: int, device: torch.device) -> float:
    clock = _clock(device)
    wait_for(device)
    begin = clock.now()
    for _ in range(times):
        work()
    wait_for(device)
    return clock.now() - begin
