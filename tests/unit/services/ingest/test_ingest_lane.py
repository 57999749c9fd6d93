"""One partition's way out: how many batches may be under way, what comes back in order, and under which sequences."""

from __future__ import annotations

from appliance.records.batch import read_batch_header, stamp_batch
from appliance.records.builder import BatchBuilder
from services.ingest.producer.partition_queue import UNDER_WAY_MAX, PartitionQueue
from services.ingest.producer.producer_batch import ProducerBatch
from services.ingest.records.batcher import ReadyBatch

HERE, THERE = "box 1", "box 2"


def made(number: int, records: int = 10) -> ProducerBatch:
    builder = BatchBuilder()
    for _ in range(records):
        builder.append(1_700_000_000_000, None, b"x")
    return ProducerBatch("topic", ReadyBatch(0, builder.build(), records, []), number, 0)


def lane_with(count: int) -> PartitionQueue:
    lane = PartitionQueue("topic", 0)
    lane.begin_producer(77)
    lane.waiting.extend(made(number) for number in range(count))
    return lane


def offer(lane: PartitionQueue, leader: str = HERE) -> list[ProducerBatch]:
    """As many as go."""
    offered = []
    for _ in range(lane.room(0, leader)):
        if lane.waiting:
            batch = lane.waiting.popleft()
            lane.stamp(batch, bytearray(batch.data))
            lane.on_offered(batch)
            offered.append(batch)
    return offered


def store(lane: PartitionQueue, batch: ProducerBatch) -> None:
    lane.on_gone(batch)
    lane.is_open = not lane.is_recoiling


def test_the_first_batch_goes_alone_and_then_as_many_as_a_log_remembers() -> None:
    lane = lane_with(20)
    (first,) = offer(lane)
    assert not offer(lane)
    store(lane, first)
    assert [batch.number for batch in offer(lane)] == list(range(1, 1 + UNDER_WAY_MAX))
    assert not offer(lane)


def test_another_leader_is_offered_nothing_before_all_is_back_from_the_one_before() -> None:
    lane = lane_with(20)
    store(lane, offer(lane)[0])
    under_way = offer(lane)
    assert not offer(lane, THERE)
    for batch in under_way:
        lane.come_back(batch, 0)
    assert [batch.number for batch in offer(lane, THERE)] == [1], "and the first one goes alone again"


def test_what_comes_back_waits_for_those_behind_it_and_keeps_order_and_sequence() -> None:
    lane = lane_with(20)
    store(lane, offer(lane)[0])
    under_way = offer(lane)
    lane.come_back(under_way[1], 0)
    assert not offer(lane)
    store(lane, under_way[0])
    for batch in (under_way[3], under_way[2], under_way[4]):
        lane.come_back(batch, 0)
    assert [batch.number for batch in lane.waiting] == list(range(2, 20))
    assert [batch.base_sequence for batch in list(lane.waiting)[:5]] == [20, 30, 40, 50, -1]


def test_only_the_first_that_a_leader_does_not_know_is_doubtful() -> None:
    lane = lane_with(20)
    store(lane, offer(lane)[0])
    first, second, *_ = offer(lane)
    assert lane.is_first_unknown(first) and not lane.is_first_unknown(second)
    first.is_appended = True
    assert lane.is_first_unknown(second)
    lane.come_back(first, 0)
    assert not lane.is_first_unknown(second)


def test_a_new_epoch_begins_at_zero_and_stamps_anew_what_waits() -> None:
    lane = lane_with(3)
    batch = offer(lane)[0]
    lane.come_back(batch, 0)
    assert lane.raise_epoch()
    (again,) = offer(lane)
    assert (again, again.producer_epoch, again.base_sequence, lane.next_sequence) == (batch, 1, 0, 10)
    lane.producer_epoch = 32_767
    assert not lane.raise_epoch()


def test_sequences_wrap() -> None:
    lane = lane_with(2)
    lane.next_sequence = (1 << 31) - 4
    store(lane, offer(lane)[0])
    (second,) = offer(lane)
    assert second.base_sequence == 6


def test_a_batch_that_a_log_has_stamped_is_offered_as_it_was_made() -> None:
    lane, batch = lane_with(0), made(0)
    data = bytearray(batch.data)
    lane.stamp(batch, data)
    before = bytes(data)
    stamp_batch(data, 0, 4711, 3)
    assert not lane.stamp(batch, data), "its sequence is not a new one"
    assert bytes(data) == before
    header = read_batch_header(before)
    assert (header.base_offset, header.producer_id, header.producer_epoch, header.base_sequence) == (0, 77, 0, 0)
