"""From quantities to a probability with its reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from equipoise.diagnosis.trainability.calibration import (
    FAVOURABLE,
    Basis,
    Calibration,
    interval,
    joined,
)
from equipoise.diagnosis.trainability.depth import trainable_blocks
from equipoise.diagnosis.trainability.quantities import (
    Source,
    further,
    quantities,
    up_to_the_output,
)
from equipoise.diagnosis.trainability.record import LIKELY, Depth, Quantities, Trainability
from equipoise.diagnosis.trainability.settling import settling
from equipoise.diagnosis.trainability.targets import burden
from equipoise.instrument.recording.graph import Graph, Made
from equipoise.theory.propagation.propagate import Propagation, propagate
from equipoise.theory.propagation.rules.normalisers import EQUAL_ROWS

# What costs less than this of the log-odds is no reason, nor is anything where training is likely.
_SLIGHT = 0.5
# How far a scale that starts at zero has come when all else begins to move.
_FIRST_STEPS = 0.1
REASONS = {
    "explosion": "similar inputs are driven apart: gradients explode towards the input",
    "vanishing": "differences between inputs fade: gradients vanish towards the input",
    "collapse": "the input is forgotten: all samples have nearly the same output",
    "size": "the initial outputs are so large that the loss starts far above that of guessing",
    "imbalance": "gradients are spread so widely over the layers that no rate fits them all",
    "silence": "some layers get no gradient at all",
    "fluctuation": "gradients differ from one draw of weights to another, as where a network is "
    "deep for its width",
    "targets": "the targets lie so far from the outputs, for their spread or for what the last "
    "layer can give, that most steps go into the way there",
    "settling": "weights are so small that every step writes over them, and what tells inputs "
    "apart is lost until they have grown",
    "faintness": "all gradients are so small that no usual learning rate moves the weights",
}


def judge(
    found: Propagation,
    batch_size: int,
    calibration: Calibration,
    *,
    depth: bool = True,
    took: float = 0.0,
    allowance: float = math.inf,
    again: Callable[[Mapping[str, Tensor]], Graph] | None = None,
    stepped: Callable[[float], Graph] | None = None,
) -> Trainability:
    """How probably a traced model trains.

    What gets no gradient, or hands on equal rows, until weights that start at zero have moved is
    judged as after the first steps: as theory sees it, or by another pass.

    Args:
        found: What was predicted for it, and measured beside it.
        batch_size: Samples of a step.
        calibration: What the benchmark has taught.
        depth: Whether to find how many of its repeated blocks could train.
        took: Seconds that predicting it took.
        allowance: Seconds for predicting it with more blocks. Predicting it after the first steps
            may take as long as predicting it took.
        again: Traces a pass with other values of some parameters, by name.
        stepped: Traces a pass after each matrix was moved by a part of its root mean square,
            against the sign of its gradient; called only of weights that are small.

    Raises:
        ValueError: If no operation of the model has a gradient, or if most have none as yet and
            theory does not reach the output, or norms get equal rows as yet, and no other pass
            can be traced.
    """
    most = None if math.isinf(allowance) else max(took, allowance)

    def after_first_steps(problem: str) -> Trainability:
        if again is None:
            raise ValueError(problem)
        moved = propagate(again(_moved(_starting_at_zero(found))), allowance=most)
        return judge(moved, batch_size, calibration, depth=False)

    if _equal_behind_zeros(found):
        return after_first_steps(
            "batch norms get rows that are all equal until weights that start at zero have moved, "
            "and make gradients of a size that says nothing of what follows."
        )
    known: dict[Source, Quantities] = {}
    for source in ("predicted", "measured"):
        if source == "measured" or _reaches_the_output(found):
            known[source] = quantities(found, batch_size, source)
    basis: Basis = "both" if len(known) == 2 else "measured"
    awake = None
    if "silence" in calibration.outside(known["measured"]):
        awake = _awakened(found, most)
        if awake is None and _starting_at_zero(found):
            return after_first_steps(
                "most of its layers get no gradient until weights that start at zero have moved, "
                f"and theory does not reach its output{further(found.sites)}"
            )
    if awake is None:
        together = joined(known.get("predicted"), known["measured"])
    else:  # what is measured is not what will train
        basis, known["predicted"] = "both", quantities(awake, batch_size, "predicted")
        together = known["predicted"]
    others = {
        "targets": burden(found.graph) if found.graph is not None else 0.0,
        "settling": settling(found, stepped) if stepped is not None else 0.0,
    }
    limit: Depth | None = None
    if depth and "predicted" in known and not others["settling"] > 0:
        limit = _depth(awake or found, batch_size, calibration, took, allowance)
    return _by_quantities(known, together, basis, calibration, others, limit)


def _by_quantities(
    known: Mapping[Source, Quantities],
    together: Quantities,
    basis: Basis,
    calibration: Calibration,
    others: Mapping[str, float],
    depth: Depth | None,
) -> Trainability:
    """What the fit says of quantities, less what ``others`` take from the log-odds."""
    fit = calibration.fits[basis]
    outside = calibration.outside(together)
    outside += tuple(name for name, taken in others.items() if taken > 0)
    odds, error = fit.log_odds(together) - sum(others.values()), fit.error(together)
    probability, low, high = interval(odds, error, outside=bool(outside))
    terms = fit.terms(together) | {name: -taken for name, taken in others.items()}
    against = {
        name: term for name, term in terms.items() if name not in FAVOURABLE and term < -_SLIGHT
    }
    alike, alike_trained = fit.alike(probability)
    return Trainability(
        probability=probability,
        low=low,
        high=high,
        reason=_reason(against) if probability < LIKELY else "",
        alike=alike,
        alike_trained=alike_trained,
        outside=outside,
        source=basis,
        predicted=known.get("predicted"),
        measured=known["measured"],
        depth=depth,
    )


def predicted_probability(
    found: Propagation, batch_size: int, calibration: Calibration
) -> float | None:
    """Probability of training from theory alone; ``None`` where it does not reach the output."""
    if not _reaches_the_output(found):
        return None
    odds = calibration.fits["both"].log_odds(quantities(found, batch_size, "predicted"))
    return interval(odds, 0.0, outside=False)[0]


def _reason(against: Mapping[str, float]) -> str:
    return REASONS[min(against, key=against.__getitem__)] if against else ""


def _depth(
    found: Propagation,
    batch_size: int,
    calibration: Calibration,
    took: float,
    allowance: float,
) -> Depth | None:
    fit = calibration.fits["both"]
    known: dict[int, Quantities] = {}  # of networks, which the search keeps

    def of(spread: float) -> Callable[[Propagation], float]:
        def log_odds(other: Propagation) -> float:
            if id(other) not in known:
                if not _reaches_the_output(other):
                    raise ValueError("theory does not reach the output of another depth")
                known[id(other)] = quantities(other, batch_size, "predicted")
            of_it = known[id(other)]
            return fit.log_odds(of_it) + spread * fit.error(of_it)

        return log_odds

    return trainable_blocks(found, of, took=took, allowance=allowance)


def _awakened(found: Propagation, most: float | None) -> Propagation | None:
    """A network that is silent, once scales and matrices that start at zero have moved.

    Returns:
        ``None`` if there are none, or if theory does not reach the output then either.
    """
    graph, zeros = found.graph, _starting_at_zero(found)
    if graph is None or not zeros:
        return None
    awake = propagate(graph.with_parameters(_moved(zeros)), allowance=most)
    return awake if _reaches_the_output(awake) else None


def _starting_at_zero(found: Propagation) -> dict[str, Tensor]:
    """Scales and matrices that are zero, by name."""
    graph = found.graph
    if graph is None:
        return {}
    return {
        name: value
        for name, value in graph.parameters.items()
        if not name.endswith("bias")
        and not value.any()
        and (value.ndim > 1 or graph.weights.get(name))
    }


def _equal_behind_zeros(found: Propagation) -> bool:
    """Whether norms get equal rows because matrices, which learn, start at zero.

    As where the output of such a matrix multiplies what the norms get: a single step ends that.
    """
    graph = found.graph
    equal = {site.node for site in found.sites if site.reason == EQUAL_ROWS}
    if graph is None or not equal:
        return False
    zeros = {
        name
        for name, value in _starting_at_zero(found).items()
        if value.ndim > 1 and value.requires_grad and graph.weights.get(name)
    }
    behind = set[int]()
    for node in graph.nodes:
        if any(
            source.node in behind if isinstance(source, Made) else source.name in zeros
            for source in node.inputs
        ):
            behind.add(node.number)
    return not equal.isdisjoint(behind)


def _moved(zeros: Mapping[str, Tensor]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: _after_first_steps(value, generator) for name, value in zeros.items()}


def _after_first_steps(zeros: Tensor, generator: torch.Generator) -> Tensor:
    """A scale, or a matrix that hands on so much of its input."""
    if zeros.ndim < 2:
        return torch.full_like(zeros, _FIRST_STEPS)
    inputs = zeros[0].numel()
    drawn = torch.randn(zeros.shape, generator=generator).to(zeros)
    return drawn * float(_FIRST_STEPS / inputs**0.5)


def _reaches_the_output(found: Propagation) -> bool:
    """Whether theory has a gradient at the first predicted operation and at the output."""
    sites = up_to_the_output(found)
    known = [site for site in sites if site.is_predicted]
    return (
        bool(known)
        and known[-1] is sites[-1]
        and known[0].gradient is not None
        and known[-1].gradient is not None
    )
