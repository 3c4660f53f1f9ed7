"""Spectra of symmetric operators against dense B² × B² matrices."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.theory.covariance.operators import (
    Brackets,
    DOSOperator,
    UltrasymmetricOperator,
    project_centred,
)

BATCHES = [4, 5, 6, 7]
NAMES = [field.name for field in dataclasses.fields(Brackets)]
number = st.floats(-3, 3).map(lambda x: round(x, 3))
brackets = st.builds(Brackets, *[number] * len(NAMES))


def pattern(k, l, i, j):  # noqa: E741
    """Name of the bracket [kl|ij], by the pattern of equal indices."""
    labels = {}
    for index in (k, l, i, j):
        labels.setdefault(index, str(len(labels) + 1))
    kl, ij = (labels[a] + labels[b] for a, b in ((k, l), (i, j)))
    if k == l:
        # [11|21] = [11|12] by transposition.
        ij = {"21": "12"}.get(ij, ij)
    else:
        # By transposition and relabelling, and symmetrised over i ↔ j.
        ij = {"22": "11", "31": "13", "23": "13", "32": "13"}.get(ij, ij)
    return f"at_{kl}_{ij}"


def dense(operator):
    """T as a matrix of shape [B², B²], entry by entry."""
    B = operator.batch_size
    T = np.empty((B, B, B, B))
    for index in np.ndindex(T.shape):
        T[index] = getattr(operator.brackets, pattern(*index))
    return T.reshape(B * B, B * B)


def basis(vectors):
    """Orthonormal columns that span the given matrices."""
    flat = np.stack([v.ravel() for v in vectors], 1)
    u, s, _ = np.linalg.svd(flat, full_matrices=False)
    return u[:, s > 1e-9 * s[0]]


def unit(B, i, j):
    matrix = np.zeros((B, B))
    matrix[i, j] = matrix[j, i] = 1.0
    return matrix


def symmetric_basis(B):
    return basis([unit(B, i, j) for i in range(B) for j in range(i + 1)])


def centred_basis(B):
    G = np.eye(B) - 1 / B
    return basis([G @ unit(B, i, j) @ G for i in range(B) for j in range(i + 1)])


def assert_same_spectrum(found, expected):
    """Characteristic polynomials at random points agree: eigenvalues may be multiple."""
    assert len(found) == len(expected)
    scale = max(1.0, np.abs(found).max())
    points = scale * (2 + np.exp(2j * np.pi * np.arange(7) / 7))
    a, b = (np.prod(points[:, None] - np.asarray(part), axis=1) for part in (found, expected))
    np.testing.assert_allclose(a, b, rtol=1e-8)


def centred_dimensions(B):
    return 1, B - 1, B * (B - 3) // 2


def repeated(eigenvalues):
    return [value for value, count in eigenvalues for _ in range(count)]


@pytest.mark.parametrize("B", BATCHES)
class TestUltrasymmetric:
    @settings(max_examples=10, deadline=None, derandomize=True)
    @given(brackets=brackets)
    def test_apply_is_the_dense_matrix(self, B, brackets):
        operator = UltrasymmetricOperator(B, brackets)
        delta = np.random.default_rng(0).normal(size=(B, B))
        delta += delta.T
        expected = (dense(operator) @ delta.ravel()).reshape(B, B)
        np.testing.assert_allclose(operator.apply(delta), expected, atol=1e-11)

    @settings(max_examples=10, deadline=None, derandomize=True)
    @given(brackets=brackets)
    def test_spectrum_on_symmetric_matrices(self, B, brackets):
        operator, H = UltrasymmetricOperator(B, brackets), symmetric_basis(B)
        expected = np.linalg.eigvals(H.T @ dense(operator) @ H)
        assert_same_spectrum(repeated(operator.eigenvalues()), expected)

    @settings(max_examples=10, deadline=None, derandomize=True)
    @given(brackets=brackets)
    def test_centred_spectrum(self, B, brackets):
        operator, H = UltrasymmetricOperator(B, brackets), centred_basis(B)
        values = zip(operator.centred_eigenvalues(), centred_dimensions(B), strict=True)
        expected = np.linalg.eigvals(H.T @ dense(operator) @ H)
        assert_same_spectrum(repeated(values), expected)

    def test_every_bracket_matters(self, B):
        base = Brackets(*np.random.default_rng(3).normal(size=10))
        before = np.sort_complex(repeated(UltrasymmetricOperator(B, base).eigenvalues()))
        for name in NAMES:
            changed = dataclasses.replace(base, **{name: getattr(base, name) + 1})
            after = np.sort_complex(repeated(UltrasymmetricOperator(B, changed).eigenvalues()))
            assert np.abs(after - before).max() > 0.1, name

    def test_centred_parts_are_eigenvectors(self, B):
        rng = np.random.default_rng(1)
        operator = UltrasymmetricOperator(B, Brackets(*rng.normal(size=10)))
        G = np.eye(B) - 1 / B
        delta = rng.normal(size=(B, B))
        parts = project_centred(G @ (delta + delta.T) @ G)
        for part, value in zip(parts, operator.centred_eigenvalues(), strict=True):
            assert np.abs(G @ operator.apply(part) @ G - value * part).max() < 1e-11
            # and not to another eigenvalue
            assert np.abs(G @ operator.apply(part) @ G - (value + 1) * part).max() > 1e-2


dos = st.builds(DOSOperator, st.sampled_from(BATCHES), number, number, number)


class TestDOS:
    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(operator=dos)
    def test_is_ultrasymmetric(self, operator):
        general = operator.as_ultrasymmetric()
        delta = np.random.default_rng(0).normal(size=(operator.batch_size,) * 2)
        delta += delta.T
        np.testing.assert_allclose(operator.apply(delta), general.apply(delta), atol=1e-12)
        np.testing.assert_allclose(
            operator.centred_eigenvalues(), general.centred_eigenvalues(), atol=1e-12
        )
        assert_same_spectrum(repeated(operator.eigenvalues()), repeated(general.eigenvalues()))

    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(operator=dos)
    def test_eigenvectors(self, operator):
        B, u, w = operator.batch_size, operator.u, operator.w
        for matrix in (operator.eigenmatrix(B - 1), operator.equal_eigenmatrix()):
            assert np.abs(operator.apply(matrix) - u * matrix).max() < 1e-12
        off_diagonal = unit(B, 0, 2)
        assert np.abs(operator.apply(off_diagonal) - w * off_diagonal).max() == 0

    def test_eigenvectors_span_the_eigenspace(self):
        operator = DOSOperator(6, 0.5, 0.1, 0.8)
        vectors = basis([operator.eigenmatrix(i) for i in range(6)])
        assert vectors.shape[1] == operator.eigenvalues()[0].multiplicity

    def test_the_eigenvector_as_printed_is_none(self):
        """Erratum 5: BSB1(w − u, w·v) leaves a residual, BSB1(u − w, 2v) none."""
        operator = DOSOperator(5, 0.5, 0.3, 0.8)
        printed = np.full((5, 5), 0.8 * 0.3)
        np.fill_diagonal(printed, 0.8 - 0.5)
        residual = operator.apply(printed) - 0.5 * printed
        assert np.linalg.norm(residual) > 0.1 * np.linalg.norm(printed)


class TestSubspaces:
    @pytest.mark.parametrize("B", BATCHES)
    def test_parts_add_up_and_lie_in_their_subspaces(self, B):
        rng, G = np.random.default_rng(2), np.eye(B) - 1 / B
        delta = rng.normal(size=(B, B))
        delta = G @ (delta + delta.T) @ G
        along_g, along_l, along_m = project_centred(delta)
        np.testing.assert_allclose(along_g + along_l + along_m, delta, atol=1e-13)
        np.testing.assert_allclose(along_g, along_g[0, 0] / (1 - 1 / B) * G, atol=1e-13)
        assert np.abs(np.diag(along_m)).max() < 1e-13
        for a, b in ((along_g, along_l), (along_g, along_m), (along_l, along_m)):
            assert abs((a * b).sum()) < 1e-12

    @pytest.mark.parametrize("B", BATCHES)
    def test_dimensions(self, B):
        H = centred_basis(B)
        parts = [project_centred(column.reshape(B, B)) for column in H.T]
        ranks = []
        for stack in zip(*parts, strict=True):
            singular = np.linalg.svd(np.stack([p.ravel() for p in stack]), compute_uv=False)
            ranks.append(int((singular > 1e-9).sum()))
        assert tuple(ranks) == centred_dimensions(B)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: DOSOperator(3, 1, 1, 1), "at least 4"),
        (lambda: UltrasymmetricOperator(3, Brackets(*[0.0] * 10)), "at least 4"),
        (lambda: DOSOperator(4, 1, 1, 1).apply(np.eye(5)), r"\(4, 4\)"),
        (lambda: DOSOperator(4, 1, 1, 1).apply(np.triu(np.ones((4, 4)))), "symmetric"),
        (lambda: DOSOperator(4, 1, 1, 1).eigenmatrix(4), "sample"),
        (lambda: project_centred(np.eye(4)), "zero row sums"),
        (lambda: project_centred(np.zeros((3, 3))), "at least 4"),
    ],
)
def test_bad_arguments_are_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()
