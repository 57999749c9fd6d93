"""Writes any value that a sender can send as JSON. It raises nothing and drops nothing.

Pure functions. orjson writes what it can. The slow way writes the rest. Bytes become text; if they
are not UTF-8 (or a text has half a surrogate pair), the text has U+FFFD, and `bytes_base64` of the
document has {JSON pointer: the bytes}. Integers beyond 64 bits are written in full. NaN and
infinities become the texts "NaN", "Infinity", "-Infinity". A key that is not a text becomes its
JSON; a repeated key gets `#2`. An object or array below 254 levels (orjson's limit) becomes its
JSON as one text, in both ways; so does a text whose pointer would exceed `POINTER_BYTES_MAX`.
Extensions of msgpack become {"ext": type, "base64": data}.

Weak: orjson writes NaN as null without an error, so a caller whose input may have one must pass
`careful`.
"""

from __future__ import annotations

import binascii
import json
import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import orjson

LEVELS_MAX: Final = 254
"""Nesting of objects and arrays, the document included. orjson refuses more, so both ways agree."""
POINTER_BYTES_MAX: Final = 1 << 18
"""Limit for all pointers of one document; a pointer repeats the names above its text."""
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1
BYTES_KEY: Final = "bytes_base64"
_Place = tuple[Any, str | int] | None
"""The place of a value: its container, and its name or number there; None for the document."""


class Extension:
    """A value of an application-defined type of msgpack."""

    __slots__ = ("code", "data")

    def __init__(self, code: int, data: bytes) -> None:
        self.code = code
        self.data = data

    @property
    def plain(self) -> dict[str, Any]:
        return {"ext": self.code, "base64": _base64(self.data)}


def encode_document(document: Any, careful: bool = False) -> bytes:
    """Return the JSON of a document. `careful`: it may contain NaN or an infinity."""
    if not careful:
        try:
            return orjson.dumps(document, default=plain_default)
        except TypeError:
            pass  # the slow way finds the cause
    writer = _Writer()
    plain = writer.plain(document, None, 1)
    if writer.bytes_base64 and type(plain) is dict:
        plain[FreeNames().free(plain, BYTES_KEY)] = writer.bytes_base64
    return orjson.dumps(plain)


def utf8(text: str) -> bytes:
    """Return the bytes of a text, also if they were not UTF-8 (`surrogateescape`)."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


def plain_default(value: object) -> Any:
    """orjson's `default`: bytes that are text, and extensions. Raises TypeError for what only the
    slow way can write.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return str(value, "utf-8")
    if isinstance(value, Extension):
        return value.plain
    raise TypeError


class FreeNames:
    """Makes repeated keys unique: `a`, `a#2`, `a#3`. It counts, because a search from 2 would be
    quadratic.
    """

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def free(self, taken: dict[str, Any], name: str) -> str:
        if name not in taken:
            return name
        number = self._counts.get(name, 1)
        found = name
        while found in taken:
            number += 1
            found = f"{name}#{number}"
        self._counts[name] = number
        return found


class _Writer:
    """The slow way: makes a value that orjson can write, and collects the bytes that are not text."""

    def __init__(self) -> None:
        self.bytes_base64: dict[str, str] = {}
        self._pointer_bytes_left = POINTER_BYTES_MAX

    def plain(self, value: Any, place: _Place, level: int) -> Any:
        if isinstance(value, str):
            return self._text(utf8(value), place)
        if value is None or isinstance(value, bool | orjson.Fragment):
            return value
        if isinstance(value, int):
            return int(value) if _INT_MIN <= value <= _INT_MAX else orjson.Fragment(_digits(value))
        if isinstance(value, float):
            return value if math.isfinite(value) else _not_finite(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return self._text(bytes(value), place)
        if isinstance(value, dict | list | tuple | Extension) and level > LEVELS_MAX:
            return deep_text(value)
        if isinstance(value, Extension):
            return value.plain
        if isinstance(value, dict):
            return self._map(value, place, level)
        if isinstance(value, list | tuple):
            return [self.plain(item, (place, index), level + 1) for index, item in enumerate(value)]
        return self._text(utf8(str(value)), place)

    def _text(self, data: bytes, place: _Place) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data.decode("utf-8", "replace") if self._keep(data, place) else deep_text(data)

    def _keep(self, data: bytes, place: _Place, mark: str = "") -> bool:
        """Add the bytes of an invalid text to the document; False if the pointers have reached
        their limit.
        """
        names: list[str] = []
        size_bytes = 0
        while place is not None:
            place, name = place
            names.append(str(name))
            size_bytes += 1 + len(names[-1])
        if size_bytes > self._pointer_bytes_left:
            return False
        self._pointer_bytes_left -= size_bytes
        pointer = "".join(["/" + name.replace("~", "~0").replace("/", "~1") for name in reversed(names)])
        self.bytes_base64[pointer + mark] = _base64(data)
        return True

    def _map(self, value: dict[Any, Any], place: _Place, level: int) -> dict[str, Any]:
        written: dict[str, Any] = {}
        names = FreeNames()
        for key, item in value.items():
            data = utf8(key_text(key))
            try:
                name = names.free(written, data.decode())
            except UnicodeDecodeError:
                name = names.free(written, data.decode("utf-8", "replace"))
                if not self._keep(data, (place, name), "#name"):
                    name = names.free(written, deep_text(data))
            written[name] = self.plain(item, (place, name), level + 1)
        return written


def key_text(key: object) -> str:
    """Return the JSON name for a key of a msgpack map."""
    if isinstance(key, str):
        return key
    if isinstance(key, bytes):
        return key.decode("utf-8", "surrogateescape")
    return deep_text(key)


def _digits(value: int) -> str:
    try:
        return str(value)
    except ValueError:  # more digits than Python converts to decimal
        return f'"{value:#x}"'


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


class _Mark(NamedTuple):
    """JSON that is written unchanged."""

    text: str


def deep_text(value: Any) -> str:
    """Return the JSON of any value as ASCII, at any depth. Bytes that are not UTF-8 become escaped
    surrogates, so nothing is lost.
    """
    written: list[str] = []
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if type(item) is _Mark:
            written.append(item.text)
        elif isinstance(item, dict):
            waiting += reversed([*_pieces("{", [(_Mark(json.dumps(key_text(key)) + ":"), inner) for key, inner in item.items()], "}")])
        elif isinstance(item, list | tuple):
            waiting += reversed([*_pieces("[", [(inner,) for inner in item], "]")])
        elif isinstance(item, Extension):
            waiting.append(item.plain)
        elif isinstance(item, bytes | bytearray | memoryview):
            written.append(json.dumps(bytes(item).decode("utf-8", "surrogateescape")))
        elif isinstance(item, int) and not isinstance(item, bool):
            written.append(_digits(item))
        elif isinstance(item, float) and not math.isfinite(item):
            written.append(json.dumps(_not_finite(item)))
        else:
            written.append(json.dumps(item if item is None or isinstance(item, str | float | bool) else str(item)))
    return "".join(written)


def _pieces(first: str, groups: list[tuple[Any, ...]], last: str) -> Iterator[Any]:
    yield _Mark(first)
    for index, group in enumerate(groups):
        if index:
            yield _Mark(",")
        yield from group
    yield _Mark(last)
