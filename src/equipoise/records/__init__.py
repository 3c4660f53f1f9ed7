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
from equipoise.records.codec import from_plain, to_plain, write_json, write_text
from equipoise.records.estimate import Estimate
from equipoise.records.measurements import (
    GradientGrowth,
    LayerConditioning,
    LayerGradients,
    LayerPreconditioning,
)
from equipoise.records.predictions import Prediction, SpectrumPrediction
from equipoise.records.training import Curve, Evaluation, History
from equipoise.records.trials import Arm, Gain, Trial

__all__ = [
    "SCHEMA_VERSION",
    "Arm",
    "Block",
    "Checkup",
    "Comparison",
    "Curve",
    "Estimate",
    "Evaluation",
    "Finding",
    "Gain",
    "GradientGrowth",
    "History",
    "LayerConditioning",
    "LayerGradients",
    "LayerPreconditioning",
    "Prediction",
    "Remedy",
    "Severity",
    "SpectrumPrediction",
    "Trial",
    "from_plain",
    "to_plain",
    "write_json",
    "write_text",
]
