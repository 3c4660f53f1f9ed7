r"""What the paper prints about one unit, and what is true: both as claims on random cases.

Every function draws its cases and returns the claim as printed and the claim as corrected; the
words for both are in ``statements``.

Symbols: as in ``derivatives`` and ``bounds``; t: targets.

References:
    [santurkar2018], Section 4 and Appendix C.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Generator, Tensor

from equipoise_papers.santurkar2018.one_unit.bounds import lipschitz_gap, minimax_bound
from equipoise_papers.santurkar2018.one_unit.claims import (
    SAMPLES,
    Cases,
    Claim,
    normal,
    random_cases,
    squared_norm,
    vanishes,
)
from equipoise_papers.santurkar2018.one_unit.curvature import (
    curvature_along_gradient,
    largest_curvature,
)
from equipoise_papers.santurkar2018.one_unit.derivatives import (
    bn_gradient,
    bn_hessian,
    standardise,
)
from equipoise_papers.santurkar2018.one_unit.weights import (
    matching_scale_and_shift,
    nearest_multiple,
    radial_derivative,
)

PrintedAndCorrected: TypeAlias = tuple[Claim, Claim]

_INPUTS = 4
_UNITS = 3


def fact_c1(generator: Generator, cases: int) -> PrintedAndCorrected:
    """The gradient through batch normalisation against automatic differentiation."""
    drawn = random_cases(generator, cases)
    y = drawn.y.clone().requires_grad_()
    with torch.enable_grad():
        loss = (standardise(y).values * drawn.g).sum()
    (exact,) = torch.autograd.grad(loss, y)
    difference = squared_norm(bn_gradient(drawn.y, drawn.g) - exact).sqrt()
    claim = vanishes(difference, squared_norm(exact).sqrt())
    return claim, claim


def fact_c2(generator: Generator, cases: int) -> PrintedAndCorrected:
    """The Jacobian of normalised outputs against automatic differentiation."""
    y = random_cases(generator, cases).y
    unit = standardise(y)
    values = unit.values
    printed = torch.eye(SAMPLES, dtype=y.dtype) - 1 / SAMPLES
    printed = printed - values.unsqueeze(-1) * values.unsqueeze(-2) / SAMPLES
    printed = printed / unit.deviation[:, None, None]
    exact = torch.func.vmap(torch.func.jacrev(_normalised))(y)
    claim = vanishes((printed - exact).flatten(1).norm(dim=1), exact.flatten(1).norm(dim=1))
    return claim, claim


def theorem_4_1(
    generator: Generator, cases: int, *, at: Literal["y", "z"], matched: bool = False
) -> PrintedAndCorrected:
    """Printed: the plain network at z, or at its own y; corrected: at z. Logistic loss."""
    drawn = random_cases(generator, cases)
    labels = normal(generator, *drawn.y.shape).sign()
    gamma = drawn.unit.deviation if matched else torch.ones_like(drawn.unit.deviation)
    at_z = _logistic_gradient(gamma[:, None] * drawn.unit.values, labels)
    g = at_z if at == "z" else _logistic_gradient(drawn.y, labels)
    own = lipschitz_gap(drawn.y, g, gamma=gamma)
    same = lipschitz_gap(drawn.y, at_z, gamma=gamma)
    exact = squared_norm(bn_gradient(drawn.y, at_z, gamma=gamma))
    return (
        Claim(exact, own.printed_bound, size=own.factor * own.gradient),
        Claim(exact, same.printed_bound, "=", same.factor * same.gradient),
    )


def theorem_4_1_eps(generator: Generator, cases: int, *, eps: float) -> PrintedAndCorrected:
    """At ε > 0 the printed right side is a bound; the corrected one is exact."""
    drawn = random_cases(generator, cases)
    gap = lipschitz_gap(drawn.y, drawn.g, eps=eps)
    exact, size = squared_norm(bn_gradient(drawn.y, drawn.g, eps=eps)), gap.factor * gap.gradient
    return Claim(exact, gap.printed_bound, size=size), Claim(exact, gap.squared_norm, "=", size)


def rarely_uncorrelated(generator: Generator, cases: int) -> PrintedAndCorrected:
    """|⟨g, ŷ⟩| of a logistic loss against a millionth of ‖g‖‖ŷ‖; it equals ∂L/∂γ."""
    drawn = random_cases(generator, cases)
    labels, values = normal(generator, *drawn.y.shape).sign(), drawn.unit.values
    gamma = torch.ones(cases, 1, dtype=values.dtype).requires_grad_()
    with torch.enable_grad():
        loss = -torch.nn.functional.logsigmoid(labels * gamma * values).sum()
    (exact,) = torch.autograd.grad(loss, gamma)
    g = _logistic_gradient(values, labels)
    along, size = (g * values).sum(-1), squared_norm(g).sqrt() * SAMPLES**0.5
    return Claim(1e-6 * size, along.abs()), vanishes(along - exact[:, 0], size)


def stationary_scale(generator: Generator, cases: int) -> PrintedAndCorrected:
    """⟨g, ŷ⟩ for a squared loss at the best γ and β; it equals ∂L/∂γ."""
    drawn = random_cases(generator, cases)
    t, values = normal(generator, *drawn.y.shape), drawn.unit.values
    best = (t * values).mean(-1, keepdim=True)
    g = best * values + t.mean(-1, keepdim=True) - t
    size = SAMPLES**0.5 * squared_norm(g).sqrt()
    gamma = torch.ones_like(best).requires_grad_()
    with torch.enable_grad():
        loss = (gamma * values - t).square().sum() / 2
    (exact,) = torch.autograd.grad(loss, gamma)
    elsewhere = ((values - t) * values).sum(-1)
    bounded_away = Claim(1e-6 * size, (g * values).sum(-1).abs())
    return bounded_away, vanishes(elsewhere - exact[:, 0], size)


def theorem_4_2_first(generator: Generator, cases: int) -> PrintedAndCorrected:
    """The curvature along the gradient, computed from the Hessian itself."""
    drawn = random_cases(generator, cases)
    g_y = bn_gradient(drawn.y, drawn.g)
    hessian = bn_hessian(drawn.y, drawn.g, drawn.hessian)
    exact = (g_y * (hessian @ g_y.unsqueeze(-1)).squeeze(-1)).sum(-1)
    terms = curvature_along_gradient(drawn.y, drawn.g, drawn.hessian)
    size = terms.of_loss + terms.of_scale.abs()
    return Claim(exact, terms.value, size=size), Claim(exact, terms.value, "=", size)


def theorem_4_2_second(
    generator: Generator,
    cases: int,
    *,
    gamma: float,
    premise: Literal["norms under H", "order kept"] | None = None,
) -> PrintedAndCorrected:
    """The same with g in the place of g_y in the Hessian's term, where a premise holds."""
    drawn = random_cases(generator, cases)
    g_y = bn_gradient(drawn.y, drawn.g, gamma=gamma)
    of_g, of_g_y = drawn.quadratic_form(drawn.g), drawn.quadratic_form(g_y)
    terms = curvature_along_gradient(drawn.y, drawn.g, drawn.hessian, gamma=gamma)
    factor = (gamma / drawn.unit.deviation).square()
    printed = factor * of_g - terms.of_scale
    right = factor * of_g_y - terms.of_scale
    size = terms.of_loss + terms.of_scale.abs()
    shorter = squared_norm(g_y) <= squared_norm(drawn.g)
    kept = {
        None: torch.ones_like(shorter),
        "norms under H": of_g_y <= of_g,
        "order kept": shorter == (of_g_y <= of_g),
    }[premise]
    return (
        Claim(terms.value[kept], printed[kept], size=size[kept]),
        Claim(terms.value, right, "=", size),
    )


def positive_correlation(generator: Generator, cases: int) -> PrintedAndCorrected:
    """⟨ŷ, g⟩ for a squared loss, whose negative gradient points straight to its minimum."""
    drawn, z_star = random_cases(generator, cases), random_cases(generator, cases).y
    z = drawn.unit.values
    g, size = z - z_star, squared_norm(z - z_star) + SAMPLES
    zero = torch.zeros_like(drawn.along)
    return (
        Claim(zero, (z * g).sum(-1), size=size),
        Claim(zero, drawn.quadratic_form(z - z_star), size=size),
    )


def theorem_4_4(generator: Generator, cases: int, *, form: str) -> PrintedAndCorrected:
    """The longest gradient with respect to the weights against three printed right sides."""
    drawn = random_cases(generator, cases)
    square = normal(generator, cases).exp().square()  # λ²
    bound = minimax_bound(drawn.y, drawn.g)
    largest, plain = square * bound.normalised, square * bound.plain
    mean, along, m = drawn.mean_gradient.square(), drawn.along.square(), SAMPLES
    printed = {
        "4.4": plain.square() - m * mean - square * along,
        "4.4, unsquared": plain - m * mean - square * along,
        "17": plain - square * (m * mean + along / m**0.5),
    }[form]
    right = plain - square * m * mean - square / m * along
    factor = drawn.unit.deviation.square().reciprocal()
    size = factor * plain
    return (
        Claim(largest, factor * printed, size=size),
        Claim(largest, factor * right, "=", size),
    )


def equation_58(generator: Generator, cases: int) -> PrintedAndCorrected:
    """The largest curvature over inputs against λ⁴gᵀHg, its value at XXᵀ = λ²I."""
    drawn = random_cases(generator, cases)
    largest = largest_curvature(drawn.g, drawn.hessian)
    return (
        Claim(largest.value, drawn.quadratic_form(drawn.g), "="),
        Claim(largest.value, largest.bound, "="),
    )


def theorem_c1(generator: Generator, cases: int, *, everywhere: bool) -> PrintedAndCorrected:
    """Largest curvatures of both networks at γ = σ and ⟨g, ŷ⟩ > 0, or those at XXᵀ = λ²I."""
    drawn = _correlated(random_cases(generator, cases))
    gamma = drawn.unit.deviation
    g_y = bn_gradient(drawn.y, drawn.g, gamma=gamma)
    terms = curvature_along_gradient(drawn.y, drawn.g, drawn.hessian, gamma=gamma)
    size = terms.of_loss + terms.of_scale.abs()
    right = Claim(terms.value, drawn.quadratic_form(g_y) - terms.of_scale, "=", size)
    if not everywhere:
        plain = drawn.quadratic_form(drawn.g)
        return Claim(terms.value, plain - terms.of_scale, size=size), right
    hessian = bn_hessian(drawn.y, drawn.g, drawn.hessian, gamma=gamma)
    normalised = largest_curvature(g_y, hessian).value
    plain = largest_curvature(drawn.g, drawn.hessian).bound
    return Claim(normalised, plain - terms.of_scale, size=plain), right


def same_activations(generator: Generator, cases: int) -> PrintedAndCorrected:
    """γ = σ and β = μ reproduce a batch."""
    drawn = random_cases(generator, cases)
    gamma, beta = matching_scale_and_shift(drawn.y)
    z = gamma[:, None] * drawn.unit.values + beta[:, None]
    claim = vanishes(squared_norm(z - drawn.y).sqrt(), squared_norm(drawn.y).sqrt())
    return claim, claim


def preserved_minima(generator: Generator, cases: int) -> PrintedAndCorrected:
    """Gradient of the normalised network at a minimum of least squares, without and with bias."""
    X, t = normal(generator, cases, SAMPLES, _INPUTS), normal(generator, cases, SAMPLES)
    return _gradient_at_minimum(X, t, bias=False), _gradient_at_minimum(X, t, bias=True)


def nearest_optimum(generator: Generator, cases: int, *, per_unit: bool) -> PrintedAndCorrected:
    """Distances from W_0 to kW*, and to the optimum that scales every row by itself."""
    optimum, start = normal(generator, 2, cases, _UNITS, _INPUTS)
    axes = (-1,) if per_unit else (-2, -1)
    start = start * (start * optimum).sum(axes, keepdim=True).sign()
    rows = [nearest_multiple(w, w_0) for w, w_0 in zip(optimum, start, strict=True)]
    whole = torch.stack([found.squared_distance for found in rows])
    if per_unit:
        single = nearest_multiple(optimum.flatten(0, 1), start.flatten(0, 1), per_unit=True)
        closest = squared_norm((start - single.point.view_as(start)).flatten(1))
        return Claim(whole, closest, "="), Claim(closest, whole)
    inner, squared = (start * optimum).sum(axes), optimum.square().sum(axes)
    far = squared_norm((start - optimum).flatten(1))
    right = far - (squared - inner).square() / squared
    return Claim(whole, right, size=far), Claim(whole, right, "=", far)


def scale_invariance(generator: Generator, cases: int, *, eps: float) -> PrintedAndCorrected:
    """⟨w, ∇_wL⟩ for y = Xw, which is zero at ε = 0 only."""
    X, w = normal(generator, cases, SAMPLES, _INPUTS), normal(generator, cases, _INPUTS, 1)
    y, g = (X @ w).squeeze(-1), normal(generator, cases, SAMPLES)
    gradient = (X.mT @ bn_gradient(y, g, eps=eps).unsqueeze(-1)).squeeze(-1)
    radial = (w.squeeze(-1) * gradient).sum(-1)
    size = (squared_norm(w.squeeze(-1)) * squared_norm(gradient)).sqrt()
    return vanishes(radial, size), vanishes(radial - radial_derivative(y, g, eps=eps), size)


def _normalised(y: Tensor) -> Tensor:
    """ŷ at ε = 0, by operations that can be differentiated."""
    centred = y - y.mean()
    return centred / centred.square().mean().sqrt()


def _logistic_gradient(z: Tensor, labels: Tensor) -> Tensor:
    """Derivative of log(1 + exp(-tz))."""
    return -labels * torch.sigmoid(-labels * z)


def _correlated(drawn: Cases) -> Cases:
    """The same cases with the sign of g chosen so that ⟨g, ŷ⟩ > 0."""
    return Cases(drawn.y, drawn.g * drawn.along.sign()[:, None], drawn.hessian, drawn.unit)


def _gradient_at_minimum(inputs: Tensor, t: Tensor, *, bias: bool) -> Claim:
    """Of the loss ½‖z - t‖² with respect to w, γ and β, at the minimum of ½‖Xw (+ b) - t‖²."""
    X = torch.cat([inputs, torch.ones_like(inputs[..., :1])], -1) if bias else inputs
    y = (X @ torch.linalg.lstsq(X, t.unsqueeze(-1)).solution).squeeze(-1)
    gamma, beta = matching_scale_and_shift(y)
    values = standardise(y).values
    g = gamma[:, None] * values + beta[:, None] - t
    g_y = bn_gradient(y, g, gamma=gamma).unsqueeze(-1)
    of_weights = (inputs.mT @ g_y).squeeze(-1)
    of_scale, of_shift = (g * values).sum(-1, keepdim=True), g.sum(-1, keepdim=True)
    gradient = torch.cat([of_weights, of_scale, of_shift], -1)
    return vanishes(squared_norm(gradient).sqrt(), SAMPLES**0.5 * squared_norm(t).sqrt())
