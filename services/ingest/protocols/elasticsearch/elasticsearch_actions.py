"""Parses the body of a `_bulk` request: an action line, then for most actions a source line, each
ended by a line feed. Pure.

`index` and `create` contain a record. `update` and `delete` are refused one by one, because a log
is not changed. As in Elasticsearch, an unreadable action line makes the whole request invalid,
because the meaning of the lines after it is unknown. Sources are parsed one by one later; one that
is not a JSON object is refused alone.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, NamedTuple

import orjson

from services.ingest.protocols.http.http_request import RECORDS_MAX
from services.ingest.protocols.json_text import read_json
from services.ingest.protocols.steps import split_lines

CARRIES_RECORD: Final = frozenset(("index", "create"))
OPERATIONS: Final = frozenset(("index", "create", "update", "delete"))
_LABELS = ("pipeline", "routing")
_LEGACY_NAMES = {"_routing": "routing", "index": "_index", "id": "_id"}
ACTIONS_CACHED_MAX = 1024
ITEMS_A_STEP = 256
"""Action lines of 3 µs each, if they all differ."""
EXCERPT_BYTES = 80
SHORT_BYTES = 1 << 20
"""In a longer document, the number of parts is checked before it is parsed."""


class TooManyItems(ValueError):
    """The request is refused before it is parsed."""


class BadBulk(ValueError):
    """The request cannot be parsed; nothing of it was stored."""


class Action(NamedTuple):
    """One action line. `known` is added to its record: {"labels": {index, and its other targets}}."""

    operation: str
    index_name: str
    document_id: str | None
    known: dict[str, Any]


class BulkItem(NamedTuple):
    """One action and its unparsed source. `problem`: why it has no record."""

    action: Action
    source: bytes
    problem: str = ""


def read_bulk(body: bytes, index: str, pipeline: str = "") -> Generator[None, None, list[BulkItem]]:
    """Return the items in their order, in steps. `index` and `pipeline` are those of path and query, for
    actions without them. Raises BadBulk and TooManyItems.
    """
    if not body:
        raise BadBulk("request body is required")
    if not body.endswith(b"\n"):
        raise BadBulk("The bulk request must be terminated by a newline [\\n]")
    if body.count(b"\n") > 2 * RECORDS_MAX:
        raise TooManyItems(f"more than {RECORDS_MAX} items in one request; send smaller ones")
    lines = yield from split_lines(body)
    lines.pop()
    reader = _ActionReader(index, pipeline)
    known = reader.known
    items: list[BulkItem] = []
    number, count = 0, len(lines)
    while number < count:
        line = lines[number]
        number += 1
        action = known.get(line)
        if action is None:
            if not line.strip():
                continue
            action = reader.read(line, number)
        if action.operation == "delete":
            items.append(BulkItem(action, b"", "this is a log: nothing in it is deleted"))
            continue
        if number == count:
            raise BadBulk(f"Malformed action/metadata line [{number}], a source must follow it")
        source = lines[number]
        number += 1
        if action.operation == "update":
            items.append(BulkItem(action, b"", "this is a log: nothing in it is updated; send the document with index or create"))
        else:
            items.append(BulkItem(action, source))
        if not len(items) % ITEMS_A_STEP:
            yield
    return items


def read_document(source: bytes, is_plain: bool) -> dict[str, Any]:
    """Parse a source line. `is_plain`: it has no number that orjson would round
    (`has_long_number`). Raises ValueError.
    """
    document: Any
    if is_plain and len(source) < SHORT_BYTES:
        try:
            document = orjson.loads(source)
        except orjson.JSONDecodeError:
            document = read_json(source)
    else:
        document = read_json(source)
    if type(document) is not dict:
        raise ValueError("a document is a JSON object")
    return document


class _ActionReader:
    """A cache of action lines; most lines of a request are equal."""

    def __init__(self, index: str, pipeline: str) -> None:
        self._index = index
        self._pipeline = pipeline
        self.known: dict[bytes, Action] = {}

    def read(self, line: bytes, number: int) -> Action:
        operation, metadata = self._open(line, number)
        if not _LEGACY_NAMES.keys().isdisjoint(metadata):
            metadata = {_LEGACY_NAMES.get(name, name): value for name, value in metadata.items()}
        index = metadata.get("_index") or self._index
        if type(index) is not str or not index:
            raise BadBulk(f"Validation Failed: 1: index is missing; action/metadata line [{number}];")
        labels = {"index": index}
        document_id = metadata.get("_id")
        if document_id is not None:
            labels["id"] = document_id = document_id if type(document_id) is str else _text(document_id)
        for name in _LABELS:
            if metadata.get(name) is not None:
                labels[name] = _text(metadata[name])
        if self._pipeline:
            labels.setdefault("pipeline", self._pipeline)
        action = Action(operation, index, document_id, {"labels": labels})
        if document_id is None and len(self.known) < ACTIONS_CACHED_MAX:
            self.known[line] = action
        return action

    @staticmethod
    def _open(line: bytes, number: int) -> tuple[str, dict[str, Any]]:
        try:
            parsed = orjson.loads(line)
        except ValueError as problem:
            raise BadBulk(f"Malformed action/metadata line [{number}], it is not JSON: {problem}") from problem
        if type(parsed) is not dict or not parsed:
            raise BadBulk(f"Malformed action/metadata line [{number}], expected an object with one field: {_excerpt(line)}")
        operation, metadata = next(iter(parsed.items()))  # winston-elasticsearch adds a counter of its own
        if operation not in OPERATIONS:
            words = ", ".join(sorted(OPERATIONS))
            raise BadBulk(f"Malformed action/metadata line [{number}], expected one of {words} but found [{operation[:EXCERPT_BYTES]}]")
        if type(metadata) is not dict:
            raise BadBulk(f"Malformed action/metadata line [{number}], expected an object behind [{operation}]")
        return operation, metadata


def _text(value: object) -> str:
    return value if type(value) is str else str(value)[:512]


def _excerpt(line: bytes) -> str:
    return line[:EXCERPT_BYTES].decode("utf-8", "replace")
