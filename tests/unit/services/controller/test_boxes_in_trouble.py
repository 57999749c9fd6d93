"""Several boxes whose disks fail, that stop cleanly, that start after a power cut, or that have a
wrong identity.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.cluster.znodes import CLUSTER_ID, encode_cluster_id
from services.controller.zookeeper.requests import Create
from tests.support.memory_zookeeper import MemoryZooKeeper
from tests.support.stepped_cluster import SteppedCluster
from tests.support.stepped_controller import DISKS

pytestmark = pytest.mark.slow


# --- disks -------------------------------------------------------------------------------------------------------------


def test_a_log_writer_that_stays_away_loses_its_leaderships_and_follows_when_it_is_back(three: SteppedCluster) -> None:
    three.create("t", (1, 2, 3), (2, 1, 3))
    disks = {name for name, directory in three.boxes[1].directories.items() if ("t", 0) in directory.partitions}
    for disk in disks:
        three.boxes[1].kill_writer(disk)
    three.pass_ms(1000)
    assert three.state("t").leader == 1, "a log-writer may start anew"
    three.until(lambda: three.state("t").leader != 1, "another leads")
    three.until_quiet()
    assert (three.state("t").leader, three.state("t").isr, three.leads(2, "t")) == (2, (2, 3), 1)
    three.boxes[1].start_writers()
    three.until_quiet()
    assert three.writer_of(1, "t").following[("t", 0)] == (2, 1)


def test_a_disk_that_dies_takes_its_followers_out_of_sync(three: SteppedCluster) -> None:
    three.create("t", (1, 2, 3))
    for disk in DISKS:
        three.boxes[3].kill_writer(disk)
    three.until(lambda: three.state("t").isr == (1, 2), "out of sync")
    assert three.state("t")[:2] == (1, 0)


def test_an_offline_partition_is_led_again_by_the_replica_whose_disk_returns(three: SteppedCluster) -> None:
    three.create("t", (1, 2))
    three.wish(1, "t", 0, (1,))
    three.until_quiet()
    for disk in DISKS:
        three.boxes[1].kill_writer(disk)
    three.until(lambda: three.state("t").leader == -1, "no replica leads")
    three.until_quiet()
    assert three.state("t").isr == (1,), "box 2 lacks what box 1 has"
    three.boxes[1].start_writers()
    three.until(lambda: three.state("t").leader == 1, "box 1 leads")
    three.until_quiet()
    assert three.leads(1, "t") == three.state("t").leader_epoch == 2


def test_a_sole_replica_keeps_its_leader_while_its_disk_is_away(three: SteppedCluster) -> None:
    three.create("t", (1,))
    for disk in DISKS:
        three.boxes[1].kill_writer(disk)
    three.pass_ms(5000)
    assert three.state("t")[:2] == (1, 0)


def test_a_full_disk_hands_its_leaderships_over_and_leaves_the_in_sync_sets(three: SteppedCluster) -> None:
    three.create("t", (1, 2, 3), (2, 1, 3))
    for partition in (0, 1):
        three.writer_of(1, "t", partition).set_full(True)
    three.pass_ms(1000)
    three.until_quiet()
    assert (three.state("t", 0).leader, three.state("t", 0).isr) == (2, (2, 3))
    assert (three.state("t", 1).leader, three.state("t", 1).isr) == (2, (2, 3))
    assert three.writer_of(1, "t", 0).following[("t", 0)] == (2, three.state("t", 0).leader_epoch)


def test_a_full_disk_goes_on_leading_what_no_other_in_sync_replica_can_lead(three: SteppedCluster) -> None:
    three.create("t", (1, 2))
    three.create("sole", (1,))
    three.wish(1, "t", 0, (1,))
    three.until_quiet()
    before = three.state("t"), three.state("sole")
    for topic in ("t", "sole"):
        three.writer_of(1, topic).set_full(True)
    three.pass_ms(3000)
    assert (three.state("t"), three.state("sole")) == before, "clients read on"


def test_a_log_writer_that_makes_no_turn_loses_its_leaderships_in_less_than_four_seconds(three: SteppedCluster) -> None:
    three.create("t", (1, 2, 3))
    three.writer_of(1, "t").is_suspended = True
    three.pass_ms(2500)
    assert three.state("t").leader == 1, "a busy machine may keep it waiting"
    three.pass_ms(1400)
    assert (three.state("t").leader, three.state("t").isr) == (2, (2, 3))


# --- a power cut -------------------------------------------------------------------------------------------------------


def test_a_leader_that_comes_out_of_a_power_cut_gives_way_to_one_that_lost_nothing(three: SteppedCluster) -> None:
    three.create("t", (1, 2, 3), (2, 1, 3))
    for disk in DISKS:
        three.boxes[1].kill_writer(disk)
    three.boxes[1].start_writers(needs_epoch_bump=True)
    three.until_quiet()
    assert (three.state("t", 0).leader, three.state("t", 0).isr) == (2, (2, 3))
    assert (three.state("t", 1).leader, three.state("t", 1).isr) == (2, (2, 3))
    assert three.leads(1, "t", 0) is None and three.writer_of(1, "t", 0).following[("t", 0)] == (2, 1)


def test_after_a_power_cut_a_follower_leaves_the_offline_partition_to_an_absent_replica_in_sync(three: SteppedCluster) -> None:
    three.create("t", (2, 1))
    for broker_id in (1, 2):  # 2 dies whole, 1 with what it had not synced
        three.kill(broker_id)
    three.until(lambda: three.state("t").leader == -1, "no replica leads")
    assert sorted(three.state("t").isr) == [1, 2]
    three.start(1, needs_epoch_bump=True)
    three.pass_ms(12_000)
    assert (three.state("t").leader, three.state("t").isr) == (-1, (2,)), "only 2 has everything"
    three.start(2)
    three.until(lambda: three.state("t").leader == 2, "it leads again")
    three.until_quiet()
    assert three.writer_of(1, "t").following[("t", 0)] == (2, three.state("t").leader_epoch)


def test_when_all_boxes_lost_power_a_leader_goes_on_under_a_larger_epoch_once_the_others_had_their_time(three: SteppedCluster) -> None:
    three.create("t", (1, 2))
    for broker_id in (1, 2, 3):
        three.kill(broker_id)
    box = three.start(1, needs_epoch_bump=True)
    three.pass_ms(3000)
    before = three.state("t")
    assert all(("t", 0) not in writer.leading for writer in box.writers.values()), "box 2 may have lost nothing"
    three.until(lambda: three.leads(1, "t") is not None, "it leads")
    assert three.state("t").leader_epoch > before.leader_epoch or before.leader == -1


def test_a_box_that_has_not_reported_its_losses_is_not_elected(three: SteppedCluster) -> None:
    """Box 2 was in sync, and comes out of a power cut while the leader dies, which did not see it go."""
    three.create("t", (1, 2))
    leader = three.boxes.pop(1)
    three.kill(2)
    box = three.all[2]
    box.start_controller()  # its log-writers are still recovering
    three.boxes[2] = box
    three.until(lambda: three.boxes[3].agent.cluster.is_fenced(2), "fenced")  # type: ignore[union-attr]
    three.boxes[1] = leader
    three.kill(1)
    three.pass_ms(2500)
    assert three.state("t").leader != 2
    box.start_writers(needs_epoch_bump=True)
    three.until(lambda: three.state("t").isr == (1,), "it leaves the set to the one that has everything")
    three.until_quiet()
    assert three.state("t").leader == -1


# --- a clean stop ------------------------------------------------------------------------------------------------------


def test_a_box_that_stops_gives_everything_away_first(three: SteppedCluster) -> None:
    three.create("t", *[(1, 2, 3)] * 5, *[(2, 1, 3)] * 5)
    box = three.boxes[1]
    Path(box.layout.stopping_file).touch()
    three.until(lambda: Path(box.layout.left_file).exists(), "left")
    assert [three.state("t", partition).leader for partition in range(10)] == [2] * 10
    assert all(three.state("t", partition).isr == (2, 3) for partition in range(10))
    assert three.leads(1, "t") is None, "the old leader knows before any log-writer is stopped"
    three.wish(2, "t", 0, (2, 3, 1))
    three.until_quiet()
    assert three.state("t").isr == (2, 3), "a box that shuts down is not added to the ISR"
    three.end_controller(1)
    del three.boxes[1]
    assert "/brokers/ids/1" not in three.zookeeper
    three.until_quiet()
    Path(box.layout.stopping_file).unlink()
    three.start(1)
    three.until_quiet()
    three.wish(2, "t", 0, (2, 3, 1))
    three.until_quiet()
    assert three.state("t").isr == (2, 3, 1)


def test_a_controller_process_that_ends_alone_keeps_its_session(three: SteppedCluster) -> None:
    three.create("t", (1, 2, 3))
    box = three.boxes[1]
    assert box.agent is not None
    session_id = box.agent.session.session_id
    three.end_controller(1)
    assert "/brokers/ids/1" in three.zookeeper
    agent = box.start_controller()
    three.until_quiet()
    assert agent.session.session_id == session_id and three.state("t")[:2] == (1, 0)


# --- identity
# ---------------------------------------------------------------------------------------------------------


def refused(cluster: SteppedCluster, box: object) -> str:
    """What a box says that waits."""
    cluster.boxes[9] = box  # type: ignore[assignment]
    box.start_writers()  # type: ignore[attr-defined]
    box.start_controller()  # type: ignore[attr-defined]
    said = cluster.until(lambda: box.notifier.said, "it says why it waits")  # type: ignore[attr-defined]
    assert not box.notifier.is_ready  # type: ignore[attr-defined]
    return str(said)


def test_a_broker_id_in_use_is_refused_and_one_that_has_partitions_too(three: SteppedCluster) -> None:
    three.create("t", (1, 2, 3))
    impostor = three.make(2, "impostor")
    for directory in impostor.directories.values():
        directory.directory_id += "-of-another"
    former = three.boxes[2]
    assert "broker id 2 is registered by box" in refused(three, impostor)
    three.boxes.pop(2)
    three.all[2] = former
    three.zookeeper.end_session(former.agent.session.session_id)  # type: ignore[union-attr]
    three.until(lambda: "belongs to box" in impostor.notifier.said, "it learns the owner of the id")
    assert "/brokers/ids/2" not in three.zookeeper
    three.all[9] = impostor


def test_a_copied_disk_is_refused(three: SteppedCluster) -> None:
    box = three.make(4)
    box.directories["d1"].directory_id = three.boxes[1].directories["d0"].directory_id
    assert "disk d1 (directory id directory-of-d0) is recorded as a disk of broker 1" in refused(three, box)
    three.pass_ms(20)
    assert "/brokers/ids/4" not in three.zookeeper, "a registration before the disks reported is removed at once"


def test_a_foreign_cluster_is_refused(three: SteppedCluster, make_cluster: Callable[..., SteppedCluster]) -> None:
    box = three.make(4, cluster_id="another-cluster-entirely")
    assert "the box to cluster another-cluster-entirely" in refused(three, box)


def test_a_box_that_was_part_of_a_cluster_is_part_of_no_other_and_makes_none_anew(three: SteppedCluster) -> None:
    """A typing error in `--zookeeper`, or an ensemble that lost its data: the data on the disks
    would have no owner.
    """
    box = three.kill(3)
    other = box.zookeeper = MemoryZooKeeper(three.clock.wall_ms)
    assert "this ZooKeeper is empty, and the box belongs to cluster" in refused(three, box)
    assert CLUSTER_ID not in other
    other.write(Create(CLUSTER_ID, encode_cluster_id("elsewhere")))
    three.until(lambda: "belongs to cluster elsewhere" in box.notifier.said, "it looks again")
    assert "/brokers/ids/3" not in other
