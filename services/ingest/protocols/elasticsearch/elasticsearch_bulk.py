"""Elasticsearch's `_bulk`, and its requests with a single document: each document is a record, each
item of the answer its result.

The index is the label `index`, `@timestamp` the time. An item with an `_id` has an identity: index,
`_id` and the bytes of the document. If it is repeated, the answer is 201 and it is not stored
again; another document with the same `_id` is a new record (nothing is overwritten). With the
header `Idempotency-Key` the identity is that of the whole request. Items without either are stored
each time. If ingest can accept nothing, the request is answered 429; if that happens in the middle
of a request, the remaining items are. Weak: the answer to an item without `_id` has no `_id`,
because no client could look it up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Sequence
from typing import Any, Final

from services.ingest.protocols.elasticsearch.elasticsearch_actions import CARRIES_RECORD, Action, BadBulk, BulkItem, TooManyItems, read_bulk, read_document
from services.ingest.protocols.elasticsearch.elasticsearch_answers import AnswerFilter, answer_filter, busy, error_answer, json_answer, unauthorized
from services.ingest.protocols.http.http_request import WAITING, HttpResponse, PendingResponse, Request, SlowResponse, SlowResult
from services.ingest.protocols.json_text import has_long_number
from services.ingest.protocols.steps import SLICE_RECORDS, run_to_end
from services.ingest.records.ack_group import IDENTITY_BYTES, AckGroup
from services.ingest.records.agent_event import agent_record
from services.ingest.records.ingest_record import IngestRecord
from services.ingest.records.intake import RefusedReason

ITEMS_A_STEP: Final = 512
"""Items of an answer."""
CREATED, BAD_ITEM, FORBIDDEN_ITEM, BUSY_ITEM = 201, 400, 403, 429
_STORED_ITEM: Final = {"_version": 1, "result": "created", "_shards": {"total": 1, "successful": 1, "failed": 0}, "status": CREATED}

__all__ = ["bulk", "busy", "document", "unauthorized"]


def bulk(request: Request) -> SlowResult:
    """Handle `/_bulk` and `/INDEX/_bulk`."""
    try:
        items = yield from read_bulk(request.body, request.arguments.get("index", ""), request.query.get("pipeline", ""))
    except BadBulk as problem:
        request.intake.refuse(request.listener, request.source, RefusedReason.MALFORMED)
        return error_answer(request, 400, "illegal_argument_exception", str(problem))
    except TooManyItems as problem:
        request.intake.refuse(request.listener, request.source, RefusedReason.TOO_LARGE)
        return error_answer(request, 413, "content_too_large_exception", str(problem))
    if not items:
        return error_answer(request, 400, "action_request_validation_exception", "Validation Failed: 1: no requests added;")
    return (yield from _Bulk(request, items).take(items))


def document(request: Request) -> HttpResponse | PendingResponse:
    """Handle `/INDEX/_doc`, `/INDEX/_doc/ID` and `/INDEX/_create/ID`: one document with its own
    form of answer.
    """
    index, document_id = request.arguments["index"], request.arguments.get("id")
    labels = {"index": index} if document_id is None else {"index": index, "id": document_id}
    action = Action("create" if "/_create/" in request.pattern else "index", index, document_id, {"labels": labels})
    items = [BulkItem(action, request.body)]
    return run_to_end(_Bulk(request, items, is_single=True).take(items))


class _Bulk:
    """The results of the items of one request. It keeps their actions until the answer, not their
    sources.
    """

    def __init__(self, request: Request, items: Sequence[BulkItem], is_single: bool = False) -> None:
        self._request = request
        self._began_ms = request.intake.monotonic_ms()
        self._is_single = is_single
        self._actions = [item.action for item in items]
        self._problems: dict[int, str] = {}
        self._forbidden: dict[int, str] = {}
        """Topics by item."""
        self._record_items: list[int] = []
        """The item of each record of the ack group."""
        self._busy_from = len(items)
        """The first item that could not be accepted."""

    def take(self, items: Sequence[BulkItem]) -> Generator[None, None, PendingResponse]:
        request = self._request
        intake, listener = request.intake, request.listener
        is_one_thing = request.identities() is not None
        identities: list[bytes] | None = None
        if not is_one_thing and any(action.document_id is not None for action in self._actions):
            identities = []
        prefix = request.identity(b"_id") if identities is not None else b""
        unit = request.open_unit(self._answer, identities)
        records: list[IngestRecord] = []
        is_plain = False
        for number, (action, source, problem) in enumerate(items):
            if not number % SLICE_RECORDS:
                if number:
                    yield
                is_plain = not has_long_number(b" ".join([item.source for item in items[number : number + SLICE_RECORDS]]))
            if not problem:
                try:
                    record = agent_record(read_document(source, is_plain), listener, action.known, raw=source)
                except ValueError as error:
                    problem = f"failed to parse: {error}"
            if problem:
                self._problems[number] = problem
                continue
            if request.is_limited and (topic := request.forbidden_topic(record)):
                self._forbidden[number] = f"these credentials may not write to topic [{topic}]"
                continue
            records.append(record)
            self._record_items.append(number)
            if identities is not None:
                identities.append(self._identity(prefix, number, source))
            if len(records) == SLICE_RECORDS:
                intake.take(unit, records)
                records = []
                if not is_one_thing and intake.blocked_by(listener):
                    self._busy_from = number + 1
                    break
        if records:
            intake.take(unit, records)
        if self._problems:
            intake.refuse(listener, request.source, RefusedReason.MALFORMED, len(self._problems))
        if self._forbidden:
            intake.refuse(listener, request.source, RefusedReason.FORBIDDEN_TOPIC, len(self._forbidden))
        intake.close_group(unit)
        return WAITING

    def _identity(self, prefix: bytes, number: int, source: bytes) -> bytes:
        """Return the identity of an item with an `_id`; an item without one gets a unique identity."""
        _, index, document_id, _ = self._actions[number]
        if document_id is None:
            content = b"%b\n%b %d %d\n%b" % (prefix, self._request.source.address, self._request.intake.now_ms(), number, source)
        else:
            content = b"%b%b\n%b\n%b" % (prefix, index.encode("utf-8", "replace"), document_id.encode("utf-8", "replace"), source)
        return hashlib.blake2b(content, digest_size=IDENTITY_BYTES).digest()

    def _answer(self, unit: AckGroup) -> HttpResponse | SlowResponse:
        rejected = self._rejected_items(unit)
        return self._single_answer(rejected) if self._is_single else self._answer_items(rejected)

    def _answer_items(self, rejected: dict[int, str]) -> SlowResponse:
        shown = answer_filter(self._request.query.get("filter_path", ""))
        writer = _ItemWriter(shown)
        items: list[dict[str, Any]] = []
        for number, action in enumerate(self._actions):
            if number >= self._busy_from:
                items += writer.refused(action, BUSY_ITEM, "es_rejected_execution_exception", "the record cannot be stored now; send it again")
            elif number in self._problems:
                kind = "document_parsing_exception" if action.operation in CARRIES_RECORD else "illegal_argument_exception"
                items += writer.refused(action, BAD_ITEM, kind, self._problems[number])
            elif number in self._forbidden:
                items += writer.refused(action, FORBIDDEN_ITEM, "security_exception", self._forbidden[number])
            elif number in rejected:
                items += writer.refused(action, BAD_ITEM, "illegal_argument_exception", rejected[number])
            else:
                items += writer.stored(action)
            if not (number + 1) % ITEMS_A_STEP:
                yield
        has_errors = bool(self._problems or self._forbidden or rejected) or self._busy_from < len(self._actions)
        answer: dict[str, Any] = {"errors": has_errors, "took": max(0, self._request.intake.monotonic_ms() - self._began_ms)}
        if shown is not None:
            answer = shown.apply(answer)
        if items or shown is None:
            answer["items"] = items
        return json_answer(self._request, 200, answer)

    def _rejected_items(self, unit: AckGroup) -> dict[int, str]:
        """Return the reasons by item. If the record of a reason is unknown (number -1), no item of
        that group is reported as stored.
        """
        rejected: dict[int, str] = {}
        for number, reason in unit.rejected:
            for item in self._record_items if number < 0 else (self._record_items[number],):
                rejected[item] = reason
        return rejected

    def _single_answer(self, rejected: dict[int, str]) -> HttpResponse:
        if self._problems:
            return error_answer(self._request, 400, "document_parsing_exception", self._problems[0])
        if self._forbidden:
            return error_answer(self._request, 403, "security_exception", self._forbidden[0])
        if rejected:
            return error_answer(self._request, 400, "illegal_argument_exception", rejected[0])
        stored = {name: value for name, value in _STORED_ITEM.items() if name != "status"}
        return json_answer(self._request, CREATED, {**_name(self._actions[0]), **stored})


class _ItemWriter:
    """Return items of the answer, each as a list of one, or of none if the filter removes it. Equal
    items are made and filtered once.
    """

    def __init__(self, shown: AnswerFilter | None) -> None:
        self._shown = shown
        self._stored: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self._ids_are_shown = bool(self._filtered({"index": {"_id": ""}}))

    def stored(self, action: Action) -> list[dict[str, Any]]:
        if action.document_id is not None and self._ids_are_shown:
            return self._filtered({action.operation: {**_name(action), **_STORED_ITEM}})
        key = (action.operation, action.index_name)
        found = self._stored.get(key)
        if found is None:
            found = self._stored[key] = self._filtered({action.operation: {"_index": action.index_name, **_STORED_ITEM}})
        return found

    def refused(self, action: Action, status: int, kind: str, reason: str) -> list[dict[str, Any]]:
        return self._filtered({action.operation: {**_name(action), "status": status, "error": {"type": kind, "reason": reason}}})

    def _filtered(self, item: dict[str, Any]) -> list[dict[str, Any]]:
        if self._shown is None:
            return [item]
        left: list[dict[str, Any]] = self._shown.apply({"items": [item]}).get("items", [])
        return left


def _name(action: Action) -> dict[str, str]:
    return {"_index": action.index_name} if action.document_id is None else {"_index": action.index_name, "_id": action.document_id}
