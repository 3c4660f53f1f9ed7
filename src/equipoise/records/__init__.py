"""Frozen, JSON-ready values that flow between the rooms."""

from equipoise.records.checkup import (
    SCHEMA_VERSION,
    Block,
    Checkup,
    Comparison,
    Finding,
    Remedy,
    Severity,
)
from equipoise.records.codec import from_plain, to_plain, write_bytes, write_json, write_text
from equipoise.records.estimate import Estimate
from equipoise.records.hessian import Hessian, HessianSpectrum, SpectralDensity
from equipoise.records.landscape import CovariateShift, Landscape, LayerShift
from equipoise.records.measurements import (
    GradientGrowth,
    LayerConditioning,
    LayerGradients,
    LayerPreconditioning,
)
from equipoise.records.predictions import Prediction, SpectrumPrediction
from equipoise.records.second_order import MatrixSpectrum, SecondOrderPooling
from equipoise.records.smoothness import (
    Smoothness,
    SmoothnessArm,
    SmoothnessLook,
    SmoothnessRun,
)
from equipoise.records.tracking import (
    Band,
    LayerActivations,
    Series,
    TrackedStep,
    Tracking,
    TrackingCost,
)
from equipoise.records.training import Curve, Evaluation, History
from equipoise.records.trials import Arm, Gain, Trial

__all__ = [
    "SCHEMA_VERSION",
    "Arm",
    "Band",
    "Block",
    "Checkup",
    "Comparison",
    "CovariateShift",
    "Curve",
    "Estimate",
    "Evaluation",
    "Finding",
    "Gain",
    "GradientGrowth",
    "Hessian",
    "HessianSpectrum",
    "History",
    "Landscape",
    "LayerActivations",
    "LayerConditioning",
    "LayerGradients",
    "LayerPreconditioning",
    "LayerShift",
    "MatrixSpectrum",
    "Prediction",
    "Remedy",
    "SecondOrderPooling",
    "Series",
    "Severity",
    "Smoothness",
    "SmoothnessArm",
    "SmoothnessLook",
    "SmoothnessRun",
    "SpectralDensity",
    "SpectrumPrediction",
    "TrackedStep",
    "Tracking",
    "TrackingCost",
    "Trial",
    "from_plain",
    "to_plain",
    "write_json",
    "write_bytes",
    "write_text",
]
