"""Logistic regression with signs, and what it is judged by, against closed forms."""

import itertools
import json

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from equipoise.diagnosis.trainability.calibration import Calibration
from equipoise.records import from_plain
from equipoise_papers.trainability import calibrate, faint, fitting
from equipoise_papers.trainability.outcome import outcomes
from papers_support.trainability_examples import known, network, records

FIT = {"intercept": 3.0, "coefficients": {"samples": 0.5}, "covariance": [[1.0, 0.0], [0.0, 1.0]]}
A, B = 1.0, np.array([-2.0, 0.5])
SIGNS = np.array([-1.0, 1.0])


@pytest.fixture(scope="module")
def drawn():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(20_000, 2))
    return x, (draw.random(len(x)) < 1 / (1 + np.exp(-(A + x @ B)))).astype(float)


class TestFit:
    def test_it_recovers_known_coefficients(self, drawn):
        """Standard errors are near 0.02 at 20,000 rows."""
        found = fitting.fit(*drawn, SIGNS)
        assert found.intercept == pytest.approx(A, abs=0.08)
        assert found.coefficients == pytest.approx(B, abs=0.1)

    def test_signs_are_kept_whatever_the_data_say(self, drawn):
        found = fitting.fit(*drawn, -SIGNS)
        assert not found.coefficients.any()

    def test_without_signs_any_may_be(self, drawn):
        assert fitting.fit(*drawn, np.zeros(2)).coefficients == pytest.approx(B, abs=0.1)

    def test_the_intercept_alone_gives_the_share(self):
        trained = np.array([1.0, 1.0, 1.0, 0.0])
        found = fitting.fit(np.zeros((4, 1)), trained, np.zeros(1))
        assert found.probability(np.zeros((1, 1))) == pytest.approx(0.75, abs=1e-4)

    def test_units_do_not_matter(self, drawn):
        x, trained = drawn
        scaled = fitting.fit(x * np.array([1000.0, 1.0]), trained, SIGNS)
        assert scaled.coefficients[0] * 1000 == pytest.approx(
            fitting.fit(x, trained, SIGNS).coefficients[0], rel=1e-3
        )


def test_held_out_families_do_not_see_themselves():
    """A family that contradicts all others is judged by the others."""
    x = np.array([[0.0], [1.0]] * 20)
    trained = np.array([1.0, 0.0] * 10 + [0.0, 1.0] * 10)
    families = ["a"] * 20 + ["b"] * 20
    found = fitting.held_out(x, trained, families, np.zeros(1))
    assert (found[:20][x[:20, 0] == 0] < 0.5).all()
    assert (found[20:][x[20:, 0] == 0] > 0.5).all()


def test_the_covariance_is_that_of_maximum_likelihood(drawn):
    """The inverse of Fisher's information, within what 100 resamples tell."""
    x, trained = (part[:2000] for part in drawn)
    found = fitting.covariance(x, trained, list(range(2000)), SIGNS)
    p = fitting.fit(x, trained, SIGNS).probability(x)
    z = np.column_stack([np.ones(len(x)), x])
    expected = np.linalg.inv((z * (p * (1 - p))[:, None]).T @ z)
    assert np.sqrt(np.diag(found)) == pytest.approx(np.sqrt(np.diag(expected)), rel=0.3)


def test_area_under_curve_is_scikit_learns():
    draw = np.random.default_rng(1)
    trained = (draw.random(200) < 0.3).astype(float)
    score = np.round(draw.normal(size=200) + trained, 1)  # with ties
    assert fitting.area_under_curve(score, trained) == pytest.approx(roc_auc_score(trained, score))
    assert fitting.area_under_curve(-score, trained) < 0.5


class TestCalibrationError:
    def test_of_honest_probabilities_is_small(self):
        draw = np.random.default_rng(2)
        p = draw.random(50_000)
        trained = (draw.random(50_000) < p).astype(float)
        assert fitting.calibration_error(p, trained) < 0.02

    def test_of_one_probability_is_its_distance_from_the_share(self):
        trained = np.array([1.0, 0.0, 0.0, 0.0])
        assert fitting.calibration_error(np.full(4, 0.9), trained) == pytest.approx(0.65)

    def test_certainty_has_a_bin(self):
        assert fitting.calibration_error(np.ones(3), np.ones(3)) == 0


def test_an_interval_holds_the_mean():
    values = np.arange(40.0)
    low, high = fitting.interval(lambda rows: values[rows].mean(), list(range(40)))
    assert low < values.mean() < high
    same = fitting.interval(lambda rows: values[rows].mean(), [0] * 40)
    assert same == (values.mean(), values.mean())


def gradients(x):
    """Of a network that is fine but for their size."""
    return dict.fromkeys(("explosion", "silence"), 0.0) | {"samples": 4.0, "faintness": float(x)}


class TestFaintness:
    """What the benchmark has none of is fitted beside what it has taught."""

    def coefficient(self, limit, known=gradients):
        found = [faint.Faint(network(), float(x < limit), None, known(x)) for x in range(24)] + [
            faint.Faint(network(), None, None, known(20))
        ]
        return faint.with_faintness(FIT, "measured", found)

    def test_is_even_where_networks_stop_to_train(self):
        """Log-odds of 3 + 4 · 0.5 are used up there."""
        for limit in (6, 12):
            found = self.coefficient(limit)
            assert found["coefficients"]["faintness"] == pytest.approx(-5 / (limit - 0.5), rel=0.1)
            assert found["coefficients"]["samples"] == 0.5
            assert found["covariance"][2][:2] == [0.0, 0.0]
            assert 0 < found["covariance"][2][2] < 0.1

    def test_the_smaller_of_two_counts(self):
        one = faint.Faint(network(), 1.0, gradients(2), gradients(9))
        assert one.quantity("faintness", "both") == 2
        assert one.quantity("faintness", "measured") == 9
        assert one.quantity("samples", "both") == 4

    def test_records_are_read_as_they_were_written(self, tmp_path):
        file = tmp_path / "faint.json"
        assert faint.read(file) == []
        found = [faint.Faint(network(), x, None, gradients(3)) for x in (0.5, None)]
        faint.write(file, found)
        assert faint.read(file) == found


class TestCalibrate:
    """What is written is what the library reads."""

    @pytest.fixture(scope="class")
    @staticmethod
    def found():
        results = {}
        for seed, topology in itertools.product(range(12), ("plain", "pre")):
            for depth in (4, 8):
                one = network(topology=topology, depth=depth, seed=seed)
                results |= records(one, 1.0 if depth + seed < 12 else 2.0)
                look = list(results)[-1]
                results[look] = known(explosion=float(depth + seed), silence=0.0, samples=4.0)
        return outcomes(results)

    def test_the_form(self, found):
        faintly = [faint.Faint(network(), 1.0 - x / 16, None, gradients(x)) for x in range(16)]
        written = json.loads(json.dumps(calibrate.calibration(found, 96, faintly)))
        read = from_plain(Calibration, written)
        assert (read.networks, read.trainings) == (48, 96)
        assert read.ranges["explosion"] == (4.0, 19.0)
        for fit in read.fits.values():
            assert fit.coefficients["explosion"] < 0
            assert list(fit.held_out) == sorted(fit.held_out)
            assert len(fit.trained) == 48
            assert [len(row) for row in fit.covariance] == [5] * 5
            assert fit.coefficients["faintness"] < 0
        assert read.ranges["faintness"] == (0.0, 15.0)

    def test_bases_are_told_apart(self, found):
        table = calibrate.table(found)
        smaller = np.minimum(table.x["predicted"], table.x["measured"])
        assert table.x["both"] == pytest.approx(smaller)
        favourable = [name == "samples" for name in table.names]
        assert list(table.signs) == [1 if good else -1 for good in favourable]
