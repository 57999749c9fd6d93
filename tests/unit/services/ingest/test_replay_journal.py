"""The replay journal: what one incarnation writes the next one reads, whatever happens to the
files.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.storage import file_io
from services.ingest.records.ack_group import digest_of
from services.ingest.replay.journal_records import (
    Begun,
    Damaged,
    Done,
    Forgotten,
    Frames,
    JournalFindings,
    JournalledBatch,
    JournalRecord,
    Stored,
    decode_all,
    encode,
)
from services.ingest.replay.replay_memory import ReplayMemory
from tests.support.ingest_state import IngestState, fail_all

CHUNK, STREAM = digest_of(b"chunk"), digest_of(b"stream")
TOPIC_ID = b"syslog-topic-id!"
BOOT = bytes(range(16))


@pytest.fixture
def state(tmp_path: Path) -> Iterator[IngestState]:
    made = IngestState(tmp_path)
    yield made
    made.close()


def batch(sequence: int, *parts: tuple[bytes, int, int]) -> JournalledBatch:
    return JournalledBatch("syslog", TOPIC_ID, 3, 1001, 2, sequence, sum(count for _, _, count in parts), list(parts))


RECORDS: list[JournalRecord] = [
    Frames(STREAM, 5, "relp", b"192.0.2.1", b"12345678" * 3),
    batch(0, (CHUNK, 0, 10), (STREAM, 5, 3)),
    Done(1001, 2, 0, True),
    batch(13, (CHUNK, 10, 1)),
    Stored(STREAM, 2, "errors", 0b1011),
    Forgotten(CHUNK),
    Begun(BOOT),
]


def test_every_kind_of_record_comes_back() -> None:
    assert list(decode_all(b"".join(map(encode, RECORDS)))) == RECORDS


@given(st.integers(0, 2000))
def test_a_file_that_is_cut_anywhere_gives_the_records_before(cut: int) -> None:
    content = b"".join(map(encode, RECORDS))[:cut]
    read = []
    try:
        for record in decode_all(content):
            read.append(record)
    except Damaged as damage:
        assert damage.position == sum(len(encode(record)) for record in read)
    assert read == RECORDS[: len(read)]


@given(st.integers(0, 2000), st.integers(1, 255), st.binary(max_size=30))
def test_a_damaged_byte_ends_the_file_and_nothing_false_is_read(position: int, change: int, behind: bytes) -> None:
    content = bytearray(b"".join(map(encode, RECORDS)))
    content[position % len(content)] ^= change
    read = []
    with pytest.raises(Damaged):
        for record in decode_all(bytes(content) + behind):
            read.append(record)
    assert read == RECORDS[: len(read)]


def test_an_incarnation_leaves_its_writes_and_the_notes_before_them(state: IngestState) -> None:
    journal = state.journal()
    journal.write(RECORDS[0], RECORDS[1])
    journal.note(RECORDS[2])
    assert state.journalled() == RECORDS[:2]
    journal.write(RECORDS[3])
    assert state.journalled() == RECORDS[:4]
    journal.note(RECORDS[4])
    state.clock.advance_ms(1000)
    journal.turn(state.clock.monotonic_ms())
    assert state.journalled() == RECORDS[:5]


def test_files_are_followed_by_others_that_begin_with_what_is_under_way(state: IngestState) -> None:
    under_way = batch(0, (CHUNK, 0, 1))
    journal = state.journal(lambda: [under_way], limit_bytes=8000, keep_ms=8000)
    for sequence in range(1, 400):
        journal.write(batch(sequence, (CHUNK, sequence, 1)))
    assert sum(path.stat().st_size for path in state.files("journal")) <= 9100
    found = state.journalled()
    assert found.count(under_way) >= 5, "whatever of the older files is gone, it is there"
    assert found[-1] == batch(399, (CHUNK, 399, 1))
    state.clock.advance_ms(20_000)
    journal.turn(state.clock.monotonic_ms())
    assert state.journalled() == [under_way]


def test_a_full_disk_is_said_once_counted_and_got_over(state: IngestState, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = state.journal()
    journal.write(RECORDS[1])
    with monkeypatch.context() as full:
        full.setattr(file_io, "pwritev", fail_all(OSError(errno.ENOSPC, "No space left on device")))
        for _ in range(5):
            journal.write(RECORDS[3])
            state.clock.advance_ms(1000)
    assert state.counter("ingest.replay_journal_failures") >= 2
    assert [line for line in state.log.lines if "no space left" in line] == state.log.lines
    journal.write(batch(99, (CHUNK, 99, 1)))
    assert state.journalled() == [RECORDS[1], batch(99, (CHUNK, 99, 1))]
    assert len(state.log.lines) == 2, "and that it is written again"


def test_every_call_may_fail_and_the_rest_is_read(state: IngestState, monkeypatch: pytest.MonkeyPatch) -> None:
    for failing in ("open_file", "pwritev", "unlink", "listdir", "stat", "pread", "close"):
        with monkeypatch.context() as broken:
            broken.setattr(file_io, failing, fail_all(OSError(errno.EIO, "Input/output error")))
            journal = state.journal(limit_bytes=400)
            while journal.unread:
                list(journal.read_one())
            for _ in range(20):
                journal.write(RECORDS[1])
                state.clock.advance_ms(1000)
                journal.turn(state.clock.monotonic_ms())
            journal.close()
        for record in state.journalled():
            assert record == RECORDS[1]


def test_findings_tell_stored_unknown_and_forgotten_apart() -> None:
    memory = ReplayMemory(100, 1000)
    findings = JournalFindings(memory, BOOT)
    findings.add(Begun(BOOT))
    other = digest_of(b"other")
    for record in (
        batch(0, (CHUNK, 0, 2)),
        batch(2, (CHUNK, 2, 2)),
        batch(4, (CHUNK, 4, 2)),
        Done(1001, 2, 0, True),
        Done(1001, 2, 2, False),
        batch(6, (other, 0, 1)),
        Forgotten(other),
        batch(7, (other, 0, 1)),
    ):
        findings.add(record)
    assert [found.base_sequence for found in findings.open_batches()] == [4, 7]
    assert [ordinal for ordinal in range(8) if memory.has(CHUNK, "syslog", ordinal)] == [0, 1]


def test_findings_put_the_frames_of_a_stream_together() -> None:
    findings = JournalFindings(ReplayMemory(100, 1000), BOOT)
    digests = b"".join(b"%08d" % number for number in range(20))
    findings.add(Frames(STREAM, 0, "relp", b"h", digests[:80]))
    findings.add(Frames(STREAM, 5, "relp", b"h", digests[40:120]))
    findings.add(Frames(digest_of(b"closed"), 0, "relp", b"h", digests))
    findings.add(Forgotten(digest_of(b"closed")))
    findings.add(Frames(STREAM, 15, "relp", b"h", digests[120:]))
    (stream,) = findings.broken_streams()
    assert (stream.base, stream.end, bytes(stream.digests)) == (0, 20, digests)
    findings.add(Frames(STREAM, 30, "relp", b"h", digests))
    (stream,) = findings.broken_streams()
    assert (stream.base, stream.end) == (30, 50), "behind a hole it is known from there on"
