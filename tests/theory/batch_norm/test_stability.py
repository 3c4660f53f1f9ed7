"""Where the symmetric fixed point is stable, and where it stops being so."""

import pytest

from equipoise.theory import alpha_transition, forward_spectrum, stability
from equipoise.theory.activation.catalogue import alpha_relu


class TestStability:
    @pytest.mark.parametrize(
        ("name", "critical"), [("gelu", 39), ("silu", 26), ("tanh", None), ("relu", None)]
    )
    def test_critical_batch_sizes(self, name, critical):
        found = stability(name, 16)
        assert found.stable
        assert found.critical_batch_size == critical
        if critical is not None:
            assert stability(name, critical - 1).stable
            assert not stability(name, critical).stable

    def test_the_margin_is_to_the_largest_eigenvalue(self):
        found, forward = stability("gelu", 64), forward_spectrum("gelu", 64)
        assert not found.stable
        assert found.along == "L"
        assert found.margin.value == pytest.approx(1 - forward.L.value, abs=1e-14)
        assert found.margin.value < 0

    def test_tanh_is_nearest_to_losing_its_correlations(self):
        assert stability("tanh", 16).along == "M"

    def test_eps_counts(self):
        assert stability("tanh", 16, eps=0.1).margin.value < stability("tanh", 16).margin.value

    def test_a_batch_that_is_too_small(self):
        with pytest.raises(ValueError, match="batch_size must be at least 4, got 3"):
            stability("relu", 3)


class TestTransition:
    @pytest.mark.parametrize("B", [5, 6, 10, 100, 10**4])
    def test_the_eigenvalue_crosses_one_there(self, B):
        alpha = alpha_transition(B)
        below, above = (
            forward_spectrum(alpha_relu(alpha.value + step), B).L.value for step in (-1e-4, 1e-4)
        )
        assert below < 1 < above

    def test_known_values(self):
        assert alpha_transition(10).value == pytest.approx(1.40, abs=0.005)
        assert 1 < alpha_transition(10**6).value < 1.00001

    def test_it_falls_with_the_batch(self):
        values = [alpha_transition(B).value for B in (5, 6, 8, 16, 64, 512)]
        assert values == sorted(values, reverse=True)

    def test_none_at_four(self):
        with pytest.raises(ValueError, match="no transition at batch_size = 4"):
            alpha_transition(4)
