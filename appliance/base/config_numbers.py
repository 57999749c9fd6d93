"""Numbers in configs, as Kafka reads them: what `Long.parseLong` and `Double.parseDouble` take of the trimmed text.

Pure. Python's own `int` and `float` take more (`1_000`, `nan`), and a value is kept as it was written: other tools and a Kafka that read it later would
fail over it. Weak spot: two things that Java takes are refused here, because our own readers cannot take them: digits that are not ASCII, and
doubles that are hexadecimal or end in f or d.
"""

from __future__ import annotations

import re

_SPACES = " \t\n\r\x0b\x0c"
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DOUBLE = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def parse_integer(text: str) -> int | None:
    """The whole number that `text` is, or None."""
    trimmed = text.strip(_SPACES)
    if _INTEGER.fullmatch(trimmed) is None:
        return None
    try:
        return int(trimmed)
    except ValueError:  # more digits than Python reads
        return None


def parse_double(text: str) -> float | None:
    """The finite or infinite number that `text` is, or None; never NaN."""
    trimmed = text.strip(_SPACES)
    return float(trimmed) if _DOUBLE.fullmatch(trimmed) is not None else None
