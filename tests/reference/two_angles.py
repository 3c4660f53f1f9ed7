r"""Every number of the BSB1 theory as one literal integral over two angles, at any ε.

Two samples of a normalised batch are :math:`y_1 = \sqrt n\cos\theta` and
:math:`y_2 = \sqrt n\,(\cos\psi\cos\theta + \sin\psi\sin\theta\cos\eta)`, :math:`\cos\psi = -1/n`.
With :math:`1 - \rho^2 = \sin^2\theta\sin^2\eta`, :math:`c = B\varepsilon/\kappa`,
:math:`b = c/(1-\rho^2)` and :math:`z\sim\chi^2_{B-3}`,

.. math:: E[h] = \frac1{2\pi}\iint (1-\rho^2)^{\frac{B-5}2} e^{-\frac c2\frac{\rho^2}{1-\rho^2}}
          E_z[(z + b)\,h]\,\sin^2\theta\sin\eta\,d\theta d\eta, \qquad x + c = z + b,

where :math:`\kappa x` is the squared norm of the batch's centred pre-activations. Functions say
where they are not smooth and how quickly they turn, so that panels end there. Everything runs in
the float type that is asked for; ``tests/reference/brackets.py`` and ``mean_field.py`` check the
formulas themselves, with integrals over the radius.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

NAMES = (
    *("q", "kappa", "backward_G", "backward_L", "backward_M"),
    *("forward_G", "forward_L", "forward_M", "cross_c", "cross_rate"),
)


@dataclass(frozen=True)
class Function:
    """An activation as the reference sees it.

    Args:
        value: φ of an argument less ``origin``.
        slope: φ′ of the same.
        kinks: Where φ is not analytic.
        turns: Places and widths of what is steep.
        origin: What arguments are measured from, so that distances to a power's kink are exact.
        power: Whether it is a fractional power of the distance to a kink.
        longest: Length of its argument over which it turns everywhere.
    """

    value: Callable
    slope: Callable
    kinks: tuple[float, ...] = ()
    turns: tuple[tuple[float, float], ...] = ((0.0, 1.0),)
    origin: float = 0.0
    power: bool = False
    longest: float = float("inf")


@lru_cache(maxsize=32)
def _rule(kind, count, real):
    """Distances to either end of [0, 1], and weights."""
    if kind == "power":
        tau = np.linspace(real(-5.3), real(5.3), count)
        grown = np.exp(-4 * np.arctan(real(1)) * np.sinh(np.abs(tau)))
        near, far = grown / (1 + grown), 1 / (1 + grown)
        weights = (tau[1] - tau[0]) * 4 * np.arctan(real(1)) * np.cosh(tau) * near * far
        return np.where(tau < 0, near, far), np.where(tau < 0, far, near), weights
    x = np.polynomial.legendre.leggauss(count)[0].astype(real)
    for _ in range(2):  # Newton's method lifts float64 nodes to longdouble
        before, now = np.ones_like(x), x
        for k in range(2, count + 1):
            before, now = now, ((2 * k - 1) * x * now - (k - 1) * before) / k
        slope = count * (before - x * now) / (1 - x * x)
        x = x - now / slope
    weights = 2 / ((1 - x * x) * slope**2)
    if kind == "analytic":
        return (1 + x) / 2, (1 - x) / 2, weights / 2
    quarter = np.arctan(real(1))  # "half": s = sin²(πu/2) for half-integer powers at the ends
    left, right = np.sin(quarter * (1 + x)) ** 2, np.sin(quarter * (1 - x)) ** 2
    return left, right, weights * quarter * np.cos(2 * quarter * x)


def _on_panels(edges, arguments, rule):
    """Positions by nearest edge: its angle, its argument, the offset; and weights."""
    left, right, weights = rule
    width = np.diff(edges, axis=-1)[..., None]
    near = left <= right
    pick = [np.where(near, a[..., :-1, None], a[..., 1:, None]) for a in (edges, arguments)]
    offset = width * np.where(near, left, -right)
    shape = (*edges.shape[:-1], -1)
    return [part.reshape(shape) for part in (*pick, offset, width * weights)]


def _cuts(f, low, high, longest):
    """Kinks, and panels no longer than their distance to what turns, nor than ``longest``."""
    inside = [k for k in f.kinks if low < k < high]
    edges, work = set(inside), []
    ends = [low, *sorted(inside), high]
    work += list(itertools.pairwise(ends))
    while work:
        a, b = work.pop()
        far = [w + max(0.0, a - at, at - b) for at, w in f.turns]
        if b - a > longest or b - a > 1.6 * min(far, default=np.inf):
            middle = (a + b) / 2
            edges.add(middle)
            work += [(a, middle), (middle, b)]
    return np.array(sorted(edges))


def _reach(f, B, c, gamma, beta):
    """Angle beyond which densities times f², or its slope's square, are below rounding."""
    most = min(np.pi / 2, np.sqrt(1000 / max(B - 4 + c, 1e-9)))
    r = most * np.linspace(0, 1, 1001)[1:-1]
    x = gamma * np.sqrt(B - 1) * np.stack([-np.sin(r), np.sin(r)]) + beta - f.origin
    sizes = np.abs(f.value(x) - f.value(np.array([beta - f.origin]))), np.abs(f.slope(x))
    density = (B - 4) / 2 * np.log1p(-(np.sin(r) ** 2)) - c / 2 * np.tan(r) ** 2
    last = 0
    for size in sizes:
        at = density + 2 * np.log(np.maximum(np.maximum.accumulate(size.max(0)), 1e-300))
        last = max(last, np.flatnonzero(at > (at + np.log(r)).max() - 44)[-1])
    return most if last + 2 > r.size else r[last + 1]


class TwoAngles:
    """Averages of one function on nodes that suit a given κ."""

    def __init__(self, f, B, eps, gamma, beta, kappa, *, count, real=np.float64):
        self.B, self.eps, self.real = B, real(eps), real
        n = B - 1
        pi = 4 * np.arctan(real(1))
        c = B * eps / kappa if eps else 0.0
        root = np.sqrt(real(n))
        reach = _reach(f, B, float(c), gamma, beta)
        wide = float(root) * np.sin(reach)
        longest = gamma * max(2.0 / np.sqrt((B - 4 + c) / n + 1 / n), wide / 4)
        longest = min(longest, f.longest, gamma * 2.5 * np.sqrt(n / (B - 4 + c + 1)))
        cuts = _cuts(f, beta - gamma * wide, beta + gamma * wide, longest)
        z = np.clip((cuts.astype(real) - real(beta)) / (real(gamma) * root), -1, 1)
        # Both angles are measured from π/2, where large batches are: t = θ − π/2, h = η − π/2.
        right, tilt = pi / 2, np.arcsin(1 / real(n))
        angle = -np.arcsin(z)
        touching = [
            right + tilt + angle,
            abs(tilt - angle) - right,
            right - tilt - angle,
            angle - tilt - right,
        ]
        layer = np.array([], dtype=real)
        if eps and reach > 1.57:
            nearest = max(np.sqrt(c / 88), 1e-19 ** (1 / (B - 3)))
            layer = nearest * 2.0 ** np.arange(-1, max(0, np.ceil(np.log2(0.5 / nearest))))
            layer = layer.astype(real)
        end = real(reach) if reach < 1.57 else right
        t = np.concatenate([angle, *touching, layer - right, right - layer, [-end, end]])
        t = np.unique(t[abs(t) <= end])
        x_t = real(beta) - real(gamma) * root * np.sin(t)
        for k, at in zip(cuts, angle, strict=True):
            x_t = np.where(t == at, real(k), x_t)
        kinds = ("power", "power") if f.power else ("half", "analytic")
        edge, x_edge, offset, outer = _on_panels(t, x_t, _rule(kinds[0], count, real))
        step = -2 * np.sin(offset / 2) * np.cos(edge + offset / 2)
        y1 = root * (step - np.sin(edge))
        d1 = (x_edge - real(f.origin)) + real(gamma) * root * step
        t = (edge + offset)[:, None]
        sine = np.cos(t)
        centre, swing = np.sin(t) / n, np.sqrt((1 - 1 / real(n)) * (1 + 1 / real(n))) * sine
        with np.errstate(divide="ignore", invalid="ignore"):
            images = np.clip(np.nan_to_num((z[None, ::-1] - centre) / swing), -1, 1)
        far = 0 * t + right
        if reach < 1.57:
            far = np.minimum(reach / sine, right)
        near = -far
        h = np.clip(-np.arcsin(images), near, far)
        met = (h > near) & (h < far)
        x_cut = real(gamma) * root * (centre - swing * np.sin(h)) + real(beta)
        x_cut = np.where(met, cuts[::-1].astype(real)[None, :], x_cut)
        fixed = np.concatenate([near, near + layer, far - layer, far], 1)
        x_fixed = real(gamma) * root * (centre - swing * np.sin(fixed)) + real(beta)
        h, x_h = np.concatenate([h, fixed], 1), np.concatenate([x_cut, x_fixed], 1)
        order = np.argsort(h, axis=1, kind="stable")
        h, x_h = (np.take_along_axis(a, order, 1) for a in (h, x_h))
        kept = np.concatenate([[True], (np.diff(h, axis=1) > 0).any(0)])
        h, x_h = h[:, kept], x_h[:, kept]
        edge, x_edge, offset, inner = _on_panels(h, x_h, _rule(kinds[1], count, real))
        step = -2 * np.sin(offset / 2) * np.cos(edge + offset / 2) * swing
        y2 = root * (centre - swing * np.sin(edge) + step)
        d2 = (x_edge - real(f.origin)) + real(gamma) * root * step
        weight = outer[:, None] * inner
        keep = weight > 0
        y1, d1 = (
            np.broadcast_to(y1[:, None], d2.shape)[keep],
            np.broadcast_to(d1[:, None], d2.shape),
        )
        cosine = np.cos(edge + offset)
        # ρ² = 1 − sin²θ sin²η without a difference of numbers near 1
        self.inside = (np.sin(t) ** 2 + (sine * np.sin(edge + offset)) ** 2)[keep]
        self.outside = (sine * cosine)[keep] ** 2
        with np.errstate(divide="ignore"):
            self.log_outside = np.where(
                self.inside < 0.5, np.log1p(-np.minimum(self.inside, 0.5)), np.log(self.outside)
            )
        self.measure = (weight * sine**2 * cosine)[keep] / (2 * pi)
        d1, d2, y2 = d1[keep], d2[keep], y2[keep]
        self.y = y1, y2
        self.f = f.value(d1), f.value(d2)
        self.D = real(gamma) * f.slope(d1), real(gamma) * f.slope(d2)
        self.half_gap = (self.f[0] - self.f[1]) ** 2 / 2

    def weights(self, kappa):
        """(1 − ρ²)^((B−5)/2) exp(…) times the measure, b, and c tan² ω."""
        c = self.B * self.eps / kappa
        ct = c * self.inside / self.outside
        power = np.exp(self.real(self.B - 5) / 2 * self.log_outside - ct / 2)
        return self.measure * power, c / self.outside, ct

    def map(self, kappa, variance=1.0):
        """F(κ) = σ_w² E[(f₁ − f₂)²]/2, and its derivative."""
        base, b, ct = self.weights(kappa)
        weight = base * (self.B - 3 + b)
        total = weight.sum()
        moved = weight * (ct / 2 - b / (self.B - 3 + b))
        F = variance * (weight @ self.half_gap) / total
        # The nodes' own normalisation moves with κ as well, by rounding and truncation alone.
        slope = variance * (moved @ self.half_gap) / total / kappa
        return F, slope

    def rounding(self, kappa, variance=1.0):
        """F(κ) of samples that differ by their values' last two bits alone, at most."""
        base, b, _ = self.weights(kappa)
        weight = base * (self.B - 3 + b)
        bits = 2 * np.finfo(self.real).eps * np.abs(self.f[0])
        return variance * (weight @ (bits * bits)) / weight.sum()

    def numbers(self, kappa, variance=1.0):
        """Every number at a given κ."""
        B, n, real = self.B, self.B - 1, self.real
        nu = B - 3
        base, b, ct = self.weights(kappa)
        base = base / (base * (nu + b)).sum()
        c = B * self.eps / kappa
        inverse, amplitude = self._of_z(c, b)
        prob, s2 = base * (nu + b), B / kappa * base
        s2R2 = s2 * (1 - c * inverse)
        x, xR = (
            base * (nu * (nu + 2) + nu * (b + ct) + b * ct),
            base * (nu * (nu + 2) + 2 * nu * b + b * b),
        )
        (y1, y2), (f1, f2), (D1, D2) = self.y, self.f, self.D
        mean = prob @ f1
        q = variance * (prob @ (f1 * f1))
        f1, f2 = f1 - mean, f2 - mean
        D11, D12, ff, own = D1 * D1, D1 * D2, f1 * f2, f1 * f1
        tau1, tau2 = s2 @ (D12 * y1 * y2), s2R2 @ (D12 * y1 * y2)
        along_g = s2 @ (n * D11 + D12) - 2 * (s2 @ (D11 * y1**2)) + s2R2 @ (D11 * y1**2)
        along_g = variance / B * (along_g + 2 * tau1 - tau2)
        a, e = y1 / np.sqrt(real(B)), y2 / np.sqrt(real(B))  # R·w/√B
        P11, P12 = 1 - 1 / real(B) - a * a, -1 / real(B) - a * e
        g = 1 / real(B) ** 2 - 2 * a * a / (B * n) - a**4 / real(n)
        h = 1 / real(B) ** 2 - (a + e) ** 2 / (B * (B - 2)) - a * e * (a * a + e * e) / (B - 2)
        along_l = s2 @ (D11 * (P11**2 - g) - 2 * D12 * (P11 * P12 - h))
        along_l -= s2R2 @ (D11 * a * a) / n - 2 * (s2R2 @ (D12 * a * e)) / (B - 2)
        both = (a + e) ** 2
        third = a * e + both / (B - 2) + (both + a * a + e * e) / ((B - 2) * (B - 3))
        along_m = s2 @ (D12 * (1 - a * a - e * e - both / (B - 2) + 2 * a * e * third))
        along_m -= 2 * (s2R2 @ (D12 * a * e)) / ((B - 2) * (B - 3))
        up_l = (xR @ (own * y1**2) - x @ own) - 2 * n / real(B - 2) * (xR @ (ff * y1**2) - x @ ff)
        total = (y1 + y2) ** 2
        up_m = xR @ (
            ff * (y1 * y2 + total / (B - 2) + (total + y1**2 + y2**2) / ((B - 2) * (B - 3)))
        )
        up_m -= B / real((B - 2) * (B - 3)) * (x @ ff)
        cross = ((base * amplitude) @ (f1 * y1)) ** 2
        return {
            "q": q,
            "kappa": variance * (prob @ self.half_gap),
            "backward_G": along_g,
            "backward_L": variance * along_l,
            "backward_M": variance * along_m,
            "forward_G": self.map(kappa, variance)[1],
            "forward_L": variance / (2 * kappa * n) * up_l,
            "forward_M": variance / (B * kappa) * up_m,
            "cross_c": variance * mean**2,
            "cross_rate": variance * B / (kappa * n * n) * cross,
        }

    def _of_z(self, c, b):
        """E[1/(z + b)] and E[(z + b)^1.5], interpolated in log b."""
        nu, real = self.B - 3, self.real
        spread = np.sqrt(2 / nu)
        step = real(min(0.08, 0.3 * spread))
        d = np.arange(np.floor(max(-100 / nu, -90.0) / step), np.ceil(max(5, 14 * spread) / step))
        d = d * step if nu < 40 else np.arange(-16 * spread, 16 * spread, step)
        density = real(nu) / 2 * (d - np.expm1(d))
        z, weight = nu * np.exp(d), np.exp(density - density.max())
        weight = weight / weight.sum()
        if c == 0:
            return 0 * b, np.full_like(b, weight @ z**1.5)
        b = np.minimum(b, c + 400)  # weights beyond are below exp(-200)
        low, high = np.log(b.min()) - real(1e-9), np.log(b.max()) + real(1e-9)
        degree = 160
        at = np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1)).astype(real)
        nodes = np.exp(low + (high - low) * (1 + at) / 2)[:, None]
        found = []
        position = np.clip(2 * (np.log(b) - low) / (high - low) - 1, -1, 1)
        for values in ((1 / (z + nodes)) @ weight, ((z + nodes) * np.sqrt(z + nodes)) @ weight):
            k = np.arange(degree + 1).astype(real)[:, None]
            angle = np.pi * (np.arange(degree + 1) + real(0.5)) / (degree + 1)
            coefficients = 2 / real(degree + 1) * (np.cos(k * angle) @ np.log(values))
            coefficients[0] /= 2
            size = np.abs(coefficients)
            last = np.flatnonzero(size >= np.finfo(real).eps / 4 * size.max())[-1] + 1
            found.append(np.exp(np.polynomial.chebyshev.chebval(position, coefficients[:last])))
        return found
