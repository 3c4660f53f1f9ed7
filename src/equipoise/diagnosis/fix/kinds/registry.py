"""Every kind of edit by name."""

from __future__ import annotations

from typing import cast

from equipoise.diagnosis.fix.kinds import (
    activations,
    batch,
    eps,
    norms,
    preconditioning,
    starts,
    weights,
)
from equipoise.diagnosis.fix.kinds.kind import Kind
from equipoise.diagnosis.fix.remedy import Edit, KindName

KINDS: dict[KindName, Kind] = {
    "shift": cast(Kind, starts),
    "scale": cast(Kind, starts),
    "eps": cast(Kind, eps),
    "weights": cast(Kind, weights),
    "activation": cast(Kind, activations),
    "norm": cast(Kind, norms),
    "bnp": cast(Kind, preconditioning),
    "batch": cast(Kind, batch),
}


def kind_of(edit: Edit) -> Kind:
    """The kind of an edit."""
    return KINDS[edit.kind]
