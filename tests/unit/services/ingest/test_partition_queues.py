"""One partition's way out: how many batches may be under way, what comes back in order, and under which sequences."""

from __future__ import annotations

from appliance.records.batch import read_batch_header, stamp_batch
from appliance.records.builder import BatchBuilder
from services.ingest.producer.partition_queues import IN_FLIGHT_MAX, PartitionQueue
from services.ingest.producer.producer_batch import ProducerBatch
from services.ingest.records.batcher import ReadyBatch

HERE, THERE = "box 1", "box 2"


def made(number: int, records: int = 10) -> ProducerBatch:
    builder = BatchBuilder()
    for _ in range(records):
        builder.append(1_700_000_000_000, None, b"x")
    return ProducerBatch("topic", ReadyBatch(0, builder.build(), records, []), number, 0)


def queue_with(count: int) -> PartitionQueue:
    queue = PartitionQueue("topic", 0)
    queue.begin_producer(77)
    queue.waiting.extend(made(number) for number in range(count))
    return queue


def offer(queue: PartitionQueue, leader: str = HERE) -> list[ProducerBatch]:
    """As many as go."""
    offered = []
    for _ in range(queue.capacity(0, leader)):
        if queue.waiting:
            batch = queue.waiting.popleft()
            queue.stamp(batch, bytearray(batch.data))
            queue.on_offered(batch)
            offered.append(batch)
    return offered


def store(queue: PartitionQueue, batch: ProducerBatch) -> None:
    queue.remove(batch)
    queue.may_pipeline = not queue.is_draining


def test_the_first_batch_goes_alone_and_then_as_many_as_a_log_remembers() -> None:
    queue = queue_with(20)
    (first,) = offer(queue)
    assert not offer(queue)
    store(queue, first)
    assert [batch.number for batch in offer(queue)] == list(range(1, 1 + IN_FLIGHT_MAX))
    assert not offer(queue)


def test_another_leader_is_offered_nothing_before_all_is_back_from_the_one_before() -> None:
    queue = queue_with(20)
    store(queue, offer(queue)[0])
    in_flight = offer(queue)
    assert not offer(queue, THERE)
    for batch in in_flight:
        queue.requeue(batch, 0)
    assert [batch.number for batch in offer(queue, THERE)] == [1], "and the first one goes alone again"


def test_what_comes_back_waits_for_those_behind_it_and_keeps_order_and_sequence() -> None:
    queue = queue_with(20)
    store(queue, offer(queue)[0])
    in_flight = offer(queue)
    queue.requeue(in_flight[1], 0)
    assert not offer(queue)
    store(queue, in_flight[0])
    for batch in (in_flight[3], in_flight[2], in_flight[4]):
        queue.requeue(batch, 0)
    assert [batch.number for batch in queue.waiting] == list(range(2, 20))
    assert [batch.base_sequence for batch in list(queue.waiting)[:5]] == [20, 30, 40, 50, -1]


def test_only_the_first_batch_without_a_known_result_is_unresolved() -> None:
    queue = queue_with(20)
    store(queue, offer(queue)[0])
    first, second, *_ = offer(queue)
    assert queue.is_first_unknown(first) and not queue.is_first_unknown(second)
    first.is_appended = True
    assert queue.is_first_unknown(second)
    queue.requeue(first, 0)
    assert not queue.is_first_unknown(second)


def test_a_new_epoch_begins_at_zero_and_stamps_anew_what_waits() -> None:
    queue = queue_with(3)
    batch = offer(queue)[0]
    queue.requeue(batch, 0)
    assert queue.bump_epoch()
    (again,) = offer(queue)
    assert (again, again.producer_epoch, again.base_sequence, queue.next_sequence) == (batch, 1, 0, 10)
    queue.producer_epoch = 32_767
    assert not queue.bump_epoch()


def test_sequences_wrap() -> None:
    queue = queue_with(2)
    queue.next_sequence = (1 << 31) - 4
    store(queue, offer(queue)[0])
    (second,) = offer(queue)
    assert second.base_sequence == 6


def test_a_batch_that_a_log_has_stamped_is_offered_as_it_was_made() -> None:
    queue, batch = queue_with(0), made(0)
    data = bytearray(batch.data)
    queue.stamp(batch, data)
    before = bytes(data)
    stamp_batch(data, 0, 4711, 3)
    assert not queue.stamp(batch, data), "its sequence is not a new one"
    assert bytes(data) == before
    header = read_batch_header(before)
    assert (header.base_offset, header.producer_id, header.producer_epoch, header.base_sequence) == (0, 77, 0, 0)
