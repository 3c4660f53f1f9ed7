"""What exceptions of the users' code say and were raised from, whatever their classes do."""

from __future__ import annotations

from collections.abc import Iterator

# Letters of a text, and exceptions of a group, that a message has room for.
_LONGEST, _IN_GROUP = 2_000, 3


def text_of(error: BaseException) -> str:
    """What an exception says, also if its class fails to say it or it has no end.

    A long text is cut in its middle; a group says what is in it.

    Examples:
        >>> text_of(KeyError("x")), len(text_of(ValueError("x" * 10**6)))
        ("'x'", 2001)
        >>> text_of(ExceptionGroup("two readers failed", [OSError("disk full"), KeyError(1)]))
        'two readers failed (2 sub-exceptions): OSError: disk full; KeyError: 1'
    """
    try:
        text = str(error)
    except Exception as failure:  # a class of the user's may do anything
        return f"(no text: its __str__ raises {type(failure).__name__})"
    if isinstance(error, BaseExceptionGroup):
        inner = (f"{type(e).__name__}: {text_of(e)}" for e in error.exceptions[:_IN_GROUP])
        text = f"{text}: {'; '.join(inner)}"
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]}…{text[-half:]}"


def exit_in_words(error: SystemExit) -> str:
    """What to do about code of the user's that would end the program.

    Examples:
        >>> print(exit_in_words(SystemExit(0)))
        the code of the model, the data or the loss exits with 0. Leave out what ends the program.
    """
    return (
        f"the code of the model, the data or the loss exits with {error.code!r}. Leave out what "
        "ends the program."
    )


def with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and what it was raised from, once each, as they may cause one another.

    Examples:
        >>> first, second = ValueError("a"), ValueError("b")
        >>> first.__cause__, second.__cause__ = second, first
        >>> list(with_causes(first))
        [ValueError('a'), ValueError('b')]
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__
