"""Streams groups (KIP-1071): joining, topics, epochs, giving up before getting, commits, the log, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.base.errors import ErrorCode
from appliance.protocol.consumer_group_apis import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from appliance.protocol.streams_apis import Endpoint, GroupStatus, StreamsGroupHeartbeatResponse, Subtopology, TaskIds, TopicInfo, Topology
from services.coordinator.groups.ports import StreamsOptions
from services.coordinator.streams.streams_member import TaskSet
from tests.support.group_world import CLIENT, GROUP, START_MS, Replies, codes
from tests.support.streams_world import ALL_TASKS, BY_HOST, COUNT, STATEFUL, TOPOLOGY, StreamsWorld, Thread

A0 = ("syslog", 0)


def two_threads(**options: Any) -> tuple[StreamsWorld, Thread, Thread]:
    world = StreamsWorld().with_topics()
    world.topics.options = StreamsOptions(**{"standby_count": 0, "initial_delay_ms": 0, **options})
    a, b = Thread(world, "a"), Thread(world, "b")
    world.run(a)
    world.run(a, b)
    return world, a, b


# ---- what a request says by itself


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"group": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": "i"}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -2, "instance_id": "i"}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"owned": TaskSet(frozenset({("0", 0)}))}, ErrorCode.INVALID_REQUEST),
        ({"topology": Topology()}, ErrorCode.STREAMS_INVALID_TOPOLOGY),
        ({"topology": Topology(0, (Subtopology("0", ("a b",)),))}, ErrorCode.STREAMS_INVALID_TOPOLOGY),
        ({"topology": Topology(0, (Subtopology("0", ("__consumer_offsets",)),))}, ErrorCode.STREAMS_INVALID_TOPOLOGY),
        ({"topology": Topology(0, (Subtopology("0", ("t",), changelog_topics=(TopicInfo("c", 4),)),))}, ErrorCode.STREAMS_INVALID_TOPOLOGY),
        ({"topology": Topology(0, (Subtopology("0", ("t",), changelog_topics=(TopicInfo("__c"),)),))}, ErrorCode.STREAMS_INVALID_TOPOLOGY),
        ({"topology": Topology(0, (Subtopology("0", (), (), (), ("r",), (TopicInfo("r"),)),))}, ErrorCode.STREAMS_INVALID_TOPOLOGY),
        ({"topology": Topology(0, tuple(Subtopology(str(number), ("t" * 200,)) for number in range(2_000)))}, ErrorCode.STREAMS_INVALID_TOPOLOGY),
        ({"process_id": "p" * 2_000}, ErrorCode.INVALID_REQUEST),
        ({"task_offsets": ()}, ErrorCode.INVALID_REQUEST),
        ({"epoch": 1, "topology": TOPOLOGY}, ErrorCode.INVALID_REQUEST),
        ({"epoch": 1, "active_tasks": ()}, ErrorCode.INVALID_REQUEST),
        ({"epoch": 1}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_a_request_that_cannot_be_is_refused_and_leaves_no_group(how: dict[str, Any], error: ErrorCode) -> None:
    world = StreamsWorld().with_topics()
    assert world.told(**how).error_code == error
    assert not world.log.batches and not world.list_groups().groups


# ---- topics


def test_the_first_member_has_every_task_when_the_log_has_it() -> None:
    world = StreamsWorld().with_topics()
    told = world.beat("a")
    assert not told, "nothing is said before it is in the log"
    world.settle()
    response = told.only
    assert (response.member_epoch, response.heartbeat_interval_ms, response.status) == (2, 5_000, ())
    assert response.active_tasks == (TaskIds("0", (0, 1, 2, 3)), TaskIds("1", (0, 1, 2, 3)))
    assert (response.standby_tasks, response.warmup_tasks) == ((), ())
    described = world.describe_streams()
    assert (described.group_state, described.group_epoch, described.assignment_epoch) == ("Stable", 2, 2)
    assert described.topology is not None and described.topology.subtopologies is not None
    assert [topic.partitions for each in described.topology.subtopologies for topic in each.changelog_topics] == [4]
    assert world.describe_streams(with_operations=True).authorized_operations == 1 << 3 | 1 << 6 | 1 << 8
    (listed,) = world.list_groups(types=("Streams",)).groups
    assert (listed.group_id, listed.group_type, listed.protocol_type) == (GROUP, "streams", "streams")


def test_a_source_topic_that_is_missing_is_reported_until_it_comes() -> None:
    world = StreamsWorld().with_topics()
    world.topics.set_count("syslog", 0)
    a = Thread(world, "a")
    world.run(a)
    assert a.statuses() == [GroupStatus.MISSING_SOURCE_TOPICS] and not a.holds
    assert world.describe_streams().group_state == "NotReady"
    world.topics.set_count("syslog", 4)
    world.run(a)
    assert a.statuses() == [] and a.holds.active == ALL_TASKS


def test_internal_topics_are_created_with_the_partitions_of_what_they_follow() -> None:
    world = StreamsWorld()
    a = Thread(world, "a")
    world.run(a)
    assert a.statuses() == [GroupStatus.MISSING_INTERNAL_TOPICS] and not a.holds
    asked = {name: (topic.partitions, topic.configs) for name, topic in world.topics.asked.items()}
    assert asked == {COUNT.name: (4, (("cleanup.policy", "compact"),)), BY_HOST.name: (4, ())}
    world.topics.create_asked()
    world.run(a)
    assert a.statuses() == [] and a.holds.active == ALL_TASKS


def test_a_status_says_why_internal_topics_are_not_created() -> None:
    world = StreamsWorld()
    world.topics.refuses = "Unauthorized to CREATE on topics x."
    (status,) = world.told("a").status or ()
    assert status.status_detail == f"Internal topics are missing: {BY_HOST.name}, {COUNT.name}; Unauthorized to CREATE on topics x."


def test_an_internal_topic_with_other_partitions_is_reported() -> None:
    world = StreamsWorld().with_topics()
    world.topics.set_count(COUNT.name, 5)
    a = Thread(world, "a")
    world.run(a)
    assert a.statuses() == [GroupStatus.INCORRECTLY_PARTITIONED_TOPICS] and not a.holds


def test_a_source_topic_that_grows_beyond_its_internal_topics_stops_the_group() -> None:
    world, a, b = two_threads()
    world.topics.set_count("syslog", 5)
    world.run(a, b)
    assert a.statuses() == [GroupStatus.INCORRECTLY_PARTITIONED_TOPICS]
    assert not a.holds and not b.holds


def test_topics_that_grew_are_assigned_although_the_log_refused_it_at_first() -> None:
    world = StreamsWorld().with_topics()
    a = Thread(world, "a")
    world.run(a)
    for topic in ("syslog", COUNT.name, BY_HOST.name):
        world.topics.set_count(topic, 5)
    a.ask()
    world.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    a.look()
    world.run(a)
    assert len(a.holds.active) == 10


def test_repartition_topics_follow_each_other_in_whatever_order_they_are_named() -> None:
    """A thousand of them: each is decided once."""
    world = StreamsWorld()
    count = 1_000
    chain = [Subtopology(f"{count - number:04}", (), (), (), (f"r{number + 1}",), (TopicInfo(f"r{number}"),)) for number in range(1, count)]
    first = Subtopology("first", ("syslog",), repartition_sink_topics=("r1",))
    last = Subtopology("last", (), (), (), (), (TopicInfo(f"r{count}"),))
    assert world.told("a", topology=Topology(0, (*chain, first, last))).error_code == 0
    assert {topic.partitions for topic in world.topics.asked.values()} == {4} and len(world.topics.asked) == count


def test_a_subtopology_may_read_what_it_repartitions_itself() -> None:
    world = StreamsWorld()
    loop = Subtopology("0", ("syslog",), repartition_sink_topics=("r",), repartition_source_topics=(TopicInfo("r"),))
    assert world.told("a", topology=Topology(0, (loop,))).error_code == 0
    assert world.topics.asked["r"].partitions == 4


def test_a_refused_heartbeat_asks_for_no_shutdown() -> None:
    world, a, _ = two_threads()
    world.topics.options = StreamsOptions(1, 0)
    told = world.beat("a", a.epoch, owned=a.holds, shutdown_application=True)
    world.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert told.only.error_code and world.told("b").status == ()


def test_a_topic_of_another_name_changes_nothing() -> None:
    world, a, _ = two_threads()
    batches = world.log.batches
    world.topics.set_count("other", 3)
    assert world.told("a", a.epoch, owned=a.holds).active_tasks is None
    assert world.log.batches == batches


# ---- members and epochs


def test_tasks_are_given_up_before_another_member_has_them() -> None:
    world = StreamsWorld().with_topics()
    a, b = Thread(world, "a"), Thread(world, "b")
    world.run(a)
    b.ask()
    world.settle()
    b.look()
    assert b.epoch == 3 and not b.holds, "a has not given anything up"
    kept = world.told("a", a.epoch, owned=a.holds)
    assert kept.member_epoch == a.epoch and sum(len(each.partitions) for each in kept.active_tasks or ()) == 4
    assert not world.told("b", 3, owned=b.holds).active_tasks
    world.run(a, b)
    assert (len(a.holds.active), len(b.holds.active)) == (4, 4)
    assert a.holds.active | b.holds.active == ALL_TASKS
    assert world.describe_streams().group_state == "Stable"


def test_standbys_are_on_other_processes_and_become_active_without_a_restore() -> None:
    world, a, b = two_threads(standby_count=1)
    assert a.holds.active & STATEFUL == b.holds.standby and b.holds.active & STATEFUL == a.holds.standby
    a.world.told("a", -1)
    world.run(b)
    assert b.holds == TaskSet(ALL_TASKS)


def test_two_threads_of_a_process_have_no_standby_of_what_the_other_has() -> None:
    world = StreamsWorld().with_topics()
    world.topics.options = StreamsOptions(1, 0)
    a, b = Thread(world, "a", "one"), Thread(world, "b", "one")
    world.run(a)
    world.run(a, b)
    assert not a.holds.standby and not b.holds.standby


def test_more_standbys_are_assigned_when_the_setting_asks_for_them() -> None:
    world, a, b = two_threads()
    assert not a.holds.standby
    world.topics.options = StreamsOptions(1, 0)
    world.run(a, b)
    assert a.holds.standby | b.holds.standby == STATEFUL


def test_a_new_group_waits_for_members_once() -> None:
    world = StreamsWorld().with_topics()
    world.topics.options = StreamsOptions(0, 3_000)
    a, b = Thread(world, "a"), Thread(world, "b")
    world.run(a, b)
    assert (a.epoch, b.epoch, bool(a.holds)) == (1, 1, False)
    world.pass_ms(3_000)
    world.run(a, b)
    assert (len(a.holds.active), len(b.holds.active)) == (4, 4)
    c = Thread(world, "c")
    world.run(a, b, c)
    assert len(c.holds.active) == 2, "a group with members does not wait"


def test_the_epoch_before_counts_for_a_lost_answer_only() -> None:
    world, a, _ = two_threads()
    assert world.told("a", a.epoch + 1, owned=a.holds).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    before = a.epoch
    world.run(a, Thread(world, "c"))
    assert world.told("a", before, owned=a.holds).error_code == 0
    assert world.told("a", before, owned=TaskSet(ALL_TASKS)).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert world.told("a", before).error_code == ErrorCode.FENCED_MEMBER_EPOCH


@pytest.mark.parametrize("task", [("0", 4), ("0", -1), ("9", 0)])
def test_a_member_has_no_task_that_the_topology_does_not_have(task: tuple[str, int]) -> None:
    world, a, _ = two_threads()
    assert world.told("a", a.epoch, owned=TaskSet(frozenset({task}))).error_code == ErrorCode.INVALID_REQUEST


def test_a_member_that_is_silent_for_a_session_is_out() -> None:
    world, a, b = two_threads()
    world.pass_ms(44_999)
    b.ask()
    world.pass_ms(1)
    b.look()
    assert [member.member_id for member in world.describe_streams().members] == ["b"]
    assert world.told("a", a.epoch, owned=a.holds).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_gives_nothing_up_is_out_after_its_rebalance_timeout() -> None:
    world = StreamsWorld().with_topics()
    a, b = Thread(world, "a", rebalance_timeout_ms=10_000), Thread(world, "b")
    world.run(a)
    b.ask()
    world.settle()
    world.told("a", a.epoch, owned=a.holds)
    world.pass_ms(9_999)
    assert len(world.describe_streams().members) == 2
    world.pass_ms(1)
    assert [member.member_id for member in world.describe_streams().members] == ["b"]


def test_a_group_has_so_many_members() -> None:
    world = StreamsWorld(group_streams_max_size=1).with_topics()
    world.told("a")
    assert world.told("b").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


# ---- topologies


def test_a_member_with_an_older_topology_gets_a_status_and_another_topology_is_refused() -> None:
    world = StreamsWorld().with_topics()
    newer = TOPOLOGY._replace(epoch=1)
    world.told("a", topology=newer)
    (status,) = world.told("b").status or ()
    assert status.status_code == GroupStatus.STALE_TOPOLOGY
    other = Topology(1, (Subtopology("0", ("syslog",)),))
    assert world.told("c", topology=other).error_code == ErrorCode.INVALID_REQUEST
    assert world.told("c", topology=newer._replace(subtopologies=newer.subtopologies[::-1])).error_code == 0, "the order says nothing"


def test_a_shutdown_is_sent_to_all_until_they_are_gone() -> None:
    world, a, b = two_threads()
    world.told("a", a.epoch, owned=a.holds, shutdown_application=True)
    world.run(b)
    assert b.statuses() == [GroupStatus.SHUTDOWN_APPLICATION]
    world.told("a", -1)
    world.told("b", -1)
    world.run(a)
    assert a.statuses() == []


# ---- endpoints


def test_members_learn_which_instance_has_which_partitions_when_that_changes() -> None:
    world = StreamsWorld().with_topics()
    a = Thread(world, "a", user_endpoint=Endpoint("host-a", 7_000))
    world.run(a)
    told = world.told("a", a.epoch, owned=a.holds)
    assert told.partitions_by_user_endpoint is not None
    (row,) = told.partitions_by_user_endpoint
    assert row.user_endpoint == Endpoint("host-a", 7_000)
    assert [(topic.topic, topic.partitions) for topic in row.active_partitions] == [(BY_HOST.name, (0, 1, 2, 3)), ("syslog", (0, 1, 2, 3))]
    again = world.told("a", a.epoch, owned=a.holds, endpoint_information_epoch=told.endpoint_information_epoch)
    assert again.partitions_by_user_endpoint is None
    b = Thread(world, "b")
    world.run(a, b)
    after = world.told("a", a.epoch, owned=a.holds, endpoint_information_epoch=told.endpoint_information_epoch)
    assert after.partitions_by_user_endpoint is not None
    assert sum(len(topic.partitions) for topic in after.partitions_by_user_endpoint[0].active_partitions) == 4


# ---- offsets


def test_offsets_are_committed_in_the_members_epoch_or_in_one_that_had_the_task_too() -> None:
    world, a, b = two_threads()
    mine = next(task[1] for task in a.holds.active if task[0] == "0")
    others = next(task[1] for task in b.holds.active if task[0] == "0")
    before = a.epoch
    world.topics.options = StreamsOptions(1, 0)
    world.run(a, b)
    assert a.epoch > before
    told = [
        world.commit({("syslog", mine): 1}, member_id="a", generation_id=a.epoch, version=9),
        world.commit({("syslog", mine): 2}, member_id="a", generation_id=before, version=9),
        world.commit({("syslog", others): 3}, member_id="a", generation_id=before, version=9),
        world.commit({("syslog", mine): 4}, member_id="a", generation_id=a.epoch + 1, version=9),
        world.commit({("syslog", mine): 5}, member_id="nobody", generation_id=a.epoch, version=9),
        world.commit({("syslog", mine): 6}, member_id="a", generation_id=a.epoch, version=8),
        world.commit({("syslog", mine): 7}, version=9),
    ]
    world.settle()
    stale, unknown = ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID
    wanted = [ErrorCode.NONE, ErrorCode.NONE, stale, stale, unknown, ErrorCode.UNSUPPORTED_VERSION, unknown]
    assert [next(iter(codes(each.only).values())) for each in told] == wanted
    assert codes(world.txn_commit(7, {("syslog", others): 6}, member_id="a", generation_id=before).only) == {("syslog", others): stale}


def test_a_member_that_got_a_task_back_does_not_commit_in_the_epoch_before_it_lost_it() -> None:
    world = StreamsWorld().with_topics()
    a = Thread(world, "a")
    world.run(a)
    before = a.epoch
    b = Thread(world, "b")
    world.run(a, b)
    lost = next(task for task in b.holds.active if task[0] == "0")
    world.told("b", -1)
    world.run(a)
    assert lost in a.holds.active
    told = world.commit({("syslog", lost[1]): 1}, member_id="a", generation_id=before, version=9)
    assert codes(told.only) == {("syslog", lost[1]): ErrorCode.STALE_MEMBER_EPOCH}


# ---- the log


def test_a_restart_goes_on_where_the_log_is() -> None:
    world, a, b = two_threads(standby_count=1)
    before = world.describe_streams()
    world.restart()
    world.run(a, b)
    after = world.describe_streams()
    assert after == before
    world.commit({A0: 1}, member_id="a", generation_id=a.epoch, version=9)
    world.settle()
    assert world.offsets() == {A0: 1}


def test_a_restart_in_the_middle_of_giving_up_goes_on_from_there() -> None:
    world = StreamsWorld().with_topics()
    a, b = Thread(world, "a"), Thread(world, "b")
    world.run(a)
    b.ask()
    world.settle()
    b.look()
    a.ask()
    world.settle()
    world.restart()
    assert not world.told("b", b.epoch, owned=b.holds).active_tasks, "a has not said that it gave up"
    a.look()
    world.run(a, b)
    assert a.holds.active | b.holds.active == ALL_TASKS and len(a.holds.active) == 4


def test_requests_that_wait_when_the_partition_is_unloaded_receive_not_coordinator() -> None:
    world, _, _ = two_threads()
    told, behind = world.beat("c"), world.beat("d")
    world.coordinator.unload(world.partition(), world.now_ms)
    assert [each.only.error_code for each in (told, behind)] == [ErrorCode.NOT_COORDINATOR] * 2
    assert world.describe_streams().error_code == ErrorCode.NOT_COORDINATOR


def test_a_group_with_members_is_not_deleted_and_an_empty_one_leaves_nothing() -> None:
    world, _, _ = two_threads()
    refused = world.delete_groups(GROUP)
    world.settle()
    assert refused.only.groups[0].error_code == ErrorCode.NON_EMPTY_GROUP
    world.told("a", -1)
    world.told("b", -1)
    told = world.delete_groups(GROUP)
    world.settle()
    assert told.only.groups[0].error_code == 0
    assert {record.value for record in {each.key: each for each in world.log.content[world.partition()]}.values()} == {None}
    world.restart()
    assert world.describe_streams().error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_of_topics_that_the_topology_reads_are_kept_and_others_grow_old() -> None:
    world = StreamsWorld(offsets_retention_minutes=60).with_topics()
    world.coordinator.begin(START_MS)
    a = Thread(world, "a")
    world.run(a)
    world.commit({A0: 1, ("audit", 0): 1}, member_id="a", generation_id=a.epoch, version=9)
    world.settle()
    for _ in range(120):
        world.pass_ms(40_000)
        world.run(a)
    assert world.offsets() == {A0: 1}
    refused = world.delete_offsets(A0)
    world.settle()
    assert codes(refused.only)[A0] == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


# ---- groups of other kinds


def test_a_name_is_that_of_one_kind_of_group() -> None:
    world, _, _ = two_threads()
    told = Replies[ConsumerGroupHeartbeatResponse]()
    request = ConsumerGroupHeartbeatRequest(GROUP, "c", 0, rebalance_timeout_ms=60_000, subscribed_topic_names=("syslog",), topic_partitions=())
    world.coordinator.consumer_group_heartbeat(request, 1, CLIENT, world.now_ms, told)
    assert told.only.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert world.join().error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    world.told("a", -1)
    world.told("b", -1)
    world.stable_group(members=1)
    refused = Replies[StreamsGroupHeartbeatResponse]()
    refused = world.beat("a")
    assert refused.error == ErrorCode.GROUP_ID_NOT_FOUND


def test_an_empty_classic_group_keeps_its_offsets_as_a_streams_group() -> None:
    world = StreamsWorld().with_topics()
    world.commit({A0: 5})
    world.settle()
    world.run(Thread(world, "a"))
    assert world.offsets() == {A0: 5}
    world.restart()
    assert world.offsets() == {A0: 5} and world.describe_streams().error_code == 0
