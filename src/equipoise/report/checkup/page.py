"""The check-up as one HTML page that needs nothing else: no network, no script, no font."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

from equipoise.diagnosis.record import Checkup
from equipoise.report import wording
from equipoise.report.checkup.words import digest
from equipoise.report.checkup.words import preconditioning as digest_preconditioning
from equipoise.report.checkup.words import second_order as digest_second_order
from equipoise.report.checkup.words import smoothness as digest_smoothness

if TYPE_CHECKING:
    from jinja2 import Environment

# Longer tables are folded, so that a page about a deep network remains a page.
LONG_TABLE = 12
_WORST = 8


def render_checkup(checkup: Checkup) -> str:
    """Render a check-up as a self-contained HTML page.

    Every text in the record is escaped. The same record gives the same page.
    """
    checkup = wording.printable(checkup)
    verdict = digest.verdict(checkup)
    groups = digest.merge_blocks(checkup.blocks)
    template = environment().get_template("checkup.html")
    return template.render(
        checkup=checkup,
        smoothness=checkup.smoothness,
        verdict=verdict,
        gauge=_gauge(checkup.depth, verdict.trainable_depth),
        groups=groups,
        remarks=digest.remarks(groups),
        ranked=digest.worst_first(checkup.conditioning),
        skipped=digest.skipped_by_reason(checkup.conditioning),
        predicted_rate=digest.predicted_rate(checkup),
        total=None if checkup.growth is None else digest.total_factor(checkup.growth.layers),
        figures=_figures(checkup),
        long=LONG_TABLE,
        worst=_WORST,
    )


def _figures(checkup: Checkup) -> dict[str, Any]:
    from markupsafe import Markup

    from equipoise.report.checkup.figures import layers as figures
    from equipoise.report.checkup.figures.smoothness import smoothness_figure
    from equipoise.report.checkup.figures.trial import trial_figure

    drawn: dict[str, str] = {}
    if checkup.growth is not None and checkup.growth.layers:
        rate = digest.predicted_rate(checkup)
        steps = digest.predicted_steps(checkup)
        drawn["gradients"] = figures.gradient_figure(checkup.growth, rate, steps)
        drawn["forward"] = figures.forward_figure(checkup.growth)
    if any(layer.skipped is None for layer in checkup.conditioning):
        drawn["conditioning"] = figures.conditioning_figure(checkup.conditioning)
    if checkup.trial is not None:
        drawn["trial"] = trial_figure(checkup.trial)
    if checkup.smoothness is not None and digest_smoothness.tried(checkup.smoothness):
        drawn["smoothness"] = smoothness_figure(checkup.smoothness)
    # Safe to leave unescaped: the figures hold numbers and our own words only.
    return {name: Markup(svg) for name, svg in drawn.items()}


def _gauge(model: int, trainable: float | None) -> dict[str, float] | None:
    """Return the model's and the trainable depth in per cent of a common bar."""
    if trainable is None or not math.isfinite(trainable) or trainable <= 0:
        return None
    whole = 1.15 * max(model, trainable)
    return {"model": 100 * model / whole, "trainable": 100 * trainable / whole}


@cache
def environment() -> Environment:
    """Make the environment that all pages are rendered in."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("equipoise.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "digest": digest,
        "bnp": digest_preconditioning,
        "pooling": digest_second_order,
        "smooth": digest_smoothness,
        "wording": wording,
        "marks": digest.MARKS,
    }
    return environment
