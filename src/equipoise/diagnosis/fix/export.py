"""A remedy as a module of its own, for the user's repository."""

from __future__ import annotations

from equipoise.diagnosis.fix.applied import code_lines
from equipoise.diagnosis.fix.remedy import Remedy
from equipoise.diagnosis.fix.words import in_words

_MODULE = '''"""A remedy that trained better: {words}.

By hand, with ``model`` and, of BNP, ``optimizer``:

{lines}
"""

import equipoise
from equipoise.diagnosis import fixed
from equipoise.diagnosis.fix.remedy import Edit, Factor, Remedy  # noqa: F401 - for REMEDY

REMEDY = {remedy!r}


def apply(model):
    """Change a model; ``.model`` of what is returned is it, ``.undo()`` restores it.

    Of BNP, ``.attach(optimizer)`` starts it.
    """
    return equipoise.apply(model, REMEDY)


def wrap(build):
    """A factory whose models are changed: ``build = wrap(build)``."""
    return fixed(build, REMEDY)
'''


def module_of(remedy: Remedy) -> str:
    """Source of a module with the remedy, and functions that make its changes.

    Examples:
        >>> names = {}
        >>> exec(module_of(Remedy.named("shift=0.5")), names)
        >>> names["REMEDY"] == Remedy.named("shift=0.5")
        True
    """
    lines = "\n".join(f"    {line}" for line in code_lines(remedy))
    return _MODULE.format(words=in_words(remedy), lines=lines, remedy=remedy)
