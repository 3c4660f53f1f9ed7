"""Positions and heads of queries, keys and values."""

from __future__ import annotations

from dataclasses import replace

from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.layout import Atom, UnpredictedError
from equipoise.theory.propagation.rules.positions.features import (
    positions_as_features,
    spread_over,
)
from equipoise.theory.propagation.values.covariances import arranged
from equipoise.theory.propagation.values.moments import Moments


def of_own_heads(x: Moments, q: Moments) -> Moments:
    """Keys or values; where they are repeated for several heads of queries, the copies are heads.

    What a head makes of its copy has weights of its own before and behind.
    """
    atoms = _copies(x, q)
    output = positions_as_features(x, atoms).output if atoms else x
    assert isinstance(output, Moments)
    return output if output is x else replace(output, scatter=x.scatter)


def _copies(x: Moments, q: Moments) -> list[Atom]:
    """Positions of keys or values in place of which queries have features."""
    return [
        atom
        for own, theirs in zip(x.layout.axes[:-2], q.layout.axes[:-2], strict=True)
        if not any(atom.role == "position" for atom in theirs)
        for atom in own
        if atom.role == "position"
    ]


def with_copies(pairs: Exchangeable, alone: Moments, x: Moments) -> Exchangeable:
    """The gradient of keys or values, from that of what :func:`of_own_heads` made of them."""
    if x.positions == alone.positions:
        return pairs
    copies = [atom for atom in x.order if atom not in alone.order]
    spread = spread_over(pairs, x.positions // alone.positions)
    return arranged(spread, [*alone.order, *copies], x.order)


def windows_first(value: Moments) -> list[Atom]:
    """Positions that attention does not mix, then those that it does."""
    atoms = [a for axis in value.layout.axes[:-1] for a in axis if a.role == "position"]
    if set(atoms) != set(value.order):
        raise UnpredictedError("attention over an axis with both positions and features")
    return atoms
