"""Three boxes and a ZooKeeper: partitions go from box to box and leadership with them while records come in, by orders of real clients and of our commands.

Records are acknowledged by all in sync; at the end each is there once, in order, and boxes hold what they should and nothing else.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaError, KafkaException, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, NewTopic, ResourceType

from appliance.base.errors import ErrorCode
from lab.raw_coordination import RawCoordination
from lab.real_zookeeper import RealZooKeeper
from lab.running_box import RunningBox, begin_box, environment, eventually

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of Python's own, raised while kafka-python reads its schemas
    from kafka import TopicPartition as PythonPartition
    from kafka.admin import KafkaAdminClient

pytestmark = [pytest.mark.system, pytest.mark.slow]

MIB = 1 << 20
SMALL = {"acceptor.arena.bytes": 16 * MIB, "socket.request.max.bytes": 8 * MIB, "disk.budget.bytes": 8 * MIB, "ingest.arena.bytes": 8 * MIB}
SMALL |= {"offsets.topic.num.partitions": 1, "offsets.topic.replication.factor": 1, "ingest.topic.replication.factor": 1}
SMALL |= {"transaction.state.log.num.partitions": 1, "transaction.state.log.replication.factor": 1}
SMALL |= {"auto.leader.rebalance.enable": False}  # it would lead elsewhere five seconds after a controller has come, and every five minutes
SMALL |= {"share.coordinator.state.topic.num.partitions": 3, "share.coordinator.state.topic.replication.factor": 1}
SMALL |= {"group.share.auto.offset.reset": "earliest", "group.share.heartbeat.interval.ms": 500}
SECONDS = 20
PARTITIONS = 3
COMMAND = [sys.executable, "-P", "-c", "from appliance.command.main import main; main()"]


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningBox]]:
    directory = tmp_path_factory.mktemp("boxes")
    zookeeper = RealZooKeeper(directory / "zookeeper")
    running: list[RunningBox] = []
    try:
        starting = [
            begin_box(directory / f"b{broker_id}", disks=1, broker_id=broker_id, zookeeper=zookeeper.connect, settings=SMALL) for broker_id in (1, 2, 3)
        ]
        running += [box.wait() for box in starting]
        yield running
    finally:
        codes = [box.stop() for box in running]
        zookeeper.stop()
    assert codes == [0, 0, 0]
    assert [box.leftovers() for box in running] == [[], [], []]


def addresses(boxes: list[RunningBox]) -> str:
    return ",".join(str(box.kafka) for box in boxes)


@pytest.fixture
def admin(boxes: list[RunningBox]) -> AdminClient:
    return AdminClient({"bootstrap.servers": addresses(boxes)})


@pytest.fixture
def python_admin(boxes: list[RunningBox]) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=addresses(boxes).split(","))
    yield client
    client.close()


def create(admin: AdminClient, name: str, replicas: list[list[int]]) -> None:
    """Retried while ZooKeeper has no processor to answer, which changes nothing."""

    def is_created() -> bool:
        try:
            admin.create_topics([NewTopic(name, len(replicas), replica_assignment=replicas)])[name].result(SECONDS)
        except KafkaException as error:
            if error.args[0].code() not in (KafkaError.REQUEST_TIMED_OUT, KafkaError.TOPIC_ALREADY_EXISTS):
                raise
            return bool(error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS)  # an answer that was late
        return True

    eventually(is_created, f"topic {name} is created")


def placed(admin: AdminClient, name: str) -> dict[int, tuple[int, list[int], set[int]]]:
    """partition → leader, replicas, ISR."""
    found = admin.list_topics(name, timeout=SECONDS).topics[name].partitions
    return {number: (each.leader, list(each.replicas), set(each.isrs)) for number, each in found.items()}


def millrace(boxes: list[RunningBox], *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [*COMMAND, *arguments, "--bootstrap", addresses(boxes[:1])], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def logs(box: RunningBox, topic: str) -> set[str]:
    return {path.name for path in Path(box.disks[0]).glob(f"{topic}-*") if not path.name.endswith("-delete")}


@contextmanager
def records_come_in(boxes: list[RunningBox], topic: str, first: int = 2000) -> Iterator[None]:
    """`first` records, and some every few milliseconds until the end; then every one is read again: none is lost, none is there twice."""
    sent = [0] * PARTITIONS
    failed: list[object] = []
    ended = threading.Event()
    producer = Producer({"bootstrap.servers": addresses(boxes), "enable.idempotence": True, "linger.ms": 2})

    def send(records: int) -> None:
        for number in range(records):
            partition = number % PARTITIONS
            value = b"%d" % sent[partition] + b" " * 500
            producer.produce(topic, value, partition=partition, on_delivery=lambda error, _: failed.append(error) if error else None)
            sent[partition] += 1
        producer.poll(0)

    def go_on() -> None:
        while not ended.wait(0.005):
            send(PARTITIONS)

    send(first)
    assert producer.flush(SECONDS) == 0
    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert producer.flush(SECONDS) == 0 and not failed
    consumer = Consumer({"bootstrap.servers": addresses(boxes), "group.id": "judge", "enable.auto.commit": False})
    for partition in range(PARTITIONS):
        consumer.assign([TopicPartition(topic, partition, 0)])
        read: list[int] = []
        while len(read) < sent[partition] and (messages := consumer.consume(min(5000, sent[partition] - len(read)), SECONDS)):
            read += [int(bytes(message.value() or b"")) for message in messages]
        assert read == list(range(sent[partition]))
    consumer.close()


def test_partitions_go_to_other_boxes_while_records_come_in_and_a_controller_dies_over_it(
    boxes: list[RunningBox], admin: AdminClient, python_admin: KafkaAdminClient
) -> None:
    create(admin, "moved", [[1, 2], [2, 3], [3, 1]])
    with records_come_in(boxes, "moved"):
        targets = {0: [3, 2], 1: [1], 2: [3, 2]}
        answer = python_admin.alter_partition_reassignments({PythonPartition("moved", number): replicas for number, replicas in targets.items()})
        assert list(answer.values()) == [None] * PARTITIONS
        controller = boxes[0]  # the first that came
        controller.await_restart("controller", controller.kill("controller"))
        eventually(
            lambda: {number: replicas for number, (_, replicas, _) in placed(admin, "moved").items()} == targets, "the partitions are where they were to go"
        )
        assert python_admin.list_partition_reassignments() == {}
        eventually(lambda: [logs(box, "moved") for box in boxes] == [{"moved-1"}, {"moved-0", "moved-2"}, {"moved-0", "moved-2"}], "logs")
    eventually(lambda: all(leader in replicas and isr == set(replicas) for leader, replicas, isr in placed(admin, "moved").values()), "all are in sync")


def test_what_cannot_be_reassigned_has_kafkas_errors(admin: AdminClient, python_admin: KafkaAdminClient) -> None:
    create(admin, "refused", [[1], [1]])
    asked = {PythonPartition("refused", 0): [9], PythonPartition("refused", 1): None, PythonPartition("refused", 5): [1], PythonPartition("none", 0): [1]}
    errors = {f"{part.topic}-{part.partition}": error.__name__ if error else None for part, error in python_admin.alter_partition_reassignments(asked).items()}
    assert errors == {
        "refused-0": "InvalidReplicationAssignmentError",
        "refused-1": "NoReassignmentInProgressError",
        "refused-5": "UnknownTopicOrPartitionError",
        "none-0": "UnknownTopicOrPartitionError",
    }


def test_leadership_returns_when_it_is_asked_for(admin: AdminClient, python_admin: KafkaAdminClient) -> None:
    create(admin, "led", [[1, 2], [1, 2]])
    python_admin.alter_partition_reassignments({PythonPartition("led", number): [2, 1] for number in (0, 1)})
    eventually(lambda: [replicas for _, replicas, _ in placed(admin, "led").values()] == [[2, 1], [2, 1]], "another order of the same replicas")
    assert [leader for leader, _, _ in placed(admin, "led").values()] == [1, 1]
    partitions = [TopicPartition("led", number) for number in (0, 7)]
    results = {part.partition: error for part, error in admin.elect_leaders(ElectionType.PREFERRED, partitions).result(SECONDS).items()}
    assert results[0] is None and results[7].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    python_admin.elect_leaders(0, {"led": [1]})
    eventually(lambda: [leader for leader, _, _ in placed(admin, "led").values()] == [2, 2], "every box knows the leader")


def test_a_damaged_batch_that_a_new_follower_reads_is_repaired_at_once(boxes: list[RunningBox], admin: AdminClient) -> None:
    """In an active segment, which no scrubber reads: the new replica reports it to its leader,
    whose box fetches the batch from the old one.
    """
    create(admin, "met", [[1, 2]])
    producer = Producer({"bootstrap.servers": addresses(boxes), "acks": "all", "linger.ms": 5, "batch.size": 4000})
    for number in range(300):
        producer.produce("met", b"%0200d" % number, partition=0)
    assert producer.flush(SECONDS) == 0
    segment = boxes[0].disks[0] / "met-0" / f"{0:020d}.log"
    good = segment.read_bytes()
    place = len(good) // 2
    with open(segment, "r+b") as file:
        file.seek(place)
        file.write(bytes((good[place] ^ 1,)))
    assert placed(admin, "met") == {0: (1, [1, 2], {1, 2})}
    assert segment.read_bytes() != good
    millrace(boxes, "topic", "alter", "met", "--replication-factor", "3")
    assert segment.read_bytes() == good == (boxes[2].disks[0] / "met-0" / segment.name).read_bytes()
    assert boxes[0].counters("acceptor@0").values["fetch.follower_damages"] >= 1
    eventually(lambda: boxes[0].counters("log-writer@d0").values["log_writer.batches_repaired"] == 1, "it is counted in the turn behind the write")
    assert "sent a damaged copy of met-0" in boxes[2].messages
    eventually(lambda: "repaired with the copy of broker 2" in boxes[0].messages, "it is logged behind that")
    admin.delete_topics(["met"])["met"].result(SECONDS)


def test_a_producer_goes_on_when_leadership_leaves_a_box_and_comes_back(admin: AdminClient, python_admin: KafkaAdminClient, boxes: list[RunningBox]) -> None:
    """On its old connection to that box a batch was refused, which went to the other one and never comes again."""
    create(admin, "returned", [[1, 2]])
    producer = Producer({"bootstrap.servers": addresses(boxes), "enable.idempotence": True, "linger.ms": 1})
    producer.produce("returned", b"first", partition=0)
    assert producer.flush(30) == 0
    for replicas in ([2, 1], [1, 2]):
        python_admin.alter_partition_reassignments({PythonPartition("returned", 0): replicas})
        eventually(lambda replicas=replicas: placed(admin, "returned")[0][1] == replicas, "the order of the replicas")  # type: ignore[misc]
        python_admin.elect_leaders(0, {"returned": [0]})
        eventually(lambda replicas=replicas: placed(admin, "returned")[0][0] == replicas[0], "every box knows the leader")  # type: ignore[misc]
        for number in range(50):
            producer.produce("returned", b"%d" % number, partition=0)
        assert producer.flush(30) == 0


def test_a_group_goes_on_when_its_coordinator_moves_between_boxes(admin: AdminClient, python_admin: KafkaAdminClient, boxes: list[RunningBox]) -> None:
    """Its member stays in its generation, no commit is lost, and a request that waits for other members is answered by the former coordinator.

    While a coordinator loads, it answers heartbeats with NONE, as Kafka's does.
    """
    group, topic, offsets = "moved", "grouped", "__consumer_offsets"
    create(admin, topic, [[1]])
    with closing(RawCoordination(boxes[0].kafka)) as asking:
        eventually(lambda: asking.find_coordinators(group) == [0, 0], "a coordinator")
    first = placed(admin, offsets)[0][0]
    second = first % len(boxes) + 1
    waits: list[float] = []

    def timed(request: Callable[[], Any]) -> Any:
        began = time.monotonic()
        answer = request()
        waits.append(time.monotonic() - began)
        return answer

    def lead(*replicas: int) -> None:
        python_admin.alter_partition_reassignments({PythonPartition(offsets, 0): list(replicas)})
        eventually(lambda: placed(admin, offsets)[0][1:] == (list(replicas), set(replicas)), "both boxes have the group's log")
        python_admin.elect_leaders(0, {offsets: [0]})
        eventually(lambda: placed(admin, offsets)[0][0] == replicas[0], "every box knows the leader")

    lead(first, second)
    with closing(RawCoordination(boxes[first - 1].kafka)) as former, closing(RawCoordination(boxes[second - 1].kafka)) as present:
        member = former.join(group, session_ms=60_000)
        assert former.sync(group, member) == former.commit(group, topic, 1, member) == 0
        parked: list[int] = []

        def join() -> None:
            with closing(RawCoordination(boxes[first - 1].kafka)) as joining:
                parked.append(joining.join(group).error_code)

        joining = threading.Thread(target=join)
        joining.start()
        eventually(lambda: former.heartbeat(group, member) == ErrorCode.REBALANCE_IN_PROGRESS, "another member waits for this one")
        lead(second, first)
        joining.join(30)
        assert parked == [ErrorCode.NOT_COORDINATOR]
        assert timed(lambda: former.heartbeat(group, member)) == timed(lambda: former.commit(group, topic, 9, member)) == ErrorCode.NOT_COORDINATOR
        eventually(lambda: timed(lambda: present.committed(group, topic)) == (0, 1), "the group is loaded")
        assert timed(lambda: present.heartbeat(group, member)) == timed(lambda: present.commit(group, topic, 2, member)) == 0
        lead(first, second)
        eventually(lambda: timed(lambda: former.committed(group, topic)) == (0, 2), "the group is loaded again")
        assert timed(lambda: former.heartbeat(group, member)) == 0
    assert max(waits) < 10, waits
    lead(first)


def throttled_boxes(admin: AdminClient) -> set[str]:
    """Those of the three that have a rate."""
    name, throttled = "leader.replication.throttled.rate", set()
    for box in ("1", "2", "3"):  # librdkafka asks for one at a time
        [described] = admin.describe_configs([ConfigResource(ResourceType.BROKER, box)]).values()
        if described.result(SECONDS)[name].source == ConfigSource.DYNAMIC_BROKER_CONFIG.value:
            throttled.add(box)
    return throttled


def test_a_throttle_lasts_for_those_that_are_on_their_way_and_no_longer(boxes: list[RunningBox], admin: AdminClient) -> None:
    create(admin, "slow", [[1, 2], [2, 3], [3, 2]])
    create(admin, "quick", [[2]])
    with records_come_in(boxes, "slow"):
        millrace(boxes, "topic", "reassign", "slow", "--replicas", "0=1,3", "--throttle", "1K", "--no-wait")
        millrace(boxes, "topic", "reassign", "quick", "--replicas", "0=2,1", "--throttle", "1K")
        assert throttled_boxes(admin) == {"1", "2", "3"}, "the slow one is still under way"
        assert "throttled" not in millrace(boxes, "topic", "describe", "quick") and "throttled" in millrace(boxes, "topic", "describe", "slow")
        assert "called off" in millrace(boxes, "topic", "reassign", "slow", "--cancel")
        assert throttled_boxes(admin) == set() and "throttled" not in millrace(boxes, "topic", "describe", "slow")
    millrace(boxes, "topic", "reassign", "quick", "--replicas", "0=2,3", "--throttle", "1M", "--no-wait")
    eventually(lambda: placed(admin, "quick")[0][1] == [2, 3], "it ends without a watcher")
    assert "lifted" in millrace(boxes, "topic", "reassign", "--cancel") and throttled_boxes(admin) == set()
    assert "lifted" not in millrace(boxes, "topic", "reassign", "--cancel")


def test_a_share_group_has_partitions_and_states_on_all_boxes(boxes: list[RunningBox], admin: AdminClient) -> None:
    create(admin, "shared", [[1, 2], [2, 3], [3, 1]])
    producer = Producer({"bootstrap.servers": addresses(boxes)})
    for partition in range(3):
        producer.produce("shared", b"job", partition=partition)
    assert producer.flush(SECONDS) == 0
    consumer = ShareConsumer({"bootstrap.servers": addresses(boxes), "group.id": "workers", "share.acknowledgement.mode": "explicit"})
    consumer.subscribe(["shared"])
    received: list[int] = []

    def receives() -> bool:
        for message in consumer.poll(0.5) or []:
            received.append(message.partition())
            consumer.acknowledge(message)
        return set(received) == {0, 1, 2}

    eventually(receives, "records of all leaders", 60.0)
    consumer.close()

    def left() -> list[int]:
        return [row["lag"] for row in json.loads(millrace(boxes[::-1], "group", "describe", "workers", "--json"))["partitions"]]

    eventually(lambda: left() == [0, 0, 0], "all of them are acknowledged", SECONDS)


# Beside other tests its last drain stood still for more than a minute. Two possible causes are
# mended: a replica that never joined the in-sync set on an overloaded machine, and a drain that
# ordered a finished partition again. The stall was not seen again, with or without them: the cause
# is not proven.
@pytest.mark.alone
def test_a_box_is_emptied_filled_and_taken_out_by_commands(boxes: list[RunningBox], admin: AdminClient) -> None:
    create(admin, "kept", [[1, 2], [2, 3], [3, 2]])
    with records_come_in(boxes, "kept"):
        millrace(boxes, "topic", "reassign", "kept", "--to", "1,2", "--no-wait", "--throttle", "64K")
        assert "called off" in millrace(boxes, "topic", "reassign", "kept", "--cancel")
        unwatched = "topic", "reassign", "kept", "--replicas", "0=1,3", "--throttle", "64M"
        millrace(boxes, *unwatched, "--no-wait")
        eventually(lambda: placed(admin, "kept")[0][1] == [1, 3], "it ends without a watcher")
        assert "lifted" in millrace(boxes, *unwatched) and "throttled" not in millrace(boxes, "topic", "describe", "kept")
        shown = millrace(boxes, "box", "drain", "3", "--dry-run")
        assert "become" in shown.lower() and logs(boxes[2], "kept") == {"kept-0", "kept-1", "kept-2"}
        assert "holds nothing any more" in millrace(boxes, "box", "drain", "3", "--throttle", "100M")
        assert all(3 not in replicas for _, replicas, _ in placed(admin, "kept").values())
        admin.create_topics([NewTopic("later", 6, 1)])["later"].result(SECONDS)
        assert {box for _, replicas, _ in placed(admin, "later").values() for box in replicas} == {1, 2}, "an emptied box gets nothing new"
        added = millrace(boxes, "box", "add", "3", "--throttle", "100M")
        held = [box for topic in ("kept", "later") for _, replicas, _ in placed(admin, topic).values() for box in replicas]
        assert 3 in held and "3" in added, "a box that is opened again is filled"
        admin.create_topics([NewTopic("latest", 6, 1)])["latest"].result(SECONDS)
        assert {box for _, replicas, _ in placed(admin, "latest").values() for box in replicas} == {1, 2, 3}, "and gets its share of what is new"
        assert "holds nothing any more" in millrace(boxes, "box", "drain", "3")
        eventually(lambda: {len(each[1]) for topic in ("later", "latest") for each in placed(admin, topic).values()} == {1}, "no partition gained a replica")
        create(admin, "astray", [[1], [1]])
        assert "1 partition led by another box now" in millrace(boxes, "topic", "alter", "astray", "--replication-factor", "2")
        eventually(lambda: {leader for leader, _, _ in placed(admin, "astray").values()} == {1, 2}, "the boxes share the leading")
        assert "stop it first" in millrace(boxes, "box", "remove", "3", code=1)
    eventually(lambda: logs(boxes[2], "") == set(), "nothing is left on the box")
    boxes[2].stop()
    eventually(lambda: "away" not in millrace(boxes, "box", "list") and len(admin.list_topics(timeout=SECONDS).brokers) == 2, "two boxes are left")
    assert "taken out" in millrace(boxes, "box", "remove", "3")
    assert "No box 3 is recorded" in millrace(boxes, "box", "remove", "3", code=1)
