"""Findings follow from records written by hand."""

import dataclasses
import math

import pytest

from equipoise.diagnosis.findings import advice, conclude
from equipoise.diagnosis.fix.record import Proposal
from equipoise.diagnosis.fix.remedy import Remedy
from equipoise.diagnosis.record import Comparison, Recommendation
from equipoise.diagnosis.trainability.judge import REASONS
from equipoise.probes.record import GradientGrowth, LayerConditioning, LayerGradients
from equipoise.records import Estimate, Finding, wording
from equipoise.theory.propagation.sites import Share, Site

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
    found = tuple(layer(i) for i in range(layers))
    return GradientGrowth(found, fitted, None, 6, 4, tuple(range(1, layers)))


def site(reason="", operation="add", module="body"):
    moment = None if reason else 1.0
    return Site(0, operation, module, moment, 0.3, 1.0, 1.0, 1.0, reason, kind="branches")


NORMS = (Share("normalisers", 20, 20.0, 20 * math.log(1.6)),)


def comparison(outcome):
    predicted, measured = Estimate(1.47, 0.0, "theory"), Estimate(1.5, 0.01, "fit")
    return Comparison("gradient growth per layer", predicted, measured, 2.1, outcome)


def layer(raw=10.0, scaled=5.0, rows=64, columns=11, zero=0, constant=0, skipped=None, of=0):
    kappas = raw, scaled, scaled, 1.0
    return LayerConditioning(
        "fc", "Linear", rows, columns, *kappas, zero, constant, "svd", skipped, of
    )


def remedy(verified, rate=1.26):
    measured = Estimate(rate, 0.01, "fit")
    return Recommendation(
        normaliser="batch norm",
        parameter="bias",
        value=0.5,
        predicted_rate=Estimate(1.27, 0.0, "t"),
        predicted_probability=0.93,
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
            (3.0, 20, "note", "Gradients grow towards the input"),
            (1 / 3, 20, "note", "Gradients shrink towards the input"),
            (1.01, 20, "good", "Gradients stay balanced over the depth"),
            (1 / 1.01, 20, "good", "Gradients stay balanced over the depth"),
            (1.6, 4, "good", "Gradients stay balanced over the depth"),
        ],
    )
    def test_growth_over_the_depth_is_described(self, rate, layers, severity, title):
        """Whether it matters is for the probability of training to say."""
        findings = conclude(growth(rate, layers), [], NORMS, [], [])
        finding = next(f for f in findings if f.title.startswith("Gradients"))
        assert (finding.severity, finding.title) == (severity, title)
        assert finding.remedy is None

    def test_a_layer_without_gradient_is_named(self):
        """Zero is so by construction behind a scale that starts at zero: no alarm."""
        findings = conclude(growth(1.1, first=0), [], NORMS, [], [])
        (finding,) = (f for f in findings if "without any gradient" in f.title)
        assert finding.severity == "note"
        assert "norm1" in finding.detail

    @pytest.mark.parametrize(("place", "of_data"), [(0, True), (9, False)])
    def test_the_data_are_named_only_where_the_first_layer_stands_out(self, place, of_data):
        """Of a step in the middle of an EfficientNet the data's scale was said to be the cause."""
        record = growth(1.1)
        layers = list(record.layers)
        layers[place] = dataclasses.replace(layers[place], gradient=Estimate(1e-3, 0.1, "m"))
        record = dataclasses.replace(record, layers=tuple(layers))
        pairs = {(f"norm{i}", f"norm{i + 1}") for i in range(1, 20)}
        findings = conclude(record, [], NORMS, [], [], in_sequence=pairs)
        finding = next(f for f in findings if "stands out" in f.title)
        assert ("data" in finding.detail, "data" in finding.remedy) == (of_data, of_data)

    @pytest.mark.parametrize(
        ("pairs", "rows", "says"),
        [
            ({("norm9", "norm10")}, 64, True),
            (set(), 64, False),  # of two branches
            ({("norm9", "norm10")}, 64 / 1000, False),  # 1,000 positions are averaged
            ({("norm9", "norm10")}, 64 * 1000, True),  # and here repeated: gradients add up
        ],
    )
    def test_a_step_stands_out_between_layers_in_sequence_alone(self, pairs, rows, says):
        record = growth(1.1)
        layers = [
            dataclasses.replace(x, rows=rows if i > 8 else 64) for i, x in enumerate(record.layers)
        ]
        for i in range(9):
            small = Estimate(layers[i].gradient.value / 1000, 0.1, "m")
            layers[i] = dataclasses.replace(layers[i], gradient=small)
        record = dataclasses.replace(record, layers=tuple(layers))
        findings = conclude(record, [], NORMS, [], [], in_sequence=pairs)
        assert any("stands out" in f.title for f in findings) == says

    @pytest.mark.parametrize(
        ("rows", "severity", "title"),
        [
            (2, "warning", "Batch norm of 2 rows keeps only which one is larger"),
            (3, "warning", "Batch statistics of 3 rows are noise"),
            (8, "warning", "Batch statistics of 8 rows are noise"),
            (16, None, ""),
            (None, None, ""),  # by single samples, or by running statistics
        ],
    )
    def test_batch_statistics_of_few_rows_are_told(self, rows, severity, title):
        found = growth(1.01)
        layers = [dataclasses.replace(found.layers[0], sharing=rows), *found.layers[1:]]
        findings = conclude(dataclasses.replace(found, layers=tuple(layers)), [], NORMS, [], [])
        few = [f for f in findings if "1 batch norm, norm1" in f.detail]
        assert [(f.severity, f.title) for f in few] == ([(severity, title)] if severity else [])

    def test_too_few_layers_say_nothing(self):
        assert conclude(growth(5.0, layers=2, first=0), [], NORMS, [], []) == ()


class TestAdvice:
    """What a model that will not train should change."""

    def test_a_remedy_that_was_verified_comes_first(self):
        text = advice(growth(3.0), NORMS, [remedy(False, rate=3.1), remedy(True)])
        assert text == (
            "Start batch norm's shift β at 0.5: measured on your model, gradients then change "
            "×1.26 per layer; by theory it trains with a probability of 93 %."
        )

    def test_what_theory_expects_more_of_comes_before_it(self):
        proposal = Proposal(Remedy.named("norm=group:2"), "norms", 0.97)
        assert advice(growth(3.0), NORMS, [remedy(True)], proposal) == (
            "Group norm of 2 groups instead of every norm: by theory it then trains with a "
            "probability of 97 %. `fix=True` trains it beside the model as it is."
        )

    @pytest.mark.parametrize("verified", [False, None])
    def test_one_that_did_not_help_is_not_recommended(self, verified):
        assert "Start batch norm" not in advice(growth(3.0), NORMS, [remedy(verified)])

    def test_weights_that_are_too_small_are_drawn_larger_whatever_theory_of_them_says(self):
        small = advice(growth(3.0), NORMS, [remedy(True)], reason=REASONS["settling"])
        assert "Draw the weights larger" in small

    def test_for_normalisers_that_make_gradients_grow(self):
        assert "equipoise theory" in advice(growth(1.6), NORMS, [])

    def test_only_batch_norms_ask_for_larger_batches(self):
        found = growth(1.6)
        layers = tuple(dataclasses.replace(one, sharing=64) for one in found.layers)
        assert "larger batches" not in advice(found, NORMS, [])
        assert "larger batches" in advice(dataclasses.replace(found, layers=layers), NORMS, [])

    @pytest.mark.parametrize("causes", [NORMS, ()])
    def test_what_a_model_has_is_not_recommended(self, causes):
        skips = Share("branches", 9, 9.0, 0.1)
        assert "connections" in advice(growth(1.6), causes, [])
        assert "connections" not in advice(growth(1.6), (*causes, skips), [])

    @pytest.mark.parametrize(("rate", "word"), [(3.0, "Lower"), (1 / 3, "Raise")])
    def test_without_them_it_is_about_weights(self, rate, word):
        assert advice(growth(rate), [], []).startswith(f"{word} the scale of the initial weights")

    def test_normalisers_that_do_nothing_are_no_cause(self):
        idle = (Share("normalisers", 20, 20.0, 0.1),)
        assert advice(growth(1.6), idle, []).startswith("Lower the scale")

    def test_without_a_measurement(self):
        assert advice(None, [], []).startswith("Lower the scale")


class TestComparisons:
    def test_agreement_is_good_and_disagreement_a_note_that_trusts_the_measurement(self):
        agreed = first(None, [], NORMS, [comparison("agrees")], [])
        differed = first(None, [], NORMS, [comparison("differs")], [])
        assert (agreed.severity, differed.severity) == ("good", "note")
        assert differed.remedy.startswith("Trust the measurement")

    @pytest.mark.parametrize("z", [1.2, math.nan])
    def test_an_undecided_one_is_neither(self, z):
        vague = dataclasses.replace(comparison("undecided"), z=z)
        (finding,) = conclude(None, [], NORMS, [vague], [])
        assert finding.severity == "note"
        assert finding.title == "Undecided whether theory holds for the gradient growth per layer"
        assert "More seeds" in finding.detail
        assert finding.remedy is None
        assert ("1.2 standard errors, which are too large" in finding.detail) == (z == 1.2)

    def test_the_numbers(self):
        (finding,) = conclude(None, [], NORMS, [comparison("agrees")], [])
        assert finding.detail == (
            "Predicted 1.47, measured 1.500 ± 0.010. "
            "Difference: 2.1 standard errors (agreement means below 3)."
        )


class TestOthers:
    def test_reasons_are_counted(self):
        sites = [site(), *[site("an unknown law", "erfinv")] * 3]
        finding = first(None, sites, [], [], [])
        assert finding.title == "Theory predicts 1 of 4 operations"
        assert "3 × erfinv (an unknown law)" in finding.detail

    def test_the_loss_needs_no_prediction(self):
        assert conclude(None, [site(), site("no rule", module="")], [], [], []) == ()

    def test_causes_are_named(self):
        finding = first(growth(1.6), [], NORMS, [], [])
        assert "it comes from normalisers (×1.60 each, 20 on the way)" in finding.detail

    def test_a_cause_that_hardly_lies_on_the_way_has_no_factor_of_its_own(self):
        """As branches of a loss beside which another outweighs all: ×1e304 says nothing."""
        shares = (Share("branches", 1, 2e-10, math.log(4.0)),)
        finding = first(growth(1.6), [], shares, [], [])
        assert "it comes from branches (×4.00 together)" in finding.detail

    def test_the_change_over_the_depth_is_that_of_the_fit(self):
        """The first layer's own gradient, which stands beside it, has the data's scale."""
        found = conclude(growth(1.6, first=1e9), [], NORMS, [], [])
        times = wording.number(1.6**19)
        told = f"At that rate it becomes e^8.9 ({times} times) larger over the 20 layers."
        assert any(told in finding.detail for finding in found)

    def test_what_works_against_it_is_no_cause(self):
        shares = (Share("pooling", 1, 1.0, -2.0),)
        assert "comes from" not in first(growth(1.6), [], shares, [], []).detail

    @pytest.mark.parametrize(
        ("raw", "scaled", "warns"), [(1e6, 1e2, True), (1e6, 5e5, False), (1e3, 1e1, False)]
    )
    def test_conditioning_warns_where_scaling_would_help_much(self, raw, scaled, warns):
        findings = conclude(None, [], NORMS, [], [layer(raw, scaled)])
        assert any(finding.severity == "warning" for finding in findings) == warns

    def test_of_hidden_layers_it_is_a_note(self):
        """Many that train well have some, and norms before them may do harm."""
        findings = conclude(None, [], NORMS, [], [layer(1e2, 1e2), layer(1e6, 1e2)])
        assert [f.severity for f in findings] == ["note"]
        assert findings[0].title == "Inputs of 1 layer are ill-conditioned"

    def test_small_batches_and_constant_inputs_are_notes(self):
        layers = [layer(rows=5, columns=11, zero=6), layer(constant=3)]
        findings = conclude(None, [], NORMS, [], layers)
        assert {finding.severity for finding in findings} == {"note"}
        assert ["5 directions" in f.detail for f in findings] == [True, False]
        assert ["3 of 10 inputs" in f.detail for f in findings] == [False, True]

    def test_a_small_sample_of_rows_is_no_small_batch(self):
        """Of a ResNet-18 at a batch of 64, 12 layers were said to have too few rows; 5 have."""
        (large,) = conclude(None, [], NORMS, [], [layer(rows=5, columns=11, zero=6)])
        assert conclude(None, [], NORMS, [], [layer(rows=5, columns=11, zero=6, of=90)]) == ()
        (small,) = conclude(None, [], NORMS, [], [layer(rows=5, columns=11, zero=6, of=8)])
        assert "a batch gives 5 rows for 10 inputs, so that at least 5 directions" in large.detail
        assert "a batch gives 8 rows for 10 inputs, so that at least 2 directions" in small.detail

    def test_as_many_rows_as_inputs_are_enough(self):
        """Layers without bias lose nothing there; "1 direction" was said to get no gradient."""
        assert conclude(None, [], NORMS, [], [layer(rows=10, columns=11, zero=1)]) == ()

    def test_skipped_layers_are_not_judged(self):
        nan = float("nan")
        assert conclude(None, [], NORMS, [], [layer(nan, nan, 1, 9, skipped="large")]) == ()

    def test_findings_are_ranked_and_of_equal_ones_the_leading_is_first(self):
        findings = conclude(
            growth(3.0),
            [site(), site("r")],
            NORMS,
            [comparison("agrees"), comparison("differs")],
            [layer(1e6, 1e2), layer(constant=3)],
            further=[Finding("critical", "further", "…")],
            leading=[Finding("critical", "leading", "…"), Finding("good", "so good", "…")],
        )
        ranks = [ORDER.index(finding.severity) for finding in findings]
        assert ranks == sorted(ranks)
        assert set(ranks) == {0, 1, 2, 3}
        assert [f.title for f in findings[:2]] == ["leading", "further"]
        assert next(f for f in findings if f.severity == "good").title == "so good"

    def test_nothing_measured_means_no_findings(self):
        assert conclude(None, [], [], [], []) == ()
