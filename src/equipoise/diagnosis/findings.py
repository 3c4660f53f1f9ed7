"""Findings in plain language, the most severe first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from equipoise.diagnosis.comparison import AGREEMENT
from equipoise.diagnosis.fix.record import Proposal
from equipoise.diagnosis.fix.words import in_words
from equipoise.diagnosis.preconditioning.findings import WORTHWHILE
from equipoise.diagnosis.record import PROFILE, Comparison, Recommendation
from equipoise.diagnosis.trainability.judge import REASONS
from equipoise.probes.conditioning import ROWS_PER_COLUMN
from equipoise.probes.record import GradientGrowth, LayerConditioning
from equipoise.records import wording
from equipoise.records.estimate import Estimate
from equipoise.records.finding import SEVERITIES, Finding
from equipoise.theory.propagation.attribution import BRANCHES, NORMALISERS
from equipoise.theory.propagation.propagate import NO_TIME
from equipoise.theory.propagation.sites import Share, Site, of_model

# Squared norms within e^3, a factor 20, of each other.
_BALANCED = 3.0
# A step of e^3 beyond the fitted rate is a factor 20.
_LARGE_STEP = 3.0
_ILL_CONDITIONED = 1e4
# With fewer, the variance that batch norm divides by has a relative error above 35 %.
_ENOUGH_ROWS = 16
# With fewer, the expectation of 1/variance is infinite.
_FEWEST_ROWS = 4
_TRIED = "`fix=True` tries what applies to this model."
_DRAW_LARGER = (
    "Draw the weights larger, with a standard deviation of about 1/sqrt(fan_in): "
    "torch.nn.init.kaiming_normal_(layer.weight) of every layer."
)
# Layers that a finding names, at most.
_NAMES = 3
# Operations that change gradients by more than a factor of e^0.5 in all are named as a cause.
_CAUSE = 0.5
# Operations on the way from which the factor of one is told; shares of ways add up to one.
_ONE = 0.95
_REASONS = (
    "weights that are not independent, such as trained ones; few channels; few initialisations; "
    "and what docs/propagation.md lists as not covered"
)


def conclude(
    growth: GradientGrowth | None,
    sites: Sequence[Site],
    attribution: Sequence[Share],
    comparisons: Sequence[Comparison],
    conditioning: Sequence[LayerConditioning],
    *,
    unwatched: Mapping[str, int] | None = None,
    further: Sequence[Finding] = (),
    leading: Sequence[Finding] = (),
    zeros: Sequence[str] = (),
    dead: Sequence[str] = (),
    behind: Collection[str] = (),
    in_sequence: Collection[tuple[str, str]] = (),
) -> tuple[Finding, ...]:
    """Turn records into findings, most severe first, and of equal ones ``leading`` first.

    Matrices that start at zero, ``zeros``, explain why layers have no gradient as yet; of weights
    that never have one, ``dead``, a finding of its own speaks. Layers ``behind`` other weights are
    not given the data. In pairs ``in_sequence``, one's gradient comes from the other.
    """
    findings = [*leading]
    if growth is not None:
        findings += _few_rows(growth)
        findings += _changing_paths(growth)
        findings += [] if dead else _without_gradient(growth, zeros)
        findings += _gradients(growth, attribution, in_sequence)
    findings += _agreement(comparisons)
    findings += _coverage(sites)
    findings += _conditioning(conditioning, behind)
    findings += _unwatched(unwatched or {})
    findings += further
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def _gradients(
    growth: GradientGrowth, attribution: Sequence[Share], in_sequence: Collection[tuple[str, str]]
) -> list[Finding]:
    findings = _steps(growth, in_sequence)
    if growth.rate is not None:
        findings.append(_depth(growth, growth.rate, attribution))
    return findings


def _changing_paths(growth: GradientGrowth) -> list[Finding]:
    if not growth.left_out:
        return []
    return [
        Finding(
            "note",
            f"{wording.count(len(growth.left_out), 'layer')} did not run on every batch",
            f"{wording.capital(wording.listed(growth.left_out, _NAMES))}: gradients were compared "
            "over the others. Stochastic depth drops layers at random, and experts see some "
            "batches only.",
        )
    ]


def _few_rows(growth: GradientGrowth) -> list[Finding]:
    """Batch norms whose statistics are those of few rows."""
    sharing = [(x.sharing, x.layer) for x in growth.layers if x.sharing is not None]
    few = [(rows, layer) for rows, layer in sharing if rows < _ENOUGH_ROWS]
    if not few:
        return []
    rows, least = min(few)
    hopeless = rows < _FEWEST_ROWS
    title = f"Batch statistics of {wording.count(rows, 'row')} are noise"
    if rows == 2:
        title = "Batch norm of 2 rows keeps only which one is larger"
    return [
        Finding(
            "warning",
            title,
            f"{wording.count(len(few), 'batch norm')}, {least} among them, average fewer "
            f"than {_ENOUGH_ROWS} rows: the statistics of training vary by "
            f"{wording.percent((2 / rows) ** 0.5)} from batch to batch, and differ from "
            "those of evaluation."
            + (" Of fewer than 4 its gradient has no finite variance." if hopeless else ""),
            f"Batches of {-(-_ENOUGH_ROWS // rows)} times the size, or norms of single "
            'samples: model = equipoise.layers.convert(model, "batch", "group").model',
        )
    ]


def _without_gradient(growth: GradientGrowth, zeros: Sequence[str]) -> list[Finding]:
    values = {layer.layer: layer.gradient.value for layer in growth.layers}
    if len(values) < 3:
        return []
    silent = [name for name, value in values.items() if value == 0]
    findings = []
    if silent and zeros:
        findings.append(
            Finding(
                "note",
                f"{wording.count(len(silent), 'layer')} without any gradient until zero weights "
                "have moved",
                f"{wording.capital(wording.listed(zeros, _NAMES))} start at zero, so that in the "
                f"first step nothing reaches {wording.listed(silent, _NAMES)}. The fit leaves "
                "these layers out.",
            )
        )
    elif silent:
        findings.append(
            Finding(
                "warning" if len(silent) == len(values) else "note",
                f"{wording.count(len(silent), 'layer')} without any gradient at initialisation",
                f"It is exactly zero at {wording.listed(silent, _NAMES)}. This is intended behind "
                "a scale that starts at zero, as in many residual branches. The fit leaves these "
                "layers out.",
                "If no scale starts at zero there, look for dead units or detached tensors.",
            )
        )
    return findings


def _steps(growth: GradientGrowth, in_sequence: Collection[tuple[str, str]]) -> list[Finding]:
    """A single step between layers in sequence that the fitted rate does not explain.

    Nor do the positions: where some are averaged, each gets a part of the gradient.
    """
    layers = [layer for layer in growth.layers if 0 < layer.gradient.value < math.inf]
    if growth.rate is None or len(layers) < 4:
        return []
    logs = [math.log(layer.gradient.value) for layer in layers]
    excess = [0.0] * (len(logs) - 1)
    for i, (one, following) in enumerate(pairwise(layers)):
        if (one.layer, following.layer) in in_sequence:
            step = logs[i] - logs[i + 1] - math.log(growth.rate.value)
            positions = math.log(following.rows / one.rows) if one.rows and following.rows else 0.0
            excess[i] = step - min(max(step, min(positions, 0.0)), max(positions, 0.0))
    worst = max(range(len(excess)), key=lambda i: abs(excess[i]))
    if abs(excess[worst]) <= _LARGE_STEP:
        return []
    ratio = math.exp(min(abs(logs[worst] - logs[worst + 1]), 700))
    direction = "larger" if logs[worst] > logs[worst + 1] else "smaller"
    return [
        Finding(
            "note",
            f"One step stands out: {layers[worst].layer} to {layers[worst + 1].layer}",
            f"The squared gradient norm is {wording.number(ratio)} times {direction} at the first "
            f"of the two; the fit gives {wording.factor(growth.rate.value)} per layer."
            + (
                ""
                if worst
                else " At the model's first layer this is mostly the scale of the data."
            ),
            f"Scale {'' if worst else 'the data or '}that layer's weights if training is unstable "
            "there.",
        )
    ]


def _depth(growth: GradientGrowth, rate: Estimate, attribution: Sequence[Share]) -> Finding:
    layers = growth.layers
    # Over the depth, as the fit has it: the first layer's gradient also has the data's scale.
    exponent = (len(layers) - 1) * math.log(rate.value)
    word = "larger" if exponent > 0 else "smaller"
    ratio = wording.number(math.exp(min(abs(exponent), 700)))
    detail = (
        f"The squared gradient norm changes {wording.factor(rate)} per layer towards the input "
        f"({wording.count(growth.replicates, 'initialisation')}). At that rate it becomes "
        f"e^{abs(exponent):.1f} ({ratio} times) {word} over the {len(layers)} layers."
    )
    if abs(exponent) <= _BALANCED:
        return Finding("good", "Gradients stay balanced over the depth", detail)
    title = f"Gradients {'grow' if exponent > 0 else 'shrink'} towards the input"
    return Finding("note", title, detail + _origin(attribution, exponent > 0))


def _origin(attribution: Sequence[Share], explodes: bool) -> str:
    """Which operations make gradients grow or shrink, by theory."""
    causes = [
        share
        for share in attribution
        if (share.log_gain > 0) == explodes and abs(share.log_gain) > _CAUSE
    ]
    if not causes:
        return ""
    return f" By theory it comes from {', '.join(map(_cause, causes[:2]))}."


def _cause(share: Share) -> str:
    """A kind of operations, and by which factor they change gradients."""
    if share.met < _ONE:  # the factor of one that hardly lies on the way says nothing
        together = wording.factor(math.exp(min(share.log_gain, 700)))
        return f"{share.kind} ({together} together)"
    return f"{share.kind} ({wording.factor(share.each)} each, {share.met:.3g} on the way)"


def advice(
    growth: GradientGrowth | None,
    attribution: Sequence[Share],
    remedies: Sequence[Recommendation],
    proposal: Proposal | None = None,
    *,
    reason: str = "",
    raced: bool = False,
) -> str:
    """What to change in a model that will not train.

    Args:
        growth: Of its gradients, if measured.
        attribution: What they come from.
        remedies: What was tried.
        proposal: What theory expects more of.
        reason: Why it will not.
        raced: Whether remedies were trained.
    """
    if reason == REASONS["settling"]:
        return _DRAW_LARGER
    further = "" if raced else f" {_TRIED}"
    skips = any(share.kind == BRANCHES for share in attribution)
    if proposal is not None and proposal.predicted is not None:
        return (
            f"{wording.capital(in_words(proposal.remedy))}: by theory it then trains with a "
            f"probability of {wording.percent(proposal.predicted)}. `fix=True` trains it beside "
            "the model as it is."
        )
    best = next((remedy for remedy in remedies if remedy.verified), None)
    if best is not None and best.measured_rate is not None:
        return (
            f"{wording.capital(best.change)}: measured on your model, gradients then change "
            f"{wording.factor(best.measured_rate.value)} per layer; by theory it trains with a "
            f"probability of {wording.percent(best.predicted_probability)}."
        )
    if any(share.kind == NORMALISERS and share.log_gain > _CAUSE for share in attribution):
        shared = growth is not None and any(one.sharing is not None for one in growth.layers)
        ways = [
            "fewer layers",
            *(["larger batches"] if shared else []),
            *([] if skips else ["residual connections"]),
        ]
        return (
            f"Use {', '.join(ways)}, or an activation with a smaller growth rate: compare them "
            f"with `equipoise theory`.{further}"
        )
    or_add = "or add normalisation." if skips else "or add normalisation or skip connections."
    rate = None if growth is None else growth.rate
    if reason == REASONS["size"]:
        return f"Scale the data or the last layer's initial weights down, {or_add}{further}"
    if rate is not None and rate.value < 1:
        return f"Raise the scale of the initial weights, {or_add}{further}"
    return f"Lower the scale of the initial weights, {or_add}{further}"


def _agreement(comparisons: Sequence[Comparison]) -> list[Finding]:
    findings = []
    for comparison in comparisons:
        where = f" ({comparison.measured.method})" if comparison.quantity == PROFILE else ""
        numbers = (
            f"Predicted {wording.spread(comparison.predicted)}, measured "
            f"{wording.spread(comparison.measured)}{where}."
        )
        if not math.isnan(comparison.z):
            numbers += f" Difference: {abs(comparison.z):.1f} standard errors"
            if comparison.outcome == "undecided":
                numbers += ", which are too large to tell."
            else:
                numbers += f" (agreement means below {AGREEMENT:.0f})."
        if comparison.outcome == "undecided":
            title = f"Undecided whether theory holds for the {comparison.quantity}"
            numbers += " More seeds of a factory would tell."
            findings.append(Finding("note", title, numbers))
        elif comparison.outcome == "agrees":
            title = f"Theory and measurement agree on the {comparison.quantity}"
            findings.append(Finding("good", title, numbers))
        else:
            title = f"Theory and measurement differ on the {comparison.quantity}"
            advice = f"Trust the measurement. Likely reasons: {_REASONS}."
            findings.append(Finding("note", title, numbers, advice))
    return findings


def _coverage(sites: Sequence[Site]) -> list[Finding]:
    """Which operations theory does not reach."""
    inside = of_model(sites)
    noted = [site for site in inside if site.reason]
    if not noted:
        return []
    reasons = Counter(f"{site.operation} ({site.reason})" for site in noted)
    listed = wording.listed(
        [f"{n} × {reason}" if n > 1 else reason for reason, n in reasons.most_common()], 4
    )
    return [
        Finding(
            "note",
            f"Theory predicts {sum(site.is_predicted for site in inside):,} of {len(inside):,} "
            "operations",
            f"It is cut at {listed}, and goes on from what was measured there.",
            "`budget=60` lets theory go further."
            if any(site.reason == NO_TIME for site in noted)
            else None,
        )
    ]


def _conditioning(
    conditioning: Sequence[LayerConditioning], behind: Collection[str]
) -> list[Finding]:
    measured = [c for c in conditioning if c.skipped is None]
    findings = []
    enough = [c for c in measured if c.rows >= ROWS_PER_COLUMN * c.columns]
    ill = [c for c in enough if c.raw > _ILL_CONDITIONED and c.raw > WORTHWHILE * c.scaled]
    if ill:
        worst = max(ill, key=lambda c: c.raw / c.scaled)
        # Of data it costs steps. Of hidden layers it is common in networks that train well, and
        # norms before them may do harm: the Fourier neural operator's last layer has 2.6e4, and
        # with batch norm before it Adam reaches seven times the loss.
        is_of_data = conditioning[0] in ill and conditioning[0].layer not in behind
        findings.append(
            Finding(
                "warning" if is_of_data else "note",
                f"Inputs of {wording.count(len(ill), 'layer')} are ill-conditioned",
                f"At {worst.layer} the condition number of the inputs is "
                f"{wording.number(worst.raw)}; centred and scaled, it is "
                f"{wording.number(worst.scaled)}.",
                "Standardise the data, feature by feature."
                if is_of_data
                else "Where training is slow, normalise before that layer, or precondition its "
                "gradient.",
            )
        )
    # The column of ones is left out: a layer without bias has none.
    short = [c for c in measured if c.batch_rows < c.columns - 1]
    if short:
        widest = max(short, key=lambda c: c.columns / c.batch_rows)
        lost = widest.columns - 1 - widest.batch_rows
        findings.append(
            Finding(
                "note",
                f"The batch is smaller than the fan-in of {wording.count(len(short), 'layer')}",
                f"At {widest.layer} a batch gives {widest.batch_rows} rows for "
                f"{widest.columns - 1} inputs, so that at least "
                f"{wording.count(lost, 'direction')} of "
                "the weights get no gradient. Condition numbers ignore these directions.",
            )
        )
    constant = [c for c in measured if c.constant_features]
    if constant:
        most = max(constant, key=lambda c: c.constant_features)
        findings.append(
            Finding(
                "note",
                f"Constant inputs at {wording.count(len(constant), 'layer')}",
                f"At {most.layer} {most.constant_features} of {most.columns - 1} inputs do not "
                "vary over the batch: pixels that are always blank, padding, or dead units.",
            )
        )
    return findings


def _unwatched(unwatched: Mapping[str, int]) -> list[Finding]:
    if not unwatched:
        return []
    return [
        Finding(
            "note",
            f"Weights of {wording.count(len(unwatched), 'module')} were not measured",
            f"{wording.listed(list(unwatched), _NAMES)}: {sum(unwatched.values()):,} weights that "
            "are not in a linear or convolutional layer. Gradients that pass through them were "
            "measured.",
        )
    ]
