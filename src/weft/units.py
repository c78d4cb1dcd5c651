"""Parsing and formatting of sizes, rates and times.

Internally weft uses bytes, bytes per second and seconds only.
"""

import math
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from fractions import Fraction

from weft.errors import SizeError, UsageError

MIB = 1 << 20  # bytes
_PREFIXES = list(enumerate("kmgtp", start=1))
_DECIMAL = {f"{p}b": Fraction(1000**i) for i, p in _PREFIXES}
_BINARY = {f"{p}ib": Fraction(1024**i) for i, p in _PREFIXES}
_BITS = {f"{p}bit": Fraction(1000**i, 8) for i, p in _PREFIXES}
# A bare prefix is binary, as in nccl-tests.
_BARE = {p: Fraction(1024**i) for i, p in _PREFIXES}
_SIZES = {"": Fraction(1), "b": Fraction(1)} | _BARE | _DECIMAL | _BINARY
_RATES = {
    f"{unit}/s": factor
    for unit, factor in (
        {"b": Fraction(1), "bit": Fraction(1, 8)} | _DECIMAL | _BINARY | _BITS
    ).items()
}
_TIMES = {"s": Fraction(1)} | {
    unit: Fraction(1, 1000**i) for i, unit in ((1, "ms"), (2, "us"), (2, "µs"), (3, "ns"))
}
_QUANTITY = re.compile(
    r"\s*([0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(e[+-]?[0-9]{1,3})?\s*(.*?)\s*",
    re.IGNORECASE,
)
_LARGEST = 2**63 - 1  # the integers of the native core
_LONGEST = 100  # characters of a quantity; longer input is invalid


def digits(text: str) -> int | None:
    """Return the number that a word of digits is, None for other words and for very long ones.

    >>> digits("12"), digits("-1"), digits("\N{SUPERSCRIPT TWO}")
    (12, None, None)
    """
    return int(text) if re.fullmatch(r"[0-9]{1,15}", text) else None


def parse_size(text: str) -> int:
    """Parse a number of bytes; a bare number is bytes, ``k`` is ``KiB`` as in nccl-tests.

    >>> parse_size("1KiB"), parse_size("1.5 MB"), parse_size("64k"), parse_size("1_000")
    (1024, 1500000, 65536, 1000)
    """
    expected = "a size such as 4096, 64KiB, 1.5MB or 1GiB"
    value = _parse(text, _SIZES, expected, SizeError)
    if value > _LARGEST:
        raise SizeError(f"size {text!r} is over 8 EiB", f"Expected {expected}.")
    if value.denominator > 1 and text.strip()[-1].isdigit():
        raise SizeError(f"size {text!r} is not a whole number of bytes", f"Expected {expected}.")
    return round(value)


def parse_sizes(text: str) -> list[int]:
    """Parse a list of sizes and of ranges, which double from the first size up to the last.

    >>> parse_sizes("100,1KiB:4KiB")
    [100, 1024, 2048, 4096]
    """
    return [size for part in text.split(",") for size in _parse_range(part)]


def _parse_range(text: str) -> list[int]:
    first, colon, last = text.partition(":")
    start = parse_size(first)
    if not colon:
        return [start]
    stop = parse_size(last)
    if not 0 < start <= stop:
        raise SizeError(
            f"size range {text!r} is empty", "Expected FIRST:LAST with 0 < FIRST <= LAST."
        )
    return [start << step for step in range((stop // start).bit_length())]


def parse_rate(text: str) -> float:
    """Parse a rate in bytes per second.

    >>> parse_rate("1GiB/s"), parse_rate("400Gbit/s"), parse_rate("10gbit")
    (1073741824.0, 50000000000.0, 1250000000.0)
    """
    if text.rstrip().lower().endswith("bit"):  # as tc writes it
        text = f"{text.rstrip()}/s"
    expected = "a rate above zero such as 50GiB/s, 50GB/s or 400Gbit/s"
    if text.rstrip().endswith("b/s"):
        raise UsageError(f"rate {text!r} is ambiguous (bits or bytes)", f"Expected {expected}.")
    rate = _to_float(_parse(text, _RATES, expected, UsageError))
    if not 0 < rate < math.inf:
        raise UsageError(f"rate {text!r} is out of range", f"Expected {expected}.")
    return rate


def parse_time(text: str) -> float:
    """Parse a time in seconds.

    >>> parse_time("500ns"), parse_time("2us"), parse_time("1.5ms")
    (5e-07, 2e-06, 0.0015)
    """
    expected = "a time such as 500ns, 2us, 1.5ms or 3s"
    seconds = _to_float(_parse(text, _TIMES, expected, UsageError))
    if seconds == math.inf:
        raise UsageError(f"time {text!r} is out of range", f"Expected {expected}.")
    return seconds


def file_name(path: object) -> str:
    r"""Return a file name as valid Unicode; names need not be UTF-8.

    >>> ascii(file_name(b"rank\xff.json".decode(errors="surrogateescape")))
    "'rank\\ufffd.json'"
    """
    return os.fsencode(str(path)).decode(errors="replace")


def printable(text: str) -> str:
    r"""Return text without control characters: names come from files that others wrote.

    A terminal would obey them. Ends of lines and tabs stay.

    >>> printable("gemm\x1b[2J\tfast")
    'gemm\\x1b[2J\tfast'
    """
    return text.translate(_CONTROLS)


# C0 and C1 controls, and the marks that turn the direction of text.
_CONTROLS = {
    code: ascii(chr(code))[1:-1]
    for code in (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    if chr(code) not in "\n\t"
}


def format_size(nbytes: float) -> str:
    """Format bytes in binary units, to four digits.

    >>> format_size(65536), format_size(1_000_000), format_size(1)
    ('64 KiB', '976.6 KiB', '1 B')
    """
    return _format(
        nbytes, {"PiB": 2**50, "TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}
    )


def format_rate(bytes_per_second: float) -> str:
    """Format a rate in decimal units, to four digits.

    >>> format_rate(50e9), format_rate(50 * 2**30)
    ('50 GB/s', '53.69 GB/s')
    """
    return _format(
        bytes_per_second, {"TB/s": 1e12, "GB/s": 1e9, "MB/s": 1e6, "kB/s": 1e3, "B/s": 1}
    )


def format_time(seconds: float) -> str:
    """Format seconds in a suitable unit, to four digits.

    >>> format_time(0.01998), format_time(936e-9), format_time(0)
    ('19.98 ms', '936 ns', '0 s')
    """
    return _format(seconds, {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}) if seconds else "0 s"


def format_count(count: int, noun: str) -> str:
    """Format a count with its noun.

    >>> format_count(1, "rank"), format_count(8, "rank")
    ('1 rank', '8 ranks')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_mean(count: float) -> str:
    """Format how often something happens on average, never with an exponent.

    >>> format_mean(2.5), format_mean(43.0), format_mean(1010.4)
    ('2.5', '43', '1,010')
    """
    return f"{count:.3g}" if count < 100 else f"{count:,.0f}"


def format_percent(value: float) -> str:
    """Format a percentage as an integer, so that zero is never negative."""
    return f"{round(value)} %"


def _parse(
    text: str, units: Mapping[str, Fraction], expected: str, error: type[UsageError]
) -> Fraction:
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    factor = units.get(match[3].lower()) if match else None
    if match is None or factor is None:
        raise error(f"cannot parse {text[:_LONGEST]!r}", f"Expected {expected}.")
    return Fraction(match[1].replace("_", "") + (match[2] or "")) * factor


def _to_float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _format(value: float, units: Mapping[str, float]) -> str:
    """Format with the largest unit that leaves at least 1 once rounded; units are descending."""
    unit = next((u for u, factor in units.items() if abs(value) * 1.00005 >= factor), [*units][-1])
    number = value / units[unit]
    return f"{number:.4g} {unit}" if abs(number) < 9999.5 else f"{number:.0f} {unit}"


def brief(value: object) -> str:
    """Return the repr of a dataclass with long fields as counts: ``__repr__ = brief`` in its class.

    Results hold whole workloads, timelines and columns. Their full repr, generated by dataclasses,
    would fill a terminal or a log with megabytes.
    """
    assert is_dataclass(value)
    shown = [f"{each.name}={_briefly(getattr(value, each.name))}" for each in fields(value)]
    return f"{type(value).__name__}({', '.join(shown)})"


_MOST_ITEMS, _MOST_TEXT = 4, 80


def _briefly(value: object) -> str:
    if isinstance(value, str):
        return repr(value if len(value) <= _MOST_TEXT else value[: _MOST_TEXT - 2] + "..")
    if getattr(value, "ndim", 0):  # an array
        return f"<{type(value).__name__} of {getattr(value, 'size', 0)}>"
    if isinstance(value, Collection):
        short = len(value) <= _MOST_ITEMS and not isinstance(value, Mapping | bytes)
        if short and all(isinstance(each, int | float) for each in value):
            return repr(value)
        return f"<{type(value).__name__} of {len(value)}>"
    if is_dataclass(value):
        name = getattr(value, "name", "")
        return f"<{type(value).__name__}{f' {name}' if isinstance(name, str) and name else ''}>"
    text = repr(value)
    return text if len(text) <= 2 * _MOST_TEXT else f"<{type(value).__name__}>"
