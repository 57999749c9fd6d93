"""Boxes that die before or after any of their steps, while topics are created, grown and deleted, ISRs
change and boxes shut down: the other boxes, or the restarted one, finish the operation.

A step is a ZooKeeper request, a command to a disk, an image.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.stepped_cluster import SteppedCluster
from tests.support.stepped_controller import Killed

pytestmark = pytest.mark.slow

STRIDE = 4
"""Every so many-th step is one at which a box dies, beginning with its broker id."""


def die(cluster: SteppedCluster, broker_id: int, step: int, sent: bool, act: Callable[[], None]) -> bool:
    """Let a box die at its `step`-th step from now, while the others go on; False if it did not take so many.

    It restarts at once, with the session that it had.
    """
    box = cluster.boxes[broker_id]
    box.killed_at(step, sent)
    try:
        act()
        cluster.pass_ms(1500)
    except Killed:
        box.kill_controller()
        box.start_controller()
        cluster.pass_ms(50)
        return True
    box.steps = -1_000_000  # it may live
    return False


def at_every_step(cluster: SteppedCluster, broker_id: int, sent: bool, act: Callable[[str], None], check: Callable[[str], None]) -> int:
    """`act` and `check` with names of their own, until the box outlives it."""
    for count, step in enumerate(itertools.count(broker_id, STRIDE)):
        name = f"t{count}"
        died = die(cluster, broker_id, step, sent, lambda name=name: act(name))  # type: ignore[misc]
        cluster.until_quiet()
        check(name)
        if not died:
            return count
    raise AssertionError


@pytest.mark.parametrize("sent", [False, True], ids=["before-the-step", "after-the-step"])
@pytest.mark.parametrize("broker_id", [1, 2])
def test_a_topic_is_whole_or_absent_wherever_a_box_dies_over_its_creation(three: SteppedCluster, broker_id: int, sent: bool) -> None:
    def act(name: str) -> None:
        three.create(name, (2, 3, 1), (1, 2, 3), wait=False)

    def check(name: str) -> None:
        images = [box.image().topics.get(name) for box in three.boxes.values()]
        assert len({str(image is None) for image in images}) == 1
        if images[0] is None:
            assert broker_id == 1 and not any(box.on_disks(name) for box in three.boxes.values())
            return
        for partition in range(2):
            state = three.state(name, partition)
            assert sorted(state.isr) == [1, 2, 3], "a box that is back within its session's time loses nothing"
            assert three.leads(state.leader, name, partition) == state.leader_epoch
            followers = {member for member in (1, 2, 3) if member != state.leader}
            assert {member for member in followers if three.writer_of(member, name, partition).following.get((name, partition))} == followers

    assert at_every_step(three, broker_id, sent, act, check) >= 2


@pytest.mark.parametrize("sent", [False, True], ids=["before-the-step", "after-the-step"])
@pytest.mark.parametrize("broker_id", [1, 2])
def test_a_deletion_is_carried_out_wherever_a_box_dies_over_it(three: SteppedCluster, broker_id: int, sent: bool) -> None:
    def act(name: str) -> None:
        three.delete(name, wait=False)

    for count, step in enumerate(itertools.count(broker_id, STRIDE)):
        name = f"t{count}"
        three.create(name, (2, 3, 1), (1, 2, 3))
        died = die(three, broker_id, step, sent, lambda name=name: act(name))  # type: ignore[misc]
        three.until_quiet()
        ordered = name not in three.boxes[1].image().topics
        assert ordered or broker_id == 1, "only the controller's death can make the order be lost"
        if ordered:
            assert not any(box.on_disks(name) for box in three.boxes.values())
            assert not [path for path in three.zookeeper.paths() if path.endswith(f"/{name}")]
        if not died:
            break
    assert count >= 2


@pytest.mark.parametrize("sent", [False, True], ids=["before-the-step", "after-the-step"])
def test_the_next_incarnation_answers_an_isr_change_wherever_a_box_died_during_it(three: SteppedCluster, sent: bool) -> None:
    three.create("t", (1, 2, 3))

    def check(_name: str) -> None:
        state = three.state("t")
        writer = three.writer_of(1, "t")
        assert writer.in_sync[("t", 0)] == list(state.isr) and three.leads(1, "t") == state.leader_epoch
        if state.isr != (1, 2, 3):
            three.wish(1, "t", 0, (1, 2, 3))
            three.until_quiet()

    for step in range(6):
        die(three, 1, step, sent, lambda: three.wish(1, "t", 0, (1, 2)))
        three.until_quiet()
        check("")


@pytest.mark.parametrize("sent", [False, True], ids=["before-the-step", "after-the-step"])
def test_when_the_controller_dies_over_the_elections_for_a_dead_box_another_ends_them(
    make_cluster: Callable[..., SteppedCluster], tmp_path: Path, sent: bool
) -> None:
    cluster = make_cluster(4)
    cluster.create("t", *[(4, 3, 2)] * 5, *[(3, 4, 2)] * 5)
    for step in range(0, 12, 2):
        if 4 not in cluster.boxes:
            cluster.start(4)
            cluster.until_quiet()
            for partition in range(10):
                cluster.wish(cluster.state("t", partition).leader, "t", partition, (2, 3, 4))
            cluster.until_quiet()
        broker_id = next(number for number, box in cluster.boxes.items() if box is cluster.controller())
        if broker_id != 4:
            box = cluster.boxes[broker_id]
            box.killed_at(step, sent)
        try:
            cluster.kill(4)
            cluster.pass_ms(1000)
        except Killed:
            session_id = box.agent.session.session_id  # type: ignore[union-attr]
            box.kill_controller()
            Path(box.agent_session_file()).unlink(missing_ok=True)
            del cluster.boxes[broker_id]
            cluster.zookeeper.end_session(session_id)
            cluster.until_quiet()
            for partition in range(10):
                assert cluster.state("t", partition).leader in cluster.boxes
            box.start_controller()
            cluster.boxes[broker_id] = box
        cluster.until_quiet()
        for partition in range(10):
            state = cluster.state("t", partition)
            assert state.leader in (2, 3) and 4 not in state.isr and cluster.leads(state.leader, "t", partition) == state.leader_epoch
