"""What the pipeline's reader gives of a real box, by both paths: from segments in place, and over Kafka's protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from appliance.base.model import Offset, TopicPartition
from appliance.client.address import parse_addresses
from appliance.client.admin import create_topic, delete_records, delete_topic
from appliance.client.cluster import ClusterClient
from appliance.pipeline.cluster_access import ClusterAccess, ReadPath
from appliance.pipeline.local_rows import find_local_row
from appliance.pipeline.local_segments import LocalSegments, find_local_segments
from appliance.pipeline.offset_range import OffsetRange
from appliance.pipeline.problems import CorruptBatchFound, CorruptRange, DataLoss, OffsetsLost, SourceProblem
from appliance.pipeline.record_reader import read_range
from appliance.pipeline.record_schema import ALL_COLUMNS
from appliance.pipeline.topic_offsets import TopicOffsets
from appliance.records.batch import MAGIC_AT, RECORDS_AT
from lab.foreign_clients import CODECS, Sent, open_client
from lab.real_zookeeper import RealZooKeeper
from lab.running_box import RunningBox, eventually
from tests.support.stored_batches import stored_batches

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    # kafka-python reads its schemas in a way that Python 3.11 and 3.12 call deprecated.
    pytest.mark.filterwarnings("ignore:(read_text|open_text) is deprecated:DeprecationWarning"),
]

PATHS = (ReadPath.SEGMENTS, ReadPath.FETCH)
WRITERS = ("librdkafka", "kafka-python", "aiokafka")
# librdkafka sends a batch when it is full, after linger.ms, or at a flush, which may split ten records into two batches.
ONE_BATCH_OF_TEN = {"linger.ms": 5000, "batch.num.messages": 10}
SENT = [
    Sent(
        b"line %d " % number * 20,
        b"key %d" % number if number % 3 else None,
        (("source", b"127.0.0.1"), ("empty", b"")) if number % 5 == 0 else (),
        1_700_000_000_000 + number * 7 % 100,
    )
    for number in range(200)
]


@pytest.fixture
def cluster(shared_box: RunningBox) -> Iterator[ClusterClient]:
    with ClusterClient(parse_addresses(shared_box.bootstrap)) as opened:
        yield opened


def access_to(box: RunningBox, topic: str, path: ReadPath = ReadPath.AUTO, read_committed: bool = False) -> ClusterAccess:
    with TopicOffsets(ClusterAccess(tuple(parse_addresses(box.bootstrap)), read_committed, path, patience_ms=10_000)) as offsets:
        return offsets.access_for([topic])


def end_of(access: ClusterAccess, topic: str) -> int:
    partition = TopicPartition(topic, 0)
    with TopicOffsets(access) as offsets:
        return offsets.latest([partition])[partition]


def read(access: ClusterAccess, topic: str, start: int, end: int, columns: tuple[str, ...] = ("offset", "value"), **told: Callable[..., None]) -> pa.Table:
    found = list(read_range(access, OffsetRange(topic, 0, start, end), columns, **told))
    return pa.Table.from_batches(found) if found else pa.table({name: [] for name in columns})


def produce(box: RunningBox, topic: str, values: Iterator[bytes] | list[bytes], **options: object) -> None:
    producer = Producer({"bootstrap.servers": box.bootstrap, "linger.ms": 5, **options})
    for value in values:
        producer.produce(topic, value=value, partition=0)
    if options == ONE_BATCH_OF_TEN:
        eventually(lambda: producer.poll(0.1) is not None and len(producer) == 0, "the full batch is acknowledged")
    assert producer.flush(60) == 0


@pytest.mark.parametrize("writer", WRITERS)
def test_both_paths_give_what_a_client_wrote_in_every_codec(shared_box: RunningBox, cluster: ClusterClient, writer: str) -> None:
    client = open_client(writer, shared_box.bootstrap)
    topic = f"read-of-{writer}"
    create_topic(cluster, topic, partitions=1)
    try:
        for codec in CODECS:
            client.produce(topic, SENT, codec)
    finally:
        client.close()
    sent = SENT * len(CODECS)
    assert {header.codec.name.lower() for header in stored_batches(shared_box, topic, 0)} == set(CODECS)
    tables = [read(access_to(shared_box, topic, path), topic, 0, len(sent), ALL_COLUMNS) for path in PATHS]
    assert tables[0].equals(tables[1])
    found = tables[0].to_pydict()
    assert found["offset"] == list(range(len(sent)))
    assert found["value"] == [each.value for each in sent] and found["key"] == [each.key for each in sent]
    assert found["headers"] == [[{"key": key, "value": value} for key, value in each.headers] or None for each in sent]
    assert tables[0]["timestamp"].cast(pa.int64()).to_pylist() == [(each.timestamp or 0) * 1000 for each in sent]
    assert set(found["topic"]) == {topic} and set(found["partition"]) == {0} and set(found["timestampType"]) == {0}
    part = read(access_to(shared_box, topic), topic, 333, 777, ALL_COLUMNS)
    assert part.equals(tables[0].slice(333, 444)), "a range may begin and end within batches"


def test_a_log_of_many_segments_is_read_whole_in_windows_of_any_size(shared_box: RunningBox, cluster: ClusterClient) -> None:
    create_topic(cluster, "many-segments", partitions=1, configs={"internal.segment.bytes": "16384", "message.timestamp.type": "LogAppendTime"})
    values = [b"%05d" % number + b"x" * 200 for number in range(3000)]
    produce(shared_box, "many-segments", values, **{"batch.num.messages": 20})
    access = access_to(shared_box, "many-segments")
    directory = next(disk / "many-segments-0" for disk in shared_box.disks if (disk / "many-segments-0").exists())
    assert len(list(directory.glob("*.log"))) > 10
    by_fetch = read(access._replace(path=ReadPath.FETCH, fetch_bytes=5000), "many-segments", 0, 3000, ("value", "timestampType"))
    assert by_fetch["value"].to_pylist() == values and set(by_fetch["timestampType"].to_pylist()) == {1}
    assert read(access._replace(path=ReadPath.SEGMENTS), "many-segments", 0, 3000, ("value", "timestampType")).equals(by_fetch)

    from appliance.pipeline.batch_scan import BatchScan, ReadProgress

    wanted = OffsetRange("many-segments", 0, 17, 2990)
    for window_bytes in (1, 5000, 1 << 20):
        found = find_local_row(access.cluster_id, None, "many-segments", dict(access.topic_ids)["many-segments"], 0)  # type: ignore[arg-type]
        assert not isinstance(found, str)
        progress = ReadProgress(wanted.start)
        scan = BatchScan(wanted, progress)
        batches = [each for raw in LocalSegments(found, wanted, False, window_bytes).raw_batches(progress, pytest.fail) for each in scan.batches(raw)]
        assert [each.header.base_offset for each in batches] == sorted({each.header.base_offset for each in batches})
        assert sum(each.header.records_count for each in batches) >= wanted.size and progress.next_offset >= wanted.end


def test_read_committed_gives_committed_records_up_to_the_last_stable_offset(shared_box: RunningBox, cluster: ClusterClient) -> None:
    create_topic(cluster, "in-transactions", partitions=1)
    producer = Producer({"bootstrap.servers": shared_box.bootstrap, "transactional.id": "topic-reading"})
    producer.init_transactions(20)
    for number, is_kept in enumerate((True, False, True, False)):
        producer.begin_transaction()
        for part in range(3):
            producer.produce("in-transactions", value=b"%d %d" % (number, part), partition=0)
        producer.flush(20)
        produce(shared_box, "in-transactions", [b"plain %d" % number])
        (producer.commit_transaction if is_kept else producer.abort_transaction)(20)
    producer.begin_transaction()
    producer.produce("in-transactions", value=b"open", partition=0)
    producer.flush(20)
    produce(shared_box, "in-transactions", [b"behind the open one"])

    committed = [b"0 0", b"0 1", b"0 2", b"plain 0", b"plain 1", b"2 0", b"2 1", b"2 2", b"plain 2", b"plain 3"]
    for path in PATHS:
        access = access_to(shared_box, "in-transactions", path, read_committed=True)
        end = end_of(access, "in-transactions")
        assert read(access, "in-transactions", 0, end)["value"].to_pylist() == committed
        assert read(access, "in-transactions", 6, end)["value"].to_pylist() == committed[4:], "from within an aborted transaction on"
        everything = access._replace(read_committed=False)
        values = read(everything, "in-transactions", 0, end_of(everything, "in-transactions"))["value"].to_pylist()
        assert len(values) == 4 * 4 + 2 and values[-2:] == [b"open", b"behind the open one"]
    not_stable = access_to(shared_box, "in-transactions", ReadPath.SEGMENTS, read_committed=True)
    with pytest.raises(SourceProblem, match=f"it can be read up to offset {end} here"):
        read(not_stable, "in-transactions", 0, end + 1)
    producer.abort_transaction(20)


@pytest.mark.parametrize("path", PATHS)
def test_deleted_offsets_are_named_and_passed_over_only_when_that_is_wanted(shared_box: RunningBox, cluster: ClusterClient, path: ReadPath) -> None:
    topic = f"trimmed-{path}"
    create_topic(cluster, topic, partitions=1, configs={"internal.segment.bytes": "16384"})
    produce(shared_box, topic, [b"%d" % number * 100 for number in range(1000)], **{"batch.num.messages": 10})
    access = access_to(shared_box, topic, path)
    assert delete_records(cluster, {TopicPartition(topic, 0): Offset(505)}) == {}
    with pytest.raises(OffsetsLost, match=f"offsets 100 to 504 of {topic}-0 cannot be read any more: the log begins at offset 505 now"):
        read(access, topic, 100, 600)
    lost: list[DataLoss] = []
    assert read(access, topic, 100, 600, on_data_loss=lost.append)["offset"].to_pylist() == list(range(505, 600))
    assert [each[:4] for each in lost] == [(topic, 0, 100, 505)]
    lost.clear()
    assert read(access, topic, 100, 300, on_data_loss=lost.append).num_rows == 0
    assert [each[:4] for each in lost] == [(topic, 0, 100, 300)]


def test_a_damaged_batch_is_named_and_passed_over_only_when_that_is_wanted(shared_box: RunningBox, cluster: ClusterClient) -> None:
    create_topic(cluster, "damaged", partitions=1)
    for number in range(5):
        produce(shared_box, "damaged", [b"%d %d" % (number, part) for part in range(10)], **ONE_BATCH_OF_TEN)
    (file,) = [segment for disk in shared_box.disks for segment in Path(disk / "damaged-0").glob("*.log")]
    sizes = [header.size_bytes for header in stored_batches(shared_box, "damaged", 0)]
    assert len(sizes) == 5
    with open(file, "r+b") as segment:
        segment.seek(sum(sizes[:2]) + RECORDS_AT + 3)
        segment.write(b"\xff\xff")
    for path in PATHS:
        access = access_to(shared_box, "damaged", path)
        with pytest.raises(CorruptBatchFound, match="the batch at offset 20 of damaged-0 is corrupt: a batch's checksum does not match"):
            read(access, "damaged", 0, 50)
        left_out: list[CorruptRange] = []
        found = read(access, "damaged", 0, 50, on_corrupt=left_out.append)
        assert found["offset"].to_pylist() == [*range(20), *range(30, 50)]
        assert [each[:4] for each in left_out] == [("damaged", 0, 20, 30)]


def test_a_damaged_header_hides_nothing_that_lies_behind_it(shared_box: RunningBox, cluster: ClusterClient) -> None:
    create_topic(cluster, "damaged-header", partitions=1)
    for number in range(5):
        produce(shared_box, "damaged-header", [b"%d %d" % (number, part) for part in range(10)], **ONE_BATCH_OF_TEN)
    (file,) = [segment for disk in shared_box.disks for segment in Path(disk / "damaged-header-0").glob("*.log")]
    with open(file, "r+b") as segment:
        segment.seek(sum(header.size_bytes for header in stored_batches(shared_box, "damaged-header", 0)[:2]) + MAGIC_AT)
        segment.write(b"\x09")
    access = access_to(shared_box, "damaged-header", ReadPath.SEGMENTS)
    assert read(access, "damaged-header", 35, 50)["offset"].to_pylist() == list(range(35, 50))
    with pytest.raises(CorruptBatchFound, match="the batch at offset 25 of damaged-header-0 is corrupt: a batch has magic 9"):
        read(access, "damaged-header", 25, 50)
    assert read(access, "damaged-header", 0, 50, on_corrupt=lambda _: None)["offset"].to_pylist() == [*range(20), *range(30, 50)]


def test_a_topic_that_is_gone_or_was_made_anew_is_a_loss_by_both_paths(shared_box: RunningBox, cluster: ClusterClient) -> None:
    create_topic(cluster, "short-lived", partitions=1)
    produce(shared_box, "short-lived", [b"old"] * 10)
    access = access_to(shared_box, "short-lived")
    wanted = OffsetRange("short-lived", 0, 0, 10)
    assert isinstance(find_local_segments(access, wanted), LocalSegments)
    delete_topic(cluster, "short-lived")
    create_topic(cluster, "short-lived", partitions=1)
    produce(shared_box, "short-lived", [b"new"] * 10)
    assert find_local_segments(access, wanted) == f"the box {shared_box.layout.runtime_directory} does not serve it at the moment"
    with pytest.raises(OffsetsLost, match=r"offsets 0 to 9 of short-lived-0 .* the topic was deleted, and another one of its name was created"):
        read(access, "short-lived", 0, 10)
    fresh = access_to(shared_box, "short-lived")
    assert read(fresh, "short-lived", 0, 10)["value"].to_pylist() == [b"new"] * 10


def test_a_machine_without_the_segments_fetches(shared_box: RunningBox, cluster: ClusterClient) -> None:
    create_topic(cluster, "elsewhere", partitions=1)
    produce(shared_box, "elsewhere", [b"%d" % number for number in range(100)])
    access = access_to(shared_box, "elsewhere")
    for other, why in (
        (access._replace(cluster_id="another"), "belongs to another cluster"),
        (access._replace(data_directory="/srv/none"), "has the directory /srv/none"),
    ):
        assert why in str(find_local_segments(other, OffsetRange("elsewhere", 0, 0, 100)))
        assert read(other, "elsewhere", 0, 100).num_rows == 100
        with pytest.raises(SourceProblem, match="cannot be read from segments of this machine"):
            read(other._replace(path=ReadPath.SEGMENTS), "elsewhere", 0, 100)
    assert isinstance(find_local_segments(access._replace(data_directory=str(shared_box.disks[0])), OffsetRange("elsewhere", 0, 0, 100)), LocalSegments)


def test_a_reader_that_fetches_survives_a_restart_of_the_acceptor(shared_box: RunningBox, cluster: ClusterClient) -> None:
    create_topic(cluster, "through-a-death", partitions=1)
    produce(shared_box, "through-a-death", [b"%d" % number * 50 for number in range(5000)], **{"batch.num.messages": 100})
    access = access_to(shared_box, "through-a-death", ReadPath.FETCH)._replace(fetch_bytes=20_000)
    found = []
    for number, batch in enumerate(read_range(access, OffsetRange("through-a-death", 0, 0, 5000), ("offset",))):
        found += batch.column(0).to_pylist()
        if number == 3:
            shared_box.await_restart("acceptor@0", shared_box.kill("acceptor@0"))
    assert found == list(range(5000))


def test_a_range_that_no_box_can_return_is_given_up(shared_box: RunningBox, cluster: ClusterClient) -> None:
    create_topic(cluster, "too-short", partitions=1)
    produce(shared_box, "too-short", [b"x"] * 10)
    access = access_to(shared_box, "too-short")._replace(patience_ms=300, fetch_wait_ms=50)
    assert "it can be read up to offset 10 here" in str(find_local_segments(access, OffsetRange("too-short", 0, 0, 20)))
    with pytest.raises(OffsetsLost, match=r"offsets 15 to 19 of too-short-0 .* the log ends at offset 10"):
        read(access, "too-short", 15, 20)
    eventually(lambda: read(access, "too-short", 0, 10).num_rows == 10, "what is there can be read")


def test_a_box_whose_zookeeper_is_elsewhere_is_found_before_its_first_restart(start: Callable[..., RunningBox], zookeeper: RealZooKeeper) -> None:
    """Its settings and the meta.properties of a new disk do not have the cluster's id yet."""
    box = start(disks=1, zookeeper=f"{zookeeper.connect}/first-start")
    with ClusterClient(parse_addresses(box.bootstrap)) as cluster:
        create_topic(cluster, "first", partitions=1)
    produce(box, "first", [b"one", b"two"])
    assert read(access_to(box, "first", ReadPath.SEGMENTS), "first", 0, 2).to_pydict()["value"] == [b"one", b"two"]
