"""Turn numbers and untrusted names into short, readable text."""

from __future__ import annotations

import dataclasses
import difflib
import math
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, TypeVar

from equipoise.records.estimate import Estimate
from equipoise.records.exceptions import text_of

Value = TypeVar("Value")

_NEGLIGIBLE = 1e-4
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, digits: int = 3) -> str:
    """Write a number with a few significant digits, very large or small ones as powers of ten.

    Examples:
        >>> number(1.46695), number(421.7), number(1.234e9), number(-2e-7), number(0.0)
        ('1.47', '422', '1.23×10⁹', '−2×10⁻⁷', '0')
        >>> number(float("inf")), number(float("nan"))
        ('∞', 'NaN')
    """
    if math.isnan(value):
        return "NaN"
    sign = "−" if value < 0 else ""
    size = abs(value)
    if math.isinf(size):
        return f"{sign}∞"
    if size == 0:
        return "0"
    mantissa, exponent = f"{size:.{digits - 1}e}".split("e")
    power = int(exponent)
    if -4 < power < 4:
        return f"{sign}{size:.{max(0, digits - 1 - power)}f}"
    whole, _, decimals = mantissa.partition(".")
    mantissa = mantissa if decimals.strip("0") else whole
    return f"{sign}{mantissa}×{power_of_ten(power)}"


def known(value: float) -> str:
    """Write a number, or a dash for NaN.

    Examples:
        >>> known(1.46695), known(float("nan"))
        ('1.5', '–')
    """
    return "–" if math.isnan(value) else number(value, 2)


def plain(value: float) -> str:
    """Write a number that somebody chose, such as a learning rate, without trailing zeros.

    Examples:
        >>> plain(0.1), plain(0.0003), plain(3e-7), plain(1000.0)
        ('0.1', '0.0003', '3×10⁻⁷', '1000')
    """
    digits = 3 if value < 1e3 else 4
    return f"{value:.{digits}g}" if 1e-4 < value < 1e4 else number(value, 1)


def percent(share: float, digits: int = 2) -> str:
    """Write a share in per cent, or a dash for NaN.

    Examples:
        >>> percent(0.7), percent(0.1234, 3), percent(42.0), percent(float("nan"))
        ('70 %', '12.3 %', '4200 %', '–')
    """
    return "–" if math.isnan(share) else f"{number(100 * share, digits)} %"


def chance(value: float, low: float, high: float) -> str:
    """Write a probability in whole per cent, with its interval.

    Examples:
        >>> chance(0.123, 0.05, 0.22), chance(0.999, 0.97, 1.0)
        ('12 %, between 5 and 22 %', 'over 99 %, between 97 and 100 %')
    """
    ends = f"between {math.floor(100 * low)} and {math.ceil(100 * high)} %"
    return f"{_whole_percent(value)}, {ends}"


def _whole_percent(share: float) -> str:
    if share < 0.01:
        return "under 1 %"
    return "over 99 %" if share > 0.99 else f"{100 * share:.0f} %"


def power_of_ten(exponent: int) -> str:
    """Write a power of ten with a raised exponent.

    Examples:
        >>> power_of_ten(-12)
        '10⁻¹²'
    """
    return "10" + str(exponent).translate(_SUPERSCRIPTS)


def spread(estimate: Estimate | None) -> str:
    """Write a value with its error, both rounded to the digits that the error allows.

    Examples:
        >>> spread(Estimate(1.4712, 0.0061, "measured"))
        '1.471 ± 0.006'
        >>> spread(Estimate(1.46695, 2e-8, "theory"))
        '1.467 ± 2×10⁻⁸'
        >>> spread(Estimate(3.4567e9, 1.4e8, "measured")), spread(Estimate(0.5, 0.0, "exact"))
        ('(3.46 ± 0.14)×10⁹', '0.5')
        >>> spread(Estimate(1.5, float("nan"), "measured")), spread(None)
        ('1.50 ± ?', '–')
    """
    if estimate is None:
        return "–"
    value, error = estimate.value, abs(estimate.error)
    if not math.isfinite(value):
        return number(value)
    if not math.isfinite(error):
        return f"{number(value)} ± ?"
    if error <= 1e-12 * abs(value):
        return _trimmed(number(value, 5))
    if error < _NEGLIGIBLE * abs(value):
        return f"{number(value, 4)} ± {number(error, 1)}"
    scale = math.floor(math.log10(max(abs(value), error)))
    power = 0 if -4 < scale < 4 else scale
    # 10.0**power has no float where a number is subnormal.
    value, error = (float(Decimal(x).scaleb(-power)) for x in (value, error))
    digits = _error_digits(error)
    sign = "−" if value < 0 else ""
    both = f"{sign}{abs(value):.{digits}f} ± {error:.{digits}f}"
    return f"({both})×{power_of_ten(power)}" if power else both


def factor(estimate: Estimate | float | None) -> str:
    """Write a rate as a multiplication.

    Examples:
        >>> factor(1.46695), factor(Estimate(1.4712, 0.0061, "measured")), factor(None)
        ('×1.47', '×1.471 ± 0.006', '–')
    """
    if estimate is None:
        return "–"
    if not isinstance(estimate, Estimate):
        return "×" + number(estimate)
    # Leave out an error that four digits cannot show.
    small = estimate.error < _NEGLIGIBLE * abs(estimate.value)
    return "×" + (number(estimate.value, 4) if small else spread(estimate))


def depth(value: float | None) -> str:
    """Write a number of layers.

    Examples:
        >>> depth(41.76), depth(float("inf")), depth(None), depth(12345.6), depth(3e9)
        ('42', '∞', '–', '12,346', '3×10⁹')
    """
    if value is None or math.isnan(value):
        return "–"
    return f"{round(value):,}" if abs(value) < 1e6 else number(value)


def deviation(z: float) -> str:
    """Write a difference in units of error.

    Examples:
        >>> deviation(0.712), deviation(-31.4), deviation(float("nan"))
        ('+0.7', '−31.4', '–')
    """
    if math.isnan(z):
        return "–"
    sign = "−" if z < 0 else "+"
    return sign + (f"{abs(z):.1f}" if abs(z) < 1000 else number(abs(z)))


def count(value: int, noun: str) -> str:
    """Write a number of things.

    Examples:
        >>> count(1, "batch"), count(3, "batch"), count(1200, "seed")
        ('1 batch', '3 batches', '1,200 seeds')
    """
    plural = noun + ("es" if noun.endswith(("ch", "s")) else "s")
    return f"{value:,} {noun if value == 1 else plural}"


def with_article(noun: str) -> str:
    """Put an indefinite article before a noun.

    Examples:
        >>> with_article("int"), with_article("tensor")
        ('an int', 'a tensor')
    """
    return f"{'an' if noun[0] in 'AEIOaeio' else 'a'} {noun}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """List names, but no more than a reader can take in.

    Examples:
        >>> listed(["a", "b", "c", "d"], most=2)
        'a, b and 2 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows with columns below each other.

    Examples:
        >>> print(table([("layer", "q"), ("0", "1.5")]))
        layer  q
        0      1.5
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "\n".join(lines)


def first_sentence(error: BaseException) -> str:
    r"""The first line of what an exception says, with a full stop; its class if it says nothing.

    Examples:
        >>> first_sentence(AssertionError("no CUDA\nbacktrace")), first_sentence(KeyError())
        ('no CUDA.', 'KeyError.')
    """
    lines = text_of(error).strip().splitlines() or [type(error).__name__]
    return lines[0] if lines[0].endswith((".", "!", "?")) else f"{lines[0]}."


def said(error: BaseException) -> str:
    """All that an exception says, with its class, and one full stop.

    Examples:
        >>> said(ValueError("no such file.")), said(KeyError("x")), said(KeyError())
        ('ValueError: no such file.', "KeyError: 'x'.", 'KeyError.')
    """
    text = f"{type(error).__name__}: {text_of(error).strip()}".removesuffix(": ")
    return text if text.endswith((".", "!", "?")) else f"{text}."


def closest(word: str, known: Iterable[str]) -> str:
    """Ask whether a known word was meant, with a space before; empty if none is close.

    Examples:
        >>> closest("gama", ["eps", "gamma"]), closest("gama", ["eps"])
        (" Did you mean 'gamma'?", '')
    """
    found = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {found[0]!r}?" if found else ""


def capital(text: str) -> str:
    """Start a text with a capital letter, and leave the rest unchanged.

    Examples:
        >>> capital("with BNP")
        'With BNP'
    """
    return text[:1].upper() + text[1:]


def printable(value: Value) -> Value:
    r"""Replace control characters by visible escapes, in a text or throughout a record.

    A layer's name may hold an escape sequence that recolours a terminal, or half a surrogate
    pair, which no UTF-8 file can store.

    Examples:
        >>> printable("a\x1b[31mb")
        'a\\x1b[31mb'
    """
    return _printable(value)  # type: ignore[no-any-return]


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return "".join(map(_printable_character, value))
    if isinstance(value, tuple):
        return tuple(map(_printable, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _printable(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value


def _printable_character(character: str) -> str:
    if character == "\n" or not unicodedata.category(character).startswith("C"):
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def _error_digits(error: float) -> int:
    """Decimals that keep one digit of the error, or two if the first is a 1."""
    mantissa, exponent = f"{error:.1e}".split("e")
    return min(12, max(0, -int(exponent) + (1 if mantissa.startswith("1") else 0)))


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text and "×" not in text else text
