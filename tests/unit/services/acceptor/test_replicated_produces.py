"""Parked produces: acks=all that wait for followers, and acks=1 without a lease.

The tests move the high watermark, the ISR or the leader, and check the response. The row is real, the
log-writer is played by the test.
"""

from __future__ import annotations

import datetime
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import ErrorCode
from appliance.base.layout import BoxLayout
from appliance.base.model import TopicId
from appliance.client.transaction_gate import OnVerified
from appliance.cluster.lease_gate import LeaseGate
from appliance.cluster.metadata_cache import LocalReplica, MetadataCache, RowAddress
from appliance.cluster.metadata_image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from appliance.ipc.descriptors import BEHIND_REFUSED_FLAG, NEEDS_VERIFICATION
from appliance.protocol.apis import ApiKey
from appliance.protocol.framing import RequestHeader
from appliance.protocol.metadata import REQUEST as METADATA_REQUEST
from appliance.protocol.metadata import MetadataRequest, MetadataRequestTopic
from appliance.records.batch import TRANSACTIONAL_FLAG
from appliance.records.builder import BatchBuilder
from appliance.security.transport import PlainTransport
from appliance.shm.arena import Arena
from appliance.shm.counters import Counters
from appliance.shm.partition_table import ROLE_FOLLOWER, ROLE_LEADER, PartitionTableReader, PartitionTableWriter, Row
from lab import kio_adapter
from lab.scratch_layout import scratch_layout
from services.acceptor.connection import Connection, PendingReply
from services.acceptor.delayed import DelayedRequests
from services.acceptor.handlers.metadata import MetadataHandler
from services.acceptor.handlers.produce import ProduceHandler
from services.acceptor.produce.produce_answers import PendingProduce
from tests.support.reference_cycles import leaves_none_of
from tests.unit.storage.storage_support import batch as stored_batch
from tests.unit.storage.storage_support import with_attributes

VERSION = 10
TOPIC_ID = TopicId(b"t" * 16)
ROW = Row(bytes(TOPIC_ID), 0, 0, ROLE_LEADER, 5, 0, 100, 90, 90, 3, 2, 0, 0, 1_000, 0, 900, 1)


class OneLedPartition:
    """Partition 0 of topic t, led here (box 1) under epoch 5 for boxes 1, 2, 3, with its log end at 100."""

    def __init__(self, layout: BoxLayout, lease: LeaseGate | None = None) -> None:
        self.questions: list[OnVerified] = []
        verifier: Any = SimpleNamespace(verify=lambda *question: self.questions.append(question[-1]))
        self.clock = ManualClock()
        self.counters = Counters.create_or_adopt(layout, "acceptor@0", 1)
        self.arena = Arena.create(layout.shared_memory_name("arena", "acceptor@0", 1), 1 << 20, 1)
        self.table = PartitionTableWriter.create(layout.shared_memory_name("table", "d0", 1), 1)
        self.row, generation = self.table.add_row(ROW)
        self.reader = PartitionTableReader.attach(layout.shared_memory_name("table", "d0", 1))
        self.parts: list[Any] = []
        proxy = SimpleNamespace(disk="d0", serving=True, is_hung=False, table=self.reader, outstanding_bytes=0, offer_or_queue=self._offer)
        self.placement = LocalReplica("t", bytes(TOPIC_ID), 0, cast(Any, proxy), RowAddress(self.reader, self.row, generation), 1 << 20)
        self.placement.replicas = (1, 2, 3)
        self.view = MetadataCache(1, cast(Any, SimpleNamespace(by_disk={})))
        self.view.by_name["t", 0] = self.placement
        self.lead(1)
        self.delayed = DelayedRequests()
        self.produces = ProduceHandler(self.view, self.arena, self.delayed, self.clock, self.counters, 1 << 20, lambda _: None, verifier, lease)
        ours, theirs = socket.socketpair()
        self._socks = ours, theirs
        self.connection = Connection(PlainTransport(ours), "test", 0)

    def _offer(self, _descriptor: tuple[int, ...], _charge: int, part: object) -> bool:
        self.parts.append(part)
        return True

    def lead(self, leader: int, live: tuple[int, ...] = (1, 2, 3)) -> None:
        """What the image says."""
        topic = TopicImage("t", TOPIC_ID, (PartitionImage(leader, 6, (1, 2, 3), (1, 2)),), {})
        self.view.set_image(MetadataImage(self.view.image.generation + 1, "c", 1, {each: BrokerImage(each, f"box{each}", 9092) for each in live}, {"t": topic}))

    def move(self, **fields: int) -> None:
        """The log-writer stores the row and wakes the waiting request."""
        row = self.reader.read(self.row)
        self.table.store(self.row, row._replace(**fields))
        self.delayed.wake_moved()

    def produce(self, acks: int = -1, sequence: int | None = None, producer_epoch: int = 0, transactional_id: str | None = None) -> None:
        """With a sequence: of an idempotent producer."""
        builder = BatchBuilder()
        builder.append(1_700_000_000_000, None, b"v")
        batch = builder.build() if sequence is None else stored_batch(b"v", producer=(7, producer_epoch, sequence))
        if transactional_id is not None:
            batch = with_attributes(memoryview(bytearray(batch)), TRANSACTIONAL_FLAG)
        request = kio_adapter.request_class(ApiKey.PRODUCE, VERSION)
        module = __import__(request.__module__, fromlist=["x"])
        topic = module.TopicProduceData(name="t", partition_data=(module.PartitionProduceData(index=0, records=batch),))
        body = kio_adapter.encode(request(transactional_id=transactional_id, acks=acks, timeout=datetime.timedelta(seconds=9), topic_data=(topic,)))
        assert self.produces.handle(self.connection, RequestHeader(0, VERSION, 7, "", 0), memoryview(body), len(body), None)

    def refuse(self, part: Any, code: ErrorCode) -> None:
        """The log-writer does not take a batch."""
        self.produces.on_completion(part, (1, 0, code, self.row, 1, -1, -1, 0, -1, 5, 1, 0))

    def want_verified(self, part: Any, guard: int) -> None:
        """The log-writer wants the transaction's coordinator to be asked."""
        self.parts.remove(part)
        self.produces.on_completion(part, (1, 0, NEEDS_VERIFICATION, self.row, 1, -1, -1, 0, -1, 5, 1, guard))

    def ask(self) -> OnVerified:
        """The one question about a transaction that is due."""
        assert self.produces.transactions.ask(self.clock.monotonic_ns()) == 1
        return self.questions.pop()

    def append(self) -> None:
        """The log-writer has the batch: it is record 100."""
        self.move(log_end_offset=101, active_position=1_070)
        self.produces.on_completion(self.parts.pop(), (1, 0, 0, self.row, 1, 100, -1, 0, 101, 5, 1, 0))

    def answered(self) -> Any:
        """The answer as kio reads it; None while there is none."""
        self.connection.collect_ready()
        data = b"".join(bytes(cast(Any, piece)) for piece in self.connection.outgoing)
        self.connection.outgoing.clear()
        return kio_adapter.decode_response(ApiKey.PRODUCE, VERSION, data[9:]) if data else None

    def answers(self) -> list[ErrorCode]:
        """Of several requests."""
        found = []
        for reply in list(self.connection.replies):
            data = b"".join(bytes(cast(Any, piece)) for piece in reply.pieces)
            answer = cast(Any, kio_adapter.decode_response(ApiKey.PRODUCE, VERSION, data[9:]))
            found.append(ErrorCode(answer.responses[0].partition_responses[0].error_code))
        return found

    def outcome(self) -> ErrorCode | None:
        answer = self.answered()
        return None if answer is None else ErrorCode(answer.responses[0].partition_responses[0].error_code)

    def close(self) -> None:
        self.reader.close()
        self.table.close()
        self.arena.close()
        self.counters.close()
        for sock in self._socks:
            sock.close()


@pytest.fixture
def led() -> Iterator[OneLedPartition]:
    with scratch_layout() as layout:
        made = OneLedPartition(layout)
        yield made
        made.close()


def parked(led: OneLedPartition) -> None:
    led.produce()
    led.append()
    assert led.answered() is None and len(led.delayed) == 1


def test_a_produce_waits_until_the_high_watermark_has_passed_it(led: OneLedPartition) -> None:
    parked(led)
    led.move(high_watermark=100)
    assert led.outcome() is None
    led.move(high_watermark=101)
    assert led.outcome() is ErrorCode.NONE and len(led.delayed) == 0


def test_a_parked_produce_whose_connection_closes_leaves_no_reference_cycle(led: OneLedPartition) -> None:
    with leaves_none_of(PendingProduce, PendingReply):
        parked(led)
        led.connection.closed = True
        led.connection.replies.clear()
        assert led.delayed.forget_closed() == 1


def test_an_isr_below_the_minimum_fails_the_request_when_the_high_watermark_passes_it(led: OneLedPartition) -> None:
    parked(led)
    led.move(isr_size=1)
    assert led.outcome() is None, "it may still come"
    led.move(high_watermark=101)
    assert led.outcome() is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_a_smaller_in_sync_set_that_is_large_enough_is_enough(led: OneLedPartition) -> None:
    parked(led)
    led.move(isr_size=2, high_watermark=101)
    assert led.outcome() is ErrorCode.NONE


def test_nothing_is_appended_with_too_few_replicas(led: OneLedPartition) -> None:
    led.move(isr_size=1)
    led.produce()
    assert led.outcome() is ErrorCode.NOT_ENOUGH_REPLICAS and not led.parts
    led.produce(acks=1)
    assert len(led.parts) == 1


@pytest.mark.parametrize("fields", [{"role": ROLE_FOLLOWER, "leader_epoch": 6}, {"leader_epoch": 6}, {"role": ROLE_FOLLOWER}])
def test_a_parked_produce_of_a_deposed_leader_is_not_acknowledged_whatever_the_row_says(led: OneLedPartition, fields: dict[str, int]) -> None:
    parked(led)
    led.lead(2)
    led.table.store_led_since(led.row, 6)
    led.move(high_watermark=200, log_end_offset=200, **fields)
    answer = led.answered()
    (partition,) = answer.responses[0].partition_responses
    assert ErrorCode(partition.error_code) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (2, 6)
    assert [(node.node_id, node.host, node.port) for node in answer.node_endpoints] == [(2, "box2", 9092)]


def test_a_larger_epoch_of_an_unbroken_leadership_leaves_a_parked_produce_where_it_is(led: OneLedPartition) -> None:
    led.table.store_led_since(led.row, 5)
    parked(led)
    led.move(leader_epoch=6)
    assert led.outcome() is None
    led.move(high_watermark=101)
    assert led.outcome() is ErrorCode.NONE


def test_a_row_that_belongs_to_another_partition_now_acknowledges_nothing(led: OneLedPartition) -> None:
    parked(led)
    led.table.remove_row(led.row)
    assert led.table.add_row(ROW._replace(high_watermark=1_000, log_end_offset=1_000))[0] == led.row
    led.delayed.wake_moved()
    assert led.outcome() is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_request_that_waits_longer_than_its_timeout_fails(led: OneLedPartition) -> None:
    parked(led)
    led.clock.advance_ms(9_000)
    led.delayed.expire(led.clock.monotonic_ns())
    assert led.outcome() is ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize(("acks", "has_ended", "waits"), [(1, True, True), (-1, True, True), (-1, False, True), (1, False, False)])
def test_without_a_lease_a_batch_is_acknowledged_when_the_whole_in_sync_set_has_it(acks: int, has_ended: bool, waits: bool) -> None:
    with scratch_layout() as layout:
        lease: Any = SimpleNamespace(has_ended=lambda: has_ended)
        led = OneLedPartition(layout, lease)
        led.produce(acks)
        led.append()
        assert led.outcome() is (None if waits else ErrorCode.NONE)
        if waits:
            led.move(high_watermark=101)
            assert led.outcome() is ErrorCode.NONE
        led.close()


# -- Metadata


def described(led: OneLedPartition, version: int) -> Any:
    request = kio_adapter.request_class(ApiKey.METADATA, version)
    flags = {"include_topic_authorized_operations": False} if version >= 8 else {}
    return described_topics(led, version, kio_adapter.encode(request(topics=None if version else (), **flags)))[0].partitions[0]


def described_topics(led: OneLedPartition, version: int, body: bytes) -> Any:
    handler = MetadataHandler(led.view, cast(Any, None), led.counters, True, lambda _: None)
    handler.handle(led.connection, RequestHeader(3, version, 7, "", 0), memoryview(body), len(body))
    led.connection.collect_ready()
    data = b"".join(bytes(cast(Any, piece)) for piece in led.connection.outgoing)
    led.connection.outgoing.clear()
    return kio_adapter.decode_response(ApiKey.METADATA, version, data[9 if version >= 9 else 8 :]).topics


def test_a_replica_whose_box_is_gone_is_offline_and_a_leader_that_is_gone_is_none(led: OneLedPartition) -> None:
    led.lead(1, live=(1, 2))
    outcome = described(led, 12)
    assert (outcome.error_code, outcome.leader_id, outcome.replica_nodes, outcome.isr_nodes, outcome.offline_replicas) == (0, 1, (1, 2, 3), (1, 2), (3,))
    led.lead(2, live=(1, 3))
    outcome = described(led, 12)
    assert (ErrorCode(outcome.error_code), outcome.leader_id, outcome.leader_epoch, outcome.offline_replicas) == (ErrorCode.LEADER_NOT_AVAILABLE, -1, 6, (2,))


def test_metadata_version_0_lists_only_replicas_whose_boxes_it_lists(led: OneLedPartition) -> None:
    led.lead(1, live=(1, 3))
    outcome = described(led, 0)
    assert (ErrorCode(outcome.error_code), outcome.leader_id, outcome.replica_nodes, outcome.isr_nodes) == (ErrorCode.REPLICA_NOT_AVAILABLE, 1, (1, 3), (1,))


def test_a_batch_that_has_overtaken_one_whose_configs_had_changed_is_offered_again_behind_it(led: OneLedPartition) -> None:
    """After OUT_OF_ORDER_SEQUENCE_NUMBER for a batch whose predecessors were acknowledged,
    librdkafka ends its producer.
    """
    led.produce()
    led.move(config_generation=3)
    led.produce()
    first, second = led.parts
    led.parts.clear()
    led.refuse(first, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    led.refuse(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert led.parts == [first, second] and led.answered() is None
    led.refuse(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    led.refuse(first, ErrorCode.KAFKA_STORAGE_ERROR)
    assert led.parts == [first, second] and led.outcome() is ErrorCode.KAFKA_STORAGE_ERROR


def test_an_out_of_order_sequence_is_reported_if_no_batch_was_overtaken(led: OneLedPartition) -> None:
    led.produce()
    led.refuse(led.parts.pop(), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert not led.parts and led.outcome() is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_what_comes_behind_a_refused_batch_of_a_producer_waits_for_it_to_come_again(led: OneLedPartition) -> None:
    """The partition begins to be led between two batches. The second must not reach the log first, whether it knows the producer or not: the log-writer
    is woken."""
    led.move(role=ROLE_FOLLOWER)
    led.produce(sequence=5)
    assert led.outcome() is ErrorCode.NOT_LEADER_OR_FOLLOWER
    led.move(role=ROLE_LEADER)
    led.produce(sequence=6)
    assert behind(led) == [True]
    led.refuse(led.parts.pop(), ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert led.outcome() is ErrorCode.NOT_LEADER_OR_FOLLOWER
    led.produce(sequence=5)
    led.produce(sequence=6)
    assert behind(led) == [False, False]
    led.move(role=ROLE_FOLLOWER)
    led.produce(sequence=7)
    led.move(role=ROLE_LEADER)
    led.produce(sequence=0, producer_epoch=1)
    assert behind(led) == [False] * 3, "another epoch begins anew"


def test_a_refused_batch_that_went_to_another_leader_is_awaited_until_the_log_has_what_comes_behind_it(led: OneLedPartition) -> None:
    """Leadership leaves a box and comes back while its producer keeps the connection: what was refused here is in the log, and never comes again."""
    led.move(role=ROLE_FOLLOWER)
    led.produce(sequence=5)
    led.move(role=ROLE_LEADER)
    led.produce(sequence=90)
    led.produce(sequence=91)
    assert behind(led) == [True, True]
    led.append()
    led.produce(sequence=92)
    assert behind(led) == [True, False]


def behind(led: OneLedPartition) -> list[bool]:
    """Of each batch that the log-writer was given: is it to look whether it may be taken?"""
    return [bool(part.descriptor[1] & BEHIND_REFUSED_FLAG) for part in led.parts]


def test_a_wrong_sequence_behind_a_batch_that_its_log_writer_refused_is_to_be_tried_again(led: OneLedPartition) -> None:
    for sequence in (2**31 - 1, 0, 1):
        led.produce(sequence=sequence)
    for part in led.parts:
        led.refuse(part, ErrorCode.NOT_ENOUGH_REPLICAS if part is led.parts[0] else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    answers = led.answers()
    assert answers == [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_LEADER_OR_FOLLOWER]


@pytest.mark.parametrize("was_offered", [False, True])
def test_a_wrong_sequence_behind_a_batch_whose_coordinator_was_away_is_to_be_tried_again(led: OneLedPartition, was_offered: bool) -> None:
    """The second batch waits behind the first, or has reached the log-writer. After
    OUT_OF_ORDER_SEQUENCE_NUMBER, librdkafka gives the transaction up.
    """
    led.produce(sequence=0, transactional_id="tx")
    if was_offered:
        led.produce(sequence=1, transactional_id="tx")
    led.want_verified(led.parts[0], 11)
    on_answer = led.ask()
    if not was_offered:
        led.produce(sequence=1, transactional_id="tx")
    on_answer([ErrorCode.COORDINATOR_NOT_AVAILABLE])
    (second,) = led.parts
    assert was_offered or behind(led) == [True]
    led.refuse(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert led.answers() == [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_a_batch_that_has_overtaken_one_that_came_back_to_be_verified_is_offered_again_behind_it(led: OneLedPartition) -> None:
    """The coordinator answers before the log-writer has looked at the second batch; the third finds the transaction open, and the second not there."""
    for sequence in (0, 1):
        led.produce(sequence=sequence, transactional_id="tx")
    first, second = led.parts
    led.want_verified(first, 11)
    led.ask()([ErrorCode.NONE])
    led.produce(sequence=2, transactional_id="tx")
    third = led.parts[-1]
    led.want_verified(second, 11)
    assert led.parts == [first, third, second]
    led.parts.remove(third)
    led.refuse(third, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert led.parts == [first, second, third] and led.answered() is None
    led.parts.remove(third)
    led.refuse(third, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert led.parts == [first, second], "overtaken by nothing since"


def test_a_topic_id_counts_before_the_name_that_goes_with_it(led: OneLedPartition) -> None:
    led.lead(1, live=(1, 2, 3))
    topic_id, unknown = led.view.image.topics["t"].topic_id, TopicId(b"?" * 16)
    wanted = [MetadataRequestTopic(topic_id, ""), MetadataRequestTopic(topic_id, None), MetadataRequestTopic(unknown, ""), MetadataRequestTopic(unknown, "new")]
    found = described_topics(led, 12, METADATA_REQUEST.encode(12, MetadataRequest(tuple(wanted))))
    assert [(ErrorCode(topic.error_code), topic.name) for topic in found] == [(ErrorCode.NONE, "t"), (ErrorCode.UNKNOWN_TOPIC_ID, None)]
