"""Transactions in a real box, as its log and its consumers see them: driven frame by frame, read by real clients at both isolation levels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Position

from appliance.base.errors import ErrorCode
from lab.foreign_clients import open_java
from lab.raw_transactions import RawTransactions, transactional_batch
from lab.real_kafka import dump_log_segments, skip_without_kafka
from lab.running_box import RunningBox, eventually
from tests.support.cold_segments import make_cold

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of Python's own, raised while kafka-python reads its schemas
    from kafka import KafkaConsumer
    from kafka import TopicPartition as Partition

pytestmark = [pytest.mark.system, pytest.mark.slow]

SETTINGS = {"log.segment.bytes": 64 * 1024, "transaction.partition.verification.enable": False}
ABORT, COMMIT = False, True
TOPIC = "ledger"


@pytest.fixture
def keeper(start: Callable[..., RunningBox]) -> RunningBox:
    return start(disks=1, settings=SETTINGS)


@pytest.fixture
def clients() -> Iterator[ExitStack]:
    """Closes what a test has opened."""
    with ExitStack() as stack:
        yield stack


def _read_by_librdkafka(box: RunningBox, isolation_level: str, end_offset: int) -> list[bytes]:
    """Values of the topic up to a position that the consumer must reach."""
    consumer = Consumer({"bootstrap.servers": box.bootstrap, "group.id": "none", "isolation.level": isolation_level, "enable.auto.commit": False})
    consumer.assign([Position(TOPIC, 0, 0)])
    values = []

    def reached() -> bool:
        message = consumer.poll(0.05)
        if message is not None:
            assert message.error() is None, message.error()
            values.append(message.value())
        return consumer.position([Position(TOPIC, 0)])[0].offset >= end_offset

    eventually(reached, f"librdkafka reads up to {end_offset} ({isolation_level})")
    consumer.close()
    return values


def _read_by_kafka_python(box: RunningBox, isolation_level: str, end_offset: int) -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=box.bootstrap, isolation_level=isolation_level, enable_auto_commit=False)
    consumer.assign([Partition(TOPIC, 0)])
    consumer.seek_to_beginning()
    values = []

    def reached() -> bool:
        for records in consumer.poll(timeout_ms=50).values():
            values.extend(record.value for record in records)
        return bool(consumer.position(Partition(TOPIC, 0)) >= end_offset)

    eventually(reached, f"kafka-python reads up to {end_offset} ({isolation_level})")
    consumer.close()
    return values


def test_consumers_see_what_was_committed_and_nothing_that_is_open_or_aborted_whichever_process_dies(keeper: RunningBox, clients: ExitStack) -> None:
    client = clients.enter_context(closing(RawTransactions(keeper.kafka)))
    client.create_topic(TOPIC, 1)
    everything: list[bytes] = []
    committed: list[bytes] = []
    sequences: dict[int, int] = {}

    def write(producer_id: int, kept: bool, *values: bytes) -> int:
        batch = transactional_batch(producer_id, 0, sequences.get(producer_id, 0), *values)
        sequences[producer_id] = sequences.get(producer_id, 0) + len(values)
        code, offset = client.produce_batch(TOPIC, 0, batch)
        assert code == 0
        everything.extend(values)
        committed.extend(values if kept else ())
        return offset

    def end(producer_id: int, is_commit: bool) -> None:
        assert client.write_marker(TOPIC, [0], producer_id, 0, is_commit) == [0]

    # over several segments: two producers' transactions interleaved, one aborted and one committed each time
    for round_number in range(30):
        filling = b"%d" % round_number * 500
        write(1, False, b"aborted", filling)
        write(2, True, b"committed", filling)
        write(1, False, b"aborted too")
        end(1, ABORT)
        end(2, COMMIT)
    stable = client.stable_end(TOPIC, 0)
    opened = write(3, False, b"open", b"x" * 40_000)
    write(4, False, b"behind it")
    end(4, COMMIT)
    assert opened == stable == client.stable_end(TOPIC, 0)
    fetched = client.committed_fetch(TOPIC, 0, opened)
    assert (fetched.records, fetched.last_stable_offset, fetched.high_watermark) == (b"", opened, opened + 4)
    begun = {int(each.producer_id): int(each.current_txn_start_offset) for each in client.describe_producers(TOPIC, 0)}
    assert begun == {1: -1, 2: -1, 3: opened, 4: -1}

    assert _read_by_librdkafka(keeper, "read_uncommitted", opened + 4) == everything
    assert _read_by_librdkafka(keeper, "read_committed", stable) == committed
    assert _read_by_kafka_python(keeper, "read_committed", stable) == committed

    # the same from the disk
    segments = sorted((keeper.disks[0] / f"{TOPIC}-0").glob("*.log"))
    assert len(segments) > 2
    make_cold(*segments)
    read_cold = keeper.counters("acceptor@0").values.get("fetch.cold_bytes", 0)
    assert _read_by_librdkafka(keeper, "read_committed", stable) == committed
    assert keeper.counters("acceptor@0").values["fetch.cold_bytes"] > read_cold

    # between its batches and its marker the log-writer dies: the next incarnation knows what is
    # open and what was aborted
    keeper.await_restart("log-writer@d0", keeper.kill("log-writer@d0"))
    eventually(lambda: client.committed_fetch(TOPIC, 0, 0).error_code == 0, "the partition is led again")
    assert client.stable_end(TOPIC, 0) == opened
    assert _read_by_librdkafka(keeper, "read_committed", stable) == committed

    # a long poll of a read_committed consumer at the last stable offset ends when the marker lets it go
    other = clients.enter_context(closing(RawTransactions(keeper.kafka)))
    other.send_committed_fetch(TOPIC, 0, opened, max_wait_ms=20_000)
    committed += [b"behind it"]
    end(3, ABORT)
    fetched = other.receive_committed_fetch()
    assert fetched.error_code == 0 and fetched.records and fetched.last_stable_offset > opened and fetched.aborted == [(3, opened)]
    last = client.stable_end(TOPIC, 0)
    assert last == opened + 5
    assert _read_by_librdkafka(keeper, "read_committed", last) == committed
    assert _read_by_kafka_python(keeper, "read_committed", last) == committed
    assert _read_by_librdkafka(keeper, "read_uncommitted", last) == everything

    # fencing, as a coordinator or a zombie receives it
    assert client.write_marker(TOPIC, [0, 1], 3, 1, ABORT, coordinator_epoch=2) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert client.write_marker(TOPIC, [0], 3, 0, ABORT, coordinator_epoch=2) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert client.write_marker(TOPIC, [0], 3, 1, ABORT, coordinator_epoch=1) == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
    assert client.produce_batch(TOPIC, 0, transactional_batch(3, 0, 2, b"late"))[0] == ErrorCode.INVALID_PRODUCER_EPOCH
    assert client.produce_batch(TOPIC, 0, transactional_batch(9, 0, 0, b"x"), None)[0] == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    two = {partition: transactional_batch(9 + partition, 0, 0, b"x") for partition in (0, 1)}
    assert client.produce_batches(TOPIC, two) == [(ErrorCode.INVALID_PRODUCER_ID_MAPPING, -1)] * 2
    # where the broker is to add the partition its coordinator is asked in any case, and this one knows of no such transaction
    assert client.produce_batch(TOPIC, 0, transactional_batch(9, 0, 0, b"x"), version=12)[0] in (
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    )
    assert client.produce_batch(TOPIC, 0, transactional_batch(9, 0, 0, b"x", is_transactional=False), None, version=12)[0] == 0


def test_kafkas_own_consumer_and_tools_read_the_logs_of_transactions(keeper: RunningBox) -> None:
    skip_without_kafka()
    with closing(RawTransactions(keeper.kafka)) as client:
        client.create_topic(TOPIC, 1)
        for sequence in range(0, 40, 2):
            assert client.produce_batch(TOPIC, 0, transactional_batch(1, 0, sequence, b"x" * 4_000, b"%d" % sequence))[0] == 0
            assert client.write_marker(TOPIC, [0], 1, 0, sequence % 4 == 0, coordinator_epoch=7) == [0]
        assert client.produce_batch(TOPIC, 0, transactional_batch(2, 0, 0, b"open"))[0] == 0
        for isolation_level, step, last in (("read_uncommitted", 2, b"open"), ("read_committed", 4, b"40")):
            if isolation_level == "read_committed":  # behind the open transaction, so that a consumer that ignores it would be seen to
                assert client.produce_batch(TOPIC, 0, transactional_batch(3, 0, 0, b"40"))[0] == 0
                assert client.write_marker(TOPIC, [0], 3, 0, COMMIT) == client.write_marker(TOPIC, [0], 2, 0, ABORT) == [0]
            with closing(open_java(keeper.bootstrap, isolation_level)) as java:
                short = [read.value for read in java.fetch(TOPIC, 40 // step * 2 + 1) if len(read.value or b"") < 100]
            assert short == [*(b"%d" % sequence for sequence in range(0, 40, step)), last]
    assert keeper.stop() == 0
    directory = keeper.disks[0] / f"{TOPIC}-0"
    files = sorted(path for path in Path(directory).iterdir() if path.suffix in (".log", ".txnindex", ".snapshot", ".index", ".timeindex"))
    assert sum(path.suffix == ".txnindex" for path in files) > 1
    said = dump_log_segments(files, "--deep-iteration", "--print-data-log")
    assert said.count("endTxnMarker: COMMIT") == said.count("endTxnMarker: ABORT") == 11 and said.count("coordinatorEpoch: 7") >= 20
    assert said.count("isTransactional: true") and "producerId: 1" in said
    for trouble in ("Exception", "mismatch", "Mismatches", "Could not", "invalid"):
        assert trouble not in said, said
