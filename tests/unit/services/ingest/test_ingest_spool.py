"""The spool: batches in order, through deaths, full disks and damaged files."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.storage import file_io
from services.ingest.records.ack_group import digest_of
from services.ingest.replay.spool_records import SpooledShare, SpoolEntry, without_counted
from tests.support.ingest_state import IngestState, WaitingBatch, fail_all

CHUNK = digest_of(b"chunk")


@pytest.fixture
def state(tmp_path: Path) -> Iterator[IngestState]:
    made = IngestState(tmp_path)
    yield made
    made.close()


def filled(state: IngestState, count: int = 5, limit_bytes: int = 1 << 20, size: int = 100) -> tuple[object, list[WaitingBatch]]:
    spool = state.spool(limit_bytes)
    batches = [WaitingBatch(records=number + 1, parts=[(CHUNK, number, number + 1)], partition=number % 2) for number in range(count)]
    for number, batch in enumerate(batches):
        assert spool.write(batch, b"%d" % number * size)
    return spool, batches


def test_what_is_written_is_read_and_gone_when_it_is_done(state: IngestState) -> None:
    spool = state.spool()
    batch = WaitingBatch()
    assert spool.write(batch, b"records") and len(spool) == 1
    assert spool.read(batch) == b"records"
    spool.done(batch)
    assert len(spool) == 0 and spool.size_bytes == 0 and not state.files("spool")


def test_the_next_incarnation_finds_unfinished_batches_in_order_with_all_their_fields(state: IngestState) -> None:
    spool = state.spool()
    batches = [WaitingBatch(records=number + 1, parts=[(CHUNK, number, number + 1)], partition=number % 2) for number in range(5)]
    for number, batch in enumerate(batches):
        assert spool.write(batch, b"%d" % number * 100)
    spool.done(batches[0])
    spool.done(batches[3])
    again = state.spool()
    assert [left.number for left in again.left_over] == [1, 2, 4]
    left = again.left_over[0]
    assert (left.topic, left.partition, left.record_count, left.parts) == ("syslog", 1, 2, [(CHUNK, 1, 2)])
    assert left.shares == [SpooledShare("relp", 2, 0, [(CHUNK, 1, 2)])]
    carried = object()
    again.adopt(carried, left)
    assert again.read(carried) == b"1" * 100
    again.done(carried)
    again.forget(again.left_over[1])
    third = state.spool()
    assert [left.number for left in third.left_over] == [4]
    new = WaitingBatch()
    assert third.write(new, b"new")
    assert [left.number for left in state.spool().left_over] == [4, 5], "numbers go on"


def test_it_takes_no_more_than_its_limit_and_nothing_without_one(state: IngestState) -> None:
    spool = state.spool(limit_bytes=4000)
    taken = []
    while spool.write(batch := WaitingBatch(), b"x" * 100):
        taken.append(batch)
    assert 10 < len(taken) < 40 and sum(path.stat().st_size for path in state.files("spool")) <= 4000
    for batch in taken:
        spool.done(batch)
    assert spool.write(WaitingBatch(), b"x" * 100), "there is free space again"
    assert not state.spool(0).write(WaitingBatch(), b"x")


def test_files_go_from_the_oldest_on(state: IngestState) -> None:
    spool = state.spool(limit_bytes=16_000)
    batches = [WaitingBatch() for _ in range(40)]
    for batch in batches:
        assert spool.write(batch, b"x" * 200)
    assert len(state.files("spool")) > 5
    for batch in batches[1:]:
        spool.done(batch)
    kept = len(state.files("spool"))
    assert kept > 5, "the first batch holds its file, and that says what of those behind is done"
    assert [left.number for left in state.spool(16_000).left_over] == [0]
    spool.done(batches[0])
    assert not state.files("spool")


@pytest.mark.parametrize("cut", range(1, 400, 7))
def test_a_file_that_is_cut_leaves_the_batches_before(state: IngestState, cut: int) -> None:
    filled(state)
    (path,) = state.files("spool")
    content = path.read_bytes()
    path.write_bytes(content[:-cut])
    spool = state.spool()
    assert [left.number for left in spool.left_over] == list(range(len(spool.left_over)))
    assert len(spool.left_over) == 5 - -(-cut // (len(content) // 5))
    for number, left in enumerate(spool.left_over):
        spool.adopt(left.number, left)
        assert spool.read(left.number) == b"%d" % number * 100


def test_a_damaged_byte_costs_one_batch_or_what_is_behind_it_and_never_gives_false_records(state: IngestState) -> None:
    filled(state)
    (path,) = state.files("spool")
    content = path.read_bytes()
    for position in range(0, len(content), 11):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x41]) + content[position + 1 :])
        spool = state.spool()
        read = []
        for left in spool.left_over:
            spool.adopt(left.number, left)
            data = spool.read(left.number)
            assert data in (None, b"%d" % left.number * 100)
            read.append(data)
        assert (len(read) == 5 and read.count(None) == 1) or (len(read) < 5 and None not in read)
    assert state.counter("ingest.spool_damages") > 0


def test_a_full_disk_is_said_once_and_the_batch_stays_where_it_is(state: IngestState, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = state.spool()
    first = WaitingBatch()
    assert spool.write(first, b"first")
    with monkeypatch.context() as full:
        full.setattr(file_io, "pwritev", fail_all(OSError(errno.ENOSPC, "No space left on device")))
        for _ in range(5):
            assert not spool.write(WaitingBatch(), b"x")
            state.clock.advance_ms(1000)
    assert [line for line in state.log.lines if "no space left" in line] == state.log.lines and len(state.log.lines) == 1
    second = WaitingBatch()
    assert spool.write(second, b"second")
    assert (spool.read(first), spool.read(second)) == (b"first", b"second")
    assert [left.number for left in state.spool().left_over] == [0, 1]


def test_every_call_may_fail_and_nothing_false_is_left(state: IngestState, monkeypatch: pytest.MonkeyPatch) -> None:
    for failing in ("open_file", "pwritev", "unlink", "listdir", "pread", "close", "fstat", "mkdir"):
        with monkeypatch.context() as broken:
            broken.setattr(file_io, failing, fail_all(OSError(errno.EIO, "Input/output error")))
            spool = state.spool()
            batches = [WaitingBatch() for _ in range(4)]
            written = [batch for batch in batches if spool.write(batch, b"x" * 10)]
            for batch in written:
                assert spool.read(batch) in (None, b"x" * 10)
                spool.done(batch)
                state.clock.advance_ms(1000)
            spool.close()
        again = state.spool()
        for left in again.left_over:
            again.adopt(left.number, left)
            assert again.read(left.number) == b"x" * 10


def test_records_that_the_dead_incarnation_counted_are_not_counted_again() -> None:
    batches = [SpoolEntry(number, "syslog", 0, 10, [SpooledShare("relp", 8, 0, []), SpooledShare("syslog-tcp", 2, 0, [])]) for number in range(3)]
    found = without_counted(batches, {"relp": 16, "syslog-tcp": 50})
    assert [[(share.listener, share.records, share.copies) for share in batch.shares] for batch in found] == [
        [("relp", 0, 8), ("syslog-tcp", 2, 0)],
        [("relp", 8, 0), ("syslog-tcp", 2, 0)],
        [("relp", 8, 0), ("syslog-tcp", 2, 0)],
    ]


def test_a_directory_that_cannot_be_listed_is_left_as_it_is(state: IngestState, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(state)
    with monkeypatch.context() as broken:
        broken.setattr(file_io, "listdir", fail_all(OSError(errno.EIO, "Input/output error")))
        spool = state.spool()
    assert not spool.left_over
    state.clock.advance_ms(1000)
    assert spool.write(WaitingBatch(), b"new")
    assert len(state.spool().left_over) == 6
