"""Fuzzed files of ingest: the replay journal, the spool, the accounts of its senders, and the table that an operator writes.

Checksums are made right, or nothing behind them would ever be reached. Weak spot: what a file says is true is believed; only its form is looked at.
"""

from __future__ import annotations

import os
import tempfile
import tomllib
from collections.abc import Iterator
from struct import Struct

from appliance.records.crc32c import crc32c
from appliance.senders.conditions import Routable
from appliance.senders.listener import KeyKind
from appliance.senders.old_table import convert_table, tables_text
from appliance.senders.router import key_of
from appliance.senders.sender_accounts import read_senders, write_senders
from appliance.senders.sender_tables import read_tables
from services.ingest.records.ingest_record import IngestRecord
from services.ingest.replay.journal_records import Begun, Damaged, Done, Forgotten, Frames, JournalFindings, JournalledBatch, Stored, decode_all, encode
from services.ingest.replay.replay_memory import ReplayMemory
from services.ingest.replay.spool_records import (
    HEADER,
    SpooledShare,
    SpoolEntry,
    SpoolHeader,
    encode_batch,
    encode_done,
    read_description,
    read_header,
    without_counted,
)
from tests.fuzz.target import Target, Targets
from tests.unit.base.test_settings import make_box

_JOURNAL_FRAME = Struct("<IIB")
_BOX = make_box(settings={"ingest.syslog.key": "host"})
_IDENTITY = bytes(range(16))
_RECORDS: tuple[Routable, ...] = (
    IngestRecord(b"{}", None, "host", "sshd", "web.access", 3, 4, {"job": "nginx", "a.b": 1}, {"a": {"b": "5x"}, "status": 503, "list": [1]}),
    IngestRecord(b"{}", 7, None, None, None, None, None, None, None),
)


def fuzz_replay_journal(data: bytes) -> None:
    """Records, then damage; each is written as it was read, and a new incarnation knows their
    result.
    """
    content = _with_journal_checksums(data)
    memory = ReplayMemory(100, 600_000)
    findings = JournalFindings(memory, _IDENTITY)
    position = 0
    try:
        for record in decode_all(content):
            encoded = encode(record)
            assert len(encoded) <= len(content)
            assert next(decode_all(encoded)) == record
            findings.add(record)
            position += 1
    except Damaged as damage:
        assert 0 <= damage.position <= len(content)
    for stream in findings.broken_streams():
        assert len(stream.digests) <= len(content)
    for batch in findings.open_batches():
        memory.add_unresolved(batch.parts)
        memory.resolve(batch.topic, batch.parts, batch.partition & 1 == 0, 1_000)
    memory.remember_found(1_000)
    memory.limit_found()
    memory.expire(1_000_000)
    memory.notify()


def _with_journal_checksums(data: bytes) -> bytes:
    content, position = bytearray(data), 0
    while position + _JOURNAL_FRAME.size <= len(content):
        end = position + _JOURNAL_FRAME.size + _JOURNAL_FRAME.unpack_from(content, position)[1]
        if end > len(content):
            break
        content[position : position + 4] = crc32c(memoryview(content)[position + 4 : end]).to_bytes(4, "little")
        position = end
    return bytes(content)


def fuzz_spool(data: bytes) -> None:
    """One record behind the other, as a reader of a spool's file finds them; each is written as it was read."""
    position, batches = 0, []
    while (header := read_header(data[position : position + HEADER.size])) is not None:
        described = bytearray(data[position : position + HEADER.size + header.description_bytes])
        described[:4] = crc32c(memoryview(described)[4:]).to_bytes(4, "little")
        found = read_description(header._replace(crc=int.from_bytes(described[:4], "little")), bytes(described))
        if found is None:
            break
        if isinstance(found, SpoolEntry):
            again = encode_batch(found, b"x" * min(header.data_bytes, 100))[0]
            assert read_description(_header_of(again), again) == found
            batches.append(found)
        else:
            assert read_description(_header_of(encode_done(found)), encode_done(found)) == found
        position += HEADER.size + header.description_bytes + header.data_bytes
    in_flight = {"relp": 3, "": 1}
    counted = without_counted(batches, in_flight)
    assert [sum(share.records + share.copies for share in batch.shares) for batch in counted] == [
        sum(share.records + share.copies for share in batch.shares) for batch in batches
    ]


def _header_of(encoded: bytes) -> SpoolHeader:
    header = read_header(encoded)
    assert header is not None
    return header


def fuzz_old_table(data: bytes) -> None:
    """Any text is converted, with its mistakes at their lines, and written as TOML; any record finds its way by what is left."""
    text = data.decode("utf-8", "replace")
    converted = convert_table(text, "t")
    assert tomllib.loads(tables_text(converted.tables)).get("ingest", {}) == converted.tables
    reading = read_tables(converted.tables, "m.toml", _BOX, converted.places)
    count = len(text.splitlines())
    for problem in [*converted.problems, *reading.problems]:
        file, line, words = problem.split(":", 2)
        assert file == "t" and 1 <= int(line) <= count and len(words) > 10
    router = reading.router()
    for listener in reading.listeners:
        routes = router.of(listener)
        for record in _RECORDS:
            destinations = routes.route(record)
            assert destinations and (routes.constant is None or routes.constant == destinations)
            for destination in destinations:
                key = key_of(destination.key, record, b"192.0.2.7")
                assert key is not None or destination.key.kind is not KeyKind.HOST


def fuzz_senders_file(data: bytes) -> None:
    """Accounts, or none; what was read is written and read again."""
    path = os.path.join(tempfile.gettempdir(), f"senders-{os.getpid()}.json")
    with open(path, "wb") as file:
        file.write(data)
    found = read_senders(path)
    if found and all(abs(number) < 1 << 63 for figures in found for number in (*figures[1:6], figures.last_seen_ms)):
        write_senders(path, found)
        assert read_senders(path) == found
    os.unlink(path)


def _journal_seeds() -> Iterator[bytes]:
    parts = [(_IDENTITY, 0, 2), (_IDENTITY[::-1], 5, 1)]
    batch = JournalledBatch("web", _IDENTITY, 0, 7, 0, 3, 3, parts)
    frames = Frames(_IDENTITY, 0, "relp", b"192.0.2.7", bytes(range(32)))
    yield b"".join(map(encode, (Begun(_IDENTITY), batch, Done(7, 0, 3, True), frames, frames._replace(first_serial=2), Stored(_IDENTITY, 4, "web", 0b1011))))
    yield b"".join(map(encode, (batch, batch._replace(base_sequence=6), Forgotten(_IDENTITY), Done(7, 0, 6, False)))) + b"\0" * 9


def _spool_seeds() -> Iterator[bytes]:
    shares = [SpooledShare("relp", 2, 1, [(_IDENTITY, 0, 2)]), SpooledShare("", 1, 0, [])]
    pieces = [encode_batch(SpoolEntry(number, "web", 0, 3, shares), b"data")[0] + b"data" for number in range(3)]
    yield b"".join(pieces) + encode_done(1)
    yield encode_done(0) + pieces[0][:-1]


def _table_seeds() -> Iterator[bytes]:
    yield b"""listen dmz syslog tls :6514 topic=dmz key=app acks=1 certificate=/c.pem private-key=/k.pem client-ca=/ca.pem client-names=a.example,*.b
options http token=one,two max-frame-bytes=2048
route listener=dmz facility=auth,authpriv -> security,all
route severity<=err app=sshd* -> errors key=app key-required=yes
route label.job=nginx field.a.b=5* -> web
default -> other key=none
dead-letter -> ingest-dead-letter
"""
    yield b'listen fluent fluent tcp [::1]:24224 shared-key="a # b\\" c" raw=yes\nlisten beats lumberjack tcp :5044 proxy=required proxy-from=10.0.0.0/8\n'
    yield b"listen a relp tcp :5 topic=a.b\nlisten a relp tcp :5 topic=a_b\nroute -> x\nroute app=y -> z\nlisen"


STATE_TARGETS: Targets = {
    "replay_journal": Target(fuzz_replay_journal, _journal_seeds, 768),
    "spool": Target(fuzz_spool, _spool_seeds, 768),
    "old_table": Target(fuzz_old_table, _table_seeds, 480),
    "senders_file": Target(fuzz_senders_file, lambda: iter((b'[["h",1,1,0,0,2,{"malformed":2},["relp"],7]]', b"[[]]", b"{")), 256),
}
