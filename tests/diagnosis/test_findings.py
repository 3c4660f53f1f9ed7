"""Findings follow from records written by hand."""

import dataclasses
import math

import pytest

from equipoise.diagnosis.findings import conclude
from equipoise.diagnosis.record import Block, Comparison, Remedy
from equipoise.probes.conditioning import LayerConditioning
from equipoise.probes.gradient_growth import GradientGrowth, LayerGradients
from equipoise.records import Estimate

ORDER = ["critical", "warning", "note", "good"]


def growth(rate, layers=20, first=None):
    def layer(index):
        value = rate ** (layers - 1 - index)
        return LayerGradients(
            layer=f"norm{index + 1}",
            kind="BatchNorm1d",
            rows=64,
            features=128,
            gradient=Estimate(first if first is not None and not index else value, 0.1, "m"),
            weight_gradient=None,
            second_moment=Estimate(1.0, 0.1, "m"),
            correlation=Estimate(0.3, 0.1, "m"),
        )

    fitted = None if first == 0 else Estimate(rate, 0.01, "fit")
    return GradientGrowth(tuple(layer(i) for i in range(layers)), fitted, None, 6, 4)


def block(rate=1.47, *, reason=None, stable=True, layer="norm1"):
    estimate = None if reason else Estimate(rate, 1e-9, "quadrature", stable)
    depth = None if reason else 16 / abs(math.log(rate))
    return Block(
        layer, "BatchNorm1d", "gelu", "next", 64, 128, 1e-5, 1.0, 0.0, 1.0, estimate, depth,
        reason, (),
    )  # fmt: skip


def comparison(outcome):
    predicted, measured = Estimate(1.47, 0.0, "theory"), Estimate(1.5, 0.01, "fit")
    return Comparison("gradient growth per layer", predicted, measured, 0.01, 2.1, outcome)


def layer(raw=10.0, scaled=5.0, rows=64, columns=11, zero=0, constant=0, skipped=None):
    return LayerConditioning(
        "fc", "Linear", rows, columns, raw, scaled, scaled, 1.0, zero, constant, "svd", skipped
    )


def remedy(verified, rate=1.26):
    measured = Estimate(rate, 0.01, "fit")
    return Remedy(
        normaliser="batch norm",
        parameter="bias",
        value=0.5,
        predicted_rate=Estimate(1.27, 0.0, "t"),
        predicted_depth=67,
        measured_rate=measured,
        verified=verified,
        change="start batch norm's shift β at 0.5",
        code="…",
    )


def first(*args, **keywords):
    return conclude(*args, **keywords)[0]


class TestGradients:
    @pytest.mark.parametrize(
        ("rate", "layers", "severity", "title"),
        [
            (
                3.0,
                20,
                "critical",
                "Gradients explode: the model has 20 layers, about 15 can train",
            ),
            (
                1 / 3,
                20,
                "critical",
                "Gradients vanish: the model has 20 layers, about 15 can train",
            ),
            (1.6, 20, "warning", "Gradients grow noticeably with depth"),
            (1 / 1.6, 20, "warning", "Gradients shrink noticeably with depth"),
            (1.01, 20, "good", None),
            (3.0, 4, "good", None),
        ],
    )
    def test_severity_is_what_the_rate_does_over_the_depth(self, rate, layers, severity, title):
        findings = conclude(growth(rate, layers), [block()], [], [], [])
        finding = next(f for f in findings if f.title.startswith("Gradients"))
        assert finding.severity == severity
        assert title is None or finding.title == title

    def test_a_remedy_that_was_verified_is_recommended(self):
        text = first(growth(3.0), [block()], [], [], [remedy(True)]).remedy
        assert text.startswith("Start batch norm's shift β at 0.5: measured on your model, ")
        assert "gradients then change ×1.26 per layer" in text

    def test_one_that_did_not_help_is_not(self):
        finding = first(growth(3.0), [block()], [], [], [remedy(False, rate=3.1)])
        assert "Start batch norm" not in finding.remedy

    def test_one_that_helps_otherwise_than_predicted_is(self):
        """Predicted 1.27, measured 1.3, where 3.0 was measured before."""
        finding = first(growth(3.0), [block()], [], [], [remedy(False, rate=1.3)])
        assert "Start batch norm" in finding.remedy

    @pytest.mark.parametrize(
        ("rate", "advice"), [(3.0, "Lower the scale"), (1 / 3, "Raise the scale")]
    )
    def test_without_batch_norm_the_advice_is_about_weights(self, rate, advice):
        assert first(growth(rate), [], [], [], []).remedy.startswith(advice)

    def test_a_layer_without_gradient_is_named(self):
        """Zero is so by construction behind a scale that starts at zero: no alarm."""
        findings = conclude(growth(1.1, first=0), [block()], [], [], [])
        (finding,) = (f for f in findings if "without any gradient" in f.title)
        assert finding.severity == "note"
        assert "norm1" in finding.detail

    def test_a_gradient_that_overflows_is_critical(self):
        finding = first(growth(1.1, first=math.inf), [block()], [], [], [])
        assert finding.severity == "critical"
        assert "norm1" in finding.detail

    def test_too_few_layers_say_nothing(self):
        assert conclude(growth(5.0, layers=2, first=0), [block()], [], [], []) == ()


class TestComparisons:
    def test_agreement_is_good_and_disagreement_a_note_that_trusts_the_measurement(self):
        agreed = first(None, [block()], [comparison("agrees")], [], [])
        differed = first(None, [block()], [comparison("differs")], [], [])
        assert (agreed.severity, differed.severity) == ("good", "note")
        assert differed.remedy.startswith("Trust the measurement")

    @pytest.mark.parametrize("z", [1.2, math.nan])
    def test_an_unclear_one_is_neither(self, z):
        vague = dataclasses.replace(comparison("unclear"), z=z)
        (finding,) = conclude(None, [block()], [vague], [], [])
        assert finding.severity == "note"
        assert finding.title == "Too uncertain to compare the gradient growth per layer"
        assert "--seeds" in finding.remedy
        assert ("standard errors" in finding.detail) == (z == 1.2)

    def test_the_numbers(self):
        (finding,) = conclude(None, [block()], [comparison("agrees")], [], [])
        assert finding.detail == (
            "Predicted 1.470, measured 1.500 ± 0.010. Finite width alone explains ±0.010. "
            "Difference: 2.1 standard errors (agreement means below 3)."
        )


class TestOthers:
    def test_unstable_fixed_points_are_named(self):
        finding = first(None, [block(stable=False)], [], [], [])
        assert finding.severity == "note"
        assert "gelu at batch 64" in finding.detail

    def test_reasons_are_counted(self):
        blocks = [block(), *[block(reason="a branch joins", layer=f"n{i}") for i in range(3)]]
        finding = first(None, blocks, [], [], [])
        assert finding.title == "Theory covers 1 of 4 normalisers"
        assert "3 × a branch joins" in finding.detail

    def test_models_without_normaliser_say_so(self):
        titles = [finding.title for finding in conclude(growth(1.0), [], [], [], [])]
        assert "No normalisation: measured, not predicted" in titles

    @pytest.mark.parametrize(
        ("raw", "scaled", "warns"), [(1e6, 1e2, True), (1e6, 5e5, False), (1e3, 1e1, False)]
    )
    def test_conditioning_warns_where_scaling_would_help_much(self, raw, scaled, warns):
        findings = conclude(None, [block()], [], [layer(raw, scaled)], [])
        assert any(finding.severity == "warning" for finding in findings) == warns

    def test_small_batches_and_constant_inputs_are_notes(self):
        layers = [layer(rows=5, columns=11, zero=6), layer(constant=3)]
        findings = conclude(None, [block()], [], layers, [])
        assert {finding.severity for finding in findings} == {"note"}
        assert ["6 directions" in f.detail for f in findings] == [True, False]
        assert ["3 of 10 inputs" in f.detail for f in findings] == [False, True]

    def test_skipped_layers_are_not_judged(self):
        nan = float("nan")
        assert conclude(None, [block()], [], [layer(nan, nan, 1, 9, skipped="large")], []) == ()

    def test_findings_are_ranked(self):
        findings = conclude(
            growth(3.0),
            [block(stable=False), block(reason="r")],
            [comparison("agrees"), comparison("differs")],
            [layer(1e6, 1e2), layer(constant=3)],
            [],
        )
        ranks = [ORDER.index(finding.severity) for finding in findings]
        assert ranks == sorted(ranks)
        assert set(ranks) == {0, 1, 2, 3}

    def test_nothing_measured_means_no_findings(self):
        assert conclude(None, [], [], [], []) == ()
