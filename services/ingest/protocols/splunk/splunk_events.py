"""Events of Splunk's HTTP event collector as records: concatenated JSON objects (with or without
white space between them), or lines of text; and the collector's answers.

Pure. `host` and `time` are the record's; `source`, `sourcetype`, `index` and the indexed `fields`
are its labels. An `event` that is an object becomes `fields`, anything else the message. A request
is accepted whole, or refused whole with the number of the wrong event. Weak: if the event names no
app, the sourcetype is used, because that is what senders put there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

import orjson

from appliance.senders.listener import Listener
from services.ingest.protocols.document import encode_document
from services.ingest.protocols.http.http_request import RECORDS_MAX
from services.ingest.protocols.json_text import has_long_number, read_json
from services.ingest.protocols.steps import SLICE_RECORDS, split_lines
from services.ingest.records.agent_event import agent_record, epoch_ns
from services.ingest.records.ingest_record import IngestRecord


class Code(NamedTuple):
    """One of the collector's documented answers."""

    number: int
    status: int
    text: str


SUCCESS: Final = Code(0, 200, "Success")
TOKEN_REQUIRED: Final = Code(2, 401, "Token is required")
INVALID_TOKEN: Final = Code(4, 403, "Invalid token")
NO_DATA: Final = Code(5, 400, "No data")
INVALID_FORMAT: Final = Code(6, 400, "Invalid data format")
INCORRECT_INDEX: Final = Code(7, 400, "Incorrect index")
"""The token may not write to the topic of an event."""
SERVER_BUSY: Final = Code(9, 503, "Server is busy")
CHANNEL_MISSING: Final = Code(10, 400, "Data channel is missing")
INVALID_CHANNEL: Final = Code(11, 400, "Invalid data channel")
EVENT_REQUIRED: Final = Code(12, 400, "Event field is required")
EVENT_BLANK: Final = Code(13, 400, "Event field cannot be blank")
BAD_FIELDS: Final = Code(15, 400, "Error in handling indexed fields")
HEALTHY: Final = Code(17, 200, "HEC is healthy")
UNHEALTHY: Final = Code(18, 503, "HEC is unhealthy, queues are full")
TOO_MANY: Final = Code(27, 413, "Request entity too large")


ENVELOPES_CACHED_MAX = 4096
SHORT_BYTES = 1 << 20
"""In a longer event, the number of parts is checked before it is parsed."""
LABELS: Final = ("source", "sourcetype", "index")
_ENVELOPE: Final = frozenset((*LABELS, "time", "host", "event", "fields"))
_GENERIC_SOURCETYPES = frozenset(("_json", "_raw", "httpevent", "json", "generic_single_line"))
_APP_FIELDS = ("app", "application", "service", "service_name", "appname", "program")
_BETWEEN_OBJECTS = re.compile(rb"\}\s*\{")
_DECODER: Final = json.JSONDecoder()
_NUMBER = re.compile(r"\s*\d{1,19}(?:\.\d{0,18})?\s*\Z")


class BadEvents(ValueError):
    """The request cannot be parsed; nothing of it was stored."""

    def __init__(self, code: Code, event_number: int | None = None) -> None:
        super().__init__(code.text)
        self.code = code
        self.event_number = event_number


SlowRecords = Generator[None, None, list[IngestRecord]]


def read_events(body: bytes, defaults: Mapping[str, str], listener: Listener) -> SlowRecords:
    """Return the records of `/services/collector/event`, in steps. `defaults` (from the query) fill
    what an event lacks. Raises BadEvents.
    """
    reader = _EnvelopeReader(defaults, listener)
    records: list[IngestRecord] = []
    for number, event in enumerate(islice((yield from _split(body)), RECORDS_MAX + 1)):
        records.append(reader.read(event, number))
        if not len(records) % SLICE_RECORDS:
            yield
    if len(records) > RECORDS_MAX:
        raise BadEvents(TOO_MANY)
    if not records:
        raise BadEvents(NO_DATA)
    return records


def read_lines(body: bytes, defaults: Mapping[str, str], listener: Listener) -> SlowRecords:
    """Return the records of `/services/collector/raw`, in steps: one for each line that is not
    empty. Raises BadEvents.
    """
    known = _EnvelopeReader(defaults, listener).known({}, {})
    time_ns, time_text = _time(defaults.get("time"))
    if body.count(b"\n") > RECORDS_MAX:
        raise BadEvents(TOO_MANY)
    lines = [line.rstrip(b"\r") for line in (yield from split_lines(body)) if line.strip()]
    records: list[IngestRecord] = []
    for line in lines:
        message = line.decode("utf-8", "surrogateescape")
        records.append(agent_record({}, listener, {**known, "message": message}, time_ns=time_ns, time_text=time_text, raw=line))
        if not len(records) % SLICE_RECORDS:
            yield
    if not records:
        raise BadEvents(NO_DATA)
    return records


def _split(body: bytes) -> Generator[None, None, Iterator[Any]]:
    """Split a body into its objects at `}{`. If that is inside a text, they are parsed one by one."""
    body = body.strip()
    if not body:
        return iter(())
    is_careful = has_long_number(body)
    objects = []
    position = 0
    try:
        for between in islice(_BETWEEN_OBJECTS.finditer(body), RECORDS_MAX):
            piece = body[position : between.start() + 1]
            objects.append(read_json(piece) if is_careful or len(piece) > SHORT_BYTES else orjson.loads(piece))
            position = between.end() - 1
            if not len(objects) % SLICE_RECORDS:
                yield
        objects.append(read_json(body[position:]))
        return iter(objects)
    except ValueError:
        return _split_slowly(body.decode("utf-8", "surrogateescape"))


def _split_slowly(text: str) -> Iterator[Any]:
    position, number = 0, 0
    while position < len(text):
        try:
            _, end = _DECODER.raw_decode(text, position)
            yield read_json(text[position:end].encode("utf-8", "surrogateescape"))
        except (ValueError, RecursionError):
            raise BadEvents(INVALID_FORMAT, number) from None
        while end < len(text) and text[end].isspace():
            end += 1
        position, number = end, number + 1


class _EnvelopeReader:
    """A cache of the envelopes of one request, most of which differ only in the event."""

    def __init__(self, defaults: Mapping[str, str], listener: Listener) -> None:
        self._defaults = defaults
        self._listener = listener
        self._default_time = defaults.get("time")
        self._plain: dict[tuple[Any, ...], dict[str, Any]] = {}

    def read(self, envelope: Any, number: int) -> IngestRecord:
        """Return the record of one event. Raises BadEvents."""
        if type(envelope) is not dict:
            raise BadEvents(INVALID_FORMAT, number)
        event = envelope.get("event")
        if event is None or event == "" or event == {}:
            raise BadEvents(EVENT_BLANK if "event" in envelope else EVENT_REQUIRED, number)
        indexed = envelope.get("fields")
        if indexed:
            if type(indexed) is not dict or any(type(value) is dict for value in indexed.values()):
                raise BadEvents(BAD_FIELDS, number)
            known = self.known(envelope, indexed)
        else:
            known = self._known_plainly(envelope)
        raw = encode_document(envelope) if self._listener.raw else b""
        fields: dict[str, Any] = event if type(event) is dict else {}
        if not _ENVELOPE.issuperset(envelope):  # the collector drops other names; ingest drops nothing
            for name in envelope.keys() - _ENVELOPE:
                fields.setdefault(name, envelope[name])
        if fields and "app" in known and any(name in fields for name in _APP_FIELDS):
            known = {name: value for name, value in known.items() if name != "app"}
        if type(event) is not dict:
            known = {**known, "message": event}
        time_ns, time_text = _time(envelope.get("time", self._default_time))
        return agent_record(fields, self._listener, known, time_ns=time_ns, time_text=time_text, raw=raw)

    def _known_plainly(self, envelope: Mapping[str, Any]) -> dict[str, Any]:
        get = envelope.get
        said = (get("host"), get("source"), get("sourcetype"), get("index"))
        try:
            return self._plain[said]
        except KeyError:
            if len(self._plain) >= ENVELOPES_CACHED_MAX:
                self._plain.clear()
            known = self._plain[said] = self.known(envelope, {})
            return known
        except TypeError:  # an object instead of a text
            return self.known(envelope, {})

    def known(self, envelope: Mapping[str, Any], indexed: Mapping[str, Any]) -> dict[str, Any]:
        """Return what an envelope says of its event, completed from the query."""
        defaults = self._defaults
        labels = {name: value for name in LABELS if (value := envelope.get(name, defaults.get(name))) not in (None, "")}
        labels.update(indexed)
        known: dict[str, Any] = {"labels": labels} if labels else {}
        host = envelope.get("host", defaults.get("host"))
        if type(host) is str and host:
            known["host"] = host
        app = next((labels[name] for name in _APP_FIELDS if type(labels.get(name)) is str), None) or labels.get("sourcetype")
        if type(app) is str and app and app not in _GENERIC_SOURCETYPES:
            known["app"] = app
        return known


def _time(value: object) -> tuple[int | None, str]:
    """Return (nanoseconds, or another value as text)."""
    if type(value) is str:
        if not _NUMBER.match(value):
            return None, value
        seconds, _, fraction = value.strip().partition(".")
        if not fraction:
            return epoch_ns(int(seconds)), ""
        return int(seconds) * 1_000_000_000 + int(fraction[:9].ljust(9, "0")), ""
    if type(value) is int or type(value) is float:
        return epoch_ns(value), ""
    return None, ""
