"""What ``equipoise probe`` found around one point of one loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from equipoise.records.checkup import Finding
from equipoise.records.hessian import Hessian
from equipoise.records.landscape import CovariateShift, Landscape
from equipoise.records.measurements import GradientGrowth
from equipoise.records.smoothness import Smoothness

# Raise by one whenever a stored probe of the old form can no longer be read.
PROBE_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Probe:
    """Everything that was measured; ``probe.json`` is this record.

    Args:
        schema: :data:`PROBE_SCHEMA` of the writer.
        equipoise: Version of the library that wrote it.
        torch: Version of PyTorch that ran it.
        created: Time of writing, ISO 8601, UTC.
        target: The model as the user named it.
        data: The data as the user named them.
        device: Where the model ran.
        batch_size: Samples per batch.
        parameters: Trainable numbers in the model.
        rate: Learning rate of plain SGD that landscape and covariate shift belong to.
        rate_origin: Whether it was given, tuned by the short training, or is the reference rate.
        seconds: Wall time.
        interrupted: Whether the user stopped it; what was finished is here.
        growth: Gradients layer by layer, at the start.
        landscape: Along the gradient, at the start.
        shift: Internal covariate shift under one step, at the start.
        hessian: Extremal eigenvalues at the start, if they were asked for.
        training: Bands along a short training, if one was asked for.
        findings: Conclusions, most severe first.
    """

    schema: int
    equipoise: str
    torch: str
    created: str
    target: str
    data: str
    device: str
    batch_size: int
    parameters: int
    rate: float
    rate_origin: Literal["given", "tuned", "reference"]
    seconds: float
    interrupted: bool
    growth: GradientGrowth | None
    landscape: Landscape | None
    shift: CovariateShift | None
    hessian: Hessian | None
    training: Smoothness | None
    findings: tuple[Finding, ...]
