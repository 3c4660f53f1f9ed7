"""Propose remedies: what applies to the model, and what theory expects of it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from equipoise.diagnosis.fix import candidates
from equipoise.diagnosis.fix.applied import change_graph
from equipoise.diagnosis.fix.record import Proposal
from equipoise.diagnosis.fix.remedy import Remedy
from equipoise.diagnosis.trainability.calibration import calibration
from equipoise.diagnosis.trainability.judge import predicted_probability
from equipoise.instrument.recording.graph import Graph
from equipoise.theory.propagation.propagate import Propagation, propagate

# Which remedies are asked for.
FAMILIES = ("all", "norms", "starts", "weights", "activations", "bnp")
# Pairs of the best remedies of different families that are predicted too, at most.
_PAIRS = 4
# What a remedy promises at least, if it is named before any training.
_EVEN = 0.5
# The mildest first. Theory knows nothing of what acts on steps alone; larger batches are no change
# of the model.
_MILDEST = ("starts", "weights", "activations", "norms", "pairs")
# Seconds after which remedies are proposed without a prediction.
_PATIENCE = 12.0


@dataclass(frozen=True, slots=True)
class _Candidate:
    remedy: Remedy
    family: str


def propose(
    found: Propagation | None,
    model: nn.Module,
    samples: int,
    family: str = "all",
    *,
    patience: float = _PATIENCE,
) -> tuple[Proposal, ...]:
    """Propose remedies for a traced model.

    Args:
        found: What theory predicts for the model as it is, with its graph; ``None`` where it does
            not know the model.
        model: The model that was traced.
        samples: Samples of a batch.
        family: ``"all"``, or one family of remedies: ``"norms"``, ``"starts"`` (of β, γ and ε),
            ``"weights"``, ``"activations"`` or ``"bnp"``.
        patience: Seconds of processor time after which no more are predicted.

    Returns:
        Remedies with the predicted probability of training, the likeliest of each family first.

    Raises:
        ValueError: If there is no such family.
    """
    if family not in FAMILIES:
        raise ValueError(f"family must be one of {', '.join(FAMILIES)}, got {family!r}.")
    graph = None if found is None else found.graph
    as_it_is = None if found is None else _expected(found, samples)
    started = time.process_time()

    def predicted(candidate: _Candidate) -> Proposal:
        late = time.process_time() - started > patience
        probability = None
        if candidate.remedy.kinds == ("bnp",):  # acts on steps alone
            probability = as_it_is
        elif graph is not None and not late:
            probability = _probability(graph, candidate.remedy, model)
        return Proposal(candidate.remedy, candidate.family, probability)

    tried = _candidates(found, model, samples, family, started + patience)
    singles = [predicted(one) for one in tried]
    pairs = [] if family == "norms" else [predicted(one) for one in _pairs(singles)]
    return tuple(_in_turn([*singles, *pairs]))


def promising(proposals: Sequence[Proposal], probability: float) -> Proposal | None:
    """The mildest of the likeliest remedies, if it halves the doubt and trains as soon as not.

    Args:
        proposals: With their predicted probabilities.
        probability: Of training without them.

    Examples:
        >>> from equipoise.diagnosis.fix.remedy import Remedy
        >>> norms, starts = Remedy.named("norm=layer"), Remedy.named("shift=1")
        >>> both = [Proposal(norms, "norms", 0.97), Proposal(starts, "starts", 0.73)]
        >>> print(promising(both, 0.1).remedy, promising(both[1:], 0.5))
        norm=layer None
    """
    known = [one for one in proposals if one.predicted is not None and one.family in _MILDEST]
    if not known:
        return None
    best = min(known, key=lambda one: (_doubt(one), _MILDEST.index(one.family), _exactly(one)))
    is_better = 2 * (1 + _exactly(best)) <= 1 - probability
    return best if is_better and -_exactly(best) >= _EVEN else None


def _candidates(
    found: Propagation | None, model: nn.Module, samples: int, family: str, until: float
) -> Iterator[_Candidate]:
    families: dict[str, Callable[[], Iterator[Remedy]]] = {
        "starts": lambda: candidates.of_starts(model),
        "norms": lambda: candidates.of_norms(model, samples),
        "weights": lambda: itertools.chain(
            candidates.of_biases(model),
            () if found is None else candidates.of_balance(found, until),
            () if found is None else candidates.of_branches(found),
            () if found is None else candidates.of_gains(found),
        ),
        "activations": lambda: candidates.of_activations(
            model, None if found is None else found.graph
        ),
        "bnp": lambda: candidates.of_preconditioning(model, beside=family != "norms"),
        "batch": lambda: candidates.of_batch(model, samples),
    }
    wanted = {
        name: make()
        for name, make in families.items()
        if family in ("all", name) or (family, name) == ("norms", "bnp")
    }
    # In turn, so that where time is short the first of every family are predicted, before theory
    # is asked for further ones.
    while wanted:
        for name, remedies in tuple(wanted.items()):
            remedy = next(remedies, None)
            if remedy is None:
                del wanted[name]
            else:
                yield _Candidate(remedy, name)


def _probability(graph: Graph, remedy: Remedy, model: nn.Module) -> float | None:
    """What theory says of the changed model; ``None`` where it does not know."""
    try:
        changed = change_graph(graph, remedy, model)
        batch = int(remedy.edits[-1].value or 1) if "batch" in remedy.kinds else graph.batch
        return _expected(propagate(changed), batch)
    except Exception:  # an edit that does not fit the graph may fail in any rule
        return None


def _expected(found: Propagation, samples: int) -> float | None:
    try:
        return predicted_probability(found, samples, calibration())
    except ValueError:  # no operation has a gradient
        return None


def _pairs(proposals: Sequence[Proposal]) -> Iterator[_Candidate]:
    """The likeliest remedies of two families together."""
    best: dict[str, Proposal] = {}
    for one in proposals:
        if one.family in ("bnp", "batch") or one.predicted is None:
            continue
        if one.family not in best or one.predicted > (best[one.family].predicted or 0.0):
            best[one.family] = one
    ranked = sorted(best.values(), key=lambda one: -(one.predicted or 0.0))
    for first, second in itertools.islice(itertools.combinations(ranked, 2), _PAIRS):
        # A norm is exchanged before its parameters are set.
        if {first.family, second.family} == {"norms", "starts"} and _without_affine(first, second):
            continue
        ordered = sorted((first, second), key=lambda one: one.family != "norms")
        edits = tuple(edit for one in ordered for edit in one.remedy.edits)
        yield _Candidate(Remedy(edits), "pairs")


def _without_affine(*proposals: Proposal) -> bool:
    """Whether a norm is left out, or exchanged for one without β."""
    choices = {edit.choice for one in proposals for edit in one.remedy.edits}
    return bool(choices & {"none", "rms"})


def _in_turn(proposals: Sequence[Proposal]) -> list[Proposal]:
    """The likeliest of each family in turn, so that a few of the first differ in kind."""
    columns: dict[str, list[Proposal]] = {}
    for one in proposals:
        columns.setdefault(one.family, []).append(one)
    # Sorting is stable: of equals the earlier candidate is first.
    ranked = [sorted(column, key=_doubt) for column in columns.values()]
    rounds = itertools.zip_longest(*ranked)
    return [one for turn in rounds for one in sorted(filter(None, turn), key=_doubt)]


def _exactly(one: Proposal) -> float:
    return -(one.predicted or 0.0)


def _doubt(one: Proposal) -> float:
    """Rounded: hundredths of a probability do not order remedies; unknown ones are in between."""
    return -round(0.5 if one.predicted is None else one.predicted, 1)
