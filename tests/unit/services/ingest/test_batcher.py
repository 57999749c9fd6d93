"""Batches close by size and by age, and hold what was put in."""

from __future__ import annotations

from appliance.records.builder import NO_HEADERS
from appliance.records.keys import partition_of_key
from appliance.records.record import iterate_records
from appliance.senders.listener import Listener, ListenerTransport, Protocol
from services.ingest.records.ack_group import AckGroup
from services.ingest.records.batcher import Acceptance, Batcher, ReadyBatch
from services.ingest.records.event import EventSource, ProducerRecord

NOW_MS = 1_700_000_000_000
LISTENER = Listener("test", Protocol.SYSLOG, ListenerTransport.TCP, 0)
SOURCE = EventSource(b"192.0.2.7:40312", b"192.0.2.7", b"tcp")
NOBODY = AckGroup(LISTENER, SOURCE)


def event(value: bytes, key: bytes | None = None) -> ProducerRecord:
    return ProducerRecord(NOW_MS, key, value, NO_HEADERS)


def values(batch: ReadyBatch) -> list[bytes | None]:
    records = [record.value for record in iterate_records(batch.data, 10_000_000)]
    assert len(records) == batch.record_count
    return records


def test_a_batch_closes_before_the_record_that_would_overflow_it() -> None:
    batcher = Batcher(1, batch_bytes=4096)
    for number in range(10):
        assert batcher.append(event(b"%d" % number + b"x" * 999), NOW_MS, NOBODY) is Acceptance.TAKEN
    ready = batcher.take_ready()
    assert [batch.record_count for batch in ready] == [3, 3, 3]
    assert all(len(batch.data) <= 4096 for batch in ready)
    batcher.close_all()
    assert [value and value[:1] for batch in ready + batcher.take_ready() for value in values(batch)] == [b"%d" % number for number in range(10)]


def test_a_record_larger_than_a_batch_is_a_batch_of_its_own() -> None:
    batcher = Batcher(1, batch_bytes=4096)
    batcher.append(event(b"small"), NOW_MS, NOBODY)
    batcher.append(event(b"x" * 5000), NOW_MS, NOBODY)
    batcher.append(event(b"small again"), NOW_MS, NOBODY)
    assert [values(batch) for batch in batcher.take_ready()] == [[b"small"], [b"x" * 5000]]


def test_a_record_without_key_that_moves_on_fits_the_batch_of_its_next_partition() -> None:
    batcher = Batcher(2, batch_bytes=4096, max_batch_bytes=8192)
    key = next(b"%d" % number for number in range(99) if partition_of_key(b"%d" % number, 2) == 1)
    batcher.append(event(b"keyed" * 700, key), NOW_MS, NOBODY)
    batcher.append(event(b"small"), NOW_MS, NOBODY)
    batcher.append(event(b"x" * 7_000), NOW_MS, NOBODY)
    batcher.close_all()
    assert all(len(batch.data) <= 8192 for batch in batcher.take_ready())


def test_a_record_that_the_topic_does_not_allow_is_not_taken() -> None:
    batcher = Batcher(1, batch_bytes=4096, max_batch_bytes=10_000)
    assert batcher.append(event(b"x" * 10_000), NOW_MS, NOBODY) is Acceptance.TOO_LARGE
    assert batcher.append(event(b"x" * 9_800), NOW_MS, NOBODY) is Acceptance.TAKEN
    (batch,) = batcher.take_ready()
    assert len(batch.data) <= 10_000


def test_a_batch_closes_at_its_age_and_not_before() -> None:
    batcher = Batcher(1, batch_age_ms=10)
    assert batcher.wait_ms(NOW_MS) is None
    batcher.append(event(b"first"), NOW_MS, NOBODY)
    batcher.append(event(b"second"), NOW_MS + 9, NOBODY)
    assert batcher.wait_ms(NOW_MS + 9) == 1
    batcher.close_due(NOW_MS + 9)
    assert batcher.take_ready() == []
    batcher.close_due(NOW_MS + 10)
    (batch,) = batcher.take_ready()
    assert values(batch) == [b"first", b"second"]
    assert batcher.wait_ms(NOW_MS + 10) is None


def test_each_partition_has_its_own_age() -> None:
    batcher = Batcher(2, batch_age_ms=10)
    first, second = (next(b"%d" % n for n in range(99) if partition_of_key(b"%d" % n, 2) == partition) for partition in (0, 1))
    batcher.append(event(b"a", first), NOW_MS, NOBODY)
    batcher.append(event(b"b", second), NOW_MS + 5, NOBODY)
    assert batcher.wait_ms(NOW_MS + 5) == 5
    batcher.close_due(NOW_MS + 10)
    assert [batch.partition for batch in batcher.take_ready()] == [0]
    assert batcher.wait_ms(NOW_MS + 10) == 5
    batcher.close_due(NOW_MS + 15)
    assert [batch.partition for batch in batcher.take_ready()] == [1]


def test_records_with_a_key_go_to_its_partition_and_others_by_turns() -> None:
    batcher = Batcher(4, batch_bytes=2048)
    for _ in range(12):
        batcher.append(event(b"x" * 900, b"foobar"), NOW_MS, NOBODY)
    batcher.close_all()
    assert {batch.partition for batch in batcher.take_ready()} == {partition_of_key(b"foobar", 4)}
    for _ in range(8):
        batcher.append(event(b"x" * 900), NOW_MS, NOBODY)
    batcher.close_all()
    assert [batch.partition for batch in batcher.take_ready()] in ([0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 0, 1], [3, 0, 1, 2])


def test_a_topic_that_grows_keeps_its_open_batches() -> None:
    batcher = Batcher(1)
    batcher.append(event(b"a", b"foobar"), NOW_MS, NOBODY)
    batcher.resize(8)
    batcher.append(event(b"b", b"foobar"), NOW_MS, NOBODY)
    assert batcher.open_records == 2
    batcher.close_all()
    assert [(batch.partition, values(batch)) for batch in batcher.take_ready()] == [(0, [b"a"]), (partition_of_key(b"foobar", 8), [b"b"])]
    assert batcher.open_records == 0


def test_a_topic_that_allows_less_makes_batches_smaller() -> None:
    batcher = Batcher(1, batch_bytes=4096)
    batcher.limit(2048)
    for _ in range(4):
        batcher.append(event(b"x" * 900), NOW_MS, NOBODY)
    batcher.close_all()
    assert [batch.record_count for batch in batcher.take_ready()] == [2, 2]
    assert batcher.append(event(b"x" * 2048), NOW_MS, NOBODY) is Acceptance.TOO_LARGE


def test_a_blocked_partition_slows_those_who_can_wait_and_overflows_for_others() -> None:
    batcher = Batcher(4)
    partition = partition_of_key(b"foobar", 4)
    batcher.set_blocked(frozenset({partition}))
    assert batcher.append(event(b"x", b"foobar"), NOW_MS, NOBODY, can_wait=False) is Acceptance.OVERFLOW
    assert batcher.open_records == 0
    assert batcher.append(event(b"x", b"foobar"), NOW_MS, NOBODY) is Acceptance.TAKEN_BUT_BLOCKED
    assert batcher.blocked_partition == partition
    batcher.set_blocked(frozenset())
    assert batcher.append(event(b"x", b"foobar"), NOW_MS, NOBODY, can_wait=False) is Acceptance.TAKEN


def test_records_without_key_avoid_blocked_partitions_while_there_is_another() -> None:
    batcher = Batcher(3, batch_bytes=1024)
    batcher.set_blocked(frozenset({0, 2}))
    for _ in range(4):
        assert batcher.append(event(b"x" * 900), NOW_MS, NOBODY, can_wait=False) is Acceptance.TAKEN
    batcher.close_all()
    assert {batch.partition for batch in batcher.take_ready()} == {1}
    batcher.set_blocked(frozenset({0, 1, 2}))
    assert batcher.append(event(b"x"), NOW_MS, NOBODY, can_wait=False) is Acceptance.OVERFLOW
