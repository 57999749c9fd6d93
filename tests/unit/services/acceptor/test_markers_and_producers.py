"""WriteTxnMarkers and DescribeProducers stepped by hand: a real row, a real arena, a log-writer that the test plays."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import ErrorCode
from appliance.cluster.metadata_cache import LocalReplica, MetadataCache, RowAddress
from appliance.cluster.state_log import OFFSETS_TOPIC
from appliance.ipc.descriptors import COMMIT_FLAG, PRODUCER_ENTRY, Descriptor, DescriptorKind
from appliance.ipc.request_frames import TRANSACTION_ENDED, unpack_ended_transaction
from appliance.ipc.request_link import CoordinatorLink
from appliance.protocol import transaction_apis
from appliance.protocol.apis import ApiKey
from appliance.protocol.framing import RequestHeader
from appliance.protocol.topic_partitions import TopicPartitions
from appliance.security.transport import PlainTransport
from appliance.shm.arena import Arena
from appliance.shm.counters import Counters
from appliance.shm.partition_table import ROLE_LEADER, PartitionTableReader, PartitionTableWriter, Row
from lab.scratch_layout import scratch_layout
from services.acceptor.connection import Connection, PendingReply
from services.acceptor.delayed import DelayedRequests
from services.acceptor.fanned_out_request import RequestPart
from services.acceptor.handlers.describe_producers import FIRST_PRODUCERS, DescribeProducersHandler
from services.acceptor.handlers.write_txn_markers import WriteTxnMarkersHandler
from tests.support.reference_cycles import leaves_none_of

ROW = Row(bytes(16), 0, 0, ROLE_LEADER, 3, 0, 10, 10, 10, 1, 1, 0, 0, 100, 0, 100, 1)


class Side:
    """Partitions `t-0` and `t-2`, each with its row; `offered` has what the handlers send to the log-writer."""

    def __init__(self, layout: Any) -> None:
        self.clock = ManualClock()
        self.counters = Counters.create_or_adopt(layout, "acceptor@0", 1)
        self.writer = PartitionTableWriter.create(layout.shared_memory_name("table", "d0", 1), 1)
        self.writer.add_row(ROW)
        self.writer.add_row(ROW._replace(partition=2))
        self.table = PartitionTableReader.attach(layout.shared_memory_name("table", "d0", 1))
        self.arena = Arena.create(layout.shared_memory_name("arena", "acceptor@0", 1), 1 << 20, 1)
        self.offered: list[tuple[Descriptor, Any]] = []
        proxy = cast(Any, SimpleNamespace(disk="d0", serving=True, table=self.table, offer_or_queue=self._offer))
        placement = LocalReplica("t", bytes(16), 0, proxy, RowAddress(self.table, 0, 1))
        other = LocalReplica("t", bytes(16), 2, proxy, RowAddress(self.table, 1, 2))
        find = {("t", 0): placement, ("t", 2): other, (OFFSETS_TOPIC, 0): placement}.get
        view = SimpleNamespace(placement=lambda *name: find(name), why_absent=lambda *_: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self.delayed = DelayedRequests()
        self.answered: list[Connection] = []
        self.told: list[tuple[int, bytes, Callable[[bytes | None], None]]] = []
        coordinator = SimpleNamespace(request=lambda kind, payload, _timeout_ms, on_response, answer_timeout_ms: self.told.append((kind, payload, on_response)))
        self.markers = WriteTxnMarkersHandler(
            cast(MetadataCache, view), self.delayed, cast(CoordinatorLink, coordinator), self.clock, self.counters, self.answered.append
        )
        self.producers = DescribeProducersHandler(cast(MetadataCache, view), self.arena, self.clock, self.answered.append)
        self._socks: list[socket.socket] = []

    def _offer(self, descriptor: tuple[int, ...], _charge: int, part: Any) -> bool:
        self.offered.append((Descriptor._make(descriptor), part))
        return True

    def ask(self, handler: Any, key: ApiKey, version: int, body: bytes) -> Connection:
        ours, theirs = socket.socketpair()
        self._socks += (ours, theirs)
        connection = Connection(PlainTransport(ours), "test", self.clock.monotonic_ns())
        handler.handle(connection, RequestHeader(key, version, 7, "", 0), memoryview(body), len(body))
        return connection

    def answer(self, connection: Connection) -> bytes:
        """The body of its one answer."""
        assert self.answered == [connection]
        self.answered.clear()
        connection.collect_ready()
        return b"".join(bytes(cast(bytes, piece)) for piece in connection.outgoing)[9:]

    def close(self) -> None:
        for sock in self._socks:
            sock.close()
        self.table.close()
        self.writer.close()
        self.arena.close()
        self.counters.close()


@pytest.fixture
def side() -> Iterator[Side]:
    with scratch_layout() as layout:
        made = Side(layout)
        yield made
        made.close()


def mark(side: Side, *partitions: int, topic: str = "t") -> Connection:
    marker = transaction_apis.TxnMarker(77, 5, True, (TopicPartitions(topic, partitions),), -1)
    return side.ask(
        side.markers, ApiKey.WRITE_TXN_MARKERS, 1, transaction_apis.WRITE_TXN_MARKERS_REQUEST.encode(1, transaction_apis.WriteTxnMarkersRequest((marker,)))
    )


def codes(side: Side, connection: Connection) -> list[int]:
    body = side.answer(connection)
    (result,) = transaction_apis.WRITE_TXN_MARKERS_RESPONSE.decode(body, 0, len(body), 1).markers
    assert result.producer_id == 77
    return [each.error_code for each in result.topics[0].partitions]


def written(end_offset: int) -> tuple[int, ...]:
    return (DescriptorKind.TRANSACTION_MARKER, 0, 0, 0, 1, end_offset - 1, -1, 0, end_offset, 3, 1, 0)


def test_a_marker_is_answered_when_the_high_watermark_has_passed_it(side: Side) -> None:
    connection = mark(side, 0, 1)
    ((descriptor, part),) = side.offered
    assert (descriptor.kind, descriptor.value_a, descriptor.value_b, descriptor.value_c) == (DescriptorKind.TRANSACTION_MARKER, 77, 0xFFFFFFFF, 5)
    assert descriptor.flags & COMMIT_FLAG and descriptor.leader_epoch == 3
    part.on_completion(written(11))
    assert not side.answered and len(side.delayed) == 1
    side.writer.store_progress(0, 11, 11, 120)
    side.delayed.wake_moved()
    assert codes(side, connection) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] and len(side.delayed) == 0


@pytest.mark.parametrize("heard", [b"\0", None])
def test_a_marker_among_the_offsets_of_groups_is_answered_when_their_coordinator_has_heard_of_it_or_is_away(side: Side, heard: bytes | None) -> None:
    connection = mark(side, 0, 1, topic=OFFSETS_TOPIC)
    side.offered[0][1].on_completion(written(11))
    side.writer.store_progress(0, 11, 11, 120)
    side.delayed.wake_moved()
    ((kind, payload, on_response),) = side.told
    assert (kind, unpack_ended_transaction(payload)) == (TRANSACTION_ENDED, (0, 77, True)) and not side.answered
    on_response(heard)
    assert codes(side, connection) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_marker_whose_partition_changes_hands_is_to_be_written_again(side: Side) -> None:
    connection = mark(side, 0)
    side.offered[0][1].on_completion(written(11))
    side.writer.store(0, ROW._replace(row_generation=1, leader_epoch=4, high_watermark=11, log_end_offset=11))
    side.delayed.wake_moved()
    assert codes(side, connection) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


@pytest.mark.parametrize("is_written", [False, True])
def test_a_marker_that_takes_too_long_times_out_and_a_late_answer_is_no_second_one(side: Side, is_written: bool) -> None:
    connection = mark(side, 0)
    part = side.offered[0][1]
    if is_written:
        part.on_completion(written(11))
        side.clock.advance_ms(5_000)
        assert side.delayed.expire(side.clock.monotonic_ns()) == 1
    else:
        part.request.on_too_late()
    assert codes(side, connection) == [ErrorCode.REQUEST_TIMED_OUT]
    part.on_completion(written(11))
    part.on_lost()
    assert not side.answered


def test_a_marker_that_a_hung_disk_writes_late_does_not_stand_for_another(side: Side) -> None:
    connection = mark(side, 0, 2)
    (_, hung), (_, other) = side.offered
    hung.on_hung()
    hung.on_completion(written(11))
    assert not len(side.delayed), "the other marker is not written yet"
    other.on_completion(written(11))
    assert not side.answered and len(side.delayed) == 1
    side.writer.store_progress(1, 11, 11, 120)
    side.delayed.wake_moved()
    assert codes(side, connection) == [ErrorCode.NOT_LEADER_OR_FOLLOWER, 0]


@pytest.mark.parametrize("end", ["replicated", "too late", "closed"])
def test_markers_leave_no_reference_cycle(side: Side, end: str) -> None:
    with leaves_none_of(RequestPart, PendingReply, Connection):
        connection = mark(side, 0)
        side.offered.pop()[1].on_completion(written(11))
        if end == "replicated":
            side.writer.store_progress(0, 11, 11, 120)
            side.delayed.wake_moved()
        elif end == "too late":
            side.clock.advance_ms(5_000)
            side.delayed.expire(side.clock.monotonic_ns())
        else:
            connection.closed = True
            side.delayed.forget_closed()
        assert not len(side.delayed) and bool(side.answered) is (end != "closed")
        side.answered.clear()
        connection.replies.clear()
        del connection


def describe(side: Side, *partitions: int) -> Connection:
    body = transaction_apis.DESCRIBE_PRODUCERS_REQUEST.encode(0, transaction_apis.DescribeProducersRequest((TopicPartitions("t", partitions),)))
    return side.ask(side.producers, ApiKey.DESCRIBE_PRODUCERS, 0, body)


def described(side: Side, connection: Connection) -> list[tuple[int, list[int]]]:
    body = side.answer(connection)
    (topic,) = transaction_apis.DESCRIBE_PRODUCERS_RESPONSE.decode(body, 0, len(body), 0).topics
    return [(each.error_code, [producer.producer_id for producer in each.producers]) for each in topic.partitions]


def tell(side: Side, count: int, code: int = 0) -> None:
    """As a log-writer answers the newest descriptor."""
    descriptor, part = side.offered[-1]
    fitting = min(count, descriptor.length // PRODUCER_ENTRY.size)
    packed = b"".join(PRODUCER_ENTRY.pack(producer_id, 0, 0, 0, -1, -1) for producer_id in range(fitting))
    side.arena.memory[descriptor.position : descriptor.position + len(packed)] = packed
    part.on_completion((DescriptorKind.DESCRIBE_PRODUCERS, 0, code, 0, 1, -1, -1, -1, 0, 3, count, 0))


@pytest.mark.parametrize("count", [0, 1, FIRST_PRODUCERS])
def test_producers_are_described_and_the_slot_is_freed(side: Side, count: int) -> None:
    free = side.arena.free_bytes
    connection = describe(side, 0, 1)
    tell(side, count)
    assert described(side, connection) == [(0, list(range(count))), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])]
    assert side.arena.free_bytes == free and len(side.offered) == 1


def test_more_producers_than_fit_are_requested_again_with_a_larger_slot(side: Side) -> None:
    connection = describe(side, 0)
    tell(side, FIRST_PRODUCERS + 50)
    assert not side.answered and len(side.offered) == 2
    tell(side, FIRST_PRODUCERS + 60)  # more came meanwhile: they are left out
    assert described(side, connection) == [(0, list(range(FIRST_PRODUCERS + 50)))]


def test_the_slot_of_a_hung_log_writer_stays_taken_until_it_is_done_or_dead(side: Side) -> None:
    free = side.arena.free_bytes
    connection = describe(side, 0)
    side.offered[0][1].on_hung()
    assert described(side, connection) == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, [])] and side.arena.free_bytes < free
    side.offered[0][1].on_lost()
    assert side.arena.free_bytes == free and not side.answered


def test_a_partition_that_is_named_again_and_again_is_described_once_and_an_answer_has_a_bound(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = describe(side, *[0] * 1_000)
    tell(side, 1)
    assert described(side, connection) == [(0, [0])] and len(side.offered) == 1
    monkeypatch.setattr("services.acceptor.handlers.describe_producers._Request.producers_left", FIRST_PRODUCERS)
    connection, free = describe(side, 0), side.arena.free_bytes
    tell(side, FIRST_PRODUCERS + 1)
    assert described(side, connection) == [(ErrorCode.INVALID_REQUEST, [])] and side.arena.free_bytes > free
