"""What is done for many records at once is what is done for each of them: events, syslog lines, batches, LogRecords, entries of Fluent."""

from __future__ import annotations

import copy
from struct import pack
from typing import Any

import msgpack
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from appliance.records.builder import NO_HEADERS
from appliance.senders.listener import Listener, ListenerTransport, Protocol
from services.ingest.protocols.document import Extension
from services.ingest.protocols.fluent import fluent_messages
from services.ingest.protocols.fluent.msgpack_stream import decode_objects, may_hold_nan, split_objects
from services.ingest.protocols.otlp.otlp_protobuf import read_protobuf
from services.ingest.protocols.otlp.otlp_record import log_record, origin_of
from services.ingest.protocols.steps import run_to_end
from services.ingest.protocols.syslog.syslog_framing import CutMessage
from services.ingest.protocols.syslog.syslog_lines import SyslogLines
from services.ingest.protocols.syslog.syslog_message import SyslogParser
from services.ingest.records.ack_group import AckGroup, Part
from services.ingest.records.agent_event import agent_record
from services.ingest.records.agent_events import agent_records, common_of
from services.ingest.records.batcher import Batcher
from services.ingest.records.event import EventBuilder, EventSource, ProducerRecord
from services.ingest.records.ingest_record import IngestRecord

LISTENER = Listener("test", Protocol.FLUENT, ListenerTransport.TCP, 0)
SOURCE = EventSource(b"192.0.2.7:40312", b"192.0.2.7", b"tcp")
NOW_MS = 1_795_348_800_000

NAMES = ("message", "log", "host", "hostname", "app", "service", "level", "severity", "levelno", "pid", "facility", "trace_id", "span_id", "@timestamp", "ts")
words = st.sampled_from(["", "web", "warn", "info", "7", "auth", "Ünï", "a\udcff", '"\\\n', "2026-11-22T12:00:00.123Z", "2026-11-22 12:00:00"])
values = st.one_of(
    words, st.sampled_from([None, True, 3, 30, -1, 1 << 70, 1.5, b"bytes", b"\xff", [1, {"a": "b"}], {}, {"name": "inner", "host": "node"}, 1_795_348_800.25])
)
names = st.sampled_from([*NAMES, "kubernetes", "other", "nested"])
times = st.one_of(st.none(), st.integers(-5, 5), st.integers(1_795_348_800_000_000_000, 1_795_348_802_000_000_000), st.just(1 << 90))
records_alike = st.lists(names, unique=True, max_size=6).flatmap(
    lambda shape: st.lists(st.tuples(*(st.one_of(values, words) for _ in shape)).map(lambda row: dict(zip(shape, row, strict=True))), min_size=1, max_size=9)
)
records = st.one_of(records_alike, st.lists(records_alike, min_size=1, max_size=3).map(lambda groups: [each for group in groups for each in group]))


def as_they_are(found: Any) -> list[IngestRecord]:
    return [record._replace(fields=plain(dict(record.fields or {}))) for record in found]


def plain(value: Any) -> Any:
    """What can be compared."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return value.plain if isinstance(value, Extension) else value


@given(records, st.data())
def test_events_written_together_are_the_events_written_one_by_one(fields: list[dict[str, Any]], data: st.DataObject) -> None:
    known: dict[str, Any] = data.draw(
        st.sampled_from([{"tag": "t"}, {}, {"labels": {"a": "b"}, "host": "h", "message": None}, {"resource": {"x": [1]}, "app": "a", "severity": 3}])
    )
    count = len(fields)
    times_ns = data.draw(st.one_of(st.none(), st.lists(times, min_size=count, max_size=count), st.lists(times.filter(bool), min_size=count, max_size=count)))
    said: dict[str, list[Any]] = data.draw(
        st.dictionaries(
            st.sampled_from(["message", "severity", "msg_id", "trace_id", "otlp"]),
            st.lists(st.one_of(st.none(), st.just("x")), min_size=count, max_size=count),
            max_size=3,
        )
    )
    said.pop("severity", None)
    if data.draw(st.booleans()):
        said["severity"] = [4] * count
    alone = []
    for place, each in enumerate(copy.deepcopy(fields)):
        own = {**known, **{name: column[place] for name, column in said.items() if column[place] is not None}}
        alone.append(agent_record(each, LISTENER, own, None if times_ns is None else times_ns[place]))
    together = agent_records(fields, LISTENER, common_of(known), times_ns, said)
    assert as_they_are(together) == as_they_are(alone)
    assert [together[place] for place in range(count)] == list(together) == together[:]


starts = st.sampled_from([b"<34>1", b"<165>1", b"<999>1", b"<34>", b"34"])
moments = st.sampled_from(
    [b"2026-11-22T12:00:00.123Z", b"2026-11-22T12:00:00Z", b"2026-11-22T12:00:01+01:00", b"2026-11-22T12:00:00.1Z", b"1969-01-01T00:00:00Z", b"-", b"x", b""]
)
tokens = st.sampled_from([b"-", b"", b"host", b"app", b'q"\\', b"h\xc3\xb6st", b"\xff", b"x" * 2000])
rests = st.sampled_from(
    [b"- text", b"-", b"- ", b"-  one space", b"-   two", b'[id a="b"] text', b"- \xef\xbb\xbfmark", b"- \xff", b'- "quoted\\" \x01', b"- ends\r\n", b"text"]
)
lines = st.tuples(starts, moments, tokens, tokens, tokens, tokens, rests).map(b" ".join)


@given(st.lists(st.one_of(lines, st.binary(max_size=30), lines.map(CutMessage)), max_size=12), st.sampled_from(["host", "app", "none"]), st.booleans())
def test_lines_read_together_are_the_lines_parsed_and_built_one_by_one(messages: list[bytes], key: str, is_raw: bool) -> None:
    parser, events = SyslogParser(), EventBuilder(key, b"dmz", is_raw)
    reader = SyslogLines(SyslogParser(), EventBuilder(key, b"dmz", is_raw))
    for _ in range(2):  # what was seen before goes another way
        parsed = [parser.parse(message, NOW_MS) for message in messages]
        built = [events.build(message, SOURCE, NOW_MS) for message in parsed]
        found = reader.read(messages, SOURCE, NOW_MS)
        whole = events.headers(SOURCE, NOW_MS, False)
        columns = zip(found.timestamps_ms, found.keys, found.values, range(len(messages)), strict=True)
        assert [ProducerRecord(at, own, value, found.headers.get(number, whole)) for at, own, value, number in columns] == built
        assert found.unparsed == sum(message.parse_error is not None for message in parsed)


@given(
    st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 1500), st.sampled_from([0, 0, 1, 2])), min_size=1, max_size=20),
    st.lists(st.sampled_from([None, b"key", b"other", b"third", b"k" * 300]), min_size=3, max_size=3),
    st.sampled_from([None, b"i" * 16]),
    st.sets(st.integers(0, 2)),
    st.booleans(),
    st.integers(0, 3),
)
def test_records_that_are_batched_together_make_the_batches_that_they_make_one_by_one(
    run: list[tuple[int, int, int]], keys: list[bytes | None], identity: bytes | None, blocked: set[int], can_wait: bool, before: int
) -> None:
    if None in keys and identity is None and len(blocked) == 3:
        blocked = {0, 1}  # without a key and a free partition each takes another one, a run stays with one
    if None in keys and identity is None and not set(keys) == {None}:
        run = [(later, size, keys.index(None)) for later, size, _ in run]  # which batch is next depends on what else is closed meanwhile
    one, other = Batcher(3, 2048, max_batch_bytes=3000), Batcher(3, 2048, max_batch_bytes=3000)
    nobody = AckGroup(LISTENER, SOURCE)
    unit = AckGroup(LISTENER, SOURCE, None, lambda _unit: None)
    texts = [b"%d" % number + b"x" * size for number, (_, size, _) in enumerate(run)]
    at = [NOW_MS + later for later, _, _ in run]
    own = [keys[which] for _, _, which in run]
    for batcher in (one, other):
        for _ in range(before):
            batcher.append(ProducerRecord(NOW_MS, None, b"before" * 60, NO_HEADERS), NOW_MS, nobody)
        batcher.set_blocked(frozenset(blocked))
    outcomes = [
        one.append(ProducerRecord(at[number], own[number], texts[number], NO_HEADERS), NOW_MS, unit, can_wait, identity, 7 + number)
        for number in range(len(run))
    ]
    pending, unit.pending = unit.pending, 0
    odd = other.append_all(at, texts, own, NO_HEADERS, NOW_MS, unit, can_wait, identity, 7)
    assert [(number, outcome) for number, outcome in odd if outcome > 1] == [(number, outcome) for number, outcome in enumerate(outcomes) if outcome > 1]
    assert any(outcome == 1 for _, outcome in odd) == (1 in outcomes)
    assert unit.pending == pending and (one.blocked_partition < 0) == (other.blocked_partition < 0)
    for batcher in (one, other):
        batcher.close_all()
    assert seen(one) == seen(other)


def seen(batcher: Batcher) -> list[tuple[int, bytes, int, list[tuple[int, list[Part]]]]]:
    return [
        (batch.partition, batch.data, batch.record_count, [(share.count, share.parts) for share in batch.shares])
        for batch in sorted(batcher.take_ready(), key=lambda batch: batch.partition)
    ]


any_values: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.one_of(
        st.just({}),
        st.text(max_size=200).map(lambda text: {"string_value": text}),
        st.integers(-(1 << 63), (1 << 63) - 1).map(lambda number: {"int_value": number}),
        st.booleans().map(lambda truth: {"bool_value": truth}),
        st.floats().map(lambda number: {"double_value": number}),
        st.binary(max_size=20).map(lambda data: {"bytes_value": data}),
    ),
    lambda inner: st.lists(inner, max_size=3).map(lambda each: {"array_value": {"values": each}}),
    max_leaves=4,
)
attributes = st.lists(st.fixed_dictionaries({"key": st.sampled_from(["a", "level", "message", "host", "ä" * 70]), "value": any_values}), max_size=4)
log_records = st.fixed_dictionaries(
    {},
    optional={
        "time_unix_nano": st.integers(0, (1 << 64) - 1),
        "observed_time_unix_nano": st.integers(0, 1 << 61),
        "severity_number": st.integers(0, 24),
        "severity_text": st.sampled_from(["INFO", "warn", "odd"]),
        "body": any_values,
        "attributes": attributes,
        "dropped_attributes_count": st.integers(0, 300),
        "flags": st.integers(0, 2),
        "trace_id": st.binary(max_size=16),
        "span_id": st.binary(max_size=8),
        "event_name": st.sampled_from(["", "started"]),
    },
).map(lambda parts: LogRecord(**parts).SerializeToString())  # type: ignore[arg-type]
changed = st.tuples(log_records, st.integers(0, 40), st.integers(0, 255)).map(lambda what: bytes([*what[0][: what[1]], what[2], *what[0][what[1] + 1 :]]))


@given(st.lists(st.one_of(log_records, log_records, log_records, changed, st.binary(max_size=12)), min_size=1, max_size=7))
def test_log_records_read_by_hand_are_those_that_protobuf_reads(found: list[bytes]) -> None:
    def sized(number: int, content: bytes) -> bytes:
        size = len(content)
        return bytes([number << 3 | 2, size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14]) + content

    resource = ExportLogsServiceRequest()
    resource.resource_logs.add().resource.attributes.add(key="host.name").value.string_value = "web-07"
    body = resource.resource_logs[0].SerializeToString() + sized(2, b"".join(sized(2, each) for each in found))
    read = [record for some in read_protobuf(sized(1, body), LISTENER).slices for record in some]
    alone = [
        record
        for each in found
        for some in read_protobuf(sized(1, resource.resource_logs[0].SerializeToString() + sized(2, sized(2, each))), LISTENER).slices
        for record in some
    ]
    assert as_they_are(read) == as_they_are(alone)
    for record, data in zip(read, found, strict=True):
        try:
            LogRecord.FromString(data)
        except DecodeError:
            assert record.fields is None
        else:
            assert record.fields is not None
            assert record._replace(fields=None) == by_library(data)._replace(fields=None)


def by_library(data: bytes) -> IngestRecord:
    from services.ingest.protocols.otlp import otlp_protobuf

    origin = origin_of({"host.name": "web-07"}, 0, "", {}, "")
    return log_record(LISTENER, origin, otlp_protobuf.row_of(LogRecord.FromString(data)))


stamps = st.tuples(st.sampled_from([0, 5, 1_795_348_800, (1 << 32) - 1]), st.sampled_from([0, 1, 500_000_000, (1 << 32) - 1]))
entry_times = st.one_of(
    stamps.map(lambda stamp: msgpack.ExtType(0, pack(">II", *stamp))), st.sampled_from([1_795_348_800, 1_795_348_800.5, None, "now", [5, {}]])
)
plain_maps = st.dictionaries(st.sampled_from(["log", "level", "x"]), st.one_of(st.text(max_size=5), st.integers(0, 9), st.just(b"\x92\xd7\x00")), max_size=3)
entries = st.one_of(
    st.tuples(stamps.map(lambda stamp: msgpack.ExtType(0, pack(">II", *stamp))), plain_maps),
    st.tuples(entry_times, st.one_of(plain_maps, st.just({5: "key"}), st.just({"ext": msgpack.ExtType(0, b"\0" * 8)}))),
    st.just(("no", "entry")),
)


@given(st.lists(st.one_of(entries, entries), min_size=1, max_size=12), st.booleans())
def test_entries_of_a_chunk_are_the_same_together_and_alone(chunk: list[Any], is_cut: bool) -> None:
    packed = b"".join(msgpack.packb(entry) for entry in chunk)
    if is_cut:
        packed = packed[:-1]
    message = fluent_messages.FluentMessage("tag", {}, packed)
    together = [record for some, _ in fluent_messages.records_of(message, LISTENER) for record in some]
    ends, _ = run_to_end(split_objects(packed, len(chunk)))
    alone, _ = fluent_messages.records_of_entries(decode_objects(packed, ends), LISTENER, {"tag": "tag"}, may_hold_nan(packed))
    assert as_they_are(together[: len(ends)]) == as_they_are(alone)
    assert len(together) == len(ends) + is_cut
