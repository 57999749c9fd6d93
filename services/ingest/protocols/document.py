"""Writes any value that a sender's bytes can make as JSON: nothing raises, nothing is dropped.

Pure functions. What orjson can write, it writes. The rest takes a slow way: bytes are text, and where they are not UTF-8 (or a text holds half a surrogate
pair) the text has U+FFFD and the document `bytes_base64`, {JSON pointer to the text: its bytes}; integers beyond 64 bits are written in full; NaN and
infinities are the texts "NaN", "Infinity", "-Infinity"; a key that is no text is its JSON; a key that is there twice then gets `#2`; an object or array that
is nested deeper than 254 levels, as deep as orjson writes, is its JSON as one text, whichever way the document takes, and so is a text whose pointer would
be one too many (`POINTER_BYTES_MAX`: a long name, and below it very many bad texts); msgpack's extensions are {"ext": type, "base64": data}.
Weak: orjson writes NaN as null and says nothing, so who may have met one must say `careful`.
"""

from __future__ import annotations

import binascii
import json
import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import orjson

LEVELS_MAX: Final = 254
"""Objects and arrays within each other, the document among them. orjson refuses what is deeper, so both ways agree."""
POINTER_BYTES_MAX: Final = 1 << 18
"""Of all pointers to bad texts of one document, which repeat the names above them."""
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1
BYTES_KEY: Final = "bytes_base64"
_Place = tuple[Any, str | int] | None
"""Where a value is: what it is in, and its name or number there; None for the document."""


class Extension:
    """A value of a type that msgpack leaves to applications."""

    __slots__ = ("code", "data")

    def __init__(self, code: int, data: bytes) -> None:
        self.code = code
        self.data = data

    @property
    def plain(self) -> dict[str, Any]:
        return {"ext": self.code, "base64": _base64(self.data)}


def encode_document(document: Any, careful: bool = False) -> bytes:
    """The JSON of a document. `careful`: it may hold NaN or an infinity."""
    if not careful:
        try:
            return orjson.dumps(document, default=plain_default)
        except TypeError:
            pass  # the slow way finds out what it was
    writer = _Writer()
    plain = writer.plain(document, None, 1)
    if writer.bytes_base64 and type(plain) is dict:
        plain[FreeNames().free(plain, BYTES_KEY)] = writer.bytes_base64
    return orjson.dumps(plain)


def utf8(text: str) -> bytes:
    """The bytes that a text was made of, also where they were not UTF-8 (`surrogateescape`)."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


def plain_default(value: object) -> Any:
    """For orjson: bytes that are text, and extensions. Raises TypeError for what only the slow way can write."""
    if isinstance(value, bytes | bytearray | memoryview):
        return str(value, "utf-8")
    if isinstance(value, Extension):
        return value.plain
    raise TypeError


class FreeNames:
    """Names for keys that come to be the same: `a`, `a#2`, `a#3`. Counts, because searching from 2 on would take forever where all are the same."""

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
    """The slow way: makes a value that orjson writes, and keeps the bytes that are no text."""

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
        """The bytes of a bad text beside the document; False if there is no room for one more pointer."""
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
    """The name that a key of a msgpack map gets in JSON."""
    if isinstance(key, str):
        return key
    if isinstance(key, bytes):
        return key.decode("utf-8", "surrogateescape")
    return deep_text(key)


def _digits(value: int) -> str:
    try:
        return str(value)
    except ValueError:  # more digits than Python turns into decimals
        return f'"{value:#x}"'


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


class _Mark(NamedTuple):
    """A piece of JSON that is written as it is."""

    text: str


def deep_text(value: Any) -> str:
    """The JSON of any value as ASCII, however deep; bytes that are not UTF-8 are escaped surrogates, so nothing is lost."""
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
