"""The controller with a real ZooKeeper, real rings and fake disks: topics in Kafka's layout, deaths, lost sessions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from kazoo.client import KazooClient

from appliance.base.errors import ErrorCode
from appliance.ipc.descriptors import DescriptorKind
from appliance.ipc.request_frames import KAFKA_REQUEST, pack_kafka_request
from appliance.protocol.topic_apis import CreatableTopic, ReplicaAssignment, TopicConfig
from lab.real_zookeeper import RealZooKeeper
from services.controller.admin import waiting_requests
from services.controller.zookeeper import topic_registry
from services.controller.zookeeper.session import SavedSession
from tests.support.stepped_controller import Killed, SteppedBox

pytestmark = [pytest.mark.system, pytest.mark.slow]


@pytest.fixture
def make_box(tmp_path: Path, chroot: str) -> Iterator[Callable[..., SteppedBox]]:
    made: list[SteppedBox] = []

    def make(connect: str | None = None, **options: object) -> SteppedBox:
        made.append(SteppedBox(tmp_path / f"box-{len(made)}", connect or chroot, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for box in made:
        box.close()


@pytest.fixture
def box(make_box: Callable[..., SteppedBox]) -> SteppedBox:
    """A box that serves."""
    box = make_box()
    box.start_writers()
    box.start_controller()
    box.until_ready()
    return box


@pytest.fixture
def tree(chroot: str) -> Iterator[KazooClient]:
    """A second client of the same tree."""
    server, _, root = chroot.partition("/")
    client = KazooClient(server)
    client.start()
    client.ensure_path(f"/{root}")
    client.chroot = f"/{root}"
    yield client
    client.stop()
    client.close()


def document(tree: KazooClient, path: str) -> dict[str, object]:
    loaded: dict[str, object] = orjson.loads(tree.get(path)[0])
    return loaded


def end_session(box: SteppedBox, tree: KazooClient) -> None:
    """The box's session is over, as after its time-out, and the box does not know it any more."""
    saved = SavedSession.load(box.agent_session_file(), box.box.zookeeper)
    assert saved is not None
    double = KazooClient(tree.hosts[0][0] + f":{tree.hosts[0][1]}", client_id=(saved.session_id, saved.password))
    double.start()
    double.stop()
    double.close()
    Path(box.agent_session_file()).unlink()


def everything_below(tree: KazooClient, path: str) -> list[str]:
    """All nodes but those of the change log."""
    found = []
    for child in sorted(tree.get_children(path)):
        if path == "/millrace/changes":
            break
        found += [f"{path}/{child}", *everything_below(tree, f"{path}/{child}")]
    return found


# --- the tree ----------------------------------------------------------------------------------------------------------


def test_a_broker_registers_as_kafka_does(box: SteppedBox, tree: KazooClient) -> None:
    registered = document(tree, "/brokers/ids/1")
    assert registered.pop("timestamp")
    assert registered == {
        "version": 5,
        "host": "127.0.0.1",
        "port": 9092,
        "endpoints": ["PLAINTEXT://127.0.0.1:9092"],
        "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
        "jmx_port": -1,
        "features": {},
    }
    assert tree.exists("/brokers/ids/1").ephemeralOwner == box.agent.session.session_id
    assert tree.get("/controller_epoch")[0] == b"1"
    assert document(tree, "/controller")["brokerid"] == 1
    assert document(tree, "/cluster/id") == {"version": "1", "id": box.image().cluster_id}


def test_a_created_topic_stands_in_zookeeper_on_the_disks_and_in_the_image(box: SteppedBox, tree: KazooClient) -> None:
    (created,) = box.create(CreatableTopic("syslog", 4, 1, (), (TopicConfig("retention.ms", "1000"),)))
    assert (created.error_code, created.num_partitions, created.replication_factor) == (0, 4, 1)
    assert {config.name: (config.value, config.config_source) for config in created.configs or ()}["retention.ms"] == ("1000", 1)
    assert document(tree, "/brokers/topics/syslog") == {
        "version": 3,
        "topic_id": str(created.topic_id),
        "partitions": {"0": [1], "1": [1], "2": [1], "3": [1]},
        "adding_replicas": {},
        "removing_replicas": {},
    }
    assert document(tree, "/config/topics/syslog") == {"version": 1, "config": {"retention.ms": "1000"}}
    state = {"version": 1, "leader": 1, "leader_epoch": 0, "controller_epoch": 1, "isr": [1]}
    assert [document(tree, f"/brokers/topics/syslog/partitions/{partition}/state") for partition in range(4)] == [state] * 4
    topic = box.image().topics["syslog"]
    assert (topic.topic_id, topic.config) == (created.topic_id, {"retention.ms": "1000"})
    assert sorted(str(partition.disk) for partition in topic.partitions) == ["d0", "d0", "d1", "d1"]
    assert box.on_disks("syslog") == dict.fromkeys(range(4), str(created.topic_id))
    assert box.leading("syslog") == dict.fromkeys(range(4), 0)


def test_a_deleted_topic_leaves_nothing(box: SteppedBox, tree: KazooClient) -> None:
    box.create(CreatableTopic("keep", 1, 1))
    before = everything_below(tree, "")
    box.create(CreatableTopic("syslog", 4, 1))
    assert [topic.error_code for topic in box.delete("syslog", "nowhere")] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert everything_below(tree, "") == before
    assert box.on_disks("syslog") == {} and box.leading("syslog") == {}
    assert list(box.image().topics) == ["keep"]


def test_a_request_is_answered_topic_by_topic_with_kafkas_codes(box: SteppedBox) -> None:
    box.create(CreatableTopic("there", 1, 1), CreatableTopic("with.dot", 1, 1))
    created = box.create(
        CreatableTopic("fine", 1, 1),
        CreatableTopic("there", 1, 1),
        CreatableTopic("with_dot", 1, 1),
        CreatableTopic("no/slash", 1, 1),
        CreatableTopic("none", 0, 1),
        CreatableTopic("three", 1, 3),
        CreatableTopic("manual", -1, -1, (ReplicaAssignment(0, (1,)), ReplicaAssignment(1, (1,)))),
        CreatableTopic("elsewhere", -1, -1, (ReplicaAssignment(0, (7,)),)),
        CreatableTopic("both", 1, 1, (ReplicaAssignment(0, (1,)),)),
        CreatableTopic("odd", 1, 1, (), (TopicConfig("no.such.config", "1"),)),
        CreatableTopic("twice", 1, 1),
        CreatableTopic("twice", 1, 1),
    )
    assert {topic.name: ErrorCode(topic.error_code).name for topic in created} == {
        "fine": "NONE",
        "there": "TOPIC_ALREADY_EXISTS",
        "with_dot": "INVALID_TOPIC_EXCEPTION",
        "no/slash": "INVALID_TOPIC_EXCEPTION",
        "none": "INVALID_PARTITIONS",
        "three": "INVALID_REPLICATION_FACTOR",
        "manual": "NONE",
        "elsewhere": "INVALID_REPLICA_ASSIGNMENT",
        "both": "INVALID_REQUEST",
        "odd": "INVALID_CONFIG",
        "twice": "INVALID_REQUEST",
    }
    assert sorted(box.image().topics) == ["fine", "manual", "there", "with.dot"]


def test_validation_alone_creates_nothing(box: SteppedBox, tree: KazooClient) -> None:
    (validated,) = box.create(CreatableTopic("syslog", 3, 1), validate_only=True)
    assert (validated.error_code, validated.num_partitions) == (0, 3)
    assert tree.get_children("/brokers/topics") == []


def test_automatic_creation_takes_what_is_there_as_created(box: SteppedBox) -> None:
    box.create(CreatableTopic("there", 2, 1))
    assert orjson.loads(box.auto_create(b'{"topics": ["there", "new", "no/slash"]}'))["errors"] == {
        "there": 0,
        "new": 0,
        "no/slash": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    assert orjson.loads(box.auto_create(b'{"topics": {"four": 4}}'))["errors"] == {"four": 0}
    assert {name: len(topic.partitions) for name, topic in box.image().topics.items()} == {"there": 2, "new": 1, "four": 4}


def test_what_cannot_be_read_is_answered_with_nothing(box: SteppedBox) -> None:
    box.send(KAFKA_REQUEST, pack_kafka_request(19, 7, "test", "::1", b"\xff\xff"))
    assert box.answer() == b""
    box.send(KAFKA_REQUEST, pack_kafka_request(3, 0, "test", "::1", b""))
    assert box.answer() == b""


def test_topics_deleted_by_another_client_of_zookeeper_are_deleted(box: SteppedBox, tree: KazooClient) -> None:
    """As Kafka's own tools order it."""
    box.create(CreatableTopic("syslog", 2, 1))
    tree.create("/admin/delete_topics/syslog")
    box.until(lambda: not tree.exists("/brokers/topics/syslog") and not tree.exists("/admin/delete_topics/syslog"), "deleted")
    assert box.image().topics == {} and box.on_disks("syslog") == {}


def test_topics_assigned_by_another_client_of_zookeeper_are_completed(box: SteppedBox, tree: KazooClient) -> None:
    tree.create("/brokers/topics/old", b'{"version":1,"partitions":{"0":[1],"1":[1]}}')
    box.until(lambda: "old" in box.image().topics, "completed")
    assert sorted(box.on_disks("old")) == [0, 1]
    box.kill_controller()
    box.start_controller()
    box.until_quiet()
    assert document(tree, "/brokers/topics/old")["topic_id"] == str(box.image().topics["old"].topic_id)


# --- deaths ------------------------------------------------------------------------------------------------------------


def assert_whole_or_absent(box: SteppedBox, tree: KazooClient, name: str, partitions: int) -> bool:
    """A topic is everywhere or nowhere; returns whether it is there."""
    paths = [path for path in everything_below(tree, "") if f"/{name}/" in f"{path}/"]
    topic = box.image().topics.get(name)
    if topic is None:
        assert paths == [] and box.on_disks(name) == {} and box.leading(name) == {}
        return False
    assert len(topic.partitions) == partitions
    assert box.on_disks(name) == dict.fromkeys(range(partitions), str(topic.topic_id))
    states = [document(tree, f"/brokers/topics/{name}/partitions/{partition}/state") for partition in range(partitions)]
    assert [state["leader"] for state in states] == [1] * partitions
    assert box.leading(name) == {partition: state["leader_epoch"] for partition, state in enumerate(states)}
    assert f"/config/topics/{name}" in paths and f"/millrace/brokers/1/topics/{name}" in paths
    assert not tree.exists(f"/admin/delete_topics/{name}")
    return True


def die_at(box: SteppedBox, step: int, sent: bool, act: Callable[[], object]) -> bool:
    """Let the controller die at a step of `act`; False if it had fewer steps."""
    box.killed_at(step, sent)
    try:
        act()
        box.until(lambda: box.frames, "an answer")
    except Killed:
        box.kill_controller()
        return True
    box.kill_controller()
    return False


LARGE, SMALL = 400, 2
"""Writes of a transaction at most; small ones show what happens to topics that need several."""
BEFORE, AFTER = False, True
KEPT, FORGOTTEN = True, False


@pytest.fixture
def writes_max(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(topic_registry, "WRITES_MAX", request.param)
    return int(request.param)


def deaths(*everyday: tuple[int | bool, ...]) -> list[Any]:
    """Every combination of size of transactions, side of the step and (where it is among them) the session; those that are not named are for long runs."""
    words = {LARGE: "large-transactions", SMALL: "small-transactions"}, ("before-the-step", "after-the-step"), ("session-forgotten", "session-kept")
    all_of_them = itertools.product((LARGE, SMALL), *([(False, True)] * (len(everyday[0]) - 1)))
    return [
        pytest.param(
            *combination,
            id="-".join(names[value] for names, value in zip(words, combination)),  # type: ignore[index]
            marks=[] if combination in everyday else [pytest.mark.deep],
        )
        for combination in all_of_them
    ]


@pytest.mark.parametrize(
    ("writes_max", "sent", "session_kept"),
    deaths((LARGE, BEFORE, KEPT), (LARGE, AFTER, FORGOTTEN), (SMALL, BEFORE, FORGOTTEN), (SMALL, AFTER, KEPT)),
    indirect=["writes_max"],
)
@pytest.mark.usefixtures("writes_max")
def test_a_controller_that_dies_at_any_step_of_a_creation_leaves_the_topic_whole_or_absent(
    box: SteppedBox, tree: KazooClient, sent: bool, session_kept: bool
) -> None:
    outcomes = set()
    for step in itertools.count():
        name = f"topic-{step}"
        died = die_at(box, step, sent, lambda name=name: box.send_create(CreatableTopic(name, 3, 1)))  # type: ignore[misc]
        if not session_kept:
            end_session(box, tree)
        box.start_controller()
        box.until_quiet()
        outcomes.add(assert_whole_or_absent(box, tree, name, 3))
        if not died:
            break
    assert step > 8 and outcomes == {True, False}
    assert tree.get("/controller_epoch")[0] == (b"1" if session_kept else str(step + 2).encode())


@pytest.mark.parametrize(("writes_max", "sent"), deaths((LARGE, AFTER), (SMALL, BEFORE)), indirect=["writes_max"])
@pytest.mark.usefixtures("writes_max")
def test_a_controller_that_dies_at_any_step_of_a_deletion_leaves_the_topic_whole_or_absent(box: SteppedBox, tree: KazooClient, sent: bool) -> None:
    outcomes = set()
    for step in itertools.count():
        name = f"topic-{step}"
        box.create(CreatableTopic(name, 3, 1))
        died = die_at(box, step, sent, lambda name=name: box.send_delete(name))  # type: ignore[misc]
        box.start_controller()
        box.until_quiet()
        outcomes.add(assert_whole_or_absent(box, tree, name, 3))
        if not died:
            break
    assert step > 8 and False in outcomes


@pytest.mark.parametrize("sent", [False, True], ids=["before-the-step", "after-the-step"])
def test_after_an_unclean_boot_no_partition_leads_under_its_old_epoch_whenever_the_controller_dies(box: SteppedBox, tree: KazooClient, sent: bool) -> None:
    box.create(CreatableTopic("syslog", 4, 1))
    for step in itertools.count():
        epochs = box.leading("syslog")
        box.kill_controller()
        for name in list(box.writers):
            box.kill_writer(name)
        agent = box.start_controller()
        box.until(lambda agent=agent: agent._membership.has_arrived, "arrived")  # type: ignore[misc]
        box.killed_at(step, sent)
        box.start_writers(needs_epoch_bump=True)
        try:
            box.until_quiet()
            died = False
        except Killed:
            box.kill_controller()
            assert all(epoch > epochs[partition] for partition, epoch in box.leading("syslog").items())
            died = True
            box.start_controller()
            box.until_quiet()
        assert sorted(box.leading("syslog")) == [0, 1, 2, 3]
        assert all(epoch > epochs[partition] for partition, epoch in box.leading("syslog").items())
        assert_whole_or_absent(box, tree, "syslog", 4)
        if not died:
            break
    assert step >= 8


def test_a_log_writer_that_dies_in_the_middle_of_a_creation_is_asked_again(box: SteppedBox, tree: KazooClient) -> None:
    box.writers["d0"].refuse = lambda kind, _payload: None if kind is DescriptorKind.CREATE else 0
    box.send_create(CreatableTopic("syslog", 4, 1))
    box.until(lambda: any(kind is DescriptorKind.CREATE for kind, _ in box.writers["d0"].commands), "a command")
    box.kill_writer("d0")
    for _ in range(50):
        box.turn()
    assert not box.frames and "syslog" not in box.image().topics
    box.start_writer("d0")
    box.answer()
    assert assert_whole_or_absent(box, tree, "syslog", 4)


def test_a_disk_that_refuses_a_partition_loses_it_to_another(box: SteppedBox, tree: KazooClient) -> None:
    box.writers["d0"].refuse = lambda kind, _payload: ErrorCode.KAFKA_STORAGE_ERROR if kind is DescriptorKind.CREATE else 0
    (created,) = box.create(CreatableTopic("syslog", 4, 1))
    assert created.error_code == 0
    assert {partition.disk for partition in box.image().topics["syslog"].partitions} == {"d1"}
    assert assert_whole_or_absent(box, tree, "syslog", 4)


def test_a_topic_that_no_disk_takes_is_refused_and_leaves_nothing(box: SteppedBox, tree: KazooClient) -> None:
    for writer in box.writers.values():
        writer.refuse = lambda kind, _payload: ErrorCode.KAFKA_STORAGE_ERROR if kind is DescriptorKind.CREATE else 0
    (created,) = box.create(CreatableTopic("syslog", 4, 1))
    assert created.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    box.until_quiet()
    assert not assert_whole_or_absent(box, tree, "syslog", 4)


def test_a_request_is_answered_in_time_and_its_work_goes_on(box: SteppedBox, tree: KazooClient) -> None:
    for writer in box.writers.values():
        writer.refuse = lambda _kind, _payload: None
    (created,) = box.create(CreatableTopic("syslog", 2, 1), timeout_ms=50)
    assert created.error_code == ErrorCode.REQUEST_TIMED_OUT
    for name in list(box.writers):
        box.kill_writer(name)
    box.start_writers()
    box.until(lambda: "syslog" in box.image().topics, "completed")
    assert assert_whole_or_absent(box, tree, "syslog", 2)


def test_a_hung_disk_does_not_hold_up_topics_of_another(box: SteppedBox) -> None:
    box.writers["d0"].refuse = lambda _kind, _payload: None
    box.send_create(CreatableTopic("stuck", 2, 1))
    box.until(lambda: box.writers["d0"].commands, "a command")
    box.writers["d1"].directory.partitions.clear()
    box.agent.cluster.reports["d1"].partitions.clear()  # so that the other disk is the emptier one
    box.agent.cluster.reports["d0"].partitions[("stuck", 0)] = "held"
    (created,) = box.create(CreatableTopic("free", 1, 1))
    assert created.error_code == 0


def test_a_partition_that_is_missing_on_its_disk_is_never_made_anew(box: SteppedBox, tree: KazooClient) -> None:
    box.create(CreatableTopic("syslog", 2, 1))
    lost = next(key for key in box.directories["d0"].partitions)
    box.kill_writer("d0")
    del box.directories["d0"].partitions[lost]
    box.until(lambda: "d0" not in box.agent.cluster.reports, "noticed")
    writer = box.start_writer("d0")
    box.until(lambda: "d0" in box.agent.cluster.reports, "back")
    box.until_quiet()
    assert writer.commands == [] and box.agent.cluster.reports["d0"].missing == 1
    assert len(box.image().topics["syslog"].partitions) == 2


def test_a_renamed_disk_keeps_its_partitions(make_box: Callable[..., SteppedBox]) -> None:
    box = make_box()
    box.start_writers()
    box.start_controller()
    box.until_ready()
    box.create(CreatableTopic("syslog", 4, 1))
    before = {partition: box.image().topics["syslog"].partitions[partition].disk for partition in range(4)}
    box.kill_controller()
    for name in list(box.writers):
        box.kill_writer(name)
    box.directories["d0"], box.directories["d1"] = box.directories["d1"], box.directories["d0"]
    box.start_writers()
    box.start_controller()
    box.until_quiet()
    after = {partition: box.image().topics["syslog"].partitions[partition].disk for partition in range(4)}
    assert after == {partition: "d1" if disk == "d0" else "d0" for partition, disk in before.items()}
    assert sorted(box.leading("syslog")) == [0, 1, 2, 3]


def test_the_first_topic_of_a_box_waits_for_the_slower_disk(make_box: Callable[..., SteppedBox]) -> None:
    box = make_box()
    box.start_writer("d0")
    box.start_controller()
    box.send_create(CreatableTopic("syslog", 4, 1))
    box.until(lambda: box.agent is not None and box.agent._membership.has_arrived and "d0" in box.agent.cluster.reports, "arrived")
    for _ in range(20):
        box.turn()
    box.start_writer("d1")
    box.answer()
    assert sorted(str(partition.disk) for partition in box.image().topics["syslog"].partitions) == ["d0", "d0", "d1", "d1"]


def test_an_absent_disk_delays_no_other_for_long(make_box: Callable[..., SteppedBox]) -> None:
    box = make_box()
    box.start_writer("d0")
    box.start_controller()
    assert box.create(CreatableTopic("syslog", 4, 1))[0].error_code == 0
    assert {partition.disk for partition in box.image().topics["syslog"].partitions} == {"d0"}


# --- sessions ----------------------------------------------------------------------------------------------------------


def test_a_killed_controller_resumes_its_session_and_its_registration(box: SteppedBox, tree: KazooClient) -> None:
    session_id, broker_epoch = box.agent.session.session_id, tree.exists("/brokers/ids/1").czxid
    generation = box.image().generation
    box.kill_controller()
    box.start_controller()
    box.until_quiet()
    assert box.agent.session.session_id == session_id
    assert tree.exists("/brokers/ids/1").czxid == broker_epoch
    assert tree.get("/controller_epoch")[0] == b"1"
    assert box.image().generation == generation


def test_a_restarted_controller_keeps_the_image_while_the_log_writers_are_away(box: SteppedBox) -> None:
    box.create(CreatableTopic("syslog", 4, 1))
    image = box.image()
    box.kill_controller()
    for name in list(box.writers):
        box.kill_writer(name)
    agent = box.start_controller()
    box.until(lambda: agent._membership.has_arrived, "arrived")
    assert box.image().generation == image.generation and agent.cluster.image(0).topics == image.topics


def test_a_partition_without_leader_gets_one_when_its_disk_has_come(box: SteppedBox, tree: KazooClient) -> None:
    """As a Kafka that shut down may have left it."""
    box.create(CreatableTopic("syslog", 1, 1))
    box.kill_controller()
    tree.set("/brokers/topics/syslog/partitions/0/state", b'{"version":1,"leader":-1,"leader_epoch":5,"controller_epoch":1,"isr":[1]}')
    box.start_controller()
    box.until_quiet()
    assert box.leading("syslog") == {0: 6} and assert_whole_or_absent(box, tree, "syslog", 1)


def test_an_expired_session_is_opened_again_without_a_restart(box: SteppedBox, tree: KazooClient) -> None:
    box.create(CreatableTopic("syslog", 1, 1))
    old = box.agent.session.session_id
    end_session(box, tree)  # under the controller's feet
    box.until(lambda: box.agent.session.session_id != old and box.agent._membership.has_arrived, "a new session")
    assert tree.exists("/brokers/ids/1").ephemeralOwner == box.agent.session.session_id
    assert tree.get("/controller_epoch")[0] == b"2"
    assert box.create(CreatableTopic("after", 1, 1))[0].error_code == 0


def test_admin_requests_wait_while_zookeeper_is_away_but_not_for_long(
    make_box: Callable[..., SteppedBox], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = RealZooKeeper(tmp_path / "own")
    try:
        box = make_box(server.connect)
        box.start_writers()
        box.start_controller()
        box.until_ready()
        server.kill()
        box.until(lambda: not box.agent._membership.has_arrived, "noticed")
        (late,) = box.create(CreatableTopic("late", 1, 1), timeout_ms=20)
        assert late.error_code == ErrorCode.REQUEST_TIMED_OUT
        with monkeypatch.context() as shorter:
            shorter.setattr(waiting_requests, "UNREACHED_MS", 50)
            (hopeless,) = box.create(CreatableTopic("hopeless", 1, 1))
            assert hopeless.error_code == ErrorCode.REQUEST_TIMED_OUT
            assert f"ZooKeeper ({server.connect}) has been unreachable" in (hopeless.error_message or "")
        monkeypatch.setattr(waiting_requests, "UNREACHED_MS", 120_000)  # a loaded machine needs many seconds to start the server
        box.send_create(CreatableTopic("patient", 1, 1), timeout_ms=120_000)
        server.start()
        box.answer()
        assert list(box.image().topics) == ["patient"]
        box.close()
        box.agent, box.client = None, None
    finally:
        server.stop()


def test_two_boxes_with_one_broker_id_are_kept_apart(box: SteppedBox, make_box: Callable[..., SteppedBox]) -> None:
    other = make_box(kafka_port=9093)
    other.start_controller()
    other.until(lambda: other.notifier.said, "a complaint")
    assert "broker id 1 is registered by box" in other.notifier.said and not other.agent._membership.has_arrived
    box.kill_controller()


def test_a_controller_that_was_replaced_can_write_nothing(box: SteppedBox, tree: KazooClient) -> None:
    epoch, stat = tree.get("/controller_epoch")
    tree.set("/controller_epoch", b"9", stat.version)
    (refused,) = box.create(CreatableTopic("syslog", 1, 1))
    assert refused.error_code == ErrorCode.NOT_CONTROLLER, "another controller in between may have received another answer"
    assert tree.exists("/brokers/topics/syslog") is None
    (created,) = box.create(CreatableTopic("syslog", 1, 1))
    assert created.error_code == 0
    assert document(tree, "/brokers/topics/syslog/partitions/0/state")["controller_epoch"] == 9, epoch
