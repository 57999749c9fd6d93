"""Splunk's HTTP event collector: `/services/collector` and related paths, with the collector's
error codes and indexer acknowledgement.

Without a channel, a request is answered when its records are stored. With one
(`X-Splunk-Request-Channel`, or `channel` in the query) it is answered at once with an `ackId`, and
`/services/collector/ack` returns true when they are stored. While an ingest runs, each request is
new, whatever its bytes. After a crash, repeated requests are recognised if the channel had polled
`/ack` before it sent them first (`splunk_acks`). In doubt a request is stored. Weak: records that
can never be stored (too large for the topic) are reported only to senders without a channel; with
one they are counted and the request is acknowledged, because it would be repeated for ever.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from services.ingest.protocols.document import encode_document
from services.ingest.protocols.http.http_request import BUSY_SECONDS, JSON, WAITING, HttpResponse, Request, SlowResult
from services.ingest.protocols.json_text import read_json
from services.ingest.protocols.splunk.splunk_acks import AckLedger, Channel, Taken
from services.ingest.protocols.splunk.splunk_events import (
    CHANNEL_MISSING,
    HEALTHY,
    INCORRECT_INDEX,
    INVALID_CHANNEL,
    INVALID_FORMAT,
    INVALID_TOKEN,
    SERVER_BUSY,
    SUCCESS,
    TOKEN_REQUIRED,
    TOO_MANY,
    UNHEALTHY,
    BadEvents,
    Code,
    read_events,
    read_lines,
)
from services.ingest.protocols.steps import PUT_RECORDS, Steps
from services.ingest.records.ack_group import AckGroup, AckOutcome
from services.ingest.records.ingest_record import IngestRecord
from services.ingest.records.intake import RefusedReason

CHANNEL_HEADER: Final = b"x-splunk-request-channel"
CHANNEL_BYTES_MAX: Final = 128
ACK_IDS_ASKED_MAX: Final = 100_000


class Collector:
    """The endpoints, and the acknowledgements that they share."""

    def __init__(self) -> None:
        self._acks = AckLedger()

    def event(self, request: Request) -> SlowResult:
        """Handle `/services/collector` and `/services/collector/event[/1.0]`."""
        return self._take(request, is_raw=False)

    def raw(self, request: Request) -> SlowResult:
        """Handle `/services/collector/raw[/1.0]`."""
        return self._take(request, is_raw=True)

    def ack(self, request: Request) -> HttpResponse:
        """Handle `/services/collector/ack`: {"acks": [number, …]} of one channel."""
        channel_name = _channel_of(request)
        if not channel_name:
            return _answer(CHANNEL_MISSING)
        if len(channel_name) > CHANNEL_BYTES_MAX:
            return _invalid_channel(request)
        try:
            asked = read_json(request.body)
        except ValueError:
            return _answer(INVALID_FORMAT)
        numbers = asked.get("acks") if type(asked) is dict else None
        if type(numbers) is not list or len(numbers) > ACK_IDS_ASKED_MAX or not all(type(number) is int for number in numbers):
            return _answer(INVALID_FORMAT)
        channel = self._channel(request, channel_name)
        said = channel.ask(numbers) if channel is not None else dict.fromkeys(numbers, False)
        if channel is not None:
            _forget(request, channel.take_forgotten())
        return HttpResponse(200, encode_document({"acks": {str(number): is_stored for number, is_stored in said.items()}}))

    def _take(self, request: Request, is_raw: bool) -> SlowResult:
        channel_name = _channel_of(request)
        if len(channel_name) > CHANNEL_BYTES_MAX:
            return _invalid_channel(request)
        try:
            records = yield from (read_lines if is_raw else read_events)(request.body, request.query, request.listener)
        except BadEvents as problem:
            reason = RefusedReason.TOO_LARGE if problem.code is TOO_MANY else RefusedReason.MALFORMED
            request.intake.refuse(request.listener, request.source, reason)
            return _answer(problem.code, problem.event_number)
        intake = request.intake
        if not channel_name:
            unit = request.open_unit(partial(_stored, request))
            yield from _put(request, unit, records)
            return WAITING
        channel = self._channel(request, channel_name)
        if channel is None or channel.is_full:
            intake.refuse(request.listener, request.source, RefusedReason.BUSY)
            return busy(request)
        _forget(request, channel.take_forgotten())
        key = request.identities()
        taken = channel.open_keyed(key[0]) if key else channel.open(request.identity(channel_name, request.body))
        unit = AckGroup(request.listener, request.source, [taken.identity], partial(_on_completed, channel, taken))
        unit.keeps_identity = channel.has_polled or key is not None
        try:
            yield from _put(request, unit, records)
        except GeneratorExit:
            intake.abandon(unit)
            raise
        if unit.outcome is AckOutcome.REFUSED:
            return busy(request)  # at once, if it is known at once; otherwise the number stays false
        if request.forbidden:
            return _answer(INCORRECT_INDEX, request.forbidden[0][0], taken.ack_id)
        return _answer(SUCCESS, ack_id=taken.ack_id)

    def _channel(self, request: Request, channel_name: bytes) -> Channel | None:
        """Return the channel, or make it; None: there are too many."""
        seed = b"%b %d" % (request.source.address, request.intake.now_ms())
        channel = self._acks.channel(_channel_key(request, channel_name), seed)
        _forget(request, self._acks.take_forgotten())
        return channel


def _put(request: Request, unit: AckGroup, records: list[IngestRecord]) -> Steps:
    for start in range(0, len(records), PUT_RECORDS):
        if start:
            yield
        request.intake.take(unit, request.permitted(records[start : start + PUT_RECORDS]))
    request.intake.close_group(unit)


def health(request: Request) -> HttpResponse:
    """Handle `/services/collector/health[/1.0]`."""
    return _answer(UNHEALTHY if request.intake.blocked_by(request.listener) else HEALTHY)


def options(_request: Request) -> HttpResponse:
    """Handle `OPTIONS`: the collector exists."""
    return HttpResponse(200, b"", JSON, ((b"Allow", b"OPTIONS, POST"),))


def busy(request: Request) -> HttpResponse:
    """Return 503: the client repeats the request."""
    return _answer(SERVER_BUSY)._replace(headers=((b"Retry-After", b"%d" % BUSY_SECONDS),))


def unauthorized(request: Request) -> HttpResponse:
    """Return 401 without a token, 403 with a wrong one."""
    return _answer(INVALID_TOKEN if request.headers.get(b"authorization") else TOKEN_REQUIRED)


def _invalid_channel(request: Request) -> HttpResponse:
    """Channels are kept by their names."""
    request.intake.refuse(request.listener, request.source, RefusedReason.MALFORMED)
    return _answer(INVALID_CHANNEL)


def _forget(request: Request, identities: list[bytes]) -> None:
    for identity in identities:
        request.intake.forget(identity)


def _on_completed(channel: Channel, taken: Taken, unit: AckGroup) -> None:
    channel.on_completed(taken, unit.outcome is not AckOutcome.REFUSED, unit.keeps_identity)


def _stored(request: Request, unit: AckGroup) -> HttpResponse:
    if request.forbidden:
        return _answer(INCORRECT_INDEX, request.forbidden[0][0])
    if not unit.rejected:
        return _answer(SUCCESS)
    number = unit.rejected[0][0]
    return _answer(INVALID_FORMAT, number if number >= 0 else None)


def _answer(code: Code, event_number: int | None = None, ack_id: int | None = None) -> HttpResponse:
    words: dict[str, Any] = {"text": code.text, "code": code.number}
    if event_number is not None:
        words["invalid-event-number"] = event_number
    if ack_id is not None:
        words["ackId"] = ack_id
    return HttpResponse(code.status, encode_document(words), JSON)


def _channel_of(request: Request) -> bytes:
    return request.headers.get(CHANNEL_HEADER, b"").strip() or request.query.get("channel", "").strip().encode("utf-8", "replace")


def _channel_key(request: Request, channel_name: bytes) -> bytes:
    return b"%b\n%b\n%b" % (request.listener.name.encode(), request.principal, channel_name)


COLLECTOR = Collector()
event, raw, ack = COLLECTOR.event, COLLECTOR.raw, COLLECTOR.ack
