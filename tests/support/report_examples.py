"""Check-ups written by hand: a deep network, an interrupted run, and hostile text."""

from __future__ import annotations

import dataclasses
import functools
import math

from equipoise.diagnosis.fix.applied import code_lines
from equipoise.diagnosis.fix.record import Arm, Fix, Gain, Proposal
from equipoise.diagnosis.fix.remedy import Edit, Remedy
from equipoise.diagnosis.fix.words import in_words
from equipoise.diagnosis.preconditioning.record import LayerPreconditioning
from equipoise.diagnosis.record import (
    SCHEMA_VERSION,
    Checkup,
    Comparison,
    LayerPrediction,
    Recommendation,
    Verdict,
)
from equipoise.diagnosis.smoothness.record import (
    Smoothness,
    SmoothnessArm,
    SmoothnessMeasurement,
    SmoothnessRun,
)
from equipoise.diagnosis.trainability.record import Depth, Quantities, Trainability
from equipoise.probes.record import GradientGrowth, LayerConditioning, LayerGradients
from equipoise.records import Estimate, Finding
from equipoise.report.checkup.page import render_checkup
from equipoise.theory.propagation.sites import Share, Site
from equipoise.training.record import Curve

RATE = 1.46695
LAYERS = 32
LONG_NAME = "backbone" + "_without_any_space" * 12
HOSTILE_NAMES = (
    "<script>alert(1)</script>",
    "a&b",
    "$x_1$",
    "[bold]",
    "[red]fc[/red]",
    "[/]",
    LONG_NAME,
    '"><img src=x onerror=alert(1)>',
    "esc\x1b[31m\udcff",
    "{{ 7 * 7 }}",
)


def remedy(parameter, value, predicted, probability):
    """A remedy that was tried and verified."""
    word = "shift β" if parameter == "bias" else "scale γ"
    return Recommendation(
        normaliser="batch norm",
        parameter=parameter,
        value=value,
        predicted_rate=predicted,
        predicted_probability=probability,
        measured_rate=Estimate(1.229, 0.008, "measured"),
        verified=True,
        change=f"start batch norm's {word} at {value:g}",
        code=f"torch.nn.init.constant_(norm.{parameter}, {value:g})",
    )


def trainability():
    """What a benchmark says of a deep network that explodes."""
    known = Quantities(7.1, 0.0, 0.0, 0.0, 4.2, 0.0, 0.6, 5.0)
    return Trainability(
        probability=0.12,
        low=0.05,
        high=0.22,
        reason="similar inputs are driven apart: gradients explode towards the input",
        alike=100,
        alike_trained=0.11,
        outside=(),
        source="both",
        predicted=known,
        measured=known,
        depth=Depth(LAYERS, 21.3, 18.2, 24.4),
    )


def deep_checkup() -> Checkup:
    """A 32-layer BN-ReLU network whose gradients grow as theory says."""
    growth = deep_growth()
    assert growth.rate is not None
    predicted = Estimate(RATE, 3e-9, "quadrature", stable=True)
    return Checkup(
        schema=SCHEMA_VERSION,
        equipoise="0.1.0",
        torch="2.13.0",
        created="2026-11-21T10:39:12+00:00",
        target="examples/deep_relu.py:build_model",
        data="fashion-mnist",
        device="cpu",
        batch_size=32,
        parameters=2_149_898,
        depth=LAYERS,
        seeds=5,
        batches=2,
        seconds=12.34,
        interrupted=False,
        verdict=Verdict(
            "critical",
            "Will probably not train (12 %, between 5 and 22 %)",
            "Similar inputs are driven apart: gradients explode towards the input. It has 32 "
            "equal blocks, and about 21 could train (between 18 and 24)",
            trainability(),
        ),
        sites=tuple(site(3 * i + k, i, k) for i in range(1, LAYERS + 1) for k in range(3)),
        attribution=(
            Share("normalisers", LAYERS, 32.0, 12.26),
            Share("elementwise functions", LAYERS, 32.0, -0.31),
            Share("reshapes", 4 * LAYERS, 0.0, 0.0),
        ),
        predictions=tuple(prediction(i) for i in range(1, LAYERS + 1)),
        growth=growth,
        comparisons=(
            Comparison("gradient growth per layer", predicted, growth.rate, 0.672, "agrees"),
            Comparison(
                "second moment q",
                Estimate(0.4999, 2e-7, "quadrature"),
                Estimate(0.4953, 0.0031, "measured"),
                -1.48,
                "agrees",
            ),
            Comparison(
                "correlation c",
                Estimate(0.28871, 1e-9, "quadrature"),
                Estimate(0.3611, 0.0082, "measured"),
                8.83,
                "differs",
            ),
        ),
        conditioning=(
            *(conditioning(i) for i in range(33)),
            LayerConditioning(
                "stem.conv",
                "Conv2d",
                4,
                28,
                *[math.nan] * 4,
                0,
                0,
                "none",
                "4 rows, 28 columns",
            ),
        ),
        remedies=(
            remedy("bias", 0.5, Estimate(1.232, 1e-6, "quadrature"), 0.91),
            dataclasses.replace(
                remedy("weight", 0.7, Estimate(1.4671, 2e-9, "quadrature"), 0.13),
                measured_rate=None,
                verified=None,
            ),
        ),
        findings=(
            Finding(
                "critical",
                "Gradients grow ×1.47 per layer on the way back",
                "Over 32 layers the squared gradient norm changes by a factor of 1.4×10⁵. "
                "Theory predicts ×1.467 for BatchNorm → ReLU at batch size 32; "
                "measured ×1.471 ± 0.006.",
                "Keep fewer than 42 normalised layers in a row, or add skip connections.",
            ),
            Finding(
                "warning",
                "Layers' inputs are badly conditioned",
                "The worst is fc1 with κ = 3.1×10⁶; centring and scaling make it 210.",
                "Precondition with BNP.",
            ),
            Finding("good", "Predictions agree with measurements", "2 of 3 within 3 errors."),
        ),
        preconditioning=(preconditioned("head"), *(coupled(f"fc{i}") for i in range(1, 33))),
        fix=fixing(),
        smoothness=smoothness(),
    )


def interrupted_checkup() -> Checkup:
    """Stopped before any gradient: nothing but the header and a note."""
    return dataclasses.replace(
        deep_checkup(),
        interrupted=True,
        verdict=Verdict(
            None, "Whether it will train is unknown", "Gradients were not measured", None
        ),
        sites=(),
        attribution=(),
        predictions=(),
        growth=None,
        comparisons=(),
        conditioning=(),
        remedies=(),
        findings=(),
        preconditioning=(),
        fix=None,
        smoothness=None,
    )


def hostile_checkup() -> Checkup:
    """Every text is an attack and every kind of number fails."""
    names = HOSTILE_NAMES
    values = (math.nan, math.inf, 0.0, 1e-300, 1e300, 3.2e5, 4.1, 0.3, math.nan, 12.0)
    estimates = [Estimate(value, math.nan, names[0]) for value in values]
    rate = Estimate(math.nan, math.nan, "measured")
    layers = tuple(
        LayerGradients(name, name, 32, 8, estimate, None, estimate, estimate)
        for name, estimate in zip(names, estimates, strict=True)
    )
    infinite = LayerConditioning(
        names[0], names[0], 8, 9, math.inf, math.inf, math.nan, math.inf, 3, 2, "svd"
    )
    return dataclasses.replace(
        deep_checkup(),
        target=names[0] + LONG_NAME,
        data=names[3],
        device=names[4],
        created=names[0],
        verdict=Verdict(
            "warning",
            "Gradients are not finite: their growth could not be measured",
            names[0],
            dataclasses.replace(
                trainability(),
                reason=names[0],
                outside=names,
                predicted=None,
                depth=Depth(1, math.nan, 0.0, math.inf),
            ),
        ),
        sites=tuple(
            dataclasses.replace(
                site(1, 1, 0),
                operation=name,
                module=name,
                kind=name,
                reason=f"no rule for {name}",
                second_moment=value,
                gradient=value,
                measured_second_moment=value,
                measured_gradient=None,
                share=value,
                log_gain=value,
            )
            for name, value in zip(names, values, strict=True)
        ),
        attribution=tuple(
            Share(name, 3, value, 4 * value) for name, value in zip(names, values, strict=True)
        ),
        predictions=tuple(
            LayerPrediction(name, estimate, estimate.value, None, name)
            for name, estimate in zip(names, estimates, strict=True)
        ),
        growth=GradientGrowth(layers, rate, None, 1, 1),
        comparisons=(Comparison(names[0], estimates[0], rate, math.nan, "undecided"),),
        conditioning=(
            infinite,
            *(dataclasses.replace(infinite, layer=name, raw=10.0) for name in names),
            *(dataclasses.replace(infinite, layer=name, skipped=name) for name in names),
        ),
        remedies=(
            Recommendation(
                normaliser=names[0],
                parameter="bias",
                value=math.nan,
                predicted_rate=estimates[1],
                predicted_probability=math.nan,
                measured_rate=estimates[0],
                verified=False,
                change=names[5],
                code=names[0],
            ),
        ),
        findings=tuple(Finding("warning", name, name, name) for name in names),
        preconditioning=(
            *(dataclasses.replace(coupled(name), reason=name) for name in names),
            dataclasses.replace(preconditioned(names[0]), inputs=math.inf, hessian=math.inf),
        ),
        fix=dataclasses.replace(
            fixing(),
            optimizer=names[0],
            arms=(
                *(dataclasses.replace(arm("", None, 2.3), name=name) for name in names[:2]),
                failed_arm(names[2], SHIFT),
                dataclasses.replace(failed_arm(names[3], SHIFT), reason=names[4]),
            ),
            proposals=(Proposal(Remedy((Edit("weights", None, names[0]),)), names[1], math.nan),),
            gains=(Gain(names[1], Estimate(math.nan, math.nan, ""), math.nan, math.nan, None),),
            best=None,
            code=names,
            remarks=names,
        ),
        smoothness=dataclasses.replace(
            smoothness(),
            optimizer=names[0],
            arms=(
                wild_arm(names[0]),
                dataclasses.replace(smooth_arm(LONG_NAME, 9.0), reason=None),
                *(dataclasses.replace(smooth_arm(name, 9.0), reason=name) for name in names),
            ),
        ),
    )


CHECKUPS = {
    "deep": deep_checkup,
    "interrupted": interrupted_checkup,
    "hostile": hostile_checkup,
}


@functools.cache
def page_of(name: str) -> str:
    """The page of one of these check-ups, rendered once."""
    return render_checkup(CHECKUPS[name]())


def preconditioned(name: str) -> LayerPreconditioning:
    """A layer whose Hessian was measured."""
    return LayerPreconditioning(
        name, "Linear", 64, 257, 64, 698.7, 60.3, 7.1e7, 8.2e4, 3607.8, 57, 1.09
    )


def coupled(name: str) -> LayerPreconditioning:
    """A layer before batch norm, whose Hessian is no ĤᵀSĤ."""
    reason = "samples share batch statistics on their way to the loss"
    nan = math.nan
    return LayerPreconditioning(
        name, "Linear", 64, 256, 64, 31.1, 31.2, 2.11, nan, nan, 0, nan, reason
    )


SHIFT = Remedy((Edit("shift", 0.5),))
GROUPS = Remedy((Edit("norm", 8.0, "group"), Edit("shift", 0.5)))


def fixing() -> Fix:
    """Short trainings in which a start of β is ahead and group norm diverged."""
    shift, groups = in_words(SHIFT), in_words(GROUPS)
    return Fix(
        family="all",
        optimizer="sgd",
        steps=200,
        seeds=3,
        held_out=256,
        judged_by="held-out",
        proposals=(
            Proposal(SHIFT, "starts", 0.96),
            Proposal(GROUPS, "pairs", None),
            Proposal(Remedy((Edit("batch", 256.0),)), "batch", 0.99),
        ),
        arms=(
            arm("as it is", None, 0.557),
            arm(shift, SHIFT, 0.164),
            failed_arm(groups, GROUPS),
            dataclasses.replace(
                failed_arm("tanh", Remedy((Edit("activation", None, "tanh"),))),
                reason="there is no <layer>",
                seeds=0,
            ),
        ),
        gains=(
            Gain(shift, Estimate(-0.393, 0.0031, "mean"), -0.41, -0.38, True),
            Gain(groups, Estimate(math.nan, math.nan, "mean"), math.nan, math.nan, False),
        ),
        best=SHIFT,
        code=code_lines(SHIFT),
        seconds=12.0,
        interrupted=False,
        remarks=("The budget ended before every run; a larger one tells more.",),
    )


def arm(name: str, remedy: Remedy | None, final: float) -> Arm:
    steps = tuple(range(4, 201, 4))
    losses = tuple(final + 2.3 * math.exp(-step / 40) for step in steps)
    loss = Estimate(final, 0.017, "mean over seeds")
    return Arm(
        name=name,
        remedy=remedy,
        predicted=0.9,
        measured=0.8,
        rate=0.01,
        rates=((0.01, final), (0.03, 2 * final), (0.1, math.inf)),
        at_edge=False,
        rounds=3,
        loss=loss,
        held_out=Estimate(final + 0.1, 0.02, "mean over seeds"),
        accuracy=Estimate(0.9, 0.01, "mean over seeds"),
        curve=Curve(steps, losses),
        spread=tuple(0.05 * loss for loss in losses),
        step_seconds=6.8e-4,
        diverged=0,
        seeds=3,
    )


def failed_arm(name: str, remedy: Remedy | None) -> Arm:
    nothing = Estimate(math.inf, math.nan, "mean over seeds")
    return dataclasses.replace(
        arm(name, remedy, 1.0),
        rate=math.nan,
        rates=((0.01, math.inf), (0.03, math.inf)),
        at_edge=True,
        loss=nothing,
        held_out=nothing,
        accuracy=None,
        curve=None,
        spread=(),
        diverged=3,
    )


def smoothness() -> Smoothness:
    """A short training, smoother with normalisers than without, and a fix that failed."""
    failed = SmoothnessArm(
        "with batch norm's shift β at 0.5",
        math.nan,
        (),
        False,
        (),
        Estimate(math.nan, math.nan, "not trained"),
        "the model cannot be changed",
    )
    arms = (smooth_arm("unchanged", 7.0), smooth_arm("without normalisers", 21.0), failed)
    return Smoothness("sgd", 60, 3, arms)


def smooth_arm(name: str, beta: float) -> SmoothnessArm:
    runs = tuple(
        SmoothnessRun(
            seed,
            tuple(smooth_measurement(step, beta * (1 + 0.1 * seed)) for step in range(0, 61, 15)),
            0.3,
        )
        for seed in range(1, 4)
    )
    rates = ((0.03, 0.5), (0.1, 0.3), (0.3, math.inf))
    return SmoothnessArm(name, 0.1, rates, False, runs, Estimate(0.312, 0.021, "mean over seeds"))


def smooth_measurement(step: int, beta: float) -> SmoothnessMeasurement:
    """On a parabola of curvature β, with a gradient that shortens."""
    norm, loss = 4.0 * math.exp(-step / 30), 0.1 + 2.2 * math.exp(-step / 25)
    steps = tuple(0.05 * 8 ** (k / 7) for k in range(8))
    losses = tuple(max(0.02, loss - eta * norm**2 + beta / 2 * eta**2 * norm**2) for eta in steps)
    changes = tuple(beta * eta * norm for eta in steps)
    return SmoothnessMeasurement(step, loss, norm, steps, losses, changes, beta, 0.3 + 0.01 * step)


def wild_arm(name: str) -> SmoothnessArm:
    """Numbers that no axis can show."""
    wild = (math.inf, math.nan, 1e300, -1.0)
    measurements = (
        SmoothnessMeasurement(0, math.nan, math.inf, (0.1, 0.2, 0.3, 0.4), wild, wild, math.nan),
        SmoothnessMeasurement(
            9, -2.0, 0.0, (0.1, 0.2, 0.3, 0.4), (math.inf,) * 4, (0.0,) * 4, math.inf
        ),
    )
    run = SmoothnessRun(1, measurements, math.inf)
    nothing = Estimate(math.inf, math.nan, "mean over seeds")
    return SmoothnessArm(name, math.nan, ((1e-9, math.inf),), True, (run,), nothing)


def smooth_start() -> Smoothness:
    """What every check-up measures: the first gradient, with and without normalisers."""
    return Smoothness(
        "sgd",
        0,
        1,
        (start_arm("unchanged", 3e-4, 42.0), start_arm("without normalisers", 30.0, 0.11)),
    )


def start_arm(name: str, reliable: float, norm: float) -> SmoothnessArm:
    steps = tuple(10.0 ** (k / 2) for k in range(-16, 1))
    changes = tuple(norm * min(eta / reliable, 1.3) for eta in steps)
    losses = tuple(2.3 + 0.01 * math.sin(eta) for eta in steps)
    measurement = SmoothnessMeasurement(0, 2.3, norm, steps, losses, changes, 1 / reliable)
    nothing = Estimate(math.nan, math.nan, "not trained")
    return SmoothnessArm(
        name, 0.1, (), False, (SmoothnessRun(0, (measurement,), math.nan),), nothing
    )


def deep_growth() -> GradientGrowth:
    layers = tuple(_layer(i) for i in range(1, LAYERS + 1))
    return GradientGrowth(
        layers,
        Estimate(1.4712, 0.0061, "measured"),
        Estimate(1.462, 0.011, "measured"),
        5,
        2,
        tuple(range(1, LAYERS)),
    )


def site(number: int, layer: int, kind: int) -> Site:
    """One operation of a layer: weights, the normaliser, the activation."""
    names = ("addmm", "native_batch_norm", "relu")
    kinds = ("linear layers", "normalisers", "elementwise functions")
    gradient = 2e-3 * RATE ** (LAYERS - layer)
    return Site(
        number,
        names[kind],
        f"norm{layer}",
        (1.0, 1.0, 0.5)[kind],
        0.3,
        gradient,
        1.02,
        gradient * (1 + 0.1 * _wobble(layer)),
        kind=kinds[kind],
        elements=64 * 256,
        share=1.0,
        log_gain=(0.0, 0.39, -0.01)[kind],
        error=0.1,
        row_correlation=0.3,
    )


def prediction(layer: int) -> LayerPrediction:
    gradient = 2e-3 * RATE ** (LAYERS - layer)
    return LayerPrediction(
        f"norm{layer}", Estimate(gradient, 0.05 * gradient, "theory"), 1.0, 0.3, None
    )


def conditioning(index: int) -> LayerConditioning:
    raw = 3.1e6 / (1 + index) ** 2 * math.exp(0.4 * _wobble(index))
    return LayerConditioning(
        layer=f"fc{index + 1}",
        kind="Linear",
        rows=1024,
        columns=257,
        raw=raw,
        centred=raw**0.72,
        scaled=210.0 / (1 + index) ** 0.4,
        scale_spread=raw**0.5,
        zero_singular_values=max(0, 12 - index),
        constant_features=3 if index == 0 else 0,
        method="svd",
    )


def _layer(index: int) -> LayerGradients:
    gradient = 2.3e-4 * RATE ** (LAYERS - index) * math.exp(0.12 * _wobble(index))
    weight = 9.0 * gradient * math.exp(0.1 * _wobble(index + 5))
    return LayerGradients(
        layer=f"norm{index}",
        kind="BatchNorm1d",
        rows=32,
        features=256,
        gradient=Estimate(gradient, 0.08 * gradient, "measured"),
        weight_gradient=Estimate(weight, 0.09 * weight, "measured"),
        second_moment=Estimate(1.0 + 0.03 * _wobble(index), 0.012, "measured"),
        correlation=Estimate(0.29 - 0.2 * math.exp(-index / 2), 0.008, "measured"),
    )


def _wobble(index: int) -> float:
    """A fixed stand-in for noise, in [-1, 1]."""
    return math.sin(12.9898 * index)
