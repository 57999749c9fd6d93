from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import ErrorCode, RequestRefused
from appliance.client import messages
from appliance.client.cluster import ClusterClient
from appliance.client.errors import ClientFailed
from appliance.client.fetch import StartAt, TopicTail
from appliance.records.batch import stamp_batch
from appliance.records.builder import BatchBuilder
from tests.unit.client.fake_kafka_broker import TOPIC, FakeKafkaBroker, HangUp, fetched

ENOUGH_MS = 5_000


def make_batch(base_offset: int, count: int) -> bytes:
    builder = BatchBuilder()
    for index in range(count):
        builder.append(1000, None, b"%d" % (base_offset + index))
    batch = bytearray(builder.build())
    stamp_batch(batch, 0, base_offset, 0)
    return bytes(batch)


class OnePartition:
    """Answers fetches out of a log of ten batches with ten records each; `turn` holds what happens to the next fetches instead."""

    def __init__(self) -> None:
        self.log_start_offset = 0
        self.end_offset = 100
        self.turns: list[Any] = []
        self.fetch_offsets: list[int] = []

    def fetch(self, request: Any) -> dict[str, Any] | bytes:
        offset = request.topics[0].partitions[0].fetch_offset
        self.fetch_offsets.append(offset)
        turn = self.turns.pop(0) if self.turns else None
        if isinstance(turn, ErrorCode):
            return fetched(0, code=turn)
        if isinstance(turn, Exception):
            raise turn
        if isinstance(turn, bytes):
            return fetched(0, turn)
        if not self.log_start_offset <= offset <= self.end_offset:
            return fetched(0, code=ErrorCode.OFFSET_OUT_OF_RANGE)
        if offset == self.end_offset:
            return fetched(0)
        return fetched(0, make_batch(offset // 10 * 10, 10))

    def list_offsets(self, request: Any) -> dict[str, Any]:
        asked = request.topics[0].partitions[0]
        offset = self.end_offset if asked.timestamp == StartAt.LATEST else self.log_start_offset
        if asked.timestamp >= 0:
            offset = -1
        answer = {"partition_index": 0, "error_code": 0, "timestamp": -1, "offset": offset, "leader_epoch": 0}
        return {"throttle_time": 0, "topics": [{"name": TOPIC, "partitions": [answer]}]}


@pytest.fixture
def partition() -> OnePartition:
    return OnePartition()


@pytest.fixture
def broker(partition: OnePartition) -> Iterator[FakeKafkaBroker]:
    made = FakeKafkaBroker()
    made.answers[messages.FETCH] = partition.fetch
    made.answers[messages.LIST_OFFSETS] = partition.list_offsets
    yield made
    made.close()


def read(tail: TopicTail, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        got = tail.poll(ENOUGH_MS)
        assert got, "nothing came"
        found += [int(record.value or b"") for _, records in got for record in records]
    return found


def test_everything_is_read_from_the_beginning_once_and_in_order(broker: FakeKafkaBroker) -> None:
    tail = broker.keep(TopicTail(broker.cluster(), TOPIC, start_at=StartAt.EARLIEST))
    assert read(tail, 100) == list(range(100))
    assert tail.next_offsets == {0: 100}
    assert tail.poll(10) == []


def test_reading_starts_at_the_end_by_default(broker: FakeKafkaBroker, partition: OnePartition) -> None:
    tail = broker.keep(TopicTail(broker.cluster(), TOPIC))
    partition.end_offset = 120
    assert read(tail, 20) == list(range(100, 120))


def test_a_time_after_the_last_record_means_the_end(broker: FakeKafkaBroker) -> None:
    assert TopicTail(broker.cluster(), TOPIC, start_at=2_000_000_000_000).next_offsets == {0: 100}


@pytest.mark.parametrize(
    "turn",
    [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, HangUp(), make_batch(20, 10)[:-1] + b"!"],
    ids=["not leader", "disk offline", "not there yet", "hang-up", "damaged batch"],
)
def test_trouble_neither_loses_nor_repeats_a_record(broker: FakeKafkaBroker, partition: OnePartition, turn: Any) -> None:
    notices: list[str] = []
    tail = broker.keep(TopicTail(broker.cluster(), TOPIC, start_at=StartAt.EARLIEST, on_notice=notices.append))
    partition.turns = [None, None, turn, turn]
    assert read(tail, 100) == list(range(100))
    assert notices and all("retrying" in notice for notice in notices)


def test_a_partition_is_read_at_its_new_leader(broker: FakeKafkaBroker, partition: OnePartition) -> None:
    tail = broker.keep(TopicTail(broker.cluster(), TOPIC, start_at=StartAt.EARLIEST))
    assert read(tail, 10) == list(range(10))
    broker.leaders = {0: 2}
    partition.turns = [None, ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert read(tail, 90) == list(range(10, 100))
    assert 2 in tail.long_polls


@pytest.mark.parametrize("trouble", ["no leader", "disk offline"])
def test_partitions_that_are_served_are_read_while_another_is_not_which_follows_later(trouble: str) -> None:
    broker = FakeKafkaBroker(partitions=2)
    is_dead = True

    def list_offsets(request: Any) -> dict[str, Any]:
        dead = {"error_code": int(ErrorCode.KAFKA_STORAGE_ERROR), "offset": -1}
        places = [
            {"partition_index": each.partition_index, "error_code": 0, "timestamp": -1, "offset": 0, "leader_epoch": 0} for each in request.topics[0].partitions
        ]
        return {
            "throttle_time": 0,
            "topics": [{"name": TOPIC, "partitions": [each | dead if is_dead and each["partition_index"] else each for each in places]}],
        }

    def fetch(request: Any) -> dict[str, Any]:
        answers = [
            fetched(each.partition, make_batch(each.fetch_offset // 10 * 10, 10) if each.fetch_offset < 100 else b"") for each in request.topics[0].partitions
        ]
        answers[0]["responses"][0]["partitions"] = [each["responses"][0]["partitions"][0] for each in answers]
        return answers[0]

    broker.answers |= {messages.FETCH: fetch, messages.LIST_OFFSETS: list_offsets}
    if trouble == "no leader":
        broker.leaders[1] = -1
    clock = ManualClock()
    notices: list[str] = []
    try:
        cluster = broker.keep(ClusterClient([broker.address], clock=clock, sleep=lambda seconds: clock.advance_ms(max(int(1_000 * seconds), 1))))
        tail = broker.keep(TopicTail(cluster, TOPIC, start_at=StartAt.EARLIEST, on_notice=notices.append))
        assert read(tail, 100) == list(range(100)) and tail.next_offsets == {0: 100} and list(tail.unserved) == [1]
        words = "it has no leader: its disk or its box is offline" if trouble == "no leader" else "the disk that holds the partition is offline"
        assert len(notices) == 1 and notices[0].startswith(f"numbers-1 is not served: {words}")
        is_dead, broker.leaders[1] = False, 1
        clock.advance_ms(1_000)
        assert read(tail, 100) == list(range(100)) and not tail.unserved
        assert notices[1:] == ["numbers-1 is served now; going on at offset 0"]
    finally:
        broker.close()


def test_looks_for_a_partition_that_is_not_served_become_rare_and_records_that_came_meanwhile_are_read() -> None:
    broker = FakeKafkaBroker(partitions=2)
    broker.leaders[1] = -1
    asked_for_one: list[int] = []

    def list_offsets(request: Any) -> dict[str, Any]:
        asked = request.topics[0].partitions
        asked_for_one.extend(int(each.timestamp) for each in asked if each.partition_index)
        places = [{"partition_index": each.partition_index, "error_code": 0, "timestamp": -1, "offset": 40, "leader_epoch": 0} for each in asked]
        dead = {"error_code": int(ErrorCode.KAFKA_STORAGE_ERROR), "offset": -1}
        return {
            "throttle_time": 0,
            "topics": [{"name": TOPIC, "partitions": [each | dead if is_dead and each["partition_index"] else each for each in places]}],
        }

    is_dead = True
    broker.answers |= {messages.FETCH: lambda request: fetched(request.topics[0].partitions[0].partition), messages.LIST_OFFSETS: list_offsets}
    clock = ManualClock(wall_ms=5_000)
    try:
        cluster = broker.keep(ClusterClient([broker.address], clock=clock, sleep=lambda seconds: clock.advance_ms(max(int(1_000 * seconds), 1))))
        tail = broker.keep(TopicTail(cluster, TOPIC))
        assert list(tail.unserved) == [1] and not asked_for_one
        broker.leaders[1] = 1
        for _ in range(600):
            clock.advance_ms(100)
            tail.poll(0)
        assert 4 < len(asked_for_one) < 9, "of a minute"
        assert set(asked_for_one) == {5_000}, "the time of the beginning, not the end of then"
        is_dead = False
        clock.advance_ms(30_000)
        tail.poll(0)
        assert not tail.unserved and tail.next_offsets == {0: 40, 1: 40}
    finally:
        broker.close()


def test_deleted_offsets_are_passed_over_and_said(broker: FakeKafkaBroker, partition: OnePartition) -> None:
    notices: list[str] = []
    tail = broker.keep(TopicTail(broker.cluster(), TOPIC, start_at=StartAt.EARLIEST, on_notice=notices.append))
    partition.log_start_offset = 30
    assert read(tail, 70) == list(range(30, 100))
    assert notices == ["numbers-0: offsets 0 to 29 are deleted already; going on at 30"]


def test_a_log_that_became_shorter_is_followed_from_its_end(broker: FakeKafkaBroker, partition: OnePartition) -> None:
    notices: list[str] = []
    tail = broker.keep(TopicTail(broker.cluster(), TOPIC, on_notice=notices.append))
    partition.end_offset = 50
    assert tail.poll(100) == []
    assert tail.next_offsets == {0: 50}
    assert notices == ["numbers-0: the log ends at 50, before offset 100; going on at its end"]


def test_an_error_that_does_not_heal_is_raised(broker: FakeKafkaBroker, partition: OnePartition) -> None:
    tail = broker.keep(TopicTail(broker.cluster(), TOPIC))
    partition.turns = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    with pytest.raises(RequestRefused, match="not allowed"):
        tail.poll(ENOUGH_MS)


def test_a_broker_gone_for_too_long_is_given_up(broker: FakeKafkaBroker) -> None:
    tail = broker.keep(TopicTail(broker.cluster(), TOPIC, give_up_after_ms=1))
    broker.stop()
    with pytest.raises(ClientFailed):
        tail.poll(ENOUGH_MS)


def test_a_partition_that_does_not_exist_is_refused(broker: FakeKafkaBroker) -> None:
    with pytest.raises(RequestRefused, match="no partition 4; it has 1, counted from 0"):
        TopicTail(broker.cluster(), TOPIC, partitions=[0, 4])
