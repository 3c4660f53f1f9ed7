"""Probes made by hand, for what shows them."""

import dataclasses
import functools
import math

from equipoise.diagnosis.record import PROBE_SCHEMA, Probe
from equipoise.probes.hessian.record import Hessian, HessianSpectrum
from equipoise.probes.record import CovariateShift, Landscape, LayerShift
from equipoise.records import Estimate, Finding
from equipoise.report.probe.page import render_probe
from support.report_examples import HOSTILE_NAMES, deep_growth, smoothness

STEPS = tuple(0.05 * 8 ** (k / 7) for k in range(8))


def landscape(curvature=6.0, norm=2.0):
    """Along the gradient of a parabola; 1/6 is between the third and the fourth point."""
    return Landscape(
        direction="gradient",
        steps=STEPS,
        losses=tuple(2.3 - eta + 3 * eta**2 for eta in STEPS),
        gradient_changes=tuple(curvature * eta * norm for eta in STEPS),
        cosines=(1.0,) * 7 + (-1.0,),
        initial_loss=2.3,
        gradient_norm=norm,
        direction_norm=norm,
        parameter_norm=10.0,
        relative_floor=1e-7,
        zero_gradient=norm == 0,
    )


def shifted(names):
    layers = [
        LayerShift(name, "Linear", 1200, 0.4 * i, 1 - 0.05 * i, 2.0, 2.0, False)
        for i, name in enumerate(names)
    ]
    return CovariateShift(tuple(layers), 2.3, 1e-7, True)


def spectrum(block):
    largest, smallest = Estimate(18.5, 0.2, "Lanczos"), Estimate(-0.3, 0.1, "Lanczos")
    return HessianSpectrum(block, 1200, largest, smallest, block != "fc2", 27)


def whole():
    names = [f"fc{i}" for i in range(1, 21)]
    return Probe(
        schema=PROBE_SCHEMA,
        equipoise="0.1.0",
        torch="2.13.0",
        created="2026-11-21T10:39:12+00:00",
        target="nets.py:build",
        data="digits",
        device="cpu",
        batch_size=64,
        parameters=2_149_898,
        rate=0.1,
        rate_origin="tuned",
        seconds=2.5,
        interrupted=False,
        growth=deep_growth(),
        landscape=landscape(),
        shift=shifted(names),
        hessian=Hessian(spectrum("whole"), tuple(map(spectrum, names)), 1),
        training=smoothness(),
        findings=(Finding("note", "The gradient is short", "It is 2 long.", "Wait."),),
    )


def interrupted():
    nothing = dict.fromkeys(("growth", "landscape", "shift", "hessian", "training"))
    return dataclasses.replace(whole(), interrupted=True, findings=(), **nothing)


def hostile():
    wild = dataclasses.replace(
        landscape(),
        losses=(math.inf, math.nan, *(1e300,) * 6),
        gradient_changes=(math.inf,) * 8,
        cosines=(math.nan,) * 8,
    )
    return dataclasses.replace(
        whole(),
        target=HOSTILE_NAMES[0],
        data=HOSTILE_NAMES[3],
        created=HOSTILE_NAMES[0],
        landscape=wild,
        shift=shifted(HOSTILE_NAMES),
        hessian=Hessian(None, tuple(map(spectrum, HOSTILE_NAMES)), 1),
        findings=tuple(Finding("warning", name, name, name) for name in HOSTILE_NAMES),
    )


PROBES = {"whole": whole, "interrupted": interrupted, "hostile": hostile}


@functools.cache
def page_of(name):
    """The page of one of these probes, rendered once."""
    return render_probe(PROBES[name]())
