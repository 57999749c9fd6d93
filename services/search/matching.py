"""Decide whether a record fulfils a query, exactly: the value is parsed as JSON.

Pure. A value that is no JSON object is one text: fields are absent then. Booleans and fractions are
not searched for words; `=` compares them as JSON writes them. Weak: one record takes 2 to 5 µs, so
`services.search.prefilter` passes as few as it can.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

import orjson

from appliance.senders.record_query import ANY_FIELD, NUMBERS_OF_NAMES, And, Compare, Contains, Equals, Node, Not, Or, Regex, compile_regex, fold

BETWEEN_TEXTS = "\x00"
"""Separates the texts of a record; no query contains it."""
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_DEPTH_MAX = 100
_NAMES_DEPTH_MAX = 5


class Document:
    """A record's value; what several conditions need is computed once."""

    __slots__ = ("_folded", "_texts", "fields", "raw")

    def __init__(self, value: bytes) -> None:
        self.raw = value
        self._folded: str | None = None
        self._texts: list[str] | None = None
        try:
            parsed = orjson.loads(value) if value[:1] == b"{" else None
        except orjson.JSONDecodeError:
            parsed = None
        self.fields: dict[str, Any] | None = parsed if isinstance(parsed, dict) else None

    def texts(self) -> list[str]:
        """Return all texts and whole numbers."""
        if self._texts is None:
            self._texts = [self.raw.decode("utf-8", "replace")] if self.fields is None else list(texts_of(self.fields))
        return self._texts

    def joined(self) -> str:
        """Return all texts in one."""
        return BETWEEN_TEXTS.join(self.texts())

    def folded(self) -> str:
        """Return all texts in one, in lower case."""
        if self._folded is None:
            self._folded = fold(self.joined())
        return self._folded

    def field(self, name: str) -> Any:
        """Return the content of a field; None if it is absent. A whole name precedes a path."""
        found: Any = self.fields
        if found is None:
            return None
        if name in found:
            return found[name]
        head, dot, rest = name.partition(".")
        while dot and isinstance(found, dict):
            found = found.get(head)
            if isinstance(found, dict) and rest in found:
                return found[rest]
            head, dot, rest = rest.partition(".")
        return None


def texts_of(content: Any, depth: int = 0) -> Iterator[str]:
    """Yield the texts and whole numbers in parsed JSON, not the names."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, int) and not isinstance(content, bool):
        yield str(content)
    elif depth < _DEPTH_MAX and isinstance(content, dict | list):
        for part in content.values() if isinstance(content, dict) else content:
            yield from texts_of(part, depth + 1)


def field_names(content: Any, prefix: str = "", depth: int = 0) -> Iterator[str]:
    """Yield the names of the fields of parsed JSON, with dots for those inside."""
    for name, inner in content.items() if isinstance(content, dict) and depth < _NAMES_DEPTH_MAX else ():
        yield prefix + name
        yield from field_names(inner, f"{prefix}{name}.", depth + 1)


def fields_of(node: Node) -> Iterator[str]:
    """Yield the fields that a query names."""
    match node:
        case And(parts) | Or(parts):
            for part in parts:
                yield from fields_of(part)
        case Not(part):
            yield from fields_of(part)
        case Contains(field) | Regex(field) | Equals(field) | Compare(field):
            if field != ANY_FIELD:
                yield field


Predicate = Callable[[Document], bool]


def compile_node(node: Node) -> Predicate:
    """Return the function that decides."""
    match node:
        case And(parts):
            every = [compile_node(part) for part in parts]
            return every[0] if len(every) == 1 else lambda document: all(part(document) for part in every)
        case Or(parts):
            some = [compile_node(part) for part in parts]
            return lambda document: any(part(document) for part in some)
        case Not(part):
            inner = compile_node(part)
            return lambda document: not inner(document)
        case Contains():
            return _text(node)
        case Regex(field, pattern):
            search = compile_regex(pattern).search
            if field == ANY_FIELD and re.search(r"[$^]|\\[AzB]", pattern):
                return lambda document: any(search(text) for text in document.texts())
            if field == ANY_FIELD:  # without a match over all texts there is none in one
                return lambda document: search(document.joined()) is not None and any(search(text) for text in document.texts())
            return lambda document: any(search(text) for text in texts_of(document.field(field)))
        case Equals():
            return _equals(node)
        case Compare():
            return _compare(node)


Search = Callable[[str], bool]


def word_search(pieces: tuple[str, ...]) -> Search:
    """Return the function that finds a folded word in folded texts; between two pieces there is no
    end of a text. Each piece is taken as early as possible, so the time is linear in the text."""
    begins = r"(?<!\w)" if re.match(r"\w", pieces[0]) else ""
    ends = r"(?!\w)" if re.search(r"\w\Z", pieces[-1]) else ""
    if len(pieces) == 1:
        whole = re.compile(begins + re.escape(pieces[0]) + ends).search
        return lambda texts: whole(texts) is not None
    first, last = re.compile(begins + re.escape(pieces[0])).search, re.compile(re.escape(pieces[-1]) + ends).search

    def search(text: str) -> bool:
        start = first(text)
        at = -1 if start is None else _behind_pieces(text, pieces[1:-1], start.end())
        return at >= 0 and last(text, at) is not None

    return lambda texts: any(map(search, texts.split(BETWEEN_TEXTS)))


def _behind_pieces(text: str, pieces: tuple[str, ...], at: int) -> int:
    """Return where the last of these pieces ends at the earliest, from `at` on; -1 if one is absent."""
    for piece in pieces:
        found = text.find(piece, at)
        if found < 0:
            return -1
        at = found + len(piece)
    return at


def whole_match(pieces: tuple[str, ...]) -> Search:
    """Return the function that compares a whole folded text, in linear time."""
    first, *between, last = pieces if len(pieces) > 1 else (*pieces, "")
    if len(pieces) == 1:
        return lambda text: text == first

    def match(text: str) -> bool:
        end = len(text) - len(last)
        return text.startswith(first) and text.endswith(last) and 0 <= _behind_pieces(text[: max(end, 0)], tuple(between), len(first)) <= end

    return match


def _text(node: Contains) -> Predicate:
    search = word_search(node.pieces)
    longest = max(node.pieces, key=len)
    if node.field == ANY_FIELD:
        return lambda document: longest in (folded := document.folded()) and search(folded)
    return lambda document: any(search(fold(text)) for text in texts_of(document.field(node.field)))


def _equals(node: Equals) -> Predicate:
    field, number = node.field, node.number
    if node.pieces == ("", ""):
        return lambda document: document.field(field) is not None
    match, names = whole_match(node.pieces), NUMBERS_OF_NAMES.get(field, {})

    def equals(content: Any) -> bool:
        if isinstance(content, str):
            return match(folded := fold(content)) or (number is not None and names.get(folded) == number)
        if isinstance(content, list):
            return any(equals(part) for part in content)
        if content is None or isinstance(content, dict):
            return False
        if isinstance(content, int) and not isinstance(content, bool) and number is not None:
            return content == number
        return match(orjson.dumps(content).decode())

    return lambda document: equals(document.field(field))


def _compare(node: Compare) -> Predicate:
    field, value, is_so = node.field, node.value, OPERATORS[node.operator]
    names = NUMBERS_OF_NAMES.get(field, {})

    def compares(content: Any) -> bool:
        if isinstance(content, list):
            return any(compares(part) for part in content)
        if isinstance(content, bool):
            return False
        if isinstance(value, str):
            return isinstance(content, str) and is_so(content, value)
        if isinstance(content, str):
            try:
                named = names.get(fold(content))
                content = float(content) if named is None else named
            except ValueError:
                return False
        return isinstance(content, int | float) and is_so(content, value)

    return lambda document: compares(document.field(field))
