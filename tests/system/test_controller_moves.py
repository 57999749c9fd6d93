"""Moving partitions between disks, with a real ZooKeeper, real rings and fake disks: every death, every refusal, and nothing acknowledged is lost."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from kazoo.client import KazooClient

from appliance.base.errors import ErrorCode
from appliance.cluster.broker_configs import MOVE_RATE
from appliance.ipc.descriptors import DescriptorKind
from appliance.ipc.request_frames import KAFKA_REQUEST, MOVE_ORDERS, pack_kafka_request
from appliance.protocol import config_apis, log_dir_apis, topic_apis
from appliance.protocol.config_apis import ConfigToAlter, IncrementalAlterConfigsRequest, ResourceToAlter
from appliance.protocol.log_dir_apis import AlterReplicaLogDirsRequest, LogDirToFill, LogDirTopicToMove
from appliance.protocol.topic_apis import CreatableTopic, CreatePartitionsRequest, TopicToGrow
from lab.real_zookeeper import RealZooKeeper
from services.controller.admin.move_administration import BEGUN_MAX
from services.controller.zookeeper.config_changes import DELETE, SET
from tests.support.fake_log_writer import FakeDirectory
from tests.support.stepped_controller import Killed, SteppedBox

pytestmark = [pytest.mark.system, pytest.mark.slow]

ALTER_REPLICA_LOG_DIRS = 34
BROKER = 4
MOVES = [kind for kind in DescriptorKind if kind.name.startswith("MOVE_") and kind is not DescriptorKind.MOVE_CANCEL]


@pytest.fixture
def box(tmp_path: Path, zookeeper: RealZooKeeper, tree: KazooClient) -> Iterator[SteppedBox]:
    """A box that serves, with a topic t of two partitions, one on each disk."""
    box = SteppedBox(tmp_path / "box", zookeeper.connect + tree.chroot, settings={"log.disk.deadline.ms": 300})
    box.start_writers()
    box.start_controller()
    box.until_ready()
    box.create(CreatableTopic("t", 2, 1))
    yield box
    box.close()


def placement(tree: KazooClient) -> dict[str, object]:
    document: dict[str, object] = orjson.loads(tree.get("/millrace/brokers/1/topics/t")[0])
    del document["topic_id"]
    return document


def disk_of(box: SteppedBox, partition: int = 0) -> str:
    """The one disk that has it."""
    (disk,) = [name for name, directory in box.directories.items() if ("t", partition) in directory.partitions]
    return disk


def other(disk: str) -> str:
    return {"d0": "d1", "d1": "d0"}[disk]


def send_move(box: SteppedBox, disk: str, *partitions: int, topic: str = "t") -> None:
    path = f"/nonexistent/{disk}"
    body = log_dir_apis.ALTER_REPLICA_LOG_DIRS_REQUEST.encode(2, AlterReplicaLogDirsRequest((LogDirToFill(path, (LogDirTopicToMove(topic, partitions),)),)))
    box.send(KAFKA_REQUEST, pack_kafka_request(ALTER_REPLICA_LOG_DIRS, 2, "test", "", body))


def answered(box: SteppedBox) -> list[str]:
    body = box.answer()
    results = log_dir_apis.ALTER_REPLICA_LOG_DIRS_RESPONSE.decode(body, 0, len(body), 2).results
    return [ErrorCode(partition.error_code).name for topic in results for partition in topic.partitions]


def move(box: SteppedBox, disk: str, *partitions: int, topic: str = "t") -> list[str]:
    send_move(box, disk, *partitions, topic=topic)
    return answered(box)


def order(box: SteppedBox, **orders: object) -> list[object]:
    box.send(MOVE_ORDERS, orjson.dumps(orders))
    refused: list[object] = orjson.loads(box.answer())["refused"]
    return refused


def append(box: SteppedBox, partition: int = 0) -> int:
    """Try to append a record wherever it is led; returns how many were acknowledged."""
    return sum(writer.append(("t", partition)) for writer in box.writers.values())


def assert_lies_whole_on(box: SteppedBox, tree: KazooClient, disk: str, records: int, partition: int = 0) -> None:
    directory = box.directories[disk]
    assert disk_of(box, partition) == disk
    assert directory.log_ends.get(("t", partition), 0) == records
    assert all(("t", partition) not in each.futures for each in box.directories.values())
    assert not any(("t", partition) in writer.marked and name != disk for name, writer in box.writers.items())
    assert box.image().topics["t"].partitions[partition][4:6] == (disk, None)
    assert [name for name, writer in box.writers.items() if ("t", partition) in writer.leading] == [disk]
    document = placement(tree)
    assert "moves" not in document and document["partitions"][str(partition)] == directory.directory_id  # type: ignore[index]


# --- moving ------------------------------------------------------------------------------------------------------------


def test_a_partition_moves_and_what_was_acknowledged_moves_with_it(box: SteppedBox, tree: KazooClient) -> None:
    source = disk_of(box)
    assert append(box) == 1
    assert move(box, other(source), 0) == ["NONE"]
    document = placement(tree)
    assert document["moves"] == {"0": [f"directory-of-{other(source)}", None]}
    box.until_quiet()
    assert_lies_whole_on(box, tree, other(source), 1)
    assert append(box) == 1
    kinds = [kind.name for kind, _ in box.writers[source].commands][-3:]
    assert kinds == ["MOVE_MARK", "MOVE_FREEZE", "MOVE_COMMIT"]


def test_a_copy_is_throttled_by_what_is_set_while_the_box_runs_unless_its_order_says_more(box: SteppedBox) -> None:
    """As Kafka's tool does it: set for the moves, taken back behind them, also where it was never set."""

    def alter(operation: int, value: str | None) -> int:
        change = (ResourceToAlter(BROKER, "1", (ConfigToAlter(MOVE_RATE, operation, value),)),)
        body = config_apis.INCREMENTAL_ALTER_CONFIGS_REQUEST.encode(1, IncrementalAlterConfigsRequest(change, False))
        box.send(KAFKA_REQUEST, pack_kafka_request(44, 1, "test", "", body))
        answer = box.answer()
        return config_apis.INCREMENTAL_ALTER_CONFIGS_RESPONSE.decode(answer, 0, len(answer), 1).responses[0].error_code

    throttles = []
    for operation, value in ((SET, "5000000"), (DELETE, None), (DELETE, None)):
        assert alter(operation, value) == 0
        source = disk_of(box)
        assert move(box, other(source), 0) == ["NONE"]
        box.until_quiet()
        throttles += [payload["throttle"] for kind, payload in box.writers[other(source)].commands if kind is DescriptorKind.MOVE_BEGIN][-1:]
    assert throttles == [5_000_000, None, None]
    assert alter(SET, "fast") == ErrorCode.INVALID_CONFIG


def test_kafkas_codes_say_why_a_partition_does_not_move(box: SteppedBox) -> None:
    source = disk_of(box)
    assert move(box, other(source), 7) == ["UNKNOWN_TOPIC_OR_PARTITION"]
    assert move(box, other(source), 0, topic="nowhere") == ["UNKNOWN_TOPIC_OR_PARTITION"]
    assert move(box, "no-such-disk", 0) == ["LOG_DIR_NOT_FOUND"]
    assert move(box, source, 0) == ["NONE"]  # it lies there
    box.kill_writer(other(source))
    agent = box.agent
    assert agent is not None
    box.until(lambda: other(source) not in agent.cluster.reports, "it is gone")
    assert move(box, other(source), 0) == ["KAFKA_STORAGE_ERROR"]


def test_to_where_it_is_takes_an_order_back(box: SteppedBox, tree: KazooClient) -> None:
    source = disk_of(box)
    box.writers[other(source)].refuse = lambda kind, _: ErrorCode.KAFKA_STORAGE_ERROR if kind is DescriptorKind.MOVE_FINISH else 0
    append(box)
    assert move(box, other(source), 0) == ["NONE"]
    box.until(lambda: box.directories[other(source)].futures, "the copy has begun")
    assert move(box, source, 0) == ["NONE"]
    box.until_quiet()
    assert_lies_whole_on(box, tree, source, 1)


def test_a_topic_that_is_deleted_while_it_moves_leaves_no_copy(box: SteppedBox) -> None:
    source = disk_of(box)
    target = box.writers[other(source)]
    target.refuse = lambda kind, _: ErrorCode.KAFKA_STORAGE_ERROR if kind is DescriptorKind.MOVE_FINISH else 0
    move(box, other(source), 0)
    box.until(lambda: box.directories[other(source)].futures, "the copy has begun")
    assert [topic.error_code for topic in box.delete("t")] == [0]
    box.until_quiet()
    assert box.on_disks("t") == {} and all(directory.futures == {} for directory in box.directories.values())


def test_a_copy_that_no_order_names_is_removed_when_its_disk_comes(box: SteppedBox) -> None:
    source = disk_of(box)
    box.kill_writer(other(source))
    topic_id = box.directories[source].partitions[("t", 0)]
    box.directories[other(source)].futures[("t", 0)] = topic_id, None
    box.start_writer(other(source))
    box.until(lambda: not box.directories[other(source)].futures, "it is removed")


# --- the hand-over -----------------------------------------------------------------------------------------------------


def test_a_target_that_does_not_finish_in_time_gives_the_partition_back_and_is_asked_again(box: SteppedBox, tree: KazooClient) -> None:
    source = disk_of(box)
    target = box.writers[other(source)]
    silent = 1

    def refuse(kind: DescriptorKind, _payload: object) -> int | None:
        nonlocal silent
        if kind is DescriptorKind.MOVE_FINISH and silent:
            silent -= 1
            return None
        return 0

    target.refuse = refuse
    move(box, other(source), 0)
    box.until(lambda: box.writers[source].frozen, "frozen")
    assert append(box) == 0
    box.until(lambda: not box.writers[source].frozen, "it leads again")
    assert all(payload["keeps_mark"] for kind, payload in box.writers[source].commands if kind is DescriptorKind.MOVE_CANCEL)
    assert append(box) == 1
    box.until_quiet()
    assert_lies_whole_on(box, tree, other(source), 1)


def test_a_commit_that_the_source_refuses_begins_the_hand_over_anew(box: SteppedBox, tree: KazooClient) -> None:
    """As when another incarnation of the source has appended since the freeze."""
    source = disk_of(box)
    refusals = [ErrorCode.FENCED_LEADER_EPOCH]
    box.writers[source].refuse = lambda kind, _: refusals.pop() if kind is DescriptorKind.MOVE_COMMIT and refusals else 0
    move(box, other(source), 0)
    box.until_quiet()
    assert refusals == []
    assert_lies_whole_on(box, tree, other(source), 0)


def test_a_source_that_only_could_not_open_its_log_keeps_its_partition(box: SteppedBox, tree: KazooClient) -> None:
    """Its greeting does not name the partition, and the target has a whole copy: that alone is no commit."""
    source = disk_of(box)
    append(box)
    box.writers[other(source)].refuse = lambda kind, _: ErrorCode.KAFKA_STORAGE_ERROR if kind is DescriptorKind.MOVE_FINISH else 0
    move(box, other(source), 0)
    box.until(lambda: box.directories[other(source)].futures, "the copy has begun")
    box.kill_writer(source)
    held = box.directories[source].partitions.pop(("t", 0))
    box.directories[other(source)].futures[("t", 0)] = held, 1
    box.kill_controller()
    full = box.start_writer(source)
    full.refuse = lambda kind, _: ErrorCode.KAFKA_STORAGE_ERROR if kind is DescriptorKind.MOVE_FREEZE else 0
    box.start_controller()
    box.until(lambda: any(kind is DescriptorKind.MOVE_FREEZE for kind, _ in full.commands), "the source is asked")
    for _ in range(50):
        box.turn()
    assert not any(kind is DescriptorKind.MOVE_PROMOTE for kind, _ in box.writers[other(source)].commands)
    assert box.directories[other(source)].futures


@pytest.mark.parametrize("first", ["the-new-disk", "the-target"])
@pytest.mark.parametrize("complete", [True, False], ids=["a-whole-copy", "half-a-copy"])
def test_a_source_is_replaced_and_a_whole_copy_of_it_is_kept_in_either_order(box: SteppedBox, tree: KazooClient, complete: bool, first: str) -> None:
    """The source may have handed the log over: then no other disk has it. A partial copy starts
    again.
    """
    source = disk_of(box)
    target = other(source)
    box.writers[target].refuse = lambda kind, _: None if kind is DescriptorKind.MOVE_FINISH else 0
    move(box, target, 0)
    box.until(lambda: box.directories[target].futures, "the copy has begun")
    box.kill_controller()
    for disk in (source, target):
        box.kill_writer(disk)
    topic_id = box.directories[source].partitions["t", 0]
    box.directories[target].futures["t", 0] = topic_id, 5 if complete else None
    box.directories[source] = FakeDirectory("another-directory")
    box.directories[source].replaces = (f"directory-of-{source}",)
    order = [source, target] if first == "the-new-disk" else [target, source]
    box.start_controller()
    box.start_writer(order[0])
    box.until(lambda: box.agent is not None and box.agent._membership.has_arrived and order[0] in box.agent.cluster.reports, "the first is there")
    for _ in range(50):
        box.turn()
    box.start_writer(order[1])
    box.until_quiet()
    assert_lies_whole_on(box, tree, target if complete else source, 5 if complete else 0)


@pytest.mark.parametrize("done", [False, True], ids=["before-it-is-done", "after-it-is-done"])
@pytest.mark.parametrize("kind", MOVES, ids=[kind.name for kind in MOVES])
def test_a_log_writer_that_dies_over_a_command_loses_nothing(box: SteppedBox, tree: KazooClient, kind: DescriptorKind, done: bool) -> None:
    source = disk_of(box)
    victim = source if kind in (DescriptorKind.MOVE_MARK, DescriptorKind.MOVE_FREEZE, DescriptorKind.MOVE_COMMIT) else other(source)
    writer, dying = box.writers[victim], False

    def refuse(asked: DescriptorKind, payload: dict[str, object]) -> int | None:
        nonlocal dying
        if asked is kind and not dying:
            dying = True
            if done:
                writer._carry_out(asked, payload)
            return None
        return None if dying else 0

    writer.refuse = refuse
    acknowledged = append(box)
    send_move(box, other(source), 0)
    box.until(lambda: dying, "the command")
    acknowledged += append(box)
    box.kill_writer(victim)
    box.start_writer(victim)
    acknowledged += append(box)
    box.until_quiet()
    assert_lies_whole_on(box, tree, other(source), acknowledged)


@pytest.mark.parametrize("victim", ["d0", "d1"])
def test_more_moves_than_one_report_holds_continue_after_a_death(box: SteppedBox, victim: str) -> None:
    box.create(CreatableTopic("many", 80, 1))
    on_d0 = [number for number, partition in enumerate(box.image().topics["many"].partitions) if partition.disk == "d0"]
    assert len(on_d0) > 2 * BEGUN_MAX
    target = box.writers["d1"]
    target.refuse = lambda kind, _: None if kind is DescriptorKind.MOVE_FINISH else 0
    assert order(box, disk="d0", moves=[["many", number, "d1"] for number in on_d0]) == []
    box.until(lambda: len(target.directory.futures) == BEGUN_MAX, "copies have begun")
    box.kill_writer(victim)
    target.refuse = lambda _kind, _payload: 0
    box.start_writer(victim)
    box.until_quiet()
    assert {partition.disk for partition in box.image().topics["many"].partitions} == {"d1"}
    assert sorted(box.leading("many")) == list(range(80))


@pytest.mark.parametrize("sent", [False, True], ids=["before-the-step", "after-the-step"])
def test_a_controller_that_dies_at_any_step_of_a_move_finishes_it_after_its_restart(box: SteppedBox, tree: KazooClient, sent: bool) -> None:
    acknowledged, outcomes = 0, set()
    for step in itertools.count():
        source = disk_of(box)
        acknowledged += append(box)
        box.killed_at(step, sent)
        died = False
        try:
            move(box, other(source), 0)
            box.until_quiet()
        except Killed:
            died = True
        box.kill_controller()
        acknowledged += append(box)
        box.start_controller()
        box.until_quiet()
        outcomes.add(disk_of(box) != source)
        assert_lies_whole_on(box, tree, disk_of(box), acknowledged)
        if not died:
            break
    assert step > 8 and outcomes == {True, False}


def test_never_is_more_than_one_partition_of_a_disk_frozen(box: SteppedBox) -> None:
    names = [f"topic-{index}" for index in range(12)]
    box.create(*(CreatableTopic(name, 1, 1) for name in names))
    on_d0 = [name for name in names if box.image().topics[name].partitions[0].disk == "d0"]
    source, most = box.writers["d0"], 0

    def note(kind: DescriptorKind, _payload: object) -> int:
        nonlocal most
        if kind is DescriptorKind.MOVE_FREEZE:
            most = max(most, len(source.frozen) + 1)
        return 0

    source.refuse = note
    assert order(box, disk="d0", moves=[[name, 0, "d1"] for name in on_d0]) == []
    box.until_quiet()
    assert len(on_d0) > 3 and {box.image().topics[name].partitions[0].disk for name in on_d0} == {"d1"}
    assert most == 1


# --- draining ----------------------------------------------------------------------------------------------------------


def test_a_drained_disk_takes_no_new_partition_after_any_restart_until_the_drain_is_cancelled(box: SteppedBox, tree: KazooClient) -> None:
    assert order(box, disk="d0", draining=True) == []
    assert orjson.loads(tree.get("/millrace/brokers/1")[0])["draining"] == ["directory-of-d0"]
    box.kill_controller()
    box.kill_writer("d0")
    box.start_writer("d0")
    box.start_controller()
    box.until_quiet()
    box.create(CreatableTopic("new", 4, 1))
    assert {partition.disk for partition in box.image().topics["new"].partitions} == {"d1"}
    on_d1 = next(partition for partition in (0, 1) if disk_of(box, partition) == "d1")
    assert move(box, "d0", on_d1) == ["POLICY_VIOLATION"]
    assert order(box, disk="d0", draining=False) == []
    assert "draining" not in orjson.loads(tree.get("/millrace/brokers/1")[0])
    assert move(box, "d0", on_d1) == ["NONE"]


def test_a_drain_orders_many_moves_at_once_and_takes_them_all_back(box: SteppedBox, tree: KazooClient) -> None:
    on_d0 = next(partition for partition in (0, 1) if disk_of(box, partition) == "d0")
    box.writers["d1"].refuse = lambda kind, _: ErrorCode.KAFKA_STORAGE_ERROR if kind is DescriptorKind.MOVE_FINISH else 0
    assert order(box, disk="d0", draining=True, throttle=1000, moves=[["t", on_d0, "d1"], ["nowhere", 0, "d1"]]) == [
        ["nowhere-0", 3, "This server does not host this topic-partition."]
    ]
    assert placement(tree)["moves"] == {str(on_d0): ["directory-of-d1", 1000]}
    box.until(lambda: box.directories["d1"].futures, "the copy has begun")
    (begin,) = [payload for kind, payload in box.writers["d1"].commands if kind is DescriptorKind.MOVE_BEGIN]
    assert (begin["throttle"], begin["source_disk"], begin["source_path"]) == (1000, "d0", f"/nonexistent/d0/t-{on_d0}")
    assert order(box, disk="d0", draining=False, cancel=True) == []
    box.until_quiet()
    assert_lies_whole_on(box, tree, "d0", 0, on_d0)


def test_a_malformed_order_gets_no_answer_and_affects_no_other(box: SteppedBox) -> None:
    for payload in (b"", b"[]", b"{}", b'{"disk": "d0", "moves": [1]}', b'{"disk": "d0", "throttle": {}}'):
        box.send(MOVE_ORDERS, payload)
        for _ in range(3):
            box.turn()
    message = "There is no disk nowhere, or its log-writer has not reported yet."
    assert order(box, disk="nowhere", draining=True) == [["draining", ErrorCode.LOG_DIR_NOT_FOUND, message]]


def test_an_order_that_is_under_way_when_the_session_is_lost_is_given_again(box: SteppedBox, tree: KazooClient) -> None:
    source, agent = disk_of(box), box.agent
    assert agent is not None
    send_move(box, other(source), 0)
    box.until(lambda: agent._runner.is_running("topic:t"), "the order is under way")
    agent._membership.arrive()  # as after a loss of the connection: what is under way is dropped
    assert answered(box) == ["NONE"]
    box.until_quiet()
    assert_lies_whole_on(box, tree, other(source), 0)


def test_a_growing_topic_and_a_move_do_not_undo_each_other(box: SteppedBox, tree: KazooClient) -> None:
    source = disk_of(box)
    send_move(box, other(source), 0)
    body = topic_apis.CREATE_PARTITIONS_REQUEST.encode(3, CreatePartitionsRequest((TopicToGrow("t", 4),)))
    box.send(KAFKA_REQUEST, pack_kafka_request(37, 3, "test", "", body))
    box.until(lambda: len(box.image().topics["t"].partitions) == 4, "it has grown")
    box.until_quiet()
    assert_lies_whole_on(box, tree, other(source), 0)
    assert sorted(placement(tree)["partitions"]) == ["0", "1", "2", "3"]  # type: ignore[call-overload]
