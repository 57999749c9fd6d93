"""A box whose state directory and disks were both restored from a copy: the cluster remembers a later generation."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from appliance.cluster.znodes import BoxRecord, box_path
from appliance.runtime.identity import read_generation, write_generation
from appliance.storage import file_io
from services.controller.zookeeper import cluster_membership
from services.controller.zookeeper.cluster_membership import GENERATION_MS
from services.controller.zookeeper.requests import SetData
from tests.support.stepped_cluster import SteppedCluster

pytestmark = pytest.mark.slow


def _generations(three: SteppedCluster, broker_id: int) -> tuple[int | None, int]:
    """In the state directory, and in the cluster."""
    path = box_path(broker_id)
    return read_generation(three.all[broker_id].box.state_directory), BoxRecord.decode(path, three.zookeeper.data(path)).generation


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_box_that_was_restored_from_a_copy_leads_only_under_larger_epochs(three: SteppedCluster, is_restored: bool) -> None:
    three.create("alone", (2,))
    three.create("copied", (2, 1, 3))
    assert _generations(three, 2) == (1, 1)
    for broker_id in (1, 3, 2):
        three.kill(broker_id)
    three.start(2)  # no other box could elect a leader meanwhile
    three.until_quiet()
    assert _generations(three, 2) == (2, 2)
    before = {topic: three.state(topic) for topic in ("alone", "copied")}
    assert all(state.leader == 2 and three.leads(2, topic) == state.leader_epoch for topic, state in before.items())
    three.kill(2)
    if is_restored:
        write_generation(three.all[2].box.state_directory, 1)
    box = three.start(2)
    three.until_quiet()
    assert box.restored() == is_restored
    for topic, state in before.items():
        assert three.state(topic).leader_epoch == three.leads(2, topic) == state.leader_epoch + is_restored
    assert _generations(three, 2) == (3, 3)
    assert not box.agent.cluster.is_fenced(2)  # type: ignore[union-attr]


def _create_and_kill_all(three: SteppedCluster) -> None:
    """Topic t, which box 2 leads; then all boxes end at once."""
    three.kill(2)
    three.start(2)
    three.create("t", (2, 1, 3))
    sessions = [box.agent.session.session_id for box in three.boxes.values()]  # type: ignore[union-attr]
    for broker_id in (1, 2, 3):
        three.kill(broker_id, expire=False)
    for session_id in sessions:
        three.zookeeper.end_session(session_id)


def test_a_restored_box_hands_over_to_replicas_that_have_more(three: SteppedCluster) -> None:
    _create_and_kill_all(three)
    assert (three.state("t").leader, three.state("t").isr) == (2, (2, 1, 3)), "all at once"
    write_generation(three.all[2].box.state_directory, 1)
    three.start(2)
    three.start(1)
    three.until(lambda: three.state("t").leader == 1 and 2 not in three.state("t").isr, "box 1 leads, and 2 fetches")


def test_a_box_raises_its_generation_while_it_runs(three: SteppedCluster) -> None:
    assert _generations(three, 1) == (1, 1)
    three.clock.advance_ms(GENERATION_MS)
    three.until_quiet()
    assert _generations(three, 1) == (2, 2)


def test_a_box_that_cannot_write_its_state_directory_lets_the_cluster_remember_what_is_there(three: SteppedCluster) -> None:
    state = Path(three.all[1].box.state_directory)
    (state / "generation").unlink()
    (state / "generation").mkdir()
    three.clock.advance_ms(GENERATION_MS)
    three.until_quiet()
    assert _generations(three, 1) == (None, 1)


@pytest.mark.parametrize("is_remembered", [True, False])
def test_a_box_without_a_generation_was_restored_if_the_cluster_remembers_one(three: SteppedCluster, is_remembered: bool) -> None:
    """The cluster remembers none of a box whose former release had none."""
    box = three.kill(1)
    (Path(box.box.state_directory) / "generation").unlink()
    if not is_remembered:
        path = box_path(1)
        record = BoxRecord.decode(path, three.zookeeper.data(path))
        three.zookeeper.write(SetData(path, record._replace(generation=0).encode(), -1))
    assert three.start(1).restored() == is_remembered
    three.until_quiet()
    assert _generations(three, 1) == ((2, 2) if is_remembered else (1, 1))


@pytest.mark.parametrize("is_new", [True, False])
def test_a_new_generation_is_synced_with_its_name(three: SteppedCluster, monkeypatch: pytest.MonkeyPatch, is_new: bool) -> None:
    state, sync, synced = Path(three.kill(1).box.state_directory), file_io.fsync, set[str]()
    if is_new:
        (state / "generation").unlink()

    def record(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(file_io, "fsync", record)
    three.start(1)
    three.until_quiet()
    assert _generations(three, 1) == (2, 2) and (str(state) in synced) == is_new


def test_a_log_that_a_restored_box_reports_later_is_distrusted(three: SteppedCluster) -> None:
    """It waited for space, or its disk was added later."""
    _create_and_kill_all(three)
    box = three.all[2]
    write_generation(box.box.state_directory, 1)
    disk, directory = next((disk, each) for disk, each in box.directories.items() if ("t", 0) in each.partitions)
    topic_id = directory.partitions.pop(("t", 0))
    three.start(2)
    three.until(lambda: box.restored() and _generations(three, 2) == (3, 3), "what it has at first is settled")
    directory.partitions["t", 0] = topic_id
    box.kill_writer(disk)
    three.until(lambda: disk not in box.agent.cluster.reports, "the controller has seen that")  # type: ignore[union-attr]
    box.start_writer(disk)
    three.until(lambda: disk in box.agent.cluster.reports, "the controller has its report")  # type: ignore[union-attr]
    three.start(1)
    three.until(lambda: three.state("t").leader == 1 and 2 not in three.state("t").isr, "box 1 leads, and 2 fetches")


def test_a_state_disk_that_hangs_is_reported_and_does_not_hold_the_controller(three: SteppedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    box, answers = three.boxes[1], threading.Event()
    write = cluster_membership.write_generation

    def hang(state: str, number: int) -> bool:
        assert answers.wait(60)
        return write(state, number)

    monkeypatch.setattr(cluster_membership, "write_generation", hang)
    three.clock.advance_ms(GENERATION_MS)
    agent = box.agent
    assert agent is not None
    for _ in range(3):
        agent.do_work()
    assert _generations(three, 1) == (1, 1) and box.count("controller.late_state_writes") == 0
    three.clock.advance_ms(box.box.integer("log.disk.deadline.ms"))
    for _ in range(3):
        agent.do_work()
    assert box.count("controller.late_state_writes") == 1
    answers.set()
    three.until_quiet()
    assert _generations(three, 1) == (2, 2)
