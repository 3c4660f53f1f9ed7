"""The words of a probe's report, for terminal and page alike."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from equipoise.diagnosis.smoothness.record import reliable_step
from equipoise.records import wording
from equipoise.report.checkup.words.smoothness import reliable

if TYPE_CHECKING:  # these records import NumPy
    from equipoise.diagnosis.record import Probe
    from equipoise.probes.hessian.record import Hessian, HessianSpectrum
    from equipoise.probes.record import Landscape, LayerShift

_ORIGINS = {
    "given": "as given",
    "tuned": "the best of the short training",
    "reference": "a common one, because nothing was tuned",
}


def sentence(probe: Probe) -> str:
    """Say in one line how far the gradient is reliable."""
    found = probe.landscape
    if found is None:
        return "The loss was not measured"
    if not 0 < found.gradient_norm < math.inf:
        return "The gradient is zero" if found.zero_gradient else "The gradient is not finite"
    step = reliable_step(found.steps, found.gradient_changes or (), found.gradient_norm)
    reach = reliable(step, probe.rate, found.steps)
    reach = reach.replace("< ", "less than ").replace("> ", "more than ")
    return f"At initialisation the gradient is reliable for {reach} steps"


def rate(probe: Probe) -> str:
    """Say what a step is."""
    origin = _ORIGINS[probe.rate_origin]
    return f"A step is one of plain SGD at learning rate {wording.plain(probe.rate)}, {origin}"


def facts(probe: Probe) -> dict[str, str]:
    """Collect what a reader looks up first."""
    found: dict[str, str] = {}
    if probe.landscape is not None:
        found["Loss"] = wording.number(probe.landscape.initial_loss)
        found["Gradient norm"] = wording.number(probe.landscape.gradient_norm)
        found["Effective smoothness β"] = wording.number(probe.landscape.beta)
    if probe.shift is not None:
        cosines = [one.cosine for one in probe.shift.layers[1:] if not math.isnan(one.cosine)]
        if cosines:
            found["Covariate shift (mean cosine)"] = f"{statistics.fmean(cosines):.2f}"
    if probe.hessian is not None and probe.hessian.whole is not None:
        found["Largest curvature"] = wording.number(probe.hessian.largest.value)
    if probe.growth is not None and probe.growth.rate is not None:
        found["Gradients per layer"] = wording.factor(probe.growth.rate.value)
    return found


def points(found: Landscape, unit: float) -> list[tuple[str, ...]]:
    """Describe each point: step, step in learning rates, loss, gradient change, in %, cosine."""
    length = found.gradient_norm or math.nan
    rows = zip(
        found.steps, found.losses, found.gradient_changes or (), found.cosines or (), strict=True
    )
    return [
        (
            wording.number(step, 2),
            f"{step / unit:.2f}",
            wording.number(loss, 4),
            wording.number(change),
            wording.percent(change / length),
            _cosine(cosine),
        )
        for step, loss, change, cosine in rows
    ]


def shift(layer: LayerShift) -> tuple[str, ...]:
    """Describe one layer's shift: gradient, its change, the same in %, cosine."""
    length = layer.gradient_norm or math.nan
    return (
        wording.number(layer.gradient_norm),
        wording.number(layer.l2),
        wording.percent(layer.l2 / length),
        _cosine(layer.cosine),
    )


def blocks(hessian: Hessian) -> list[HessianSpectrum]:
    """All spectra, that of the whole model first."""
    return [*([hessian.whole] if hessian.whole else []), *hessian.blocks]


def _cosine(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}".replace("-", "−")
