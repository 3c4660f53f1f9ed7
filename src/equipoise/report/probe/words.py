"""What the report of a probe says, whatever it is written on."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from equipoise.diagnosis.smoothness.record import trusted_step
from equipoise.records import wording
from equipoise.report.checkup.words.smoothness import plain, trusted

if TYPE_CHECKING:  # these records import NumPy
    from equipoise.diagnosis.probe import Probe
    from equipoise.probes.covariate_shift import LayerShift
    from equipoise.probes.hessian.record import Hessian, HessianSpectrum
    from equipoise.probes.landscape import Landscape

_ORIGINS = {
    "given": "as you gave it",
    "tuned": "the best of the short training",
    "reference": "a common rate of SGD, as nothing was tuned",
}


def sentence(probe: Probe) -> str:
    """Say in one line what the loss around the weights is like."""
    if probe.landscape is None:
        return "The loss was not probed"
    found = probe.landscape
    if not 0 < found.gradient_norm < math.inf:
        return "The gradient is zero" if found.zero_gradient else "The gradient is not finite"
    step = trusted_step(found.steps, found.gradient_changes or (), found.gradient_norm)
    reach = trusted(step, probe.rate, found.steps)
    reach = reach.replace("< ", "less than ").replace("> ", "more than ")
    return f"The first gradient holds for {reach} steps"


def ratio(found: Landscape) -> list[float]:
    """Gradient changes over the gradient's length."""
    length = found.gradient_norm or math.nan
    return [change / length for change in found.gradient_changes or ()]


def rate(probe: Probe) -> str:
    """Say what a step is."""
    return f"A step is plain SGD at rate {plain(probe.rate)}, {_ORIGINS[probe.rate_origin]}"


def facts(probe: Probe) -> dict[str, str]:
    """Collect what a reader looks up first."""
    found: dict[str, str] = {}
    if probe.landscape is not None:
        found["Loss"] = wording.number(probe.landscape.initial_loss)
        found["Gradient’s length"] = wording.number(probe.landscape.gradient_norm)
        found["Smoothness β"] = wording.number(probe.landscape.beta)
    if probe.shift is not None:
        cosines = [one.cosine for one in probe.shift.layers[1:] if not math.isnan(one.cosine)]
        if cosines:
            found["Covariate shift (mean cosine)"] = f"{statistics.fmean(cosines):.2f}"
    if probe.hessian is not None and probe.hessian.whole is not None:
        found["Largest curvature"] = wording.number(probe.hessian.largest.value)
    if probe.growth is not None and probe.growth.rate is not None:
        found["Gradients per layer"] = wording.factor(probe.growth.rate.value)
    return found


def points(probe: Probe) -> list[tuple[str, ...]]:
    """Put the landscape's points in words."""
    found = probe.landscape
    if found is None:
        return []
    rows = zip(
        found.steps,
        found.losses,
        found.gradient_changes or (),
        ratio(found),
        found.cosines or (),
        strict=True,
    )
    return [
        (
            wording.number(step, 2),
            f"{step / probe.rate:.2f}",
            wording.number(loss, 4),
            wording.number(change),
            wording.number(relative, 2),
            _cosine(cosine),
        )
        for step, loss, change, relative, cosine in rows
    ]


def shift(layer: LayerShift) -> tuple[str, ...]:
    """Put one layer's shift in words: gradient, change, change over gradient, cosine."""
    length = layer.gradient_norm or math.nan
    return (
        wording.number(layer.gradient_norm),
        wording.number(layer.l2),
        wording.number(layer.l2 / length, 2),
        _cosine(layer.cosine),
    )


def blocks(hessian: Hessian) -> list[HessianSpectrum]:
    """All spectra, the whole one first."""
    return [*([hessian.whole] if hessian.whole else []), *hessian.blocks]


def _cosine(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}".replace("-", "−")
