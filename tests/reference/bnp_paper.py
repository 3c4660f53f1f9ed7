"""Algorithms 2 and 3 of [lange2022], transcribed index by index; slow on purpose.

Symbols are the paper's: H is the mini-batch (one sample a row), Gw and Gb the gradients.
"""

from __future__ import annotations

import numpy as np

EPS_1, EPS_2, RHO = 1e-2, 1e-4, 0.99


class Dense:
    """Algorithm 2, one object per layer."""

    def __init__(self, n):
        self.mu, self.sigma2 = np.zeros(n), np.ones(n)

    def statistics(self, H):
        N, n = H.shape
        for j in range(n):
            mu_H = sum(H[i, j] for i in range(N)) / N
            if N > 1:
                sigma2_H = sum((H[i, j] - mu_H) ** 2 for i in range(N)) / N
            else:
                sigma2_H = (H[0, j] - self.mu[j]) ** 2  # the running mean before step 2
            self.mu[j] = RHO * self.mu[j] + (1 - RHO) * mu_H
            self.sigma2[j] = RHO * self.sigma2[j] + (1 - RHO) * sigma2_H
        return self.sigma2 + EPS_1 * self.sigma2.max() + EPS_2

    def precondition(self, H, Gw, Gb):
        N, n = H.shape
        tilde = self.statistics(H)
        q2 = max(n / N, 1)
        Gw, Gb = Gw.copy(), Gb.copy()
        for i in range(len(Gb)):
            for j in range(n):
                Gw[i, j] = (Gw[i, j] - self.mu[j] * Gb[i]) / (q2 * tilde[j])
        for i in range(len(Gb)):
            Gb[i] = Gb[i] / q2 - sum(Gw[i, j] * self.mu[j] for j in range(n))  # the new Gw
        return Gw, Gb


class Convolution(Dense):
    """Algorithm 3: h is ``[N, c, r, s]``, the kernel k x k, the output as large as the input."""

    def precondition(self, h, Gw, Gb):
        N, c, r, s = h.shape
        k = Gw.shape[2]
        tilde = self.statistics(h.transpose(0, 2, 3, 1).reshape(-1, c))
        q2 = max(c * k**2 / N, np.sqrt(r * s))
        Gw, Gb = Gw.copy(), Gb.copy()
        for d in range(len(Gb)):
            for p in range(c):
                for i in range(k):
                    for j in range(k):
                        Gw[d, p, i, j] = (Gw[d, p, i, j] - self.mu[p] * Gb[d]) / (q2 * tilde[p])
        for d in range(len(Gb)):
            moved = sum(self.mu[p] * Gw[d, p].sum() for p in range(c))
            Gb[d] = Gb[d] / q2 - moved
        return Gw, Gb
