"""Compare every parameter of a model with the law that it was meant to be drawn from."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import cast

from torch import nn

from equipoise.diagnosis.initialisation import symptoms
from equipoise.diagnosis.initialisation.intended import (
    Init,
    init_laws,
    own_laws,
    parameters_by_owner,
)
from equipoise.diagnosis.initialisation.judgement.found import Found, Judgement, describe
from equipoise.diagnosis.initialisation.judgement.laws import by_laws, by_own_resets
from equipoise.diagnosis.initialisation.judgement.siblings import by_siblings
from equipoise.diagnosis.initialisation.laws import Law, threshold
from equipoise.diagnosis.initialisation.record import (
    FaultKind,
    Initialisation,
    InitialisationFault,
    ParameterInitialisation,
)
from equipoise.instrument.copies import copied
from equipoise.instrument.random_states import RandomStates, seeded
from equipoise.instrument.snapshot import refuse_lazy
from equipoise.numerics.options import named_options
from equipoise.records.wording import said

# Scale, mean and form; and scale against three other rules.
_TESTS = 6
_TRAINED = "the model looks trained"
_FAULTS = ("missed", "mis-scaled", "fan mode", "residual scaling", "shifted", "reshaped")


@named_options
def initialisation(model: nn.Module, init: Init | None = None) -> Initialisation:
    r"""Compare the weights of a fresh model with what its initialiser promises.

    Variances are compared in units of their sampling error, which for n numbers of kurtosis κ is
    :math:`\sqrt{(\kappa - 1)/n}` of the variance, at a level at which a thousand healthy models
    give about one false alarm.

    Args:
        model: A model before training, or one that was just loaded; it is left untouched.
        init: The function that was meant to initialise it: as given to ``model.apply``, or for
            matrices of weights alone, such as ``torch.nn.init.xavier_uniform_``. It is called on
            copies, and what it leaves alone is compared as without it. By default the intention
            is inferred: from ``reset_parameters`` of each module, from the same place in repeated
            blocks, and from the rule that most layers of a kind follow.

    Returns:
        One record for every parameter, with what it follows and what it was meant to follow; and
        the faults: layers that were missed or mis-scaled, low precision, ties, copies, parts of a
        checkpoint that were not loaded.

    Raises:
        ValueError: If the model has no parameters, lazy ones or ones without values, cannot be
            copied, or if ``init`` cannot be applied.

    Examples:
        >>> model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)])
        >>> for layer in [*model[:3], *model[4:]]:  # the fourth layer is missed
        ...     _ = nn.init.kaiming_normal_(layer.weight)
        >>> [(fault.kind, fault.parameters) for fault in initialisation(model).faults]
        [('missed', ('3.weight',))]
    """
    _check(model)
    states = RandomStates(model)
    try:
        with seeded(0):
            own = own_laws(_copy(model))
            named = {} if init is None else init_laws(_copy(model), init)
    finally:
        states.restore()
    classes = _classes(model)
    under_all_names = [
        describe(name, m, p, own.get(name), classes.get(id(m), ()))
        for name, m, p in parameters_by_owner(model)
    ]
    parameters = _first_names(under_all_names)
    limit = threshold(_TESTS * len(parameters))
    training = symptoms.Training.of(parameters)
    judged = _judged(
        parameters, named, f"what {_name(init)} draws", limit, is_trained=training.is_likely
    )
    intended = {name for name, judgement in judged.items() if judgement.verdict == "as intended"}
    faults = (
        *symptoms.not_finite(parameters),
        *_departures(parameters, judged),
        *symptoms.constant(parameters),
        *symptoms.not_used(model),
        *symptoms.low_precision(parameters),
        *symptoms.tied(under_all_names),
        *symptoms.copied(parameters, model),
        *symptoms.half_loaded(parameters, training, intended),
        *symptoms.fresh_statistics(model, training, parameters),
    )
    trained = {*training.matrices, *training.vectors} if training.is_likely else ()
    records = tuple(_record(one, judged[one.name], one.name in trained) for one in parameters)
    return Initialisation(records, faults, limit, _name(init))


def _classes(model: nn.Module) -> dict[int, tuple[str, ...]]:
    """The classes that each module is inside of, the outermost first, without PyTorch's."""
    found: dict[int, tuple[str, ...]] = {}
    waiting: list[tuple[nn.Module, tuple[str, ...]]] = [(model, ())]
    while waiting:
        module, around = waiting.pop()
        found.setdefault(id(module), around)
        kind = type(module)
        if not kind.__module__.startswith("torch."):
            around = (*around, f"{kind.__module__}.{kind.__qualname__}")
        waiting += [(child, around) for child in module.children()]
    return found


def _check(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"initialisation needs a torch.nn.Module, got {type(model).__name__}. If it is a "
            "factory, call it first."
        )
    refuse_lazy(model)
    parameters = [(name, parameter) for name, _, parameter in parameters_by_owner(model)]
    if not parameters and any(p.is_complex() for p in model.parameters()):
        raise ValueError(
            f"all parameters of {type(model).__name__} are complex numbers, of which no rule of "
            "drawing them is known."
        )
    if not parameters:
        raise ValueError(
            f"{type(model).__name__} has no real parameters, so nothing was initialised. Give the "
            "model that holds the layers."
        )
    empty = [name for name, p in parameters if p.is_meta]
    if empty:
        raise ValueError(
            f"{empty[0]} is on the meta device and has no values. Load or initialise the model "
            "first."
        )


def _copy(model: nn.Module) -> nn.Module:
    try:
        return copied(model)
    except Exception as error:  # users' classes may raise anything
        raise ValueError(
            f"the model cannot be copied ({said(error).rstrip('.')}), and initialisers are "
            "tried on copies only. Keep what cannot be copied outside of the model."
        ) from error


def _name(init: Init | None) -> str:
    if init is None:
        return ""
    if isinstance(init, partial):
        options = ", ".join(f"{key}={value!r}" for key, value in init.keywords.items())
        return f"{_name(init.func)}({options})"
    return str(getattr(init, "__name__", type(init).__name__))


def _first_names(named: list[Found]) -> list[Found]:
    """Every tensor once."""
    return list({id(one.parameter): one for one in reversed(named)}.values())[::-1]


def _judged(
    parameters: list[Found], named: dict[str, Law], rule: str, limit: float, *, is_trained: bool
) -> dict[str, Judgement]:
    """The judgement of every parameter; where weights look trained, rules no longer hold."""
    finite = [one for one in parameters if math.isfinite(one.layer.law.std)]
    # What trained layers have in common is no intention.
    compare = by_own_resets if is_trained else by_siblings
    judged = compare([one for one in finite if one.name not in named], limit)
    judged |= by_laws(finite, named, rule, limit)
    for one in parameters:
        judgement = judged.get(one.name, Judgement("not finite"))
        if is_trained and judgement.verdict in _FAULTS:
            judgement = replace(judgement, verdict="not judged", explanation=_TRAINED)
        judged[one.name] = judgement
    return judged


def _departures(
    parameters: list[Found], judged: dict[str, Judgement]
) -> list[InitialisationFault]:
    """Faults of scale, each with all parameters of one class of modules."""
    groups: dict[tuple[FaultKind, str], list[Found]] = defaultdict(list)
    for one in parameters:
        verdict = judged[one.name].verdict
        if verdict in _FAULTS:
            groups[cast(FaultKind, verdict), type(one.module).__name__].append(one)
    faults = []
    for (fault, kind), group in groups.items():
        compared = [
            one
            for one in parameters
            if type(one.module).__name__ == kind and judged[one.name].rule
        ]
        first = judged[group[0].name]
        detail = f"{group[0].name} has {first.explanation}. Intended: {first.rule}."
        names = tuple(one.name for one in group)
        faults.append(InitialisationFault(fault, names, len(compared), detail))
    return faults


def _record(one: Found, judgement: Judgement, looks_trained: bool) -> ParameterInitialisation:
    layer = one.layer
    return ParameterInitialisation(
        name=one.name,
        kind=type(one.module).__name__,
        shape=layer.shape,
        dtype=str(one.tensor.dtype).removeprefix("torch."),
        mean=layer.law.mean,
        std=layer.law.std,
        kurtosis=layer.law.kurtosis,
        form=layer.form,
        looks_trained=looks_trained,
        intended_mean=judgement.intended[0],
        intended_std=judgement.intended[1],
        rule=judgement.rule,
        z=judgement.z,
        verdict=judgement.verdict,
        explanation=judgement.explanation,
    )
