"""A remedy: one change of a model, or several, as a record that can be written down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from equipoise.numerics.checks import check_choice, check_within

KindName: TypeAlias = Literal[
    "shift", "scale", "eps", "weights", "activation", "norm", "bnp", "batch"
]
KINDS: tuple[KindName, ...] = get_args(KindName)

# Kinds that are a number, and where it may lie.
_RANGES: dict[KindName, str] = {
    "shift": "(-inf, inf)",
    "scale": "(-inf, inf)",
    "eps": "[0, inf)",
    "batch": "[1, inf)",
}
# Choices that may have a number: of groups, of samples, of steps.
_COUNTED = {("norm", "group"), ("norm", "ghost"), ("norm", "batch_renorm")}
# Kinds whose name holds a word and perhaps a number.
_WORDS: tuple[KindName, ...] = ("activation", "norm", "bnp")


@dataclass(frozen=True, slots=True)
class Factor:
    """A number for one parameter.

    Args:
        name: The parameter's name in the model.
        value: What it is multiplied by.

    Raises:
        ValueError: If it is no finite number.
    """

    name: str
    value: float

    def __post_init__(self) -> None:
        check_within(f"the factor of {self.name!r}", self.value, "(-inf, inf)")


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of a model.

    Args:
        kind: What is changed: the start of every norm's β (``shift``) or γ (``scale``), its ε
            (``eps``), the size of initial ``weights``, every ``activation``, every ``norm``, how
            steps are preconditioned (``bnp``), or the ``batch`` size.
        value: The number that belongs to it, such as β, or groups of ``norm`` ``"group"``.
        choice: The name that belongs to it, such as ``"group"`` or ``"gelu"``; of ``weights``,
            which of them in words.
        factors: Of ``weights``, what each parameter is multiplied by.
        kept: Of ``activation``, those that stay: a module's name, or ``"module:function"`` for
            what its forward() calls.
        also: Of ``activation``, calls of tanh, sigmoid, softplus, hardtanh or hardsigmoid that
            are exchanged, too, although they often are gates or parts of formulas.

    Raises:
        ValueError: If the value or the choice is none that the kind can have.
    """

    kind: KindName
    value: float | None = None
    choice: str = ""
    factors: tuple[Factor, ...] = ()
    kept: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_choice("the kind of an edit", self.kind, KINDS)
        if self.kind == "bnp":
            check_choice("bnp", self.choice, ("beside",))
        named = f"{self.kind}={self.choice}" if self.choice else self.kind
        if self.kind in _RANGES:
            check_within(self.kind, self.value, _RANGES[self.kind])
        elif self.value is not None and (self.kind, self.choice) not in _COUNTED:
            if self.kind == "norm":
                from equipoise.layers.kinds import TARGETS  # loads torch, which reports need not

                check_choice("norm", self.choice, TARGETS)
            raise ValueError(f"{named} takes no number; got {self.value!r}. Leave it out.")
        counted = self.kind == "batch" or (self.kind, self.choice) in _COUNTED
        if counted and self.value is not None and (self.value < 1 or self.value % 1):
            raise ValueError(f"{named} takes a whole number of at least 1; got {self.value:g}.")


@dataclass(frozen=True, slots=True)
class Remedy:
    """Changes that are made together, in order.

    Args:
        edits: At least one.

    Examples:
        >>> print(Remedy((Edit("norm", 8, "group"), Edit("shift", 0.5))))
        norm=group:8 shift=0.5
    """

    edits: tuple[Edit, ...]

    def __post_init__(self) -> None:
        if not self.edits:
            raise ValueError("a remedy has at least one edit, such as Edit('shift', 0.5).")

    @property
    def name(self) -> str:
        """A short name; that of factors leaves out their values."""
        return " ".join(map(_short, self.edits))

    def __str__(self) -> str:
        return self.name

    @property
    def kinds(self) -> tuple[KindName, ...]:
        """What is changed."""
        return tuple(edit.kind for edit in self.edits)

    @staticmethod
    def named(name: str) -> Remedy:
        """Read a name back.

        Raises:
            ValueError: If it is no name of a remedy, one whose factors are not in it, or its
                number is out of range.

        Examples:
            >>> Remedy.named("norm=group:8 shift=0.5").edits[0]
            Edit(kind='norm', value=8.0, choice='group', factors=(), kept=(), also=())
        """
        return Remedy(tuple(_read(word) for word in name.split()))


_PLACES = ("except", "also")


def _short(edit: Edit) -> str:
    number = "" if edit.value is None else f"{edit.value:.10g}"
    if edit.kept or edit.also:
        named = zip(_PLACES, (edit.kept, edit.also), strict=True)
        number = ";".join(f"{word}={','.join(places)}" for word, places in named if places)
    return f"{edit.kind}={':'.join(filter(None, (edit.choice.replace(' ', '-'), number)))}"


def _read(word: str) -> Edit:
    kind, equals, rest = word.partition("=")
    choice, _, number = rest.partition(":")
    if kind == "activation" and choice and all("=" in part for part in number.split(";")):
        lists = dict(part.split("=", 1) for part in number.split(";"))
        if lists.keys() <= {*_PLACES}:
            kept, also = (tuple(filter(None, lists.get(word, "").split(","))) for word in _PLACES)
            return Edit("activation", None, choice, kept=kept, also=also)
    value = _number(rest if kind in _RANGES else number)
    for known in _RANGES:
        if kind == known and equals and value is not None:
            return Edit(known, value)
    for known in _WORDS:
        if kind == known and choice and (value is not None or not number):
            return Edit(known, value, choice)
    raise ValueError(
        f"no remedy is called {word!r}. Names are such as shift=0.5, scale=0.2, eps=1e-5, "
        "activation=gelu, norm=group:8 and bnp=beside; factors of weights are in remedy.json."
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
