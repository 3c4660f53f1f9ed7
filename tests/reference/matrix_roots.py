"""Matrix roots and logarithms by the slowest trustworthy means, one matrix at a time, in float64.

Arguments are NumPy arrays ``[D, D]`` unless a docstring says otherwise.
"""

import mpmath
import numpy as np
import torch
from scipy import linalg


def power(A, exponent):
    """Schur-Padé for fractional powers; integer powers by products."""
    return np.real(linalg.fractional_matrix_power(A, exponent))


def logarithm(A, eps):
    """Inverse scaling and squaring of A + εI."""
    return np.real(linalg.logm(A + eps * np.eye(len(A))))


def newton_schulz(A, iterations, prenormalise):
    """The coupled recurrence as it is printed: Y, Z and T, from A/c and the identity."""
    identity = np.eye(len(A))
    c = np.trace(A) if prenormalise == "trace" else np.sqrt((A * A).sum())
    Y, Z = A / c, identity
    for _ in range(iterations):
        T = (3 * identity - Z @ Y) / 2
        Y, Z = Y @ T, T @ Z
    return np.sqrt(c) * Y


def newton_schulz_by_autograd(A, iterations, prenormalise):
    """The same in PyTorch for ``[..., D, D]``, with every intermediate on autograd's tape."""
    identity = torch.eye(A.shape[-1], dtype=A.dtype)
    if prenormalise == "trace":
        c = A.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    else:
        c = A.square().sum((-2, -1), keepdim=True).sqrt()
    Y, Z = A / c, identity
    for k in range(iterations):
        T = 0.5 * (3 * identity - Z @ Y) if k else 0.5 * (3 * identity - Y)
        Y, Z = Y @ T, T @ Z if k else T
    return c.sqrt() * Y


def root_gradient(A, G):
    """Gradient of the root: the X with √A X + X √A = sym(G), by Bartels and Stewart."""
    root = power(A, 0.5)
    return linalg.solve_sylvester(root, root, (G + G.T) / 2)


def gradient(eigenvalues, U, G, name, parameter):
    """Divided differences with 60 digits, entry by entry; U holds the eigenvectors."""
    with mpmath.workdps(60):
        nodes = [mpmath.mpf(float(x)) for x in eigenvalues]
        slopes = [[float(divided_difference(a, b, name, parameter)) for b in nodes] for a in nodes]
    return U @ (np.array(slopes) * (U.T @ ((G + G.T) / 2) @ U)) @ U.T


def divided_difference(a, b, name, parameter):
    """(f(a) - f(b))/(a - b), or f'(a) on a tie, for x^p or log(x + ε)."""
    p = eps = mpmath.mpf(parameter)
    if name == "power":
        return p * a ** (p - 1) if a == b else (a**p - b**p) / (a - b)
    if a == b:
        return 1 / (a + eps)
    return (mpmath.log(a + eps) - mpmath.log(b + eps)) / (a - b)


def through_eigenvectors(A, function):
    """f(A) for ``[..., D, D]``, differentiated as autograd differentiates eigenvectors."""
    eigenvalues, U = torch.linalg.eigh(A)
    return (U * function(eigenvalues)[..., None, :]) @ U.mT
