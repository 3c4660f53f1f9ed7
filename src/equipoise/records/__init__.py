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
from equipoise.records.measurements import GradientGrowth, LayerConditioning, LayerGradients
from equipoise.records.predictions import Prediction, SpectrumPrediction
from equipoise.records.training import Curve, Evaluation, History

__all__ = [
    "SCHEMA_VERSION",
    "Block",
    "Checkup",
    "Comparison",
    "Curve",
    "Estimate",
    "Evaluation",
    "Finding",
    "GradientGrowth",
    "History",
    "LayerConditioning",
    "LayerGradients",
    "Prediction",
    "Remedy",
    "Severity",
    "SpectrumPrediction",
    "from_plain",
    "to_plain",
    "write_json",
    "write_text",
]
