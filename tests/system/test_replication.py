"""Two boxes and a ZooKeeper: what one leads the other has, byte for byte, whichever process is
killed meanwhile. The whole matrix of faults is in `tests/cluster`.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from appliance.base.clock import SystemClock
from appliance.client.address import Address
from appliance.client.admin import create_topic
from appliance.client.cluster import ClusterClient
from appliance.client.peer_connection import PeerConnection
from appliance.cluster.metadata_image import read_image
from appliance.ipc.disk_reports import read_report, report_file
from appliance.protocol import offset_apis
from appliance.protocol.offset_apis import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from appliance.records.batch import BATCH_LENGTH_AT, read_batch_header
from appliance.runtime.poller import Poller
from appliance.shm.disk_tables import attach_table
from lab.real_zookeeper import RealZooKeeper
from lab.reconcile import Reconciliation
from lab.running_box import RunningBox, eventually, start_box

pytestmark = pytest.mark.system

TOPIC, PARTITIONS = "copied", 4
MIB = 1 << 20
SMALL = {"acceptor.arena.bytes": 16 * MIB, "socket.request.max.bytes": 8 * MIB, "disk.budget.bytes": 8 * MIB, "ingest.arena.bytes": 8 * MIB}
SCRUBBING = {"log.scrub.bytes.per.second": 8 * MIB, "log.scrub.interval.ms": 200}


def options_of(broker_id: int, zookeeper: str) -> dict[str, Any]:
    senders = {"listener": [{"name": "http", "topics": "taken"}]}
    return {"disks": 1, "broker_id": broker_id, "zookeeper": zookeeper, "settings": {**SMALL, **SCRUBBING}, "senders": senders}


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningBox]]:
    directory = tmp_path_factory.mktemp("boxes")
    zookeeper = RealZooKeeper(directory / "zookeeper")
    running: list[RunningBox] = []
    try:
        for broker_id in (1, 2):
            running.append(start_box(directory / f"b{broker_id}", **options_of(broker_id, zookeeper.connect)))
        yield running
    finally:
        codes = [box.stop() for box in running]
        zookeeper.stop()
    assert codes == [0, 0]
    assert [box.leftovers() for box in running] == [[], []]


@pytest.fixture(scope="module")
def copied(boxes: list[RunningBox]) -> str:
    """The topic, on both boxes."""
    cluster = ClusterClient([Address(*boxes[0].kafka)])
    create_topic(cluster, TOPIC, partitions=PARTITIONS, replication_factor=2)
    cluster.close()
    return TOPIC


def produce(boxes: list[RunningBox], records: int, beside: Any = None) -> None:
    """Idempotent, acks=all; `beside(n)` is called after every thousandth record."""
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": ",".join(str(box.kafka) for box in boxes), "enable.idempotence": True, "linger.ms": 2})
    for number in range(records):
        producer.produce(TOPIC, b"%d" % number * 20, partition=number % PARTITIONS, on_delivery=lambda error, _: failed.append(error) if error else None)
        if number % 1000 == 999:
            producer.flush(30)
            if beside is not None:
                beside(number // 1000)
    assert producer.flush(30) == 0 and not failed


def contents(box: RunningBox, topic: str = TOPIC, partitions: int = PARTITIONS) -> list[bytes]:
    """The log of each partition; empty while one of its files is replaced."""

    def log(partition: int) -> bytes:
        try:
            return b"".join(file.read_bytes() for file in sorted((box.disks[0] / f"{topic}-{partition}").glob("*.log")))
        except FileNotFoundError:
            return b""

    return [log(partition) for partition in range(partitions)]


def await_equal_copies(boxes: list[RunningBox]) -> None:
    """A replica that left the in-sync set while processes were killed has what acks=all confirmed after it was back."""

    def are_equal() -> bool:
        ours = contents(boxes[0])
        return all(ours) and ours == contents(boxes[1])

    eventually(are_equal, "both boxes have the same logs, byte for byte")


def test_a_copy_is_its_leaders_log_byte_for_byte_although_fetchers_and_log_writers_are_killed(boxes: list[RunningBox], copied: str) -> None:
    killed = ["replica-fetcher", "log-writer@d0"] * 2

    def kill_one(number: int) -> None:
        if number < len(killed):
            boxes[number % 2].kill(killed[number])

    produce(boxes, 8_000, kill_one)
    await_equal_copies(boxes)
    # Leadership may have moved while log-writers were killed, and topics of the boxes themselves (millrace-host) may be there by now.
    admin = AdminClient({"bootstrap.servers": boxes[0].bootstrap})

    def each_has_one_follower() -> bool:
        topics = admin.list_topics(timeout=30).topics.values()
        copies = sum(len(partition.replicas) - 1 for topic in topics for partition in topic.partitions.values())
        return copies >= PARTITIONS and sum(box.counters("replica-fetcher").values["replica_fetcher.partitions"] for box in boxes) == copies

    eventually(each_has_one_follower, "each partition has one follower")
    assert not any(box.counters("replica-fetcher").values.get("replica_fetcher.corrupt_batches") for box in boxes)


def test_a_box_that_was_away_gets_what_it_missed(boxes: list[RunningBox], copied: str) -> None:
    """Its acceptor, fetcher and log-writer all at once; the leader receives the follower's log end
    again after the restart.
    """
    before = boxes[1].pids()
    for name in ("acceptor@0", "replica-fetcher", "log-writer@d0"):
        boxes[1].kill(name)
    produce(boxes, 2_000)
    await_equal_copies(boxes)
    assert before != boxes[1].pids()


def test_damage_on_either_box_is_repaired_from_the_other(boxes: list[RunningBox]) -> None:
    """One damaged batch, one broken length, and a row of zeroes; whichever box leads."""
    admin = AdminClient({"bootstrap.servers": str(boxes[0].kafka)})
    admin.create_topics([NewTopic("scrubbed", 1, 2, config={"internal.segment.bytes": "65536"})])["scrubbed"].result(30)
    producer = Producer({"bootstrap.servers": str(boxes[0].kafka), "acks": "all", "linger.ms": 5, "batch.size": 4000})
    for number in range(1_500):
        producer.produce("scrubbed", b"%0200d" % number, partition=0)
    assert producer.flush(60) == 0
    for box in boxes:
        closed = sorted((box.disks[0] / "scrubbed-0").glob("*.log"))[:-1]
        assert len(closed) >= 3
        good = [path.read_bytes() for path in closed]
        second = read_batch_header(good[1]).size_bytes
        damage(closed[0], len(good[0]) // 2, b"!")
        damage(closed[1], second + BATCH_LENGTH_AT, b"\x55")
        damage(closed[2], len(good[2]) // 3, bytes(9_000))
        eventually(lambda closed=closed, good=good: [path.read_bytes() for path in closed] == good, "repaired")
        report = report_file(box.layout, "d0")
        eventually(lambda report=report: not read_report(report).damages, "what was repaired leaves the report")
        # A thread writes; the log-writer counts and logs it in its next turn.
        eventually(lambda box=box: box.counters("log-writer@d0").values["log_writer.batches_repaired"] >= 4, "all are counted")  # type: ignore[misc]
        assert "of scrubbed-0 at offset 0 repaired" not in box.messages and "repaired with the copy of broker" in box.messages
        assert not box.counters("replica-fetcher").values["replica_fetcher.repairs_left"]


def test_a_log_that_lacks_segments_and_one_that_was_restored_from_a_copy_are_fetched_from_the_other_box(boxes: list[RunningBox]) -> None:
    """While a box is stopped: a first and a middle segment removed; then its whole directory put back from a copy."""
    admin = AdminClient({"bootstrap.servers": str(boxes[0].kafka)})
    admin.create_topics([NewTopic("holed", 2, 2, config={"internal.segment.bytes": "65536"})])["holed"].result(30)
    _fill_holed(boxes, 1_500)
    zookeeper, disk, directory = str(boxes[1].box.zookeeper), boxes[1].disks[0], boxes[1].directory
    assert boxes[1].stop() == 0
    shutil.copytree(disk, directory / "copy")
    for partition, number in ((0, 0), (1, 1)):
        sorted((disk / f"holed-{partition}").glob("*.log"))[number].unlink()
    boxes[1] = start_box(directory, **options_of(2, zookeeper))
    assert "log holed-0 of" in boxes[1].messages and "offsets at its start, 0 to" in boxes[1].messages
    assert "log holed-1 of" in boxes[1].messages and "offsets between its segments" in boxes[1].messages
    _await_equal(boxes)
    _fill_holed(boxes, 300)
    assert boxes[1].stop() == 0
    shutil.rmtree(disk)
    shutil.copytree(directory / "copy", disk)
    boxes[1] = start_box(directory, **options_of(2, zookeeper))
    assert "is older than its box remembers" in boxes[1].messages
    _await_equal(boxes)
    consumer = Consumer({"bootstrap.servers": boxes[1].bootstrap, "group.id": "holed", "auto.offset.reset": "error"})
    consumer.assign([TopicPartition("holed", partition, 0) for partition in range(2)])
    found = [message for message in consumer.consume(1_800, 30) if message.error() is None]
    consumer.close()
    assert sorted((message.partition(), message.offset()) for message in found) == [(partition, offset) for partition in range(2) for offset in range(900)]


def _fill_holed(boxes: list[RunningBox], records: int) -> None:
    producer = Producer({"bootstrap.servers": str(boxes[0].kafka), "acks": "all", "linger.ms": 5, "batch.size": 4000})
    for number in range(records):
        producer.produce("holed", b"%0200d" % number, partition=number % 2)
    assert producer.flush(60) == 0


def _await_equal(boxes: list[RunningBox]) -> None:
    """Both have the same, and both are in sync."""

    def are_in_sync() -> bool:
        image = read_image(boxes[0].layout.image_file)
        return image is not None and all(len(partition.isr) == 2 for partition in image.topics["holed"].partitions)

    eventually(lambda: contents(boxes[0], "holed", 2) == contents(boxes[1], "holed", 2) and are_in_sync(), "the copies are equal and in sync")


def test_deleted_records_are_gone_from_both_boxes_when_the_client_is_answered(boxes: list[RunningBox], copied: str) -> None:
    """While the follower fetches nothing the client receives a time-out; the leader has done its
    part all the same.
    """
    admin = AdminClient({"bootstrap.servers": str(boxes[0].kafka), "log_level": 0})
    leader = admin.list_topics(copied, timeout=10).topics[copied].partitions[0].leader
    follower = boxes[2 - leader]
    result = admin.delete_records([TopicPartition(copied, 0, 100)], request_timeout=10)
    assert next(iter(result.values())).result(15).low_watermark == 100
    assert log_starts(boxes, copied) == [100, 100]
    fetcher = follower.pids()["replica-fetcher"]
    os.kill(fetcher, signal.SIGSTOP)
    try:
        with pytest.raises(KafkaException) as refused:
            next(iter(admin.delete_records([TopicPartition(copied, 0, 200)], operation_timeout=0.4).values())).result(15)
        assert refused.value.args[0].code() == KafkaError.REQUEST_TIMED_OUT
        eventually(lambda: sorted(log_starts(boxes, copied)) == [100, 200], "the leader has done its part")
    finally:
        os.kill(fetcher, signal.SIGCONT)
    assert next(iter(admin.delete_records([TopicPartition(copied, 0, 200)]).values())).result(15).low_watermark == 200
    assert log_starts(boxes, copied) == [200, 200]


def log_starts(boxes: list[RunningBox], topic: str) -> list[int]:
    """Where partition 0 begins on each box, by its table."""
    found = []
    for box in boxes:
        image, table = read_image(box.layout.image_file), attach_table(box.layout, "d0")
        assert image is not None and table is not None
        with closing(table):
            found += [row.log_start_offset for _, row in table.rows() if (row.topic_id, row.partition) == (image.topics[topic].topic_id, 0)]
    return found


def damage(path: Path, at: int, content: bytes) -> None:
    """As a disk does it: the file's times stay as they are."""
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(at)
        assert file.read(len(content)) != content
        file.seek(at)
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_what_an_ingest_takes_for_both_boxes_is_there_once_whatever_is_killed(boxes: list[RunningBox], copied: str) -> None:
    """Box 1 takes documents for a topic that both lead; a sender that is not answered comes again with the same key."""
    cluster = ClusterClient([Address(*boxes[0].kafka)])
    create_topic(cluster, "taken", partitions=PARTITIONS, replication_factor=2)
    cluster.close()
    url = f"http://{boxes[0].ingest}/ingest/taken"
    victims = {5: (1, "acceptor@0"), 10: (1, "log-writer@d0"), 15: (0, "log-writer@d0"), 20: (0, "ingest@0")}
    books = Reconciliation(boxes[0], "taken")
    for number in range(25):
        body = b"".join(b'{"host": "h%d", "message": "%d"}\n' % (each % 40, number * 100 + each) for each in range(100))
        if number in victims:
            box, name = victims[number]
            boxes[box].kill(name)
        eventually(lambda number=number, body=body: is_taken(url, str(number), body), f"request {number} is answered")  # type: ignore[misc]
    assert sorted(int(document["message"]) for document in books.records("taken")) == list(range(2_500))
    balance = books.balance("http")
    assert (balance.stored, balance.in_flight) == (2_500, 0) and balance.received == 2_500 + balance.duplicate + balance.counted
    assert boxes[0].counters("ingest@0").values["ingest.batches_elsewhere"] > 0
    books.close()


def is_taken(url: str, key: str, body: bytes) -> bool:
    request = urllib.request.Request(url, body, {"Idempotency-Key": key, "Content-Type": "application/x-ndjson"})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return bool(response.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def test_a_peer_connection_asks_a_real_acceptor(boxes: list[RunningBox], copied: str) -> None:
    poller, clock = Poller(), SystemClock()
    connection = PeerConnection(Address(*boxes[0].kafka), "broker-9-test", poller, clock, None)
    wanted = tuple(ListOffsetsPartition(partition) for partition in range(PARTITIONS))
    answers: list[Any] = []
    for _ in range(3):
        connection.ask(
            offset_apis.LIST_OFFSETS_REQUEST,
            offset_apis.LIST_OFFSETS_RESPONSE,
            ListOffsetsRequest(-1, 0, (ListOffsetsTopic(TOPIC, wanted),)),
            answers.append,
            5_000,
        )

    def three_answers() -> bool:
        poller.poll(10)
        connection.do_work(clock.monotonic_ns())
        return len(answers) == 3

    eventually(three_answers, "three answers")
    assert answers[0] is not None and answers[0].topics == answers[2].topics
    known = AdminClient({"bootstrap.servers": boxes[0].bootstrap}).list_topics(TOPIC, timeout=10).topics[TOPIC].partitions
    leads = {partition: known[partition].leader == boxes[0].box.broker_id for partition in range(PARTITIONS)}
    assert {result.partition: result.error_code == 0 for result in answers[0].topics[0].partitions} == leads
    connection.close()
    poller.close()
