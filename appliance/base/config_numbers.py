"""Numbers in topic configs, as Kafka reads them (`Long.parseLong` and `Double.parseDouble` of the
trimmed text).

Pure. Python's `int` and `float` accept more (`1_000`, `nan`); a value is stored as written, and
other tools or a later Kafka would fail on it. Weak: digits that are not ASCII, and hexadecimal
doubles or those that end in f or d, are refused here although Java accepts them, because our own
readers do not.
"""

from __future__ import annotations

import re

_SPACES = " \t\n\r\x0b\x0c"
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DOUBLE = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def parse_integer(text: str) -> int | None:
    """Return the integer in `text`, or None."""
    trimmed = text.strip(_SPACES)
    if _INTEGER.fullmatch(trimmed) is None:
        return None
    try:
        return int(trimmed)
    except ValueError:  # more digits than Python converts
        return None


def parse_double(text: str) -> float | None:
    """Return the finite or infinite number in `text`, or None; never NaN."""
    trimmed = text.strip(_SPACES)
    return float(trimmed) if _DOUBLE.fullmatch(trimmed) is not None else None
