"""Fig. 4: three ways to balanced gradients, and how deep theory lets each of them go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.experiments import style
from equipoise.experiments.experiment import Experiment
from equipoise.experiments.yang2019.depth_curves import (
    TRAINING_LEFT_OUT,
    Cell,
    Point,
    curves,
    divergence,
    draw_curves,
    monotone,
    run,
)
from equipoise.records.experiments import Check, Scale, Verdict
from equipoise.report import wording

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

_BATCH_SIZES = (8, 32, 128)
_POINTS = {"smoke": 9, "small": 41, "paper": 81}
# γ = 0 sends no signal; at 0.02 tanh is linear to 3 parts in 10⁴.
_SMALLEST_GAMMA = 0.02
# ReLU looks linear to a batch if the shift exceeds its largest output, of about √(2 ln B).
_LINEAR_BETA = 2.0
_LARGEST_EPS = 1.5
# Nearest to the critical ε, on either side.
_CLOSEST = 0.01
_CHOICES = (
    "batch sizes 8, 32 and 128; smoke: 9 points per curve, small: 41, paper: 81",
    "depth 16|ξ| as in Fig. 2, infinite width, σ_w² = 1",
)


def gamma_cells(scale: Scale) -> tuple[Cell, ...]:
    """Panel a: γ of tanh at ε = 0."""
    grid = np.linspace(0, 2, _POINTS[scale])
    grid[0] = _SMALLEST_GAMMA
    return _cells("gamma", "tanh", grid)


def beta_cells(scale: Scale) -> tuple[Cell, ...]:
    """Panel b: β of ReLU at ε = 0."""
    return _cells("beta", "relu", np.linspace(0, 2, _POINTS[scale]))


def tanh_eps_cells(scale: Scale) -> tuple[Cell, ...]:
    """Panel c: ε of tanh."""
    return _cells("eps", "tanh", _eps_grid(scale))


def relu_eps_cells(scale: Scale) -> tuple[Cell, ...]:
    """Panel d: ε of ReLU at β = 2, where it is locally linear."""
    return _cells("eps", "relu", _eps_grid(scale), beta=_LINEAR_BETA)


def draw_gamma(figure: FigureBase, results: Mapping[Cell, Point]) -> None:
    """Draw panel a, with the limits of small γ."""
    axes = figure.subplots()
    draw_curves(axes, results)
    for index, curve in enumerate(curves(results).values()):
        axes.plot(0, curve[0][1].linear_depth, "o", color=style.PALETTE[index], clip_on=False)
    axes.plot([], [], "o", color=style.INK, label=r"limit $16/\ln\frac{B-2}{B-3}$")
    _finish(axes, "tanh: depth grows as γ → 0", "batch norm's scale γ")


def draw_beta(figure: FigureBase, results: Mapping[Cell, Point]) -> None:
    """Draw panel b, with the limits of large β."""
    axes = figure.subplots()
    draw_curves(axes, results)
    for index, curve in enumerate(curves(results).values()):
        limit, colour = curve[0][1].linear_depth, style.PALETTE[index]
        axes.axhline(limit, color=colour, linestyle=":", linewidth=1)
    axes.plot([], [], ":", color=style.INK, label="limit of large β")
    _finish(axes, "ReLU: depth grows with β", "batch norm's shift β")


def draw_tanh_eps(figure: FigureBase, results: Mapping[Cell, Point]) -> None:
    """Draw panel c."""
    _draw_eps(figure, results, "tanh: ξ diverges at ε = 1")


def draw_relu_eps(figure: FigureBase, results: Mapping[Cell, Point]) -> None:
    """Draw panel d."""
    _draw_eps(figure, results, "ReLU, β = 2: ξ diverges at ε = 1")


def judge_gamma(results: Mapping[Cell, Point]) -> Verdict:
    """Depth falls with γ, from the linear network's."""
    checks = monotone("depth falls with γ", results, rising=False)
    for batch_size, curve in curves(results).items():
        at, point = curve[0]
        share = point.depth / point.linear_depth
        claim = f"B = {batch_size}: at γ = {at:g} within 1 % of 16/ln((B−2)/(B−3))"
        text = f"{wording.number(point.depth, 4)} of {wording.number(point.linear_depth, 4)}"
        checks.append(Check(claim, text, abs(share - 1) < 0.01))
    return Verdict(tuple(checks), (TRAINING_LEFT_OUT,))


def judge_beta(results: Mapping[Cell, Point]) -> Verdict:
    """Depth rises with β, towards the linear network's."""
    checks = monotone("depth rises with β", results, rising=True)
    for batch_size, curve in curves(results).items():
        at, point = curve[-1]
        claim = f"B = {batch_size}: stays below the linear network's depth"
        text = f"{wording.depth(point.depth)} at β = {at:g}, below "
        text += wording.depth(point.linear_depth)
        checks.append(Check(claim, text, point.depth < point.linear_depth))
    return Verdict(tuple(checks), (TRAINING_LEFT_OUT,))


def judge_eps(results: Mapping[Cell, Point]) -> Verdict:
    """ξ diverges at ε = 1."""
    return Verdict(tuple(divergence(results)), (TRAINING_LEFT_OUT,))


def _cells(
    parameter: str, activation: str, grid: np.ndarray[Any, Any], **fixed: float
) -> tuple[Cell, ...]:
    return tuple(
        Cell(parameter, activation, batch_size, **{parameter: round(float(at), 6)}, **fixed)
        for batch_size in _BATCH_SIZES
        for at in grid
    )


def _eps_grid(scale: Scale) -> np.ndarray[Any, Any]:
    """From 0 to the largest, denser towards the critical ε = 1 on both sides."""
    below = 1 - np.geomspace(1, _CLOSEST, 2 * _POINTS[scale] // 3)
    above = 1 + np.geomspace(_CLOSEST, _LARGEST_EPS - 1, _POINTS[scale] // 3)
    return np.concatenate([below, above])


def _draw_eps(figure: FigureBase, results: Mapping[Cell, Point], title: str) -> None:
    axes = figure.subplots()
    draw_curves(axes, results)
    critical = next(iter(results.values())).critical_eps
    if critical is not None:
        axes.axvline(critical, color=style.INK, linewidth=0.9, label=f"critical ε = {critical:g}")
        bottom = axes.get_xaxis_transform()
        axes.text(critical - 0.04, 0.03, "gradients explode", transform=bottom, ha="right")
        axes.text(critical + 0.04, 0.03, "vanish", transform=bottom)
    _finish(axes, title, "batch norm's ε")


def _finish(axes: Axes, title: str, label: str) -> None:
    axes.set_xlabel(label)
    axes.set_title(title)
    axes.legend()


def _experiment(
    panel: str, title: str, claim: str, choices: tuple[str, ...], **parts: Any
) -> Experiment[Any, Any]:
    return Experiment(
        name=f"yang2019.fig4{panel}",
        title=title,
        claim=claim,
        choices=choices + _CHOICES,
        record=Point,
        run=run,
        **parts,
    )


EXPERIMENTS: tuple[Experiment[Any, Any], ...] = (
    _experiment(
        "a",
        "tanh: predicted trainable depth over γ (no training)",
        "The maximum trainable depth grows as γ → 0, to the linear network's.",
        (f"ε = 0, β = 0; γ from {_SMALLEST_GAMMA:g}, as γ = 0 sends no signal",),
        cells=gamma_cells,
        draw=draw_gamma,
        judge=judge_gamma,
    ),
    _experiment(
        "b",
        "ReLU: predicted trainable depth over β (no training)",
        "The maximum trainable depth grows with β, as ReLU becomes linear.",
        ("ε = 0, γ = 1",),
        cells=beta_cells,
        draw=draw_beta,
        judge=judge_beta,
    ),
    _experiment(
        "c",
        "tanh: predicted trainable depth over ε (no training)",
        "There is a critical ε near 1 at which gradients do not explode.",
        (f"γ = 1, β = 0; ε from 0 to {_LARGEST_EPS:g}, within {_CLOSEST:g} of 1",),
        cells=tanh_eps_cells,
        draw=draw_tanh_eps,
        judge=judge_eps,
    ),
    _experiment(
        "d",
        "ReLU with β = 2: predicted trainable depth over ε (no training)",
        "There is a critical ε near 1 at which gradients do not explode.",
        (f"γ = 1, β = 2; ε from 0 to {_LARGEST_EPS:g}, within {_CLOSEST:g} of 1",),
        cells=relu_eps_cells,
        draw=draw_relu_eps,
        judge=judge_eps,
    ),
)
