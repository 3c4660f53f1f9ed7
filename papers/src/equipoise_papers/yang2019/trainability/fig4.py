"""Fig. 4: three ways to balanced gradients, and how deep each of them lets networks train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.report import wording
from equipoise_papers.experiments.experiment import Experiment, Scale
from equipoise_papers.experiments.verdict import Check, Verdict, ours
from equipoise_papers.yang2019.trainability import heat_map, panels
from equipoise_papers.yang2019.trainability.boundary import claims, remarks
from equipoise_papers.yang2019.trainability.boundary.claims import Deeper
from equipoise_papers.yang2019.trainability.boundary.edge import edge
from equipoise_papers.yang2019.trainability.forecast import ForecastPoint, along, forecasts
from equipoise_papers.yang2019.trainability.line import (
    LinePoint,
    Prediction,
    divergence,
    lines,
    monotone,
)
from equipoise_papers.yang2019.trainability.panels import Results
from equipoise_papers.yang2019.trainability.stack import Stack

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

_Points = Mapping[LinePoint, Prediction]

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
_RATES = (1e-5, 1e-4, 1e-3, 1e-2)
# At scale small the largest one is a stack of its own: it came later, and nothing is trained anew.
_FIRST_RATES = 3
# Octaves, from where everything trains to far beyond where ReLU does.
_DEPTHS = (10, 20, 40, 80, 160, 320)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterPanel:
    """What differs from panel to panel of Fig. 4.

    Args:
        parameter: Name of the parameter that varies.
        activation: ``relu`` or ``tanh``.
        label: Label of the horizontal axis.
        positions: Where networks train.
        curve: Positions of the predicted line, by scale.
        checks: What the line must show.
        claims: Pairs of positions of which one must let networks train deeper.
        critical: Position where they must train deepest.
        fixed: Values of batch norm's other parameters.
    """

    parameter: str
    activation: str
    label: str
    positions: tuple[float, ...]
    curve: Callable[[Scale], np.ndarray[Any, Any]]
    checks: Callable[[_Points], tuple[Check, ...]]
    claims: tuple[Deeper, ...]
    critical: float | None = None
    fixed: dict[str, float] = field(default_factory=dict)


def cells(panel: ParameterPanel, scale: Scale) -> tuple[LinePoint | ForecastPoint | Stack, ...]:
    """The predicted lines and forecasts; then the networks, the deepest ones first."""
    parameter, activation = panel.parameter, panel.activation
    points = tuple(
        LinePoint(parameter, activation, size, **{parameter: round(float(at), 6)}, **panel.fixed)
        for size in _BATCH_SIZES
        for at in panel.curve(scale)
    )
    positions, depths = _grid(panel, scale)
    places = [(depth, at) for depth in reversed(depths) for at in positions]
    parts: tuple[tuple[float, ...], ...] = (_RATES,)
    if scale == "small":
        parts = _RATES[:_FIRST_RATES], _RATES[_FIRST_RATES:]
    stacks = [
        stack
        for rates in parts
        for place in places
        for stack in panels.in_pairs(_stack(panel, scale, *place, rates))
    ]
    return (*points, *forecasts(stacks), *stacks)


def _grid(panel: ParameterPanel, scale: Scale) -> tuple[tuple[float, ...], tuple[int, ...]]:
    if scale == "smoke":
        return (panel.positions[0], panel.positions[-1]), (2, 6)
    return panel.positions, _DEPTHS if scale == "small" else (*_DEPTHS, 640)


def _stack(
    panel: ParameterPanel, scale: Scale, depth: int, at: float, rates: tuple[float, ...]
) -> Stack:
    norm: dict[str, Any] = {"eps": _NO_EPS, **panel.fixed, panel.parameter: at}
    return Stack(
        activation=panel.activation,
        batch_size=_TRAINED,
        depth=depth,
        **norm,
        **panels.effort(scale, rates),
    )


def draw(panel: ParameterPanel, title: str, figure: FigureBase, results: Results) -> None:
    """Draw a panel, with the line of the batch size that networks train at."""
    trained = panels.stacks(results)
    line = lines(panels.points(results))
    names = sorted({stack.data for stack in trained})
    heat_map.draw(
        figure,
        panels.columns(results, panel.parameter),
        line.get(_TRAINED, []),
        title=", ".join([f"{title}, B = {_TRAINED}", *names]),
        label=panel.label,
        logarithmic=False,
        forecast=along(results, panel.parameter),
        note=panels.rate_note(results, panel.parameter, None),
    )


def judge(panel: ParameterPanel, results: Results) -> Verdict:
    """Check the line, and how well it predicts where networks train."""
    if panels.too_few(results):
        return Verdict((), left_out=(panels.TOO_FEW,))
    checks, unseen = network_checks(panel, results)
    of_line = panel.checks(panels.points(results))
    left_out = (*unseen, *panels.stand_in(results, "MNIST"))
    return Verdict((*checks, *of_line), left_out, fidelity=panels.fidelity(results))


def network_checks(
    panel: ParameterPanel, results: Results
) -> tuple[tuple[Check, ...], tuple[str, ...]]:
    """Check how well the line predicts where networks train, and name what cannot be checked."""
    columns = panels.columns(results, panel.parameter)
    found = tuple(map(edge, columns))
    sooner = tuple(edge(column, claims.QUARTER) for column in columns)
    checks, unseen = claims.compared(panel.claims, found, sooner)
    if panel.critical is not None:
        # The source speaks of a critical point near 1, not of the deepest networks.
        checks = (
            *checks,
            claims.transition_at(panel.critical, found, sooner),
            ours(claims.deepest_at(panel.critical, found)),
        )
    return (
        *checks,
        claims.not_beyond_the_line(found, sooner),
        claims.at_the_line(found, sooner, "exceptional agreement"),
        *remarks.remarks(results, panel.parameter, None),
    ), unseen


def gamma_checks(points: _Points) -> tuple[Check, ...]:
    """Predicted depth falls with γ, from the linear network's."""
    checks = monotone("predicted: depth falls with γ", points, rising=False)
    for batch_size, line in lines(points).items():
        at, point = line[0]
        share = point.depth / point.linear_depth
        claim = f"B = {batch_size}: predicted: at γ = {at:g} within 1 % of 16/ln((B−2)/(B−3))"
        text = f"{wording.number(point.depth, 4)} of {wording.number(point.linear_depth, 4)}"
        checks.append(Check(claim, text, abs(share - 1) < 0.01))
    return tuple(ours(check) for check in checks)


def beta_checks(points: _Points) -> tuple[Check, ...]:
    """Predicted depth rises with β, towards the linear network's."""
    checks = monotone("predicted: depth rises with β", points, rising=True)
    for batch_size, line in lines(points).items():
        at, point = line[-1]
        claim = f"B = {batch_size}: predicted: stays below the linear network's depth"
        text = f"{wording.depth(point.depth)} at β = {at:g}, below "
        text += wording.depth(point.linear_depth)
        checks.append(Check(claim, text, point.depth < point.linear_depth))
    return tuple(ours(check) for check in checks)


def eps_checks(points: _Points) -> tuple[Check, ...]:
    """ξ diverges at ε = 1, where the source says that gradients do not explode."""
    return tuple(divergence(points))


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


# The source says "near 1".
_NEAR_ONE = (0.8, 1.0, 1.2)
_EPS_CLAIMS = (
    Deeper("networks train deeper near ε = 1 than at ε = 0", _NEAR_ONE, _NO_EPS),
    Deeper("networks train deeper near ε = 1 than above", _NEAR_ONE, _EPS_GRID[-1]),
)
GAMMA = ParameterPanel(
    parameter="gamma",
    activation="tanh",
    label="batch norm's scale γ",
    positions=(0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0),
    curve=_gamma_curve,
    checks=gamma_checks,
    claims=(Deeper("networks train deeper as γ → 0", (0.1,), 2.0),),
)
BETA = ParameterPanel(
    parameter="beta",
    activation="relu",
    label="batch norm's shift β",
    positions=(0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0),
    curve=_beta_curve,
    checks=beta_checks,
    claims=(Deeper("networks train deeper as β grows", (2.0,), 0.0),),
)
TANH_EPS = ParameterPanel(
    parameter="eps",
    activation="tanh",
    label="batch norm's ε",
    positions=_EPS_GRID,
    curve=_eps_curve,
    checks=eps_checks,
    claims=_EPS_CLAIMS,
    critical=1.0,
)
RELU_EPS = ParameterPanel(
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
    panels.rates_choice(
        _RATES,
        "the source states none for this figure, Fig. 2's is 1e-5",
    ),
    "small: 64 neurons, 6,400 training images, 1,000 test images; paper takes Fig. 2's 384 "
    "neurons and 600,000 images, and the best rate too",
    "Fashion-MNIST stands in for MNIST at small; smoke trains on scikit-learn's digits",
)


def _experiment(
    letter: str, title: str, claim: str, setup: ParameterPanel, *choices: str
) -> Experiment:
    return Experiment(
        name=f"yang2019.fig4{letter}",
        family=panels.FAMILY,
        title=f"{title}, trained networks and 16ξ",
        claim=claim,
        choices=(*choices, *_CHOICES, *panels.CHOICES),
        cells=partial(cells, setup),
        draw=partial(draw, setup, title),
        judge=partial(judge, setup),
    )


EXPERIMENTS = (
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
