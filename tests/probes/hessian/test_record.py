"""The density of eigenvalues, and records through JSON."""

import json
import math

import numpy as np
import pytest

from equipoise.probes.hessian.record import Hessian, HessianSpectrum, SpectralDensity
from equipoise.records.codec import from_plain, to_plain
from equipoise.records.estimate import Estimate

EXACT = SpectralDensity((-1.0, 0.0, 3.0), (0.25, 0.5, 0.25), 4, probes=0, width=0.5)
SAMPLED = SpectralDensity((-1.0, 0.0, 3.0), (0.25, 0.5, 0.25), 98, probes=2, width=0.5)


def spectrum(**options):
    ends = {"largest": Estimate(3.0, 0.1, "m"), "smallest": Estimate(-1.0, 0.1, "m")}
    return HessianSpectrum(
        **{"block": "whole", "parameters": 4, "converged": True, "products": 7, **ends, **options}
    )


class TestDensity:
    def test_mean_is_the_weighted_sum(self):
        assert EXACT.mean(lambda x: x * x) == Estimate(2.5, 0.0, "all eigenvalues")

    def test_error_of_random_vectors(self):
        """√(2 Var/((n + 2) probes)) with Var x = 10/4 - 1/4."""
        found = SAMPLED.mean(lambda x: x)
        assert found.value == pytest.approx(0.5)
        assert found.error == pytest.approx(math.sqrt(2 * 2.25 / (100 * 2)))

    def test_a_constant_has_no_error(self):
        assert SAMPLED.mean(lambda x: 7.0).error == 0.0

    @pytest.mark.parametrize("width", [None, 0.1, 2.0])
    @pytest.mark.parametrize("density", [EXACT, SAMPLED])
    def test_curve_integrates_to_one_with_the_nodes_mean(self, density, width):
        points = np.linspace(-12, 14, 4001)
        curve = np.array([e.value for e in density.curve(points, width=width)])
        step = points[1] - points[0]
        assert curve.sum() * step == pytest.approx(1, abs=1e-8)
        assert (points * curve).sum() * step == pytest.approx(0.5, abs=1e-7)

    def test_curve_at_a_node_is_the_height_of_its_gaussian(self):
        (found,) = EXACT.curve([3.0], width=0.01)
        assert found.value == pytest.approx(0.25 / (0.01 * math.sqrt(2 * math.pi)))

    @pytest.mark.parametrize("width", [0.0, -1.0, math.nan])
    def test_width_must_be_positive(self, width):
        with pytest.raises(ValueError, match="width must be positive"):
            EXACT.curve([0.0], width=width)


class TestRecords:
    def test_trace_is_the_size_times_the_mean(self):
        assert spectrum(density=EXACT).trace == Estimate(2.0, 0.0, "all eigenvalues")
        assert spectrum().trace is None

    def test_shortcuts_lead_to_the_whole(self):
        found = Hessian(spectrum(density=EXACT), (spectrum(block="a"),), 1)
        assert (found.largest.value, found.smallest.value) == (3.0, -1.0)
        assert found.density is EXACT
        assert found.converged

    def test_convergence_of_every_block_counts(self):
        assert not Hessian(spectrum(), (spectrum(converged=False),), 1).converged
        assert not Hessian(spectrum(converged=False), (), 1).converged

    @pytest.mark.parametrize("name", ["largest", "smallest", "density"])
    def test_shortcuts_without_the_whole_are_refused(self, name):
        with pytest.raises(ValueError, match=r"read \.blocks, or ask for blocks='both'"):
            getattr(Hessian(None, (spectrum(),), 1), name)

    @pytest.mark.parametrize("whole", [None, spectrum(), spectrum(density=SAMPLED)])
    def test_through_json(self, whole):
        record = Hessian(whole, (spectrum(block="0"), spectrum(block="1", density=EXACT)), 3)
        assert from_plain(Hessian, json.loads(json.dumps(to_plain(record)))) == record
