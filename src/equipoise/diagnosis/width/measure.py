"""Train briefly at several widths, and see which sizes depend on the width."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree

from equipoise.diagnosis.factories import fresh
from equipoise.diagnosis.inputs.adapt import Loss
from equipoise.diagnosis.optimizer.given import OptimizerOf, optimizer_of
from equipoise.diagnosis.problem import Problem
from equipoise.diagnosis.rehearsal import rehearse
from equipoise.diagnosis.width.findings import conclude_coordinate_check
from equipoise.diagnosis.width.record import CoordinateCheck, LayerOverWidth, WidthTrend
from equipoise.diagnosis.width.trends import rounded, trend_of
from equipoise.instrument import modules
from equipoise.instrument.compiled import uncompiled_name
from equipoise.instrument.progress import silent
from equipoise.instrument.random_states import seeded
from equipoise.instrument.recording.tracer import trace
from equipoise.instrument.snapshot import untouched
from equipoise.instrument.types import Batch, LossFunction, Progress
from equipoise.numerics.checks import check_size
from equipoise.numerics.options import named_options
from equipoise.theory.propagation.propagate import Propagation, propagate

# Optimisers whose first step is the learning rate times the sign of the gradient.
_OF_SIGNS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.Adagrad)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """Adam at PyTorch's own learning rate."""
    return torch.optim.Adam(model.parameters())


@named_options
def coordinate_check(
    build: Callable[[int], nn.Module],
    data: object,
    widths: Sequence[int] = (64, 128, 256, 512),
    *,
    optimizer: OptimizerOf = adam,
    steps: int = 3,
    seeds: int = 4,
    loss_fn: Loss | None = None,
    batch_size: int = 64,
    device: torch.device | str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> CoordinateCheck:
    r"""Measure and predict how activations and updates depend on width.

    At every width the model takes a few steps on one batch. If neither the outputs of its layers
    nor their changes depend on the width, then learning rates found at one width hold at others
    (Yang and Hu 2021, arXiv:2011.14522).

    Args:
        build: ``build(width)`` returns a new model. Layers are matched by name.
        data: A name, or anything that :func:`equipoise.checkup` takes.
        widths: Two or more; four times between the smallest and the largest tell exponents apart.
        optimizer: ``optimizer(model)`` returns the optimiser, with the rates to be checked; any
            that steps without a closure. By default Adam at PyTorch's own rate.
        steps: Steps at every width.
        seeds: Initialisations of every width.
        loss_fn: ``loss_fn(model, batch)``; by default as in :func:`equipoise.checkup`.
        batch_size: Samples in the batch, where the data do not fix it.
        device: Where the model runs; by default where a module is.
        seed: Of the batch and the first initialisation; the others follow.
        progress: Called with a stage, finished and total trainings.

    Returns:
        For every layer the sizes of output and change over widths, slopes with standard errors,
        what theory predicts, and verdicts.

    Raises:
        ValueError: If there are fewer than two widths, the model does not depend on them, its
            layers have other names at each, or model, loss, data and optimiser do not fit.

    Examples:
        >>> def build(width):
        ...     hidden = nn.Linear(64, width)
        ...     return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), nn.Linear(width, 10))
        >>> found = coordinate_check(build, "digits", widths=(64, 256), steps=1)
        >>> [(layer.layer, layer.own_change.trend) for layer in found.layers]
        [('1', 'stable'), ('3', 'grows')]
    """
    widths = _checked(widths)
    check_size(batch_size=batch_size, steps=steps, seeds=seeds)
    problem = Problem.prepare(
        partial(build, widths[0]),
        data,
        loss_fn=loss_fn,
        batch_size=batch_size,
        device=device,
        seed=seed,
    )
    report, trainings = progress or silent, len(widths) * seeds
    batch, loss = problem.first, problem.loss_fn
    runs: list[list[_Run]] = []
    for width in widths:
        runs.append([])
        for number in range(seeds):
            report("training at several widths", (len(runs) - 1) * seeds + number, trainings)
            model = fresh(partial(build, width), batch, problem.seed + number)
            if number == 0:
                rehearse(model, batch, loss, problem.source.name)
            with untouched(model):
                run = _run(model, batch, loss, optimizer, steps, predicted=number == 0)
            runs[-1].append(run)
    report("training at several widths", trainings, trainings)
    _check_sizes(widths, [row[0].parameters for row in runs])
    names = [
        name for name in runs[0][0].sizes if all(name in r.sizes for row in runs for r in row)
    ]
    if not names:
        raise ValueError(
            f"no layer has the same name at widths {widths[0]} and {widths[-1]}. Build the same "
            "modules at every width; only their sizes may differ."
        )
    layers = tuple(_layer(name, widths, runs, is_last=name == names[-1]) for name in names)
    first = runs[0][0]
    found = CoordinateCheck(
        first.optimizer, widths, steps, seeds, layers, _transfers(layers), first.unpredicted
    )
    return replace(found, findings=tuple(conclude_coordinate_check(found)))


def _checked(widths: Sequence[int]) -> tuple[int, ...]:
    given = tuple(sorted(set(widths)))
    if len(given) < 2 or given[0] < 1:
        raise ValueError(
            f"a slope over width takes two or more positive widths, got {tuple(widths)}. Give "
            "widths=(64, 128, 256, 512), for instance."
        )
    return given


def _check_sizes(widths: Sequence[int], parameters: Sequence[int]) -> None:
    if len(set(parameters)) < len(parameters):
        counts = ", ".join(map(str, parameters))
        raise ValueError(
            f"build({widths[0]}) to build({widths[-1]}) should differ in size, but have {counts} "
            "parameters. Let build use its argument as the width of the hidden layers."
        )


@dataclass(slots=True)
class _Sizes:
    """Root mean squares of one layer."""

    kind: str
    inputs: int
    output: float
    first_step: float = math.nan
    own_change: float = math.nan
    change: float = math.nan
    predicted_output: float = math.nan
    predicted_step: float = math.nan


@dataclass(slots=True)
class _Run:
    """One width and seed."""

    optimizer: str
    parameters: int
    sizes: dict[str, _Sizes]
    unpredicted: str


@dataclass(slots=True)
class _Calls:
    """What a layer was given and returned in one pass, call by call."""

    module: nn.Module
    given: list[tuple[Any, Any]] = field(default_factory=list)
    returned: list[Tensor] = field(default_factory=list)

    def own_change(self) -> float:
        """How far what the layer now makes of what it was given is from what it returned."""
        with torch.no_grad(), seeded(0):
            outputs = [_first(self.module(*args, **kwargs)) for args, kwargs in self.given]
        return _distance([out for out in outputs if out is not None], self.returned)


def _run(
    model: nn.Module,
    batch: Batch,
    loss: LossFunction,
    optimizer: OptimizerOf,
    steps: int,
    *,
    predicted: bool,
) -> _Run:
    stepper = optimizer_of(optimizer, model)
    rates = _rates(stepper, model)
    calls = _pass(model, batch, loss)
    sizes = {
        name: _Sizes(type(one.module).__name__, _inputs(one.module), _size(one.returned))
        for name, one in calls.items()
    }
    if predicted:
        _predict(sizes, propagate(trace(model, batch, loss), steps=True), model, rates)
    _step(stepper, model, batch, loss)
    for name, one in calls.items():
        sizes[name].first_step = one.own_change()
    for _ in range(steps - 1):
        _step(stepper, model, batch, loss)
    after = _pass(model, batch, loss)
    for name, one in calls.items():
        sizes[name].own_change = one.own_change()
        sizes[name].change = _distance(after[name].returned, one.returned)
    count = sum(p.numel() for p in model.parameters())
    name = type(stepper).__name__
    unpredicted = "" if rates else f"theory has the steps of SGD and Adam, not those of {name}"
    return _Run(name, count, sizes, unpredicted)


def _step(
    stepper: torch.optim.Optimizer, model: nn.Module, batch: Batch, loss: LossFunction
) -> None:
    stepper.zero_grad()
    with seeded(0), torch.enable_grad():
        value = loss(model, batch)
        if not value.requires_grad:
            raise ValueError(
                "the loss depends on no trainable parameter, so nothing changes. Let some "
                "parameters require gradients."
            )
        torch.autograd.backward(value)
    stepper.step()


def _inputs(module: nn.Module) -> int:
    """Weights of one output of a layer; 1 for factors and shifts."""
    return max((p[0].numel() for p in modules.own_parameters(module) if p.ndim > 1), default=1)


@dataclass(frozen=True, slots=True)
class _Rates:
    """Which step theory predicts for each parameter, by name: the rule, and its length."""

    rule: Literal["sgd", "sign"]
    lengths: dict[str, float]


def _rates(stepper: torch.optim.Optimizer, model: nn.Module) -> _Rates | None:
    """How long the first step of each parameter is; None for optimisers without a prediction."""
    names = {id(p): uncompiled_name(name) for name, p in model.named_parameters()}
    if type(stepper) not in (torch.optim.SGD, *_OF_SIGNS):
        return None
    lengths: dict[str, float] = {}
    for group in stepper.param_groups:
        factor = 1 + group["momentum"] if group.get("nesterov") else 1.0
        lengths |= {names[id(p)]: factor * float(group["lr"]) for p in group["params"]}
    return _Rates("sgd" if type(stepper) is torch.optim.SGD else "sign", lengths)


def _predict(
    sizes: dict[str, _Sizes], propagation: Propagation, model: nn.Module, rates: _Rates | None
) -> None:
    """Fill in what theory knows; a step of weights with several names is not one layer's."""
    names = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    shared = {name for name, p in model.named_parameters() if names[id(p)] > 1}
    for site in propagation.sites:
        if site.module in sizes and site.second_moment is not None:
            sizes[site.module].predicted_output = math.sqrt(site.second_moment)
    for weight in propagation.weights:
        layer = modules.owner_name(model, weight.name)
        if rates is None or weight.step is None or layer not in sizes or weight.name in shared:
            continue
        square = getattr(weight.step, rates.rule)
        sizes[layer].predicted_step = rates.lengths.get(weight.name, 0.0) * math.sqrt(square)


def _pass(model: nn.Module, batch: Batch, loss: LossFunction) -> dict[str, _Calls]:
    """Run once, with the same noise each time, and keep what layers with parameters are given."""
    found: dict[str, _Calls] = {}

    def hook(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        returned = _first(output)
        if returned is None:  # such as a distribution: it has no size
            return
        calls = found.setdefault(name, _Calls(module))
        calls.given.append(pytree.tree_map_only(Tensor, _copied, (args, kwargs)))
        calls.returned.append(_copied(returned))

    with ExitStack() as hooks, torch.no_grad(), seeded(0):
        for module, name in modules.names(model).items():
            if modules.own_parameters(module) or parametrize.is_parametrized(module):
                after = partial(hook, name)
                hooks.enter_context(module.register_forward_hook(after, with_kwargs=True))
        loss(model, batch)
    return found


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _first(output: Any) -> Tensor | None:
    """The first tensor that a module returns, if it returns any."""
    leaves = pytree.tree_leaves(output)
    return next((leaf for leaf in leaves if isinstance(leaf, Tensor)), None)


def _size(tensors: Iterable[Tensor]) -> float:
    squares = [tensor.double().square() for tensor in tensors]
    return math.sqrt(sum(float(s.sum()) for s in squares) / sum(s.numel() for s in squares))


def _distance(now: Sequence[Tensor], before: Sequence[Tensor]) -> float:
    return _size(a - b for a, b in zip(now, before, strict=True))


def _layer(
    name: str, widths: tuple[int, ...], runs: Sequence[Sequence[_Run]], *, is_last: bool
) -> LayerOverWidth:
    table = [[run.sizes[name] for run in row] for row in runs]

    def trend(field: str, predicted: str | None = None) -> WidthTrend:
        rows = [[getattr(sizes, field) for sizes in row] for row in table]
        theory = [getattr(row[0], predicted) for row in table] if predicted else None
        return trend_of(widths, rows, theory)

    own = trend("own_change")
    return LayerOverWidth(
        layer=name,
        kind=table[0][0].kind,
        is_last=is_last,
        output=trend("output", "predicted_output"),
        own_change=own,
        change=trend("change"),
        first_step=trend("first_step", "predicted_step"),
        rate_exponent=_rate_exponent(own, trend("inputs"), runs[0][0].optimizer),
    )


def _rate_exponent(own: WidthTrend, inputs: WidthTrend, optimizer: str) -> float:
    """What keeps a layer's own change: its change is proportional to its learning rate."""
    if own.trend not in ("grows", "vanishes"):
        return 0.0
    if own.trend == "grows" and optimizer in {kind.__name__ for kind in _OF_SIGNS}:
        # The coherent part of a step by signs, which wins at large width, grows as the inputs;
        # at small width the measured slope is lower.
        return -rounded(inputs.slope.value)
    return -rounded(own.slope.value)


def _transfers(layers: Sequence[LayerOverWidth]) -> bool | None:
    """Whether no size depends on width; outputs of the last layer may vanish."""
    trends = [
        trend.trend
        for layer in layers
        for trend in (layer.output, layer.own_change, layer.change)
        if not (layer.is_last and trend is layer.output and trend.trend == "vanishes")
    ]
    if any(trend in ("grows", "vanishes", "not finite") for trend in trends):
        return False
    return None if "undecided" in trends else True
