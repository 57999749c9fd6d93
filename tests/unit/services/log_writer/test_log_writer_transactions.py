"""A log-writer and transactions: batches that must be verified, markers, active producers, and
their state in rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.base.errors import ErrorCode
from appliance.ipc.descriptors import (
    ACKS_ALL_FLAG,
    ADDS_PARTITION_FLAG,
    COMMIT_FLAG,
    COORDINATOR_FLAG,
    NEEDS_VERIFICATION,
    PRODUCER_ENTRY,
    RAISED_EPOCH_FLAG,
    VERIFIED_FLAG,
    Completion,
    DescriptorKind,
    unpack_producers,
)
from appliance.ipc.proxies import LogWriterProxies
from appliance.shm.partition_table import Row
from appliance.storage.producer_state import PRODUCER_EXPIRATION_MS
from lab.raw_transactions import transactional_batch
from lab.scratch_layout import scratch_layout
from services.log_writer.replicas.replicas_of_disk import SWEEP_NS
from tests.support.real_log_writer import DISK, TOPIC_ID, RealLogWriter


class Source:
    """An acceptor's or coordinator's end; completions by what they complete."""

    def __init__(self, writer: RealLogWriter, name: str = "acceptor@0") -> None:
        self.writer = writer
        self.proxies: LogWriterProxies = writer.source(name)
        self.proxies.on_completion = lambda context, entry: self.completions.append(Completion._make(entry))
        self.completions: list[Completion] = []
        self.arena = self.proxies.source.arena

    @property
    def row(self) -> Row:
        table = self.proxies.by_disk[DISK].table
        assert table is not None
        return table.read(0)

    @property
    def aborted_end(self) -> int:
        table = self.proxies.by_disk[DISK].table
        assert table is not None
        return table.aborted_end(0)

    def offer(self, kind: int, flags: int = 0, length: int = 0, position: int = 0, values: tuple[int, ...] = (0, 0, 0, 0), **row: int) -> None:
        named = {"row_generation": self.row.row_generation, "leader_epoch": 0, "config_generation": 0} | row
        assert self.proxies.by_disk[DISK].offer((kind, flags, 0, 0, *named.values(), length, position, 0, *values), 0, None)

    def produce(self, batch: bytes, guard: int = 0, flags: int = ACKS_ALL_FLAG) -> None:
        position = self.arena.allocate(len(batch))
        self.arena.memory[position : position + len(batch)] = batch
        self.offer(DescriptorKind.PRODUCE, flags, len(batch), position, (1, 0, 0, guard))

    def mark(self, producer_id: int, producer_epoch: int, is_commit: bool, coordinator_epoch: int = 1, raises_epoch: bool = False, **row: int) -> None:
        flags = ACKS_ALL_FLAG | (COMMIT_FLAG if is_commit else 0) | (RAISED_EPOCH_FLAG if raises_epoch else 0)
        self.offer(DescriptorKind.TRANSACTION_MARKER, flags, values=(producer_id, coordinator_epoch & 0xFFFFFFFF, producer_epoch & 0xFFFF, 0), **row)

    def take(self) -> list[Completion]:
        for _ in range(3):
            self.writer.turn()
        taken, self.completions = self.completions, []
        return taken


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[RealLogWriter]:
    with scratch_layout() as layout:
        (tmp_path / "disk").mkdir()
        made = RealLogWriter(layout, tmp_path / "disk", 1_000)
        made.recover()
        controller = made.source("controller")
        made.create(controller, 0)
        made.lead(controller, 0)
        for _ in range(5):
            made.turn()
        assert made.codes("lead") == [0]
        yield made
        made.stop()


def test_a_transaction_begins_with_a_guard_and_ends_with_a_marker_in_the_order_of_the_ring(writer: RealLogWriter) -> None:
    source = Source(writer)
    source.produce(transactional_batch(7, 0, 0, b"a"))
    source.produce(transactional_batch(7, 0, 1, b"b"))
    asked = source.take()
    assert [each.error_code for each in asked] == [NEEDS_VERIFICATION] * 2 and asked[0].guard == asked[1].guard > 0
    assert source.row.log_end_offset == 0
    source.produce(transactional_batch(7, 0, 0, b"a"), asked[0].guard)
    source.produce(transactional_batch(7, 0, 1, b"b"), asked[0].guard)
    assert [(each.error_code, each.base_offset) for each in source.take()] == [(0, 0), (0, 1)]
    assert (source.row.high_watermark, source.row.last_stable_offset) == (2, 0)
    source.mark(7, 0, True)
    source.produce(transactional_batch(7, 0, 2, b"c"))
    marked, needed = source.take()
    assert (marked.kind, marked.error_code, marked.base_offset, marked.log_end_offset) == (DescriptorKind.TRANSACTION_MARKER, 0, 2, 3)
    assert needed.error_code == NEEDS_VERIFICATION and needed.guard != asked[0].guard
    assert (source.row.high_watermark, source.row.last_stable_offset, source.aborted_end) == (3, 3, 0)
    assert writer.counters.counter("log_writer.records").value == 3


def test_the_counters_count_what_was_appended_and_neither_duplicates_nor_refused_batches(writer: RealLogWriter) -> None:
    source = Source(writer)
    source.produce(transactional_batch(7, 0, 0, b"a"))
    guard = source.take()[0].guard
    for sequence, value in ((0, b"a"), (1, b"b"), (1, b"b"), (9, b"gap")):
        source.produce(transactional_batch(7, 0, sequence, value), guard)
    source.mark(7, 0, True)
    answered = [(each.error_code, each.base_offset) for each in source.take()]
    assert answered == [(0, 0), (0, 1), (0, 1), (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1), (0, 2)]
    counted = {name: writer.counters.counter(f"log_writer.{name}").value for name in ("records", "batches", "bytes")}
    assert counted == {"records": 3, "batches": 3, "bytes": source.row.active_position}


def test_an_abort_is_in_the_table_before_readers_may_read_that_far(writer: RealLogWriter) -> None:
    source = Source(writer)
    source.produce(transactional_batch(7, 0, 0, b"a"))
    source.produce(transactional_batch(7, 0, 0, b"a"), source.take()[0].guard)
    source.mark(7, 0, False)
    assert [each.error_code for each in source.take()] == [0, 0]
    assert (source.row.last_stable_offset, source.aborted_end) == (2, 2)


def test_markers_are_fenced_by_epochs_and_not_by_configs(writer: RealLogWriter) -> None:
    source = Source(writer)
    source.mark(7, 3, True, coordinator_epoch=5, config_generation=99)
    source.mark(7, 2, True, coordinator_epoch=5)
    source.mark(7, 3, True, coordinator_epoch=4)
    source.mark(7, 3, True, coordinator_epoch=5, leader_epoch=1)
    source.mark(8, 0, False, coordinator_epoch=-1)
    codes = [0, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0]
    assert sorted(each.error_code for each in source.take()) == sorted(codes)
    hosted = writer.agent.partitions.find(TOPIC_ID, 0)
    assert hosted is not None
    known = dict(hosted.log.producers.snapshot())
    assert (known[7].producer_epoch, known[7].coordinator_epoch, known[8].coordinator_epoch) == (3, 5, -1)


def test_a_late_marker_of_the_second_protocol_ends_nothing_that_has_its_epoch(writer: RealLogWriter) -> None:
    source = Source(writer)
    source.produce(transactional_batch(7, 1, 0, b"a"))
    source.produce(transactional_batch(7, 1, 0, b"a"), source.take()[0].guard)
    source.mark(7, 1, True, raises_epoch=True)
    assert [each.error_code for each in source.take()] == [0, ErrorCode.INVALID_PRODUCER_EPOCH]
    assert (source.row.high_watermark, source.row.last_stable_offset) == (1, 0)
    source.mark(7, 2, True, raises_epoch=True)
    source.mark(7, 2, True, raises_epoch=True)
    assert [(each.error_code, each.log_end_offset) for each in source.take()] == [(0, 2), (0, 2)]
    assert source.row.last_stable_offset == 2


def test_a_producer_that_adds_partitions_by_producing_is_always_verified(writer: RealLogWriter) -> None:
    source = Source(writer)
    source.produce(transactional_batch(7, 0, 5, b"a"), flags=ADDS_PARTITION_FLAG)
    guard = source.take()[0].guard
    source.produce(transactional_batch(7, 0, 5, b"a"), guard, ADDS_PARTITION_FLAG)
    assert [each.error_code for each in source.take()] == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]


@pytest.mark.parametrize("room", [0, 1, 2, 5])
def test_producers_are_described_as_far_as_the_slot_has_space(writer: RealLogWriter, room: int) -> None:
    source = Source(writer)
    for producer_id in (7, 8, 9):
        source.produce(transactional_batch(producer_id, 0, 4, b"a", is_transactional=False))
    source.mark(8, 1, True, coordinator_epoch=6)
    assert [each.error_code for each in source.take()] == [0] * 4
    size_bytes = room * PRODUCER_ENTRY.size
    position = source.arena.allocate(size_bytes or 1)
    source.offer(DescriptorKind.DESCRIBE_PRODUCERS, 0, size_bytes, position)
    (told,) = source.take()
    assert (told.error_code, told.record_count) == (0, 3)
    found: list[Any] = unpack_producers(source.arena.memory[position : position + size_bytes], told.record_count)
    wanted = [(7, 0, 4, -1), (8, 1, -1, 6), (9, 0, 4, -1)]
    assert [(each.producer_id, each.producer_epoch, each.last_sequence, each.coordinator_epoch) for each in found] == wanted[:room]


def test_a_row_that_is_not_led_describes_no_producer(writer: RealLogWriter) -> None:
    source = Source(writer)
    source.offer(DescriptorKind.DESCRIBE_PRODUCERS, row_generation=77)
    assert [each.error_code for each in source.take()] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_silent_producers_are_forgotten_in_a_sweep_every_ten_minutes(writer: RealLogWriter) -> None:
    source = Source(writer)
    now_ms = writer.clock.wall_ms()
    source.produce(transactional_batch(7, 0, 0, b"a", is_transactional=False, timestamp_ms=now_ms))
    source.produce(transactional_batch(8, 0, 0, b"a", is_transactional=False, timestamp_ms=now_ms + PRODUCER_EXPIRATION_MS))
    assert [each.error_code for each in source.take()] == [0, 0]
    hosted = writer.agent.partitions.find(TOPIC_ID, 0)
    assert hosted is not None
    writer.clock.advance_ms(SWEEP_NS // 1_000_000)
    source.take()
    assert len(hosted.log.producers) == 2
    writer.clock.advance_ms(PRODUCER_EXPIRATION_MS)
    source.take()
    assert [producer_id for producer_id, _ in hosted.log.producers.snapshot()] == [8]


# --- a coordinator that asks another box first


def _ask_for_guard(source: Source, producer_epoch: int = 0) -> tuple[int, int]:
    source.offer(DescriptorKind.BEGIN_VERIFICATION, values=(9, 0, producer_epoch, 0))
    (completion,) = source.take()
    return completion.error_code, completion.guard


def _commit_offsets(source: Source, guard: int, producer_epoch: int = 0) -> int:
    """As a group coordinator does whose transactions another box coordinates."""
    source.produce(transactional_batch(9, producer_epoch, 0, b"offsets"), guard, ACKS_ALL_FLAG | COORDINATOR_FLAG | VERIFIED_FLAG)
    (completion,) = source.take()
    return completion.error_code


def test_what_a_coordinator_asked_another_box_about_is_taken_with_its_guard_and_then_without(writer: RealLogWriter) -> None:
    source = Source(writer)
    code, guard = _ask_for_guard(source)
    assert code == 0 and guard > 0
    assert _commit_offsets(source, guard) == 0
    assert _ask_for_guard(source) == (0, 0), "no verification is needed while the transaction is open"
    assert _commit_offsets(source, 0) == 0
    source.mark(9, 0, True)
    assert [completion.error_code for completion in source.take()] == [0]
    assert _commit_offsets(source, 0) == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("marker_epoch", [0, 1])
def test_what_ended_while_another_box_was_asked_takes_nothing_more(writer: RealLogWriter, marker_epoch: int) -> None:
    source = Source(writer)
    _, guard = _ask_for_guard(source)
    source.mark(9, marker_epoch, False)
    assert [completion.error_code for completion in source.take()] == [0]
    assert _commit_offsets(source, guard) == (ErrorCode.INVALID_PRODUCER_EPOCH if marker_epoch else ErrorCode.INVALID_TXN_STATE)
    _, again = _ask_for_guard(source, 1)
    assert again not in (0, guard)
    assert _commit_offsets(source, again, 1) == 0, "of the next transaction"


def test_only_the_leader_gives_a_guard(writer: RealLogWriter) -> None:
    source = Source(writer)
    source.offer(DescriptorKind.BEGIN_VERIFICATION, values=(9, 0, 0, 0), leader_epoch=7)
    assert [(completion.error_code, completion.guard) for completion in source.take()] == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)]
