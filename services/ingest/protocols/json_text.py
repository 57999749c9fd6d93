"""Reads the JSON of senders, also if it is not strictly valid: what can be understood is neither
refused nor rounded.

Pure functions. orjson reads valid JSON. The standard library reads what orjson refuses (NaN, half
surrogate pairs, invalid UTF-8) or would round (integers beyond 64 bits): NaN, Infinity and numbers
beyond a double become texts, invalid bytes become surrogates, which `document` writes. A text with
very many containers is refused, because each costs thirty times its two bytes. Weak: of a repeated
name in one object the last value counts; fractions are rounded to doubles.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

import orjson

CONTAINERS_MAX = 1_000_000
_FEW_BYTES = CONTAINERS_MAX
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_LONG: Final = b"0" * 20
_LONG_NEGATIVE: Final = b"-" + b"0" * 19
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def read_json(data: bytes | bytearray | memoryview) -> Any:
    """Return the value of a JSON text. Raises ValueError with the reason."""
    if len(data) > _FEW_BYTES:
        whole = bytes(data)
        if whole.count(b"{") + whole.count(b"[") > CONTAINERS_MAX:
            raise ValueError(f"JSON with more than {CONTAINERS_MAX} objects and arrays")
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return _read_slowly(bytes(data))
    return _read_slowly(bytes(data)) if has_long_number(data) else value


def has_long_number(data: bytes | bytearray | memoryview) -> bool:
    """Whether a text may have an integer that orjson would round."""
    zeros = data.translate(_DIGITS) if type(data) is bytes else bytes(data).translate(_DIGITS)
    return _LONG in zeros or _LONG_NEGATIVE in zeros


def _read_slowly(data: bytes) -> Any:
    text = data.removeprefix(_BYTE_ORDER_MARK).decode("utf-8", "surrogateescape")
    try:
        return json.loads(text, parse_constant=str, parse_float=_float)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


def _float(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text
