"""A batch followed through infinitely wide residual blocks, against the recursion."""

import numpy as np
import pytest

from equipoise.theory import Architecture, follow_batch, residual_growth


def test_equally_correlated_samples_follow_the_recursion():
    B, blocks = 8, 10
    theory = residual_growth("relu", B, blocks=blocks, start_variance=1.0)
    followed = follow_batch(
        np.eye(B), "relu", blocks, architecture=Architecture(stages=1), samples=8192
    )
    expected = np.log(np.append(theory.normalisers.ravel(), theory.stream[-1]))
    rise = followed.log_gradients - followed.log_gradients[:, -1:]
    error = rise[:, :-1].std(0, ddof=1) / len(rise) ** 0.5
    score = (rise.mean(0)[:-1] - (expected - expected[-1])[:-1]) / error
    assert np.abs(score).max() < 6  # Student's t with 7 degrees of freedom


def test_unequal_samples_do_not():
    """Two clusters: batch norm sees nearly one direction, as at a batch of two."""
    clusters = np.outer(*[np.repeat([1.0, -1.0], 4)] * 2)
    unequal = 5 * clusters + 0.1 * np.eye(8)
    spread = (np.trace(unequal) - unequal.mean() * 8) / 7
    rises = [
        followed.log_gradients[:, 0] - followed.log_gradients[:, -1]
        for followed in (
            follow_batch(cov, "relu", 10, architecture=Architecture(stages=1))
            for cov in (unequal, spread * np.eye(8))
        )
    ]
    assert abs(rises[0].mean() - rises[1].mean()) > 5 * max(r.std() for r in rises)


@pytest.mark.parametrize(
    ("covariance", "message"),
    [
        (np.ones((3, 4)), "cov must be a square matrix of at least 2 samples, got shape"),
        (np.diag([1.0, 1, 1, -1]), "cov must be positive semidefinite"),
        (np.triu(np.ones((5, 5))), "cov must be symmetric"),
        (np.eye(2000), "too large to follow; use at most 1024"),
        (np.eye(3), "batch_size must be at least 4"),
    ],
)
def test_bad_covariances_are_refused(covariance, message):
    with pytest.raises(ValueError, match=message):
        follow_batch(covariance, "relu", 2, architecture=Architecture(stages=1))


def test_only_residual_batch_norm():
    with pytest.raises(ValueError, match="set stages"):
        follow_batch(np.eye(4), "relu", 2, architecture=Architecture())
    with pytest.raises(ValueError, match="a multiple of the 2 stages"):
        follow_batch(np.eye(4), "relu", 3, architecture=Architecture(stages=2))
