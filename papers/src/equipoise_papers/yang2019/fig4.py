"""Fig. 4: three ways to balanced gradients, and how deep each of them lets networks train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.report import wording
from equipoise_papers.reproduction.experiment import Experiment
from equipoise_papers.reproduction.record import Check, Scale, Verdict, ours
from equipoise_papers.yang2019 import depth_curves, heat_map, trained_panels
from equipoise_papers.yang2019.boundary import claims as boundary_claims
from equipoise_papers.yang2019.boundary import remarks as boundary_remarks
from equipoise_papers.yang2019.boundary.claims import Deeper
from equipoise_papers.yang2019.boundary.edge import edge
from equipoise_papers.yang2019.depth_curves import Point, curves, divergence, monotone
from equipoise_papers.yang2019.trainability import Stack
from equipoise_papers.yang2019.trained_panels import Cell, Record, Results

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

_Curve = Mapping[depth_curves.Cell, Point]

# Networks train at the second one; the others show how much the batch size matters.
_BATCH_SIZES = (8, 64, 128)
_TRAINED = 64
_POINTS: dict[Scale, int] = {"smoke": 9, "small": 41, "paper": 81}
# γ = 0 sends no signal; at 0.02 tanh is linear to 3 parts in 10⁴.
_SMALLEST_GAMMA = 0.02
# ReLU looks linear to a batch if the shift exceeds its largest output, of about √(2 ln B).
_LINEAR_BETA = 2.0
_LARGEST_EPS = 1.5
# Nearest to the critical ε, on either side.
_CLOSEST = 0.01
# Networks' ε where the line has none: PyTorch asks for more than 0. Small against γ² and β².
_NO_EPS = 1e-5
_EPS_GRID = (_NO_EPS, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4)
_RATES = (1e-5, 1e-4, 1e-3)
# Octaves, from where everything trains to far beyond where ReLU does.
_DEPTHS = (10, 20, 40, 80, 160, 320)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What differs from panel to panel.

    Args:
        parameter: Name of the one that varies.
        activation: ``relu`` or ``tanh``.
        label: Of the horizontal axis.
        positions: Where networks train.
        curve: Positions of the predicted line, by scale.
        checks: What the line must show.
        claims: Where networks must train deeper than where.
        critical: Where they must train deepest.
        fixed: Batch norm's other settings.
    """

    parameter: str
    activation: str
    label: str
    positions: tuple[float, ...]
    curve: Callable[[Scale], np.ndarray[Any, Any]]
    checks: Callable[[_Curve], tuple[Check, ...]]
    claims: tuple[Deeper, ...]
    critical: float | None = None
    fixed: dict[str, float] = field(default_factory=dict)


def cells(setting: Setting, scale: Scale) -> tuple[Cell, ...]:
    """The predicted lines; then the networks, the deepest ones first."""
    parameter, activation = setting.parameter, setting.activation
    line: tuple[Cell, ...] = tuple(
        depth_curves.Cell(
            parameter, activation, size, **{parameter: round(float(at), 6)}, **setting.fixed
        )
        for size in _BATCH_SIZES
        for at in setting.curve(scale)
    )
    positions, depths = _grid(setting, scale)
    return line + tuple(
        _stack(setting, scale, depth, at) for depth in reversed(depths) for at in positions
    )


def _grid(setting: Setting, scale: Scale) -> tuple[tuple[float, ...], tuple[int, ...]]:
    if scale == "smoke":
        return (setting.positions[0], setting.positions[-1]), (2, 6)
    return setting.positions, _DEPTHS if scale == "small" else (*_DEPTHS, 640)


def _stack(setting: Setting, scale: Scale, depth: int, at: float) -> Stack:
    norm: dict[str, Any] = {"eps": _NO_EPS, **setting.fixed, setting.parameter: at}
    return Stack(
        activation=setting.activation,
        batch_size=_TRAINED,
        depth=depth,
        **norm,
        **trained_panels.effort(scale, _RATES),
    )


def draw(setting: Setting, title: str, figure: FigureBase, results: Results) -> None:
    """Draw a panel, with the line of the batch size that networks train at."""
    trained = trained_panels.stacks(results)
    line = curves(trained_panels.line(results))
    names = sorted({stack.data for stack in trained})
    heat_map.draw(
        figure,
        trained_panels.columns(results, setting.parameter),
        line.get(_TRAINED, []),
        title=", ".join([f"{title}, B = {_TRAINED}", *names]),
        label=setting.label,
        logarithmic=False,
        note=trained_panels.rate_note(results, setting.parameter, None),
    )


def judge(setting: Setting, results: Results) -> Verdict:
    """The line, and how far the trained networks bear it out."""
    if trained_panels.too_few(results):
        return Verdict((), left_out=(trained_panels.TOO_FEW,))
    checks, unseen = network_checks(setting, results)
    line = setting.checks(trained_panels.line(results))
    left_out = (*unseen, *trained_panels.stand_in(results, "MNIST"))
    return Verdict((*checks, *line), left_out)


def network_checks(
    setting: Setting, results: Results
) -> tuple[tuple[Check, ...], tuple[str, ...]]:
    """How far the trained networks bear the line out, and what cannot be told."""
    found = tuple(map(edge, trained_panels.columns(results, setting.parameter)))
    checks, unseen = boundary_claims.compared(setting.claims, found)
    if setting.critical is not None:
        checks = (*checks, boundary_claims.deepest_at(setting.critical, found))
    return (
        *checks,
        boundary_claims.not_beyond_the_line(found),
        boundary_claims.at_the_line(found, "exceptional agreement"),
        *boundary_remarks.remarks(results, setting.parameter, None),
    ), unseen


def gamma_checks(line: _Curve) -> tuple[Check, ...]:
    """Predicted depth falls with γ, from the linear network's."""
    checks = monotone("predicted: depth falls with γ", line, rising=False)
    for batch_size, curve in curves(line).items():
        at, point = curve[0]
        share = point.depth / point.linear_depth
        claim = f"B = {batch_size}: predicted: at γ = {at:g} within 1 % of 16/ln((B−2)/(B−3))"
        text = f"{wording.number(point.depth, 4)} of {wording.number(point.linear_depth, 4)}"
        checks.append(Check(claim, text, abs(share - 1) < 0.01))
    return tuple(ours(check) for check in checks)


def beta_checks(line: _Curve) -> tuple[Check, ...]:
    """Predicted depth rises with β, towards the linear network's."""
    checks = monotone("predicted: depth rises with β", line, rising=True)
    for batch_size, curve in curves(line).items():
        at, point = curve[-1]
        claim = f"B = {batch_size}: predicted: stays below the linear network's depth"
        text = f"{wording.depth(point.depth)} at β = {at:g}, below "
        text += wording.depth(point.linear_depth)
        checks.append(Check(claim, text, point.depth < point.linear_depth))
    return tuple(ours(check) for check in checks)


def eps_checks(line: _Curve) -> tuple[Check, ...]:
    """ξ diverges at ε = 1."""
    return tuple(ours(check) for check in divergence(line))


def _gamma_curve(scale: Scale) -> np.ndarray[Any, Any]:
    grid = np.linspace(0, 2, _POINTS[scale])
    grid[0] = _SMALLEST_GAMMA
    return grid


def _beta_curve(scale: Scale) -> np.ndarray[Any, Any]:
    return np.linspace(0, 2, _POINTS[scale])


def _eps_curve(scale: Scale) -> np.ndarray[Any, Any]:
    """From 0 to the largest, denser towards the critical ε = 1 on both sides."""
    below = 1 - np.geomspace(1, _CLOSEST, 2 * _POINTS[scale] // 3)
    above = 1 + np.geomspace(_CLOSEST, _LARGEST_EPS - 1, _POINTS[scale] // 3)
    return np.concatenate([below, above])


_EPS_CLAIMS = (
    Deeper("networks train deeper near ε = 1 than at ε = 0", 1.0, _NO_EPS),
    Deeper("networks train deeper near ε = 1 than above", 1.0, _EPS_GRID[-1]),
)
GAMMA = Setting(
    parameter="gamma",
    activation="tanh",
    label="batch norm's scale γ",
    positions=(0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0),
    curve=_gamma_curve,
    checks=gamma_checks,
    claims=(Deeper("networks train deeper as γ → 0", 0.1, 2.0),),
)
BETA = Setting(
    parameter="beta",
    activation="relu",
    label="batch norm's shift β",
    positions=(0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0),
    curve=_beta_curve,
    checks=beta_checks,
    claims=(Deeper("networks train deeper as β grows", 2.0, 0.0),),
)
TANH_EPS = Setting(
    parameter="eps",
    activation="tanh",
    label="batch norm's ε",
    positions=_EPS_GRID,
    curve=_eps_curve,
    checks=eps_checks,
    claims=_EPS_CLAIMS,
    critical=1.0,
)
RELU_EPS = Setting(
    parameter="eps",
    activation="relu",
    label="batch norm's ε",
    positions=_EPS_GRID,
    curve=_eps_curve,
    checks=eps_checks,
    claims=_EPS_CLAIMS,
    critical=1.0,
    fixed={"beta": _LINEAR_BETA},
)

_CRITICAL = (
    "There is a critical ε near 1 at which gradients do not explode and deep networks train."
)
_CHOICES = (
    f"networks train at B = {_TRAINED}; the source states no batch size, width, rate, time or "
    "depths",
    "the line is 16ξ as in Fig. 2; the source calls it the predicted maximum trainable depth",
    "predicted lines at B = 8, 64 and 128 (smoke: 9 points per line, small: 41, paper: 81), that "
    "of 64 is drawn; depth 16|ξ|, infinite width, σ_w² = 1",
    trained_panels.rates_choice(
        _RATES, "the source states none for this figure, Fig. 2's is 1e-5"
    ),
    "small: 64 neurons, 6,400 training images, 1,000 test images; paper takes Fig. 2's 384 "
    "neurons and 600,000 images, and the best rate too",
    "Fashion-MNIST stands in for MNIST at small; smoke trains on scikit-learn's digits",
)


def _experiment(
    panel: str, title: str, claim: str, setting: Setting, *choices: str
) -> Experiment[Any, Any]:
    return Experiment(
        name=f"yang2019.fig4{panel}",
        family=trained_panels.FAMILY,
        title=f"{title}, trained networks and 16ξ",
        claim=claim,
        choices=(*choices, *_CHOICES, *trained_panels.CHOICES),
        record=Record,
        cells=partial(cells, setting),
        run=trained_panels.run,
        draw=partial(draw, setting, title),
        judge=partial(judge, setting),
    )


EXPERIMENTS: tuple[Experiment[Any, Any], ...] = (
    _experiment(
        "a",
        "tanh over γ",
        "The maximum trainable depth grows as γ → 0, to the linear network's.",
        GAMMA,
        f"β = 0; the line at ε = 0 and from γ = {_SMALLEST_GAMMA:g}, as γ = 0 sends no signal; "
        f"networks at ε = {_NO_EPS:g} and from γ = 0.1",
    ),
    _experiment(
        "b",
        "ReLU over β",
        "The maximum trainable depth grows with β, as ReLU becomes linear.",
        BETA,
        f"γ = 1; the line at ε = 0, networks at ε = {_NO_EPS:g}",
    ),
    _experiment(
        "c",
        "tanh over ε",
        _CRITICAL,
        TANH_EPS,
        f"γ = 1, β = 0; the line from ε = 0 to {_LARGEST_EPS:g}, within {_CLOSEST:g} of 1; "
        f"networks at ε = {_NO_EPS:g} in place of 0",
    ),
    _experiment(
        "d",
        "ReLU with β = 2 over ε",
        _CRITICAL,
        RELU_EPS,
        f"γ = 1; the line from ε = 0 to {_LARGEST_EPS:g}, within {_CLOSEST:g} of 1; networks at "
        f"ε = {_NO_EPS:g} in place of 0",
    ),
)
