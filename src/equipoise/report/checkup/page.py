"""The check-up as one HTML page that needs nothing else: no network, no script, no font."""

from __future__ import annotations

import math
from typing import Any

from equipoise.diagnosis.record import GROWTH, Checkup
from equipoise.diagnosis.trainability.record import Depth
from equipoise.diagnosis.trainability.words import limit_in_words
from equipoise.records import wording
from equipoise.report.checkup.words import (
    first_screen,
    fix,
    optimizer,
    overview,
    preconditioning,
    second_order,
    smoothness,
)
from equipoise.report.pages import LONG_TABLE, environment

_WORST = 8

# What templates call the modules that word each section.
WORDS = {
    "first": first_screen,
    "overview": overview,
    "bnp": preconditioning,
    "steps": optimizer,
    "pooling": second_order,
    "smooth": smoothness,
    "fix": fix,
}


def render_checkup(checkup: Checkup) -> str:
    """Render a check-up as a self-contained HTML page.

    Every text in the record is escaped. The same record gives the same page.
    """
    checkup = wording.printable(checkup)
    growth = checkup.comparison(GROWTH)
    found = checkup.verdict.trainability
    depth = None if found is None else found.depth
    template = environment().get_template("checkup.html")
    return template.render(
        WORDS,
        checkup=checkup,
        smoothness=checkup.smoothness,
        verdict=checkup.verdict,
        depth=depth,
        gauge=None if depth is None else _gauge(depth),
        limit="" if depth is None else wording.capital(limit_in_words(depth)),
        shares=overview.attribution(checkup),
        predictions=overview.predictions(checkup),
        operations=overview.computed(checkup.sites),
        cuts=overview.cuts(checkup),
        ranked=overview.worst_first(checkup.conditioning),
        skipped=overview.skipped_by_reason(checkup.conditioning),
        predicted_rate=None if growth is None else growth.predicted,
        total=None if checkup.growth is None else overview.total_factor(checkup.growth.layers),
        figures=_figures(checkup),
        long=LONG_TABLE,
        worst=_WORST,
    )


def _figures(checkup: Checkup) -> dict[str, Any]:
    from markupsafe import Markup

    from equipoise.report.checkup.figures import layers as figures
    from equipoise.report.checkup.figures.fix import fix_figure
    from equipoise.report.checkup.figures.profile import profile_figure
    from equipoise.report.checkup.figures.smoothness import smoothness_figure

    drawn: dict[str, str] = {}
    if checkup.growth is not None and checkup.growth.layers:
        predictions = overview.predictions(checkup)
        drawn["gradients"] = figures.gradient_figure(checkup.growth, predictions)
        drawn["forward"] = figures.forward_figure(checkup.growth)
    if overview.computed(checkup.sites):
        drawn["profile"] = profile_figure(overview.computed(checkup.sites))
    if any(layer.skipped is None for layer in checkup.conditioning):
        drawn["conditioning"] = figures.conditioning_figure(checkup.conditioning)
    if checkup.fix is not None and any(arm.curve for arm in checkup.fix.arms if arm.seeds):
        drawn["fix"] = fix_figure(checkup.fix)
    if checkup.smoothness is not None and smoothness.tried(checkup.smoothness):
        drawn["smoothness"] = smoothness_figure(checkup.smoothness)
    # Safe to leave unescaped: the figures hold numbers and our own words only.
    return {name: Markup(svg) for name, svg in drawn.items()}


def _gauge(depth: Depth) -> dict[str, float] | None:
    """Return the present and the trainable number of blocks in per cent of a common bar."""
    if not math.isfinite(depth.value):
        return None
    whole = 1.15 * max(depth.blocks, depth.value)
    return {"model": 100 * depth.blocks / whole, "trainable": 100 * depth.value / whole}
