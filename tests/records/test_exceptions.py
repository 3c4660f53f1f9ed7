"""Exceptions of the users' code are told, whatever their classes do."""

import pytest

from equipoise.instrument.memory import lacks_memory, let_go
from equipoise.records.exceptions import text_of, with_causes
from equipoise.records.wording import first_sentence, said


class SilentError(Exception):
    def __str__(self):
        raise RuntimeError("nothing to say")


class WordlessError(Exception):
    def __str__(self):
        return None


@pytest.mark.parametrize(
    ("error", "failure"), [(SilentError("x"), "RuntimeError"), (WordlessError("x"), "TypeError")]
)
def test_one_that_cannot_say_what_it_is_has_its_class_told(error, failure):
    with pytest.raises((RuntimeError, TypeError)):
        str(error)
    name = type(error).__name__
    assert said(error) == f"{name}: (no text: its __str__ raises {failure})."
    assert failure in first_sentence(error)


def test_a_text_without_end_keeps_its_beginning_and_its_end():
    text = f"first {'and so on ' * 10**5}last"
    found = text_of(ValueError(text))
    assert len(found) < 2100 < len(text)
    assert found.startswith("first")
    assert found.endswith("last")


def test_causes_that_cause_one_another_end():
    """As libraries make them that raise an error again from one that it had caused."""
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert list(with_causes(first)) == [first, second]
    assert not lacks_memory(first)
    let_go(first)
    second.__cause__ = MemoryError()
    assert lacks_memory(first)
