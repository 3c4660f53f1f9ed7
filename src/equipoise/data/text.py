"""Text for language models that every Python brings with it."""

from __future__ import annotations

import re
from collections import Counter

import torch

from equipoise.data.folders import DataNotFoundError
from equipoise.data.source import Samples

# Printable characters of ASCII and the end of a line.
_CHARACTERS = 96
_TEXT = re.compile(r"text:(\d+)(?::(\d+))?", re.ASCII)


def python_manual(spec: str) -> Samples:
    """Pieces of Python's own manual, character by character, and for each the next character.

    The manual is what ``help("if")`` prints from, about 460,000 characters of English and code.
    Token 0 is the commonest character, the blank, token 1 the second commonest, and so on. Pieces
    do not overlap. The text differs a little between versions of Python.

    Args:
        spec: ``text:LENGTH`` with an optional ``:VOCABULARY``, 96 by default, such as ``text:64``
            or ``text:64:50``: all rarer characters share the last token.

    Returns:
        Inputs and targets, each of shape ``[N, LENGTH]``.

    Raises:
        DataNotFoundError: If this Python was installed without its manual.
        ValueError: If the spec has another form, a length is zero or longer than the text, or
            the vocabulary has fewer than two tokens.

    Examples:
        >>> text = python_manual("text:64:30")
        >>> tuple(text.inputs.shape)[1:], text.classes, int(text.inputs.max())
        ((64,), 30, 29)
        >>> bool((text.inputs[:, 1:] == text.targets[:, :-1]).all())
        True
    """
    found = _TEXT.fullmatch(spec)
    if found is None:
        raise ValueError(
            f"Expected text:LENGTH, such as text:64, with an optional :VOCABULARY, got {spec!r}."
        )
    tokens, known = _tokens()
    length, vocabulary = int(found[1]), int(found[2] or _CHARACTERS)
    if not length or vocabulary < 2:
        raise ValueError(f"The length must be at least 1, a vocabulary at least 2, got {spec!r}.")
    count = (len(tokens) - 1) // length
    if not count:
        raise ValueError(f"{spec!r} asks for pieces longer than the text of {len(tokens)} tokens.")
    tokens = tokens.clamp(max=vocabulary - 1)
    inputs, targets = (
        tokens[first : first + count * length].reshape(count, length) for first in (0, 1)
    )
    return Samples(spec, inputs, targets, min(vocabulary, known))


def _tokens() -> tuple[torch.Tensor, int]:
    """The text, each character as its rank by frequency, and how many characters there are."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise DataNotFoundError(
            "This Python was installed without its manual (the module pydoc_data), of which the "
            "data 'text' are made. Give a data set of yours, as file.py:name."
        ) from error
    text = "\n".join(topics[name] for name in sorted(topics))
    frequency = Counter(text)
    ordered = sorted(frequency, key=lambda character: (-frequency[character], character))
    rank = {character: i for i, character in enumerate(ordered)}
    tokens = [rank[character] for character in text]
    return torch.tensor(tokens, device="cpu"), len(rank)
