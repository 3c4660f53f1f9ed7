"""Both ends of a spectrum, and quadrature for what lies between, against the eigenvalues."""

import numpy as np
import pytest
import torch

from equipoise.numerics.lanczos.spectrum import extremal_spectrum, full_spectrum

UNIFORM = torch.linspace(-1, 1, 200, dtype=torch.float64)
BULK = torch.cat(
    [
        0.02 * torch.randn(195, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
        torch.tensor([-1.0, 0.3, 0.5, 0.8, 0.81], dtype=torch.float64),
    ]
)
every_spectrum = pytest.mark.parametrize("values", [UNIFORM, BULK], ids=["uniform", "bulk"])


def full(values, *, seed=0, **options):
    options = {"steps": 30, "starts": 3, "tolerance": 1e-6} | options
    generator = torch.Generator().manual_seed(seed)
    return full_spectrum(lambda v: values * v, values, generator=generator, **options)


def ends(found):
    return found.smallest.value, found.largest.value


class TestEnds:
    def test_one_start_stops_when_both_are_known(self):
        generator = torch.Generator().manual_seed(0)
        found = extremal_spectrum(
            lambda v: BULK * v, BULK, steps=200, tolerance=1e-6, generator=generator
        )
        assert found.converged
        assert found.nodes is None
        assert found.products < 30
        assert ends(found) == pytest.approx((-1, 0.81), abs=1e-6)

    @every_spectrum
    def test_of_several_starts_the_best_counts(self, values):
        few, many = full(values, starts=1, steps=8), full(values, starts=6, steps=8)
        assert many.largest.value >= few.largest.value
        assert many.smallest.value <= few.smallest.value
        for sign, end, true in (
            (1, many.largest, values.max()),
            (-1, many.smallest, values.min()),
        ):
            assert 0 <= sign * (float(true) - end.value) <= end.distance

    def test_bounds_of_several_starts_hold_together(self):
        """Each is given its share of the failures."""
        top, failure, trials = 0.81, 0.3, 100
        found = [full(BULK, steps=6, seed=s, failure=failure).largest for s in range(trials)]
        beyond = sum(top > end.value + end.distance + 1e-14 for end in found)
        assert beyond <= trials * failure


@every_spectrum
class TestQuadrature:
    def test_moments_within_the_law_of_random_starts(self, values):
        """One start's mean of f has variance 2 Var f/(n + 2) over starts; so in 100 of them."""
        n, starts = len(values), 100
        draws = [full(values, seed=seed, starts=1) for seed in range(starts)]
        for f in (np.ones_like, lambda x: x, np.square, np.exp, lambda x: x > 0.7):
            means = np.array([(d.weights * f(d.nodes)).sum() for d in draws])
            true = f(values.numpy())
            deviation = np.sqrt(2 * true.var() / (n + 2))
            assert abs(means.mean() - true.mean()) <= 4 * deviation / np.sqrt(starts) + 1e-12
            # A sample variance of 100 has a relative deviation of about 0.14.
            assert means.std() == pytest.approx(deviation, rel=0.4, abs=1e-12)

    def test_weights_are_those_of_a_distribution(self, values):
        found = full(values)
        assert found.weights.sum() == pytest.approx(1, rel=1e-13)
        assert found.weights.min() > 0
        assert np.all(np.diff(found.nodes) >= 0)
        assert (found.starts, found.products) == (3, 90)

    @pytest.mark.parametrize(("steps", "starts"), [(200, 1), (50, 4), (100, 3)])
    def test_all_eigenvalues_where_they_cost_no_more(self, values, steps, starts):
        found = full(values, steps=steps, starts=starts)
        expected = np.sort(values.numpy())
        np.testing.assert_allclose(found.nodes, expected, rtol=0, atol=1e-14)
        np.testing.assert_array_equal(found.weights, 1 / 200)
        assert (found.starts, found.products, found.converged) == (0, 200, True)
        assert found.asymmetry == 0.0

    def test_not_where_they_cost_more(self, values):
        assert full(values, steps=66, starts=3).starts == 3


def test_the_explicit_matrix_states_its_asymmetry():
    S = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    A = torch.tensor([[2.0, 0.0], [0.0, 4.0]])
    generator = torch.Generator()
    found = full_spectrum(
        lambda v: (A + 1e-3 * S) @ v, A[0], steps=2, starts=1, tolerance=1e-3, generator=generator
    )
    assert ends(found) == pytest.approx((2, 4), abs=1e-6)
    assert found.asymmetry == pytest.approx(1e-3, rel=1e-3)


def test_a_product_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="a product with a unit vector is not finite"):
        full(UNIFORM * float("inf"), steps=200)
