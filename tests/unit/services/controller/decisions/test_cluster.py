"""What the controller believes: disks by directory, topics that may be shown."""

from __future__ import annotations

import pytest

from appliance.base.model import TopicId
from appliance.cluster.znodes import BoxRecord, BrokerRegistration, MoveOrder, PartitionState, TopicAssignment
from services.controller.decisions.cluster import Cluster, DiskReport, topic_id_of
from services.controller.decisions.disk_operations import orphans_on
from services.controller.zookeeper.topic_registry import TopicState

TOPIC_ID = TopicId(bytes(range(16)))


def cluster_with(*states: int) -> Cluster:
    cluster = Cluster(1, {"log.segment.bytes": 1000}, ["d0", "d1"])
    cluster.brokers = {1: BrokerRegistration(1, (("PLAINTEXT", "h", 9092),), {"PLAINTEXT": "PLAINTEXT"}, None, 0)}
    topic = TopicState("t", TOPIC_ID, TopicAssignment.new(TOPIC_ID, {0: (1,), 1: (1,)}), {"retention.ms": "1"}, 4)
    topic.placement = {0: "dir-a", 1: "dir-b"}
    for partition in states:
        topic.set_state(partition, PartitionState(1, 2, 3, (1,)), 0)
    cluster.topics["t"] = topic
    return cluster


def report(disk: str, directory: str) -> DiskReport:
    return DiskReport(disk, directory, 1, False, {})


def test_a_topic_is_shown_with_its_partitions_up_to_the_first_without_state_unless_it_is_being_deleted() -> None:
    assert cluster_with(1).image(1).topics == {}, "a topic that is being created: states are written from the last partition down"
    assert len(cluster_with(0).image(1).topics["t"].partitions) == 1, "a topic that grows shows its old partitions"
    cluster = cluster_with(0, 1)
    shown = cluster.image(1).topics["t"]
    assert shown.config == {"segment.bytes": "1000", "retention.ms": "1"} and shown.config_generation == 4
    cluster.deleting.add("t")
    assert cluster.image(1).topics == {}


def test_a_partition_is_shown_on_the_disk_that_has_its_directory_now() -> None:
    cluster = cluster_with(0, 1)
    cluster.add_report(report("d1", "dir-a"))
    assert [partition.disk for partition in cluster.image(1).topics["t"].partitions] == ["d1", None]


def test_what_is_recorded_holds_until_a_log_writer_says_otherwise() -> None:
    cluster = cluster_with(0, 1)
    cluster.use_record(BoxRecord("box", {"dir-a": "d0", "dir-b": "d1", "dir-c": "d9"}))
    assert [partition.disk for partition in cluster.image(1).topics["t"].partitions] == ["d0", "d1"]
    cluster.add_report(report("d0", "dir-b"))
    cluster.use_record(BoxRecord("box", {"dir-a": "d0", "dir-b": "d1"}))
    assert [partition.disk for partition in cluster.image(1).topics["t"].partitions] == [None, "d0"]
    cluster.add_report(report("d1", "dir-a"))
    assert [partition.disk for partition in cluster.image(1).topics["t"].partitions] == ["d1", "d0"]


def test_a_partition_that_is_moved_is_shown_with_its_target_while_that_is_a_disk_of_this_box() -> None:
    cluster = cluster_with(0, 1)
    cluster.add_report(report("d0", "dir-a"))
    cluster.topics["t"].moves = {0: MoveOrder("dir-b"), 1: MoveOrder("dir-of-nobody")}
    assert [partition.moving_to for partition in cluster.image(1).topics["t"].partitions] == [None, None]
    cluster.add_report(report("d1", "dir-b"))
    assert [partition.moving_to for partition in cluster.image(1).topics["t"].partitions] == ["d1", None]


def test_a_disk_report_contains_copies_and_frozen_partitions() -> None:
    greeting = {"directory_id": "a", "futures": [["t", 0, str(TOPIC_ID), None], ["t", 1, str(TOPIC_ID), 7]], "frozen": [["t", 2, str(TOPIC_ID)]]}
    read, topic = DiskReport.from_writer_info("d0", greeting), cluster_with().topics["t"]
    assert [read.has_complete(topic, partition) for partition in range(3)] == [False, True, False]
    assert read.frozen == {("t", 2): str(TOPIC_ID)}
    topic.topic_id = TopicId(bytes(16))
    assert not read.has_complete(topic, 1)


def test_a_directory_without_id_is_known_by_its_disks_name() -> None:
    greeting = {"incarnation": 5, "needs_epoch_bump": True, "partitions": [["t", 0, str(TOPIC_ID), 3, 100]]}
    read = DiskReport.from_writer_info("d0", greeting)
    assert read.directory_id == "d0" and read.needs_epoch_bump and read.holds(cluster_with().topics["t"], 0)


def test_one_changed_log_does_not_put_the_others_of_its_disk_through_the_path_of_an_unclean_boot() -> None:
    rows = [["t", 0, str(TOPIC_ID), 3, 100, True], ["t", 1, str(TOPIC_ID), 3, 100, False]]
    read = DiskReport.from_writer_info("d0", {"incarnation": 5, "needs_epoch_bump": True, "partitions": rows})
    assert read.unbumped == {("t", 0)}
    older = DiskReport.from_writer_info("d0", {"incarnation": 5, "needs_epoch_bump": True, "partitions": [row[:5] for row in rows]})
    assert older.unbumped == {("t", 0), ("t", 1)}


def test_a_directory_of_an_earlier_topic_of_the_name_does_not_count() -> None:
    other = DiskReport("d0", "d0", 1, False, {("t", 0): str(TopicId(bytes(16)))})
    assert not other.holds(cluster_with().topics["t"], 0)


def test_topic_ids_are_version_four_uuids_and_never_look_like_an_option() -> None:
    made = topic_id_of(bytes(16))
    assert made[6] >> 4 == 4 and made[8] >> 6 == 2
    with pytest.raises(ValueError, match="dash"):
        topic_id_of(b"\xf8" + bytes(15))


def test_logs_of_partitions_that_lie_on_another_disk_are_orphans_but_no_copies_that_move_here() -> None:
    cluster = cluster_with(0, 1)
    cluster.disks.append("old")
    for disk, directory in (("d0", "dir-a"), ("d1", "dir-b"), ("old", "dir-o")):
        cluster.add_report(report(disk, directory))
    for added in cluster.reports.values():
        added.partitions.update({("t", 0): str(TOPIC_ID), ("t", 1): str(TOPIC_ID), ("gone", 0): str(TOPIC_ID)})
    assert {disk: orphans_on(cluster, known) for disk, known in cluster.reports.items()} == {"d0": ["t-1"], "d1": ["t-0"], "old": ["t-0", "t-1"]}
    cluster.topics["t"].moves = {0: MoveOrder("dir-o")}
    assert orphans_on(cluster, cluster.reports["old"]) == ["t-1"]
    cluster.reports["old"].partitions["t", 1] = str(TopicId(bytes(16)))
    assert orphans_on(cluster, cluster.reports["old"]) == []
