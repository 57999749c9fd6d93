"""Power cuts on a real file system: ext4 on a loop device that is shut down without its journal, under a box that is killed with it.

`log.flush.policy = "ack"` loses nothing that was acknowledged; `os` leaves logs that open and are a prefix of what was written. Needs root and loop devices.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from appliance.base.zookeeper_access import new_secret, replace_secret
from appliance.shm.mapping import list_names, unlink
from appliance.storage import file_io
from lab.loop_disks import FOLLOWING, LoopDisk, loop_disks, why_not
from lab.real_zookeeper import free_port
from lab.running_box import RunningBox, begin_box, eventually, start_box
from lab.three_boxes import SMALL

pytestmark = [pytest.mark.system, pytest.mark.skipif(bool(why_not()), reason=why_not())]

TOPIC = "power"
PARTITIONS = 3


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    with loop_disks(tmp_path) as make:
        make_one: Callable[..., LoopDisk] = make
        yield make_one("disk", mib=128)


def _mode(address: str) -> str:
    """What a ZooKeeper server says that it is; '' while it does not serve."""
    host, port = address.split(":")[:2]
    answer = b""
    with suppress(OSError), socket.create_connection((host, int(port)), 2) as connection:
        connection.settimeout(2)
        connection.sendall(b"srvr")
        while received := connection.recv(4096):
            answer += received
    return answer.partition(b"Mode: ")[2].partition(b"\n")[0].decode()


def _elect(boxes: list[RunningBox], addresses: list[str]) -> None:
    """Let the leader of the ensemble be silent until another member leads, as on a loaded machine; return when it follows."""
    leader = eventually(lambda: next((number for number, address in enumerate(addresses) if _mode(address) == "leader"), None), "a leader")
    others = [address for number, address in enumerate(addresses) if number != leader]
    pid = boxes[leader].kill("zookeeper", signal.SIGSTOP)
    try:
        eventually(lambda: "leader" in map(_mode, others), "another leader")
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: all(map(_mode, addresses)), "all members serve")


def _create_topic(box: RunningBox, name: str) -> bool:
    """Whether it is acknowledged."""
    admin = AdminClient({"bootstrap.servers": box.bootstrap, "log_level": 1})
    try:
        admin.create_topics([NewTopic(name, 1, 1)], request_timeout=10)[name].result(60)
    except KafkaException as error:
        return bool(error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS)  # an answer that was late
    return True


@pytest.mark.parametrize("moment", [pytest.param("after ready", marks=pytest.mark.deep), "before a sync"])
def test_a_power_cut_during_a_clusters_first_seconds_leaves_a_cluster_that_starts(tmp_path: Path, disk: LoopDisk, moment: str) -> None:
    """What a member of ZooKeeper's ensemble writes when it starts, and after an election, it does not sync; the kernel does so after half a minute.

    Each member keeps a whole snapshot, one that was synced before the box was ready. A newer one, from an election just before the cut, may be an empty
    file: ZooKeeper skips it, and its log has the rest.
    """
    addresses = [":".join(map(str, ("127.0.0.1", free_port(), free_port(), free_port()))) for _ in range(3)]
    members = ",".join(f"{number}={address}" for number, address in enumerate(addresses, 1))

    secret = new_secret()
    for number in (1, 2, 3):
        state = disk.path / f"box{number}" / "state"
        state.mkdir(parents=True)
        replace_secret(str(state), secret)

    def start_all() -> list[RunningBox]:
        starting = [
            begin_box(disk.path / f"box{number}", data=[tmp_path / f"d{number}"], settings=SMALL, broker_id=number, zookeeper_members=members)
            for number in (1, 2, 3)
        ]
        return [each.wait(90) for each in starting]

    first = start_all()
    topics = {"before-the-election"}
    try:
        eventually(lambda: _create_topic(first[0], "before-the-election"), "a topic is created", 60)
        _elect(first, addresses)
        if _create_topic(first[0], "after-the-election"):  # a loaded machine may have elections for longer
            topics.add("after-the-election")
    finally:
        _cut_power(first, disk)
    versions = [box.directory / "state" / "zookeeper" / "data" / "version-2" for box in first]
    assert all(any(snapshot.stat().st_size for snapshot in version.glob("snapshot.*")) for version in versions)
    if moment == "before a sync":  # what a member receives from its leader ZooKeeper syncs itself
        for version in versions:
            (version / "snapshot.0").write_bytes(b"")
    again = start_all()
    try:
        for box in again:
            admin = AdminClient({"bootstrap.servers": box.bootstrap, "log_level": 1})
            eventually(lambda admin=admin: topics <= admin.list_topics(timeout=30).topics.keys(), "acknowledged topics are there")  # type: ignore[misc]
    finally:
        codes = [box.stop() for box in again]
    assert codes == [0, 0, 0]


def test_a_disk_is_off_after_a_power_cut_whatever_mount_namespaces_other_tests_have(disk: LoopDisk) -> None:
    """It came back shut down while Spark's workers of another test ran."""
    other = subprocess.Popen(["unshare", "--mount", *FOLLOWING, "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdin is not None and other.stdout is not None
    try:
        other.stdin.write(b"it runs\n")
        other.stdin.flush()
        assert other.stdout.readline() == b"it runs\n"
        disk.shut_down()
        disk.power_cycle()
        (disk.path / "after").touch()
    finally:
        other.communicate()
    assert other.returncode == 0


class NumberingProducer:
    """Numbers to every partition in turn, as many under way as librdkafka likes; keeps what was acknowledged at which offset."""

    def __init__(self, box: RunningBox) -> None:
        self.acknowledged: dict[int, dict[int, bytes]] = {partition: {} for partition in range(PARTITIONS)}
        self.sent: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
        self.refused: set[bytes] = set()
        """On a busy machine a new topic refuses its first records: not all processes know it yet."""
        self._producer = Producer(
            {
                "bootstrap.servers": box.bootstrap,
                "acks": "all",
                "linger.ms": 1,
                "message.timeout.ms": 60_000,  # one that times out on a loaded machine is a gap in what is stored
                "retries": 0,
                "enable.idempotence": False,
                "log_level": 1,
            }
        )

    def send_until(self, enough: int) -> None:
        """Go on until so many are acknowledged; more are under way then."""

        def step() -> bool:
            for partition in range(PARTITIONS):
                for _ in range(5):
                    value = b"%d-%d" % (partition, len(self.sent[partition])) + b"." * 300
                    self.sent[partition].append(value)
                    self._producer.produce(TOPIC, value, partition=partition, on_delivery=self._on_delivery)
            self._producer.poll(0)
            return sum(map(len, self.acknowledged.values())) >= enough

        eventually(step, f"{enough} acknowledgements", 60)

    def _on_delivery(self, error: object, message: object) -> None:
        if error is None:
            self.acknowledged[message.partition()][message.offset()] = message.value()  # type: ignore[attr-defined]
        else:
            self.refused.add(message.value())  # type: ignore[attr-defined]

    def purge(self) -> None:
        self._producer.purge()
        self._producer.flush(5)


def _cut_power(boxes: list[RunningBox], disk: LoopDisk) -> None:
    """The disk first, at a moment when much is under way; then every process, and what a reboot takes away: shared memory."""
    disk.shut_down()
    for box in boxes:
        box.kill_supervisor()
        for name in list_names(box.layout.shared_memory_prefix):
            unlink(name)
    disk.power_cycle()


def _read_all(box: RunningBox) -> dict[int, dict[int, bytes]]:
    """What a consumer gets, by partition and offset."""
    consumer = Consumer({"bootstrap.servers": box.bootstrap, "group.id": "g", "enable.auto.commit": False, "log_level": 1})
    stored: dict[int, dict[int, bytes]] = {partition: {} for partition in range(PARTITIONS)}
    try:
        wanted = {p: consumer.get_watermark_offsets(TopicPartition(TOPIC, p), timeout=20)[1] for p in range(PARTITIONS)}
        consumer.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])

        def step() -> bool:
            for message in consumer.consume(500, 0.2):
                assert message.error() is None
                stored[message.partition()][message.offset()] = message.value()  # type: ignore[index,assignment]
            return all(len(stored[p]) >= wanted[p] for p in range(PARTITIONS))

        eventually(step, f"{wanted} records")
    finally:
        consumer.close()
    return stored


@pytest.mark.parametrize("policy", ["ack", "os"])
def test_a_power_cut_under_load_costs_no_more_than_the_flush_policy_says(tmp_path: Path, disk: LoopDisk, policy: str) -> None:
    settings = {"log.flush.policy": policy, "num.partitions": PARTITIONS, "log.segment.bytes": 65_536}
    box = start_box(tmp_path / "box", data=[disk.log], settings=settings)
    producer = NumberingProducer(box)
    try:
        producer.send_until(1500)
        if policy == "os":  # something is on the platter, the rest is not
            fd = os.open(disk.path, os.O_RDONLY)
            file_io.syncfs(fd)
            os.close(fd)
        producer.send_until(3000)
        refused = set(producer.refused)
    finally:
        _cut_power([box], disk)
        producer.purge()
    again = start_box(tmp_path / "box", data=[disk.log], settings=settings)
    try:
        stored = _read_all(again)
    finally:
        assert again.stop() == 0
    for partition in range(PARTITIONS):
        found = [stored[partition][offset] for offset in sorted(stored[partition])]
        assert list(stored[partition]) == list(range(len(found))), "offsets have no gap"
        taken = [value for value in producer.sent[partition] if value not in refused]
        assert found == taken[: len(found)], "a prefix of what was sent and not refused, in its order"
        if policy == "ack":
            lost = producer.acknowledged[partition].keys() - stored[partition].keys()
            assert not lost, f"{len(lost)} acknowledged records of partition {partition} are lost"
            assert producer.acknowledged[partition].items() <= stored[partition].items()
    if policy == "os":
        acknowledged = sum(map(len, producer.acknowledged.values()))
        assert sum(map(len, stored.values())) < acknowledged, "or the power cut took nothing, and this proves nothing"
