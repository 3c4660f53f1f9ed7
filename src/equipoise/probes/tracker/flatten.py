"""Convert the records of probes to numbers by name, as loggers take them.

Names have two parts for the model, such as ``ics/cosine``, and three for a layer, such as
``ics/conv2/cosine``. Missing numbers, such as a rate that could not be fitted, are left out;
numbers that are not finite stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from equipoise.probes.activations import LayerActivations
from equipoise.probes.record import CovariateShift, GradientGrowth, Landscape, LayerConditioning
from equipoise.probes.tracker.steps import StepSize

Values = dict[str, float]

# Characters that some loggers refuse in a name, such as the parentheses of "fc (call 2)".
_REFUSED = re.compile(r"[^\w./-]+")


def landscape(found: Landscape) -> Values:
    """Numbers of a landscape, bands as ``_min`` and ``_max``."""
    values = {"loss": found.initial_loss}
    bands = {"loss": found.loss_band, "gradient_change": found.gradient_change_band}
    for name, band in bands.items():
        if band is not None:
            values[f"landscape/{name}_min"], values[f"landscape/{name}_max"] = band
    values["landscape/gradient_norm"] = found.gradient_norm
    values["landscape/beta"] = found.beta
    return values


def covariate_shift(found: CovariateShift) -> Values:
    """Numbers of a covariate shift.

    The mean cosine leaves out the first layer, since no layer before it moves.
    """
    later = [layer.cosine for layer in found.layers[1:]]
    values = {"ics/cosine": float(np.mean(later))} if later else {}
    for layer in found.layers:
        values[f"ics/{safe_name(layer.layer)}/cosine"] = layer.cosine
        values[f"ics/{safe_name(layer.layer)}/l2"] = layer.l2
    return values


def growth(found: GradientGrowth) -> Values:
    """Numbers of a gradient growth; a rate that was not fitted is left out."""
    values = {} if found.rate is None else {"growth/rate": found.rate.value}
    for layer in found.layers:
        values[f"growth/{safe_name(layer.layer)}/gradient"] = layer.gradient.value
    return values


def activations(found: Iterable[LayerActivations]) -> Values:
    """Moments of layer inputs."""
    layers = list(found)
    if not layers:
        return {}
    values = {"activations/dead": float(np.mean([layer.dead for layer in layers]))}
    for layer in layers:
        name = f"activations/{safe_name(layer.layer)}"
        values |= {
            f"{name}/mean": layer.mean,
            f"{name}/variance": layer.variance,
            f"{name}/dead": layer.dead,
        }
    return values


def conditioning(found: Iterable[LayerConditioning]) -> Values:
    """Condition numbers; layers that were skipped are left out."""
    values: Values = {}
    for layer in found:
        if layer.skipped is None:
            values[f"conditioning/{safe_name(layer.layer)}/raw"] = layer.raw
            values[f"conditioning/{safe_name(layer.layer)}/scaled"] = layer.scaled
    if values:
        raw = [value for name, value in values.items() if name.endswith("/raw")]
        values = {"conditioning/raw": max(raw)} | values
    return values


def updates(whole: StepSize, layers: dict[str, StepSize]) -> Values:
    """Norms of gradients, and of steps relative to the parameters."""
    values = {"gradients/norm": whole.gradient, "updates/ratio": whole.ratio}
    for name, size in layers.items():
        values[f"gradients/{safe_name(name)}/norm"] = size.gradient
        values[f"updates/{safe_name(name)}/ratio"] = size.ratio
    return values


def safe_name(layer: str) -> str:
    """A layer's name without characters that a logger refuses.

    Examples:
        >>> safe_name("encoder.0.fc (call 2)")
        'encoder.0.fc_call_2'
    """
    return _REFUSED.sub("_", layer).strip("_")
