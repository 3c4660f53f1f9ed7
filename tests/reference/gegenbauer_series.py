r"""Theorem 9 in 30 digits: λ_G as a weighted mean over Gegenbauer coefficients.

.. math:: \kappa = \sum_k c_k a_k^2, \qquad
          \lambda_G = \frac1\kappa\sum_k \frac{k(k+B-3)}{B-3} c_k a_k^2, \qquad
          c_k = 1 - (-1)^k\,{}_2F_1(-k, B-3+k; \tfrac B2-1; \tfrac{B-2}{2(B-1)})

with :math:`a_k = E[\phi\psi_k]`. The series converges for smooth φ alone.
"""

from __future__ import annotations

from collections.abc import Callable

from mpmath import mp, mpf

DIGITS = 30


def pair_correlation(B: int, k: int) -> mpf:
    """ρ_k = 1 − c_k by the terminating hypergeometric sum."""
    with mp.workdps(3 * DIGITS):  # its terms alternate
        argument = mpf(B - 2) / (2 * (B - 1))
        return (-1) ** k * mp.hyp2f1(-k, B - 3 + k, mpf(B) / 2 - 1, argument)


def coefficients(phi: Callable[[mpf], mpf], B: int, terms: int) -> list[mpf]:
    """a_k = E[φ(√n t) ψ_k(t)], ψ_k = √((B−3+2k) / ((B−3) C(B−4+k, k))) C_k^{(B−3)/2}."""
    half, end = mpf(B - 3) / 2, mp.sqrt(B - 1)
    nodes, step = [], mpf(1) / 64
    for i in range(-240, 241):  # t = tanh(π/2 sinh τ), weights (1 − t²)^{(B−4)/2} dt
        tau = i * step
        decay = mp.exp(-mp.pi * mp.sinh(abs(tau)))
        t = (1 - decay) / (1 + decay) * (-1 if tau < 0 else 1)
        left = 4 * decay / (1 + decay) ** 2  # 1 − t²
        nodes.append((t, left ** (mpf(B - 2) / 2) * mp.cosh(tau)))
    total = sum(weight for _, weight in nodes)
    sums = [mpf(0)] * terms
    for t, weight in nodes:
        value = weight / total * phi(end * t)
        previous, current = mpf(0), mpf(1)
        for k in range(terms):
            sums[k] += value * current
            following = (2 * (k + half) * t * current - (k + 2 * half - 1) * previous) / (k + 1)
            previous, current = current, following
    scales = [
        mp.sqrt(mpf(B - 3 + 2 * k) / ((B - 3) * mp.binomial(B - 4 + k, k))) for k in range(terms)
    ]
    return [scale * a for scale, a in zip(scales, sums, strict=True)]


def theorem_9(phi: Callable[[mpf], mpf], B: int, terms: int) -> tuple[mpf, mpf, mpf]:
    """κ, λ_G and the largest of the last terms' weights, which tells what was left out."""
    with mp.workdps(DIGITS):
        a = coefficients(phi, B, terms)
        weights = [(1 - pair_correlation(B, k)) * a[k] ** 2 for k in range(terms)]
        kappa = sum(weights)
        rate = sum(mpf(k * (k + B - 3)) / (B - 3) * w for k, w in enumerate(weights)) / kappa
        return kappa, rate, terms**2 * max(weights[-4:]) / kappa
