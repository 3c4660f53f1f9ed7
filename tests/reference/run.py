"""RUN as [yu2020] writes it: columns, no rescaling, D × D matrices; slow on purpose.

Symbols: F: ``[N, D]``; v0, v: columns ``[D, 1]``, v is v_K; M = FᵀF; s = vᵀv; G = ∂L/∂F_K.
NumPy in float64. The names l and r with two indices are those of equation (22).
"""

from __future__ import annotations

import numpy as np
from numpy.linalg import matrix_power


def iterates(F, v0, K):
    """v_0, …, v_K with v_k = FᵀF v_{k-1}."""
    v = [v0]
    for k in range(1, K + 1):
        v.append(F.T @ (F @ v[k - 1]))
    return v


def factor(F, v0, eta, K):
    """F_K = F − η F v vᵀ / vᵀv."""
    v = iterates(F, v0, K)[K]
    return F - eta * (F @ v) @ v.T / (v.T @ v)


def symmetric(F, v0, eta, K):
    """C_K = F_Kᵀ F_K."""
    return factor(F, v0, eta, K).T @ factor(F, v0, eta, K)


def matrix(B, v0, epsilon, K):
    """B_K = B − ε B v vᵀ / vᵀv, v = Bᴷ v_0."""
    v = matrix_power(B, K) @ v0
    return B - epsilon * (B @ v) @ v.T / (v.T @ v)


def mean(F):
    """The start Fᵀ1."""
    return F.T @ np.ones((len(F), 1))


def factor_gradient(F, v0, eta, K, G, *, of_mean=False):
    """∂L/∂F by the unscaled recurrence; with ``of_mean``, v_0 = Fᵀ1 follows F."""
    v, barF = iterates(F, v0, K), G
    s, u = (v[K].T @ v[K]).item(), F @ v[K]
    c = (u.T @ G @ v[K]).item()
    baru = -eta / s * G @ v[K]
    barv = -eta / s * G.T @ u + 2 * eta * c / s**2 * v[K] + F.T @ baru
    barF = barF + baru @ v[K].T
    for k in range(K, 0, -1):
        w = F @ v[k - 1]
        barF = barF + w @ barv.T + (F @ barv) @ v[k - 1].T
        barv = F.T @ (F @ barv)
    return barF + np.ones((len(F), 1)) @ barv.T if of_mean else barF


def start_gradient(F, v0, eta, K, G):
    """∂L/∂v_0 by the same recurrence."""
    v = iterates(F, v0, K)[K]
    s, u = (v.T @ v).item(), F @ v
    c = (u.T @ G @ v).item()
    barv = -eta / s * (G.T @ u + F.T @ (G @ v)) + 2 * eta * c / s**2 * v
    return matrix_power(F.T @ F, K) @ barv


def matrix_gradient(B, v0, epsilon, K, G):
    """∂L/∂B of the matrix form, for a B without constraints."""
    v = [matrix_power(B, k) @ v0 for k in range(K + 1)]
    s, b = (v[K].T @ v[K]).item(), B @ v[K]
    c = (b.T @ G @ v[K]).item()
    barb = -epsilon / s * G @ v[K]
    barv = -epsilon / s * G.T @ b + 2 * epsilon * c / s**2 * v[K] + B.T @ barb
    barB = G + barb @ v[K].T
    for k in range(K, 0, -1):
        barB = barB + barv @ v[k - 1].T
        barv = B.T @ barv
    return barB


def printed_factors(F, v0, eta, K):
    """Equation (22), name by name in its order; each is a function, as some cannot multiply."""
    v, power = iterates(F, v0, K)[K], matrix_power(F.T @ F, K - 1)
    s = (v.T @ v).item()
    a, c = -eta * K / s, eta * K / s**2
    return [
        ("l01", lambda: np.eye(len(F))),
        ("r01", lambda: np.eye(len(v)) - eta * v @ v.T / s),
        ("l11", lambda: a * F @ power @ F.T),
        ("r12", lambda: v0 @ v.T),
        ("l21", lambda: a * F @ v @ v0.T @ F.T),
        ("r21", lambda: power),
        ("l31", lambda: c * v0.T @ F.T),
        ("r31", lambda: power @ v @ F @ v @ v.T),
        ("l41", lambda: c * v.T @ power @ F.T),
        ("r41", lambda: v0 @ F @ v @ v.T),
        ("l12", lambda: a * F @ power),
        ("r12", lambda: F @ v @ v.T),
        ("l22", lambda: a * F @ v @ v0.T),
        ("r22", lambda: F @ power),
        ("l32", lambda: c * v0.T),
        ("r32", lambda: F @ power @ v @ F @ v @ v.T),
        ("l42", lambda: c * v.T @ power),
        ("r42", lambda: F @ v0 @ F @ v @ v.T),
    ]


def repaired_factors(F, v0, eta, K):
    """Equation (22) with errata 3, 4 and 5 repaired, erratum 2 not."""
    v, power = iterates(F, v0, K)[K], matrix_power(F.T @ F, K - 1)
    c = eta * K / (v.T @ v).item() ** 2
    printed = {name: make for name, make in printed_factors(F, v0, eta, K) if name[1] in "012"}
    return {name: make() for name, make in printed.items()} | {
        "r11": v0 @ v.T,
        "r12": F @ v0 @ v.T,
        "l31": c * F @ v @ v0.T @ F.T,
        "r31": power @ v @ v.T,
        "l41": c * F @ v @ v.T @ power @ F.T,
        "r41": v0 @ v.T,
        "l32": c * F @ v @ v0.T,
        "r32": F @ power @ v @ v.T,
        "l42": c * F @ v @ v.T @ power,
        "r42": F @ v0 @ v.T,
    }


def sandwich_gradient(factors, G, terms=range(5)):
    """Equation (26), over the given terms of the first family and 1 … 4 of the second."""
    first = sum(factors[f"l{i}1"].T @ G @ factors[f"r{i}1"].T for i in terms)
    return first + sum(factors[f"r{j}2"] @ G.T @ factors[f"l{j}2"] for j in range(1, 5))
