"""Two P × P blocks calculate like the NP × NP matrix that they stand for."""

import numpy as np
import pytest

from equipoise.theory.propagation.exchangeable import Average, Exchangeable, Later

SIZES = [(1, 1), (1, 4), (5, 1), (2, 3), (4, 3)]


def drawn(samples, positions, seed=0):
    """Symmetric blocks."""
    same, diff = np.random.default_rng(seed).standard_normal((2, positions, positions))
    return Exchangeable(same + same.T, diff + diff.T, samples)


def expanded(pairs):
    """Rows are samples, then positions."""
    one, all_ = np.eye(pairs.samples), np.ones((pairs.samples,) * 2)
    return np.kron(one, pairs.same - pairs.diff) + np.kron(all_, pairs.diff)


def assert_stands_for(pairs, matrix):
    """A single sample has no others, so that ``diff`` may be anything."""
    np.testing.assert_allclose(expanded(pairs), matrix, rtol=0, atol=1e-12)


@pytest.fixture(params=SIZES, ids=str)
def first(request):
    return drawn(*request.param)


@pytest.fixture
def second(first):
    return drawn(first.samples, len(first.same), seed=1)


class TestArithmetic:
    def test_sum_and_multiple(self, first, second):
        matrix = expanded(first) - 2 * expanded(second)
        assert_stands_for(first + second * -2.0, matrix)

    def test_product(self, first, second):
        assert_stands_for(first @ second, expanded(first) @ expanded(second))

    def test_product_of_two_products_and_a_transpose(self, first, second):
        matrix = expanded(first) @ expanded(second)
        assert_stands_for((first @ second).transposed(), matrix.T)

    def test_multiplying_the_blocks_themselves_is_no_product(self):
        """(AB)_s = A_s B_s + (N - 1) A_d B_d."""
        a, b = drawn(4, 3), drawn(4, 3, seed=1)
        assert np.abs((a @ b).same - a.same @ b.same).max() > 1

    def test_dot(self, first, second):
        exact = (expanded(first) * expanded(second)).sum()
        assert first.dot(second) == pytest.approx(exact, abs=1e-12)

    def test_centring(self, first):
        M = first.rows
        centre = np.eye(M) - 1 / M
        assert_stands_for(first.centred(), centre @ expanded(first) @ centre)

    def test_centring_every_position_alone_is_another_thing(self):
        pairs = drawn(4, 3)
        alone = pairs.same - pairs.same.mean(0) - pairs.same.mean(1)[:, None] + pairs.same.mean()
        assert np.abs(pairs.centred().same - alone).max() > 0.1


class TestSizes:
    def test_rows_and_diagonal(self, first):
        matrix = expanded(first)
        assert first.rows == len(matrix)
        np.testing.assert_allclose(np.tile(first.diagonal, first.samples), np.diag(matrix))
        assert first.mean_diagonal == pytest.approx(np.trace(matrix) / len(matrix))


class TestBlocks:
    def test_come_back(self, first):
        assert_stands_for(Exchangeable.of_blocks(*first.blocks, first.samples), expanded(first))

    def test_have_the_eigenvalues_of_the_whole(self, first):
        """Those of differences between samples N - 1 times, of what samples share once."""
        alone, together = map(np.linalg.eigvalsh, first.blocks)
        both = np.sort([*np.repeat(alone, first.samples - 1), *together])
        np.testing.assert_allclose(both, np.linalg.eigvalsh(expanded(first)), atol=1e-12)


class TestLater:
    def test_computed_when_entries_are_read_and_only_once(self, first):
        calls = []
        later = Later(lambda: calls.append(0) or first, first.positions, first.samples)
        assert later.rows == first.rows
        assert not calls
        assert_stands_for(later + later, 2 * expanded(first))
        assert len(calls) == 1


class TestAverage:
    """Sums over entries of an average follow from those of its parts."""

    def test_entries(self, first, second):
        average = Average([first, second], [0.25, 0.75])
        assert_stands_for(average, 0.25 * expanded(first) + 0.75 * expanded(second))

    @pytest.mark.parametrize("size", ["mean_diagonal", "mean_shared", "diagonal"])
    def test_sizes(self, first, second, size):
        average = Average([first, second], [0.25, 0.75])
        computed = Exchangeable(average.same, average.diff, average.samples)
        np.testing.assert_allclose(getattr(average, size), getattr(computed, size), atol=1e-12)
        assert average.total() == pytest.approx(computed.total(), abs=1e-9)

    def test_of_other_parts_with_the_same_shares(self, first, second):
        average = Average([first, second], [0.25, 0.75]).of([second, first])
        assert_stands_for(average, 0.75 * expanded(first) + 0.25 * expanded(second))
