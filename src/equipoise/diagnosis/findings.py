"""Plain-language conclusions, ranked by severity."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from equipoise.diagnosis.comparison import AGREEMENT
from equipoise.records import (
    Block,
    Comparison,
    Finding,
    GradientGrowth,
    LayerConditioning,
    Remedy,
    Severity,
)
from equipoise.theory import TRAINABLE_FACTOR

_ORDER: tuple[Severity, ...] = ("critical", "warning", "note", "good")
# Half the exponent at which training fails is the point to look up.
_WORRYING = TRAINABLE_FACTOR / 2
_ILL_CONDITIONED = 1e4
# A change of the condition number by less than this is not worth a finding.
_WORTHWHILE = 10.0


def conclude(
    growth: GradientGrowth | None,
    blocks: Sequence[Block],
    comparisons: Sequence[Comparison],
    conditioning: Sequence[LayerConditioning],
    remedies: Sequence[Remedy],
) -> tuple[Finding, ...]:
    """Turn records into findings, most severe first."""
    findings: list[Finding] = []
    if growth is not None:
        findings += _gradients(growth, blocks, remedies)
    findings += _agreement(comparisons)
    findings += _stability(blocks)
    findings += _coverage(blocks, growth)
    findings += _conditioning(conditioning)
    return tuple(sorted(findings, key=lambda finding: _ORDER.index(finding.severity)))


def _gradients(
    growth: GradientGrowth, blocks: Sequence[Block], remedies: Sequence[Remedy]
) -> list[Finding]:
    layers = growth.layers
    first, last = layers[0].gradient.value, layers[-1].gradient.value
    if growth.rate is None or not (first > 0 and last > 0):
        if len(layers) >= 3:
            return [
                Finding(
                    "critical",
                    "Some layers receive no finite gradient",
                    f"Squared gradient norms run from {first:.3g} at {layers[0].layer} to "
                    f"{last:.3g} at {layers[-1].layer}; between them at least one is zero or not "
                    "finite.",
                    "Check those layers for saturated activations, detached tensors or overflow.",
                )
            ]
        return []
    rate = growth.rate
    # What the fitted rate does over the depth, not the first layer's own scale.
    exponent = (len(layers) - 1) * math.log(rate.value)
    word = "larger" if exponent > 0 else "smaller"
    ratio = f"e^{abs(exponent):.1f} ({_times(math.exp(min(abs(exponent), 700)))})"
    detail = (
        f"The squared gradient norm changes by a factor {rate.value:.4g} per layer towards the "
        f"input (± {rate.error:.2g}, {growth.replicates} initialisations). Over the {len(layers)} "
        f"layers it is {ratio} {word} at the first layer than at the last."
    )
    if abs(exponent) > TRAINABLE_FACTOR:
        title = "Gradients explode" if exponent > 0 else "Gradients vanish"
        limit = TRAINABLE_FACTOR / abs(math.log(rate.value))
        return [
            Finding(
                "critical",
                f"{title}: {len(layers)} layers deep, trainable to about {limit:.0f}",
                detail,
                _advice(blocks, remedies, exponent > 0),
            )
        ]
    if abs(exponent) > _WORRYING:
        title = "Gradients grow" if exponent > 0 else "Gradients shrink"
        advice = _advice(blocks, remedies, exponent > 0)
        return [Finding("warning", f"{title} noticeably with depth", detail, advice)]
    return [Finding("good", "Gradients stay balanced over the depth", detail)]


def _advice(blocks: Sequence[Block], remedies: Sequence[Remedy], explodes: bool) -> str:
    tried = [remedy for remedy in remedies if remedy.verified]
    if tried:
        best = tried[0]
        measured = best.measured_rate.value if best.measured_rate else math.nan
        return (
            f"{best.change[0].upper()}{best.change[1:]}: growth per layer then is "
            f"{measured:.4g} (measured on your model), trainable to about "
            f"{best.predicted_depth:.0f} layers."
        )
    if any(block.rate is not None for block in blocks):
        return (
            "Use fewer layers, larger batches, residual connections, or an activation with a "
            "smaller rate: compare them with `equipoise theory`."
        )
    if explodes:
        return "Lower the scale of the initial weights, or add normalisation or skip connections."
    return "Raise the scale of the initial weights, or add normalisation or skip connections."


def _agreement(comparisons: Sequence[Comparison]) -> list[Finding]:
    findings = []
    for comparison in comparisons:
        predicted, measured = comparison.predicted, comparison.measured
        numbers = (
            f"Predicted {predicted.value:.4g}, measured {measured.value:.4g} ± "
            f"{measured.error:.2g}; networks this wide may differ by "
            f"{comparison.finite_width:.2g}."
        )
        if comparison.agrees:
            title = f"Theory and measurement agree on the {comparison.quantity}"
            findings.append(
                Finding("good", title, f"{numbers} They are {abs(comparison.z):.1f} errors apart.")
            )
            continue
        findings.append(
            Finding(
                "note",
                f"Theory and measurement differ on the {comparison.quantity}",
                f"{numbers} They are {abs(comparison.z):.1f} errors apart, more than "
                f"{AGREEMENT:.0f}.",
                "Trust the measurement. Likely reasons: correlated positions of feature maps, "
                "weights that are not independent and Gaussian-like, or data whose samples are "
                "almost equal.",
            )
        )
    return findings


def _stability(blocks: Sequence[Block]) -> list[Finding]:
    unstable = [b for b in blocks if b.rate is not None and b.rate.stable is False]
    if not unstable:
        return []
    kinds = sorted({f"{b.activation} at batch {b.batch_size}" for b in unstable})
    return [
        Finding(
            "note",
            "Samples of a batch drift apart with depth",
            f"For {', '.join(kinds)} the state that the prediction assumes is not stable: deep "
            "networks leave it, and a few samples of each batch come to dominate. Gradients then "
            "grow at a somewhat different rate than predicted.",
            "Rely on the measured rate, or use a smaller batch or a saturating activation.",
        )
    ]


def _coverage(blocks: Sequence[Block], growth: GradientGrowth | None) -> list[Finding]:
    if not blocks:
        if growth is None:
            return []
        kinds = sorted({layer.kind for layer in growth.layers})
        return [
            Finding(
                "note",
                "No batch normalisation: measured, not predicted",
                f"Gradients were measured at {', '.join(kinds)}. The theory in this version "
                "describes networks with batch norm.",
            )
        ]
    uncovered = [block for block in blocks if block.rate is None]
    if not uncovered:
        return []
    reasons = Counter(block.reason for block in uncovered)
    listed = "; ".join(f"{count} × {reason}" for reason, count in reasons.most_common(4))
    return [
        Finding(
            "note",
            f"Theory covers {len(blocks) - len(uncovered)} of {len(blocks)} batch norm layers",
            f"Not predicted: {listed}. Everything was still measured.",
        )
    ]


def _conditioning(conditioning: Sequence[LayerConditioning]) -> list[Finding]:
    measured = [c for c in conditioning if c.skipped is None]
    findings = []
    ill = [c for c in measured if c.raw > _ILL_CONDITIONED and c.raw > _WORTHWHILE * c.scaled]
    if ill:
        worst = max(ill, key=lambda c: c.raw / c.scaled)
        findings.append(
            Finding(
                "warning",
                f"{_count(ill, 'layer')} would train better on centred, scaled inputs",
                f"At {worst.layer} the condition number of the inputs is {worst.raw:.3g}, and "
                f"{worst.scaled:.3g} after centring and scaling.",
                "Standardise the data, normalise before that layer, or precondition its gradient.",
            )
        )
    short = [c for c in measured if c.rows < c.columns]
    if short:
        widest = max(short, key=lambda c: c.columns / c.rows)
        findings.append(
            Finding(
                "note",
                f"The batch is smaller than the fan-in of {_count(short, 'layer')}",
                f"At {widest.layer} a batch gives {widest.rows} rows for {widest.columns} "
                f"columns, so it leaves {_count(widest.zero_singular_values, 'direction')} of the "
                "weights without a gradient. Condition numbers are those on the range.",
            )
        )
    constant = [c for c in measured if c.constant_features]
    if constant:
        most = max(constant, key=lambda c: c.constant_features)
        findings.append(
            Finding(
                "note",
                f"Constant inputs at {_count(constant, 'layer')}",
                f"At {most.layer} {most.constant_features} of {most.columns - 1} inputs do not "
                "vary over the batch: pixels that are always blank, or units that are dead.",
            )
        )
    return findings


def _count(items: Sequence[object] | int, noun: str) -> str:
    number = items if isinstance(items, int) else len(items)
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _times(factor: float) -> str:
    return f"{factor:,.0f} times" if factor < 1e6 else f"{factor:.1e} times"
