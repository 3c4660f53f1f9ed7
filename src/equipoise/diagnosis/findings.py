"""Plain-language conclusions, ranked by severity."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from equipoise.diagnosis.comparison import AGREEMENT
from equipoise.diagnosis.record import Block, Comparison, Remedy
from equipoise.diagnosis.remedies import BETTER
from equipoise.probes.conditioning import LayerConditioning
from equipoise.probes.gradient_growth import GradientGrowth
from equipoise.records.estimate import Estimate
from equipoise.records.finding import Finding, Severity
from equipoise.theory.batch_norm.explosion import TRAINABLE_FACTOR, max_trainable_depth

_ORDER: tuple[Severity, ...] = ("critical", "warning", "note", "good")
# Half the exponent at which training fails is the point to look up.
_WORRYING = TRAINABLE_FACTOR / 2
# Squared norms within e^3, a factor 20, of each other.
_BALANCED = 3.0
# A step of e^3 beyond the fitted rate is a factor 20.
_LARGE_STEP = 3.0
_ILL_CONDITIONED = 1e4
# A joint error of more than this part of the measurement decides nothing.
_VAGUE = 0.1
# A change of the condition number by less than this is not worth a finding.
_WORTHWHILE = 10.0


def conclude(
    growth: GradientGrowth | None,
    blocks: Sequence[Block],
    comparisons: Sequence[Comparison],
    conditioning: Sequence[LayerConditioning],
    remedies: Sequence[Remedy],
    unwatched: Mapping[str, int] | None = None,
    further: Sequence[Finding] = (),
) -> tuple[Finding, ...]:
    """Turn records into findings, most severe first."""
    findings: list[Finding] = []
    if growth is not None:
        findings += _gradients(growth, blocks, remedies)
    findings += _agreement(comparisons, blocks)
    findings += _not_compared(growth, blocks, comparisons)
    findings += _stability(blocks)
    findings += _coverage(blocks, growth)
    findings += _conditioning(conditioning)
    findings += _unwatched(unwatched or {})
    findings += further
    return tuple(sorted(findings, key=lambda finding: _ORDER.index(finding.severity)))


def _gradients(
    growth: GradientGrowth, blocks: Sequence[Block], remedies: Sequence[Remedy]
) -> list[Finding]:
    findings = [*_without_gradient(growth), *_steps(growth)]
    if growth.rate is not None:
        findings.append(_depth(growth, growth.rate, blocks, remedies))
    return findings


def _without_gradient(growth: GradientGrowth) -> list[Finding]:
    values = {layer.layer: layer.gradient.value for layer in growth.layers}
    if len(values) < 3:
        return []
    broken = [name for name, value in values.items() if not math.isfinite(value)]
    silent = [name for name, value in values.items() if value == 0]
    findings = []
    if broken:
        findings.append(
            Finding(
                "critical",
                f"{_count(broken, 'layer')} without a finite gradient",
                f"The gradient overflows at {', '.join(broken[:3])}.",
                "Lower the scale of the weights or of the data, or compute in a wider type.",
            )
        )
    if silent:
        findings.append(
            Finding(
                "warning" if len(silent) == len(values) else "note",
                f"{_count(silent, 'layer')} without any gradient at the start",
                f"It is exactly zero at {', '.join(silent[:3])}"
                f"{' and others' if len(silent) > 3 else ''}. That is so by construction behind a "
                "scale that starts at zero, as many residual branches have; the fit leaves them "
                "out.",
                "If no scale starts at zero there, look for dead units or detached tensors.",
            )
        )
    return findings


def _steps(growth: GradientGrowth) -> list[Finding]:
    """A single step that the fitted rate does not explain."""
    layers = [layer for layer in growth.layers if 0 < layer.gradient.value < math.inf]
    if growth.rate is None or len(layers) < 4:
        return []
    logs = [math.log(layer.gradient.value) for layer in layers]
    excess = [logs[i] - logs[i + 1] - math.log(growth.rate.value) for i in range(len(logs) - 1)]
    worst = max(range(len(excess)), key=lambda i: abs(excess[i]))
    if abs(excess[worst]) <= _LARGE_STEP:
        return []
    ratio = math.exp(min(abs(logs[worst] - logs[worst + 1]), 700))
    direction = "larger" if logs[worst] > logs[worst + 1] else "smaller"
    return [
        Finding(
            "note",
            f"One step stands out: {layers[worst].layer} to {layers[worst + 1].layer}",
            f"The squared gradient norm is {_times(ratio)} {direction} at the first of them, "
            f"where the fitted rate is {growth.rate.value:.3g}. At the first layer this is "
            "mostly the scale of the data.",
            "Scale the data or that layer's weights if training is unstable there.",
        )
    ]


def _depth(
    growth: GradientGrowth, rate: Estimate, blocks: Sequence[Block], remedies: Sequence[Remedy]
) -> Finding:
    layers = growth.layers
    # What the fitted rate does over the depth, not the first layer's own scale.
    exponent = (len(layers) - 1) * math.log(rate.value)
    word = "larger" if exponent > 0 else "smaller"
    ratio = f"e^{abs(exponent):.1f} ({_times(math.exp(min(abs(exponent), 700)))})"
    detail = (
        f"The squared gradient norm changes by a factor {rate.value:.4g} per layer towards the "
        f"input (± {rate.error:.2g}, {_count(growth.replicates, 'initialisation')}). Over the "
        f"{len(layers)} layers it is {ratio} {word} at the first layer than at the last."
    )
    if abs(exponent) > TRAINABLE_FACTOR:
        title = "Gradients explode" if exponent > 0 else "Gradients vanish"
        limit = TRAINABLE_FACTOR / abs(math.log(rate.value))
        return Finding(
            "critical",
            f"{title}: {len(layers)} layers deep, trainable to about {limit:.0f}",
            detail,
            _advice(rate, blocks, remedies, exponent > 0),
        )
    if abs(exponent) > _WORRYING:
        title = "Gradients grow" if exponent > 0 else "Gradients shrink"
        advice = _advice(rate, blocks, remedies, exponent > 0)
        return Finding("warning", f"{title} noticeably with depth", detail, advice)
    if abs(exponent) > _BALANCED:
        return Finding("good", "Gradients differ over the depth by no more than trains", detail)
    return Finding("good", "Gradients stay balanced over the depth", detail)


def _advice(
    rate: Estimate, blocks: Sequence[Block], remedies: Sequence[Remedy], explodes: bool
) -> str:
    tried = [
        (max_trainable_depth(remedy.measured_rate), remedy)
        for remedy in remedies
        if remedy.measured_rate is not None
    ]
    depth, best = max(tried, key=lambda pair: pair[0], default=(0.0, None))
    if best is not None and best.measured_rate and depth >= BETTER * max_trainable_depth(rate):
        return (
            f"{best.change[0].upper()}{best.change[1:]}: growth per layer then is "
            f"{best.measured_rate.value:.4g} (measured on your model), trainable to "
            f"{'any depth' if math.isinf(depth) else f'about {depth:.0f} layers'}."
        )
    if any(block.rate is not None for block in blocks):
        return (
            "Use fewer layers, larger batches, residual connections, or an activation with a "
            "smaller rate: compare them with `equipoise theory`."
        )
    if explodes:
        return "Lower the scale of the initial weights, or add normalisation or skip connections."
    return "Raise the scale of the initial weights, or add normalisation or skip connections."


def _agreement(comparisons: Sequence[Comparison], blocks: Sequence[Block]) -> list[Finding]:
    findings = []
    for comparison in comparisons:
        predicted, measured = comparison.predicted, comparison.measured
        numbers = (
            f"Predicted {predicted.value:.4g}, measured {measured.value:.4g} ± "
            f"{measured.error:.2g}; networks this wide may differ by "
            f"{comparison.finite_width:.2g}."
        )
        joint = abs(measured.value - predicted.value) / abs(comparison.z or math.inf)
        if comparison.outcome == "agrees" and joint > _VAGUE * abs(measured.value):
            title = f"Too uncertain to compare the {comparison.quantity}"
            advice = "Measure more initialisations with --seeds."
            findings.append(Finding("note", title, numbers, advice))
            continue
        if comparison.outcome == "agrees":
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
                f"Trust the measurement. Likely reasons: {_reasons(blocks)}.",
            )
        )
    return findings


def _reasons(blocks: Sequence[Block]) -> str:
    caveats = sorted({caveat for block in blocks for caveat in block.caveats})
    general = (
        "early layers that still carry the data's covariance",
        "weights that are not independent",
        "few initialisations",
    )
    return "; ".join((*caveats, *general))


def _not_compared(
    growth: GradientGrowth | None, blocks: Sequence[Block], comparisons: Sequence[Comparison]
) -> list[Finding]:
    covered = bool(blocks) and all(block.rate is not None for block in blocks)
    if growth is None or len(growth.layers) < 3 or comparisons or not covered:
        return []
    reason = (
        "four blocks are the least that a growth is compared through"
        if len(blocks) < 4
        else "blocks differ in activation, ε, γ or β, or there are other normalisers or branches"
    )
    return [
        Finding(
            "note",
            "Predicted block by block, not compared with the measurement",
            f"Every block has a prediction, but {reason}.",
        )
    ]


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
                "No normalisation: measured, not predicted",
                f"Gradients were measured at {', '.join(kinds)}. The check-up predicts "
                "normalised networks; `theory.vanilla` describes those without.",
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
            f"Theory covers {len(blocks) - len(uncovered)} of {len(blocks)} normalisers",
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
                "vary over the batch: pixels that are always blank, padding, or dead units.",
            )
        )
    return findings


def _unwatched(unwatched: Mapping[str, int]) -> list[Finding]:
    if not unwatched:
        return []
    listed = ", ".join(list(unwatched)[:3]) + (" and others" if len(unwatched) > 3 else "")
    return [
        Finding(
            "note",
            f"Weights of {_count(len(unwatched), 'module')} were not measured",
            f"{listed} multiply by {sum(unwatched.values()):,} numbers of their own, outside any "
            "linear or convolutional layer. Gradients that pass through them were measured.",
        )
    ]


def _count(items: Sequence[object] | int, noun: str) -> str:
    number = items if isinstance(items, int) else len(items)
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _times(factor: float) -> str:
    if factor < 10:
        return f"{factor:.1f} times"
    return f"{factor:,.0f} times" if factor < 1e6 else f"{factor:.1e} times"
