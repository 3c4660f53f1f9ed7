"""What the axes of a tensor are: samples, positions or features.

An axis is a product of atoms, so that views, permutations and flattened axes are followed without
knowing what they are for. Until a linear layer mixes an atom, it may be anything ("open"); mixed
atoms are features, those beside them are positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import count
from typing import Literal

Role = Literal["sample", "position", "feature", "open"]

_keys = count()


class UnpredictedError(ValueError):
    """Theory does not cover an operation on these inputs."""


class LayoutError(ValueError):
    """An axis cannot be followed through an operation."""


# The factor of all that is as long as it was traced: told by identity, as fractions are slow.
ONCE = Fraction(1)


@dataclass(frozen=True, slots=True)
class Atom:
    """An indivisible axis.

    Args:
        role: What it counts.
        size: Its length in the traced pass.
        key: Tells atoms of one size apart.
        times: How many times as long it is taken to be.
    """

    role: Role
    size: int
    key: int
    times: Fraction = ONCE

    @staticmethod
    def new(role: Role, size: int, times: Fraction = ONCE) -> Atom:
        """An atom unlike all others."""
        return Atom(role, size, next(_keys), times)


Axis = tuple[Atom, ...]


def times(atoms: Iterable[Atom]) -> Fraction:
    """How many times as many elements than traced the product of atoms is taken to have."""
    return math.prod((atom.times for atom in atoms if atom.times is not ONCE), start=ONCE)


@dataclass(frozen=True, slots=True)
class Layout:
    """The axes of a tensor, each a product of atoms, slowest first."""

    axes: tuple[Axis, ...]

    @staticmethod
    def of_batch(shape: Sequence[int], samples: Fraction = ONCE) -> Layout:
        """A tensor of data: samples first, taken that many times; all other axes open.

        Examples:
            >>> [axis[0].role for axis in Layout.of_batch((8, 3, 5)).axes]
            ['sample', 'open', 'open']
        """
        roles: list[Role] = ["sample", *["open"] * (len(shape) - 1)]  # type: ignore[list-item]
        layout = Layout(tuple((Atom.new(r, n),) for r, n in zip(roles, shape, strict=True)))
        return layout.mapped(lambda a: replace(a, times=samples) if a.role == "sample" else a)

    @staticmethod
    def of_places(shape: Sequence[int]) -> Layout:
        """A tensor of data that is one sample, and whose rows are its positions.

        Examples:
            >>> [[atom.role for atom in axis] for axis in Layout.of_places((8, 3)).axes]
            [['sample', 'position'], ['open']]
        """
        first, *others = (Atom.new("open", n) for n in shape)
        rows = (Atom.new("sample", 1), replace(first, role="position"))
        return Layout((rows, *((atom,) for atom in others)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return tuple(math.prod(atom.size for atom in axis) for axis in self.axes)

    @property
    def atoms(self) -> tuple[Atom, ...]:
        """All atoms, in order."""
        return tuple(atom for axis in self.axes for atom in axis)

    def with_role(self, role: Role) -> tuple[Atom, ...]:
        """The atoms of one role, in order."""
        return tuple(atom for atom in self.atoms if atom.role == role)

    def size(self, role: Role) -> int:
        """How many there are of one role, in the traced pass."""
        return math.prod(atom.size for atom in self.with_role(role))

    def count(self, role: Role) -> int:
        """How many of one role there are taken to be."""
        return round(self.size(role) * times(self.with_role(role)))

    @property
    def elements(self) -> int:
        """How many elements a tensor with these axes is taken to have."""
        factor = times(self.atoms)
        traced = math.prod(self.shape)
        return traced if factor is ONCE else round(traced * factor)

    def mapped(self, change: Callable[[Atom], Atom]) -> Layout:
        """Replace atoms."""
        return Layout(tuple(tuple(map(change, axis)) for axis in self.axes))

    def with_open_as(self, role: Role) -> Layout:
        """Give open atoms a role."""
        return self.mapped(lambda a: replace(a, role=role) if a.role == "open" else a)

    def without_short_axes(self) -> Layout:
        """The same without positions of length 1."""
        return Layout(
            tuple(tuple(a for a in x if a.role != "position" or a.size > 1) for x in self.axes)
        )

    def permuted(self, order: Iterable[int]) -> Layout:
        """Reorder the axes."""
        return Layout(tuple(self.axes[i] for i in order))

    def viewed(self, shape: Sequence[int]) -> tuple[Layout, dict[Atom, tuple[Atom, ...]]]:
        """Split and merge axes as a view does.

        Returns:
            The new layout, and the atoms that had to be split, with their parts.

        Raises:
            LayoutError: If an axis mixes parts of two atoms.

        Examples:
            >>> layout = Layout.of_batch((8, 12))
            >>> layout.viewed((8, 3, 4))[0].shape
            (8, 3, 4)
        """
        left = [atom for atom in self.atoms if atom.size > 1][::-1]
        parts: dict[Atom, list[Atom]] = {}
        origin: dict[Atom, Atom] = {}
        axes = []
        for length in shape:
            axis: list[Atom] = []
            missing = length
            while missing > 1:
                if not left:
                    raise LayoutError(f"a view of {self.shape} as {tuple(shape)}")
                atom = left.pop()
                if missing % atom.size == 0:
                    axis.append(atom)
                    missing //= atom.size
                elif atom.size % missing == 0:
                    first = Atom.new(atom.role, missing)
                    # More features are more features of a head, not more heads.
                    rest = Atom.new(atom.role, atom.size // missing, atom.times)
                    source = origin.get(atom, atom)
                    origin[first] = origin[rest] = source
                    pieces = parts.setdefault(source, [atom])
                    at = pieces.index(atom) if atom in pieces else 0
                    pieces[at : at + 1] = [first, rest]
                    axis.append(first)
                    left.append(rest)
                    missing = 1
                else:
                    raise LayoutError(f"a view of {self.shape} as {tuple(shape)}")
            axes.append(tuple(axis))
        alone = tuple(a for a in self.atoms if a.role == "sample" and a.size == 1)
        if alone and axes:  # a batch of one is a batch all the same
            at = next((i for i, axis in enumerate(axes) if not axis), 0)
            axes[at] = (*alone, *axes[at])
        return Layout(tuple(axes)), {atom: tuple(pieces) for atom, pieces in parts.items()}
