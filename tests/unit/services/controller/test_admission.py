"""Boxes whose identity is taken: copies of a whole box, an earlier incarnation, registrations that
vanish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.runtime.systemd import REFUSED
from appliance.shm.lease import LeaseReader
from services.controller.zookeeper import admission
from services.controller.zookeeper.requests import Create, Delete, Multi
from services.supervisor.child_start import NotifySocket
from tests.support.stepped_cluster import SteppedCluster
from tests.support.stepped_controller import SteppedBox

pytestmark = pytest.mark.slow

SESSION_MS = 500
PATIENCE_MS = admission.TIMEOUTS_OF_PATIENCE * SESSION_MS
NEXT_LOOK_MS = 1_100
OWN = "/brokers/ids/2"


class Refusals:
    """The notifications that `millrace run` receives."""

    def __init__(self, socket: NotifySocket) -> None:
        self._socket = socket

    def received(self) -> set[str]:
        return {value for _, name, value in self._socket.receive() if name == REFUSED}


@pytest.fixture
def refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Refusals]:
    socket = NotifySocket(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", socket.path)
    yield Refusals(socket)
    socket.close()


@pytest.fixture
def pair(make_cluster: Callable[..., SteppedCluster], monkeypatch: pytest.MonkeyPatch) -> SteppedCluster:
    """Two boxes with short sessions; 1 is controller, 2 is in doubt."""
    monkeypatch.setattr(admission, "PATIENCE_MS_MIN", 0)
    cluster = make_cluster(2, settings={"zookeeper.session.timeout.ms": SESSION_MS})
    cluster.create("t", (2, 1))
    return cluster


def session_of(box: SteppedBox) -> int:
    assert box.agent is not None
    return box.agent.session.session_id


def registered_epoch(cluster: SteppedCluster) -> int:
    """The broker epoch of box 2, as box 1 knows it."""
    agent = cluster.boxes[1].agent
    assert agent is not None
    return agent.cluster.broker_epochs.get(2, -1)


def status_of(box: SteppedBox) -> str:
    assert box.agent is not None
    return box.agent.status_line()


def start_stranger(cluster: SteppedCluster, broker_id: int, name: str, suffix: str = "", original: int = 2) -> SteppedBox:
    """A box on another machine, with the state of the box of this name, and disks like the original's; it is stepped as box 9."""
    kept = cluster.all.pop(broker_id, None)
    stranger = cluster.make(broker_id, name)
    del cluster.all[broker_id]
    if kept is not None:
        cluster.all[broker_id] = kept
    cluster.all[9] = cluster.boxes[9] = stranger
    for disk, directory in cluster.all[original].directories.items():
        stranger.directories[disk].directory_id = directory.directory_id + suffix
        if not suffix:
            stranger.directories[disk].partitions = dict(directory.partitions)
    stranger.start_writers()
    stranger.start_controller()
    return stranger


def test_a_copy_of_a_box_that_runs_is_refused_and_takes_nothing(pair: SteppedCluster, refusals: Refusals) -> None:
    epoch = registered_epoch(pair)
    copy = start_stranger(pair, 2, "box-2")
    pair.until(lambda: copy.notifier.said, "it says why it waits")
    assert "still registered by another session of this box" in copy.notifier.said
    pair.until(lambda: "in use by a running box with the same identity, at 127.0.0.1:9093" in copy.notifier.said, "the session has not expired")
    assert copy.notifier.said in status_of(copy)
    pair.pass_ms(PATIENCE_MS + NEXT_LOOK_MS)
    assert refusals.received() == {copy.notifier.said} and not copy.notifier.is_ready
    assert registered_epoch(pair) == epoch and pair.leads(2, "t") == 0
    pair.kill(2)
    pair.until(lambda: copy.notifier.is_ready, "it was the box, moved")
    assert registered_epoch(pair) > epoch


def test_a_box_without_its_saved_session_waits_until_its_former_one_is_over_and_no_longer(pair: SteppedCluster, refusals: Refusals) -> None:
    former = session_of(pair.boxes[2])
    pair.kill(2, expire=False)
    box = pair.all[2]
    box.start_writers()
    box.start_controller()
    pair.boxes[2] = box
    pair.pass_ms(SESSION_MS)
    assert not box.notifier.is_ready and "waiting until that session ends" in status_of(box)
    pair.zookeeper.end_session(former)
    pair.pass_ms(50)
    assert OWN in pair.zookeeper and "waits" not in status_of(box), "the watch fires before the next poll"
    pair.until(lambda: box.notifier.is_ready, "ready")
    pair.until_quiet()
    assert box.notifier.said == "" and refusals.received() == set()


def test_a_registration_that_vanishes_before_its_session_expires_is_created_again_at_once(pair: SteppedCluster, capfd: pytest.CaptureFixture[str]) -> None:
    epoch = registered_epoch(pair)
    pair.zookeeper.write(Delete(OWN))
    pair.pass_ms(50)
    assert OWN in pair.zookeeper
    pair.until_quiet()
    assert registered_epoch(pair) > epoch
    assert capfd.readouterr().err.count("CRITICAL controller: the registration of broker 2 was deleted") == 1


def test_a_box_whose_registration_another_session_has_leads_nothing_until_that_is_over(pair: SteppedCluster, capfd: pytest.CaptureFixture[str]) -> None:
    """A copy may have registered while our session was thought over, or be of a release that took registrations."""
    box = pair.boxes[2]
    lease = LeaseReader(box.layout)
    pair.until(lambda: lease.holds(pair.clock.boottime_ns()), "it has a lease")
    thief = pair.zookeeper.session("zk", SESSION_MS, None, lambda _: None, lambda _: None)
    thief.start()
    thief.drain()
    thief.submit(Multi((Delete(OWN), Create(OWN, pair.zookeeper.data(OWN), ephemeral=True))), lambda _: None)
    thief.drain()
    pair.pass_ms(20)
    assert "in use by a running box with the same identity" in box.notifier.said
    assert not lease.holds(pair.clock.boottime_ns()), "a box without a lease leads nothing"
    pair.pass_ms(PATIENCE_MS + 2 * NEXT_LOOK_MS)
    assert capfd.readouterr().err.count("CRITICAL controller: the registration of broker 2 now belongs to session") == 1
    thief.close()
    pair.pass_ms(50)
    assert OWN in pair.zookeeper, "taken up again when it is free"
    pair.until_quiet()
    assert box.notifier.said == "" and lease.holds(pair.clock.boottime_ns())
    lease.close()


def test_a_copy_under_another_broker_id_is_refused_for_its_disks(pair: SteppedCluster) -> None:
    copy = start_stranger(pair, 4, "box-2")
    pair.until(lambda: copy.notifier.said, "it says why it waits")
    assert "is recorded as a disk of broker 2" in copy.notifier.said
    pair.pass_ms(20)
    assert "/brokers/ids/4" not in pair.zookeeper, "a registration before the disks reported is removed"


def test_another_box_with_an_id_in_use_gives_up_its_start(pair: SteppedCluster, refusals: Refusals) -> None:
    impostor = start_stranger(pair, 2, "impostor", suffix="-of-another")
    pair.pass_ms(PATIENCE_MS - 100)
    assert refusals.received() == set()
    pair.pass_ms(NEXT_LOOK_MS)
    (reason,) = refusals.received()
    assert "broker id 2 is registered by box" in reason and reason in status_of(impostor)


def test_a_box_that_has_served_waits_for_its_id_and_gives_nothing_up(pair: SteppedCluster, refusals: Refusals) -> None:
    box = pair.boxes[2]
    thief = pair.zookeeper.session("zk", SESSION_MS, None, lambda _: None, lambda _: None)
    thief.start()
    thief.drain()
    thief.submit(Multi((Delete(OWN), Create(OWN, pair.zookeeper.data(OWN), ephemeral=True))), lambda _: None)
    thief.drain()
    pair.pass_ms(PATIENCE_MS + 2 * NEXT_LOOK_MS)
    assert "in use by a running box" in status_of(box) and refusals.received() == set()
    thief.close()


def test_a_box_waits_until_its_disks_report_their_identity(pair: SteppedCluster, refusals: Refusals) -> None:
    """A recovery may take long, and what the disks then say may be that this is the box."""
    box = pair.make(4, cluster_id="another-cluster-entirely")
    pair.boxes[4] = box
    box.start_controller()
    pair.pass_ms(PATIENCE_MS + NEXT_LOOK_MS)
    assert "the box to cluster another-cluster-entirely" in box.notifier.said and refusals.received() == set()
    box.start_writers()
    pair.pass_ms(NEXT_LOOK_MS)
    assert refusals.received() == {box.notifier.said}
