"""Sum up a sample of a tracker in a few numbers, for the charts of a logger."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from equipoise.probes.tracker.flatten import Values


def headline(values: Mapping[str, float]) -> Values:
    """At most eight numbers of a sample, whatever the number of layers.

    ====================  ========================================================================
    ``gradient_norm``     of the gradients that the optimizer was given
    ``gradient_spread``   standard deviation over layers of log10 of their gradients' norms
    ``update_ratio``      length of the step over that of the parameters
    ``update_ratio_max``  the same for the layer where it is largest
    ``update_ratio_min``  and where it is smallest: 0 for a layer that does not learn
    ``dead_units``        mean share of the features behind the first layer that are constant
                          over the batch
    ``growth_rate``       factor of the squared gradient norm per layer, if it was measured
    ``smoothness``        effective smoothness β of the loss, if the landscape was measured
    ====================  ========================================================================

    Args:
        values: Numbers of one sample, by the names of :func:`equipoise.probes.track`. What is
            missing or unknown is left out.

    Examples:
        >>> sample = {"updates/ratio": 0.1, "updates/a/ratio": 0.2, "updates/b/ratio": 0.05}
        >>> sample |= {"gradients/a/norm": 10.0, "gradients/b/norm": 0.1}
        >>> headline(sample)
        {'gradient_spread': 1.0, 'update_ratio': 0.1, 'update_ratio_max': 0.2,
         'update_ratio_min': 0.05}
    """
    gradients = [norm for norm in _of_layers(values, "gradients", "norm") if 0 < norm < math.inf]
    ratios = [r for r in _of_layers(values, "updates", "ratio") if not math.isnan(r)]
    # What the first layer takes are data, whose borders are often constant.
    dead = [d for d in _of_layers(values, "activations", "dead")[1:] if not math.isnan(d)]
    found = {
        "gradient_norm": values.get("gradients/norm"),
        "gradient_spread": float(np.std(np.log10(gradients))) if gradients else None,
        "update_ratio": values.get("updates/ratio"),
        "update_ratio_max": max(ratios, default=None),
        "update_ratio_min": min(ratios, default=None),
        "dead_units": _mean(dead),
        "growth_rate": values.get("growth/rate"),
        "smoothness": values.get("landscape/beta"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _of_layers(values: Mapping[str, float], part: str, number: str) -> list[float]:
    """One number of every layer, in the order of the sample."""
    return [
        value
        for name, value in values.items()
        if name.startswith(f"{part}/") and name.endswith(f"/{number}") and name.count("/") > 1
    ]


def _mean(numbers: Sequence[float]) -> float | None:
    return float(np.mean(numbers)) if numbers else None
