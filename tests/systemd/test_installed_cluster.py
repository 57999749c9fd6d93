"""Three boxes, each installed on a machine of its own with a real systemd, that are one cluster: how it comes to be, how it starts, and what of it may end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from appliance.storage.page_cache import has_cachestat
from lab.installed_box import copy_sources, why_not_installed
from lab.installed_cluster import ClusterMachine, InstalledCluster, side_by_side, three_machines
from lab.machine import NETWORK
from lab.machine import why_not as why_no_machines
from lab.running_box import eventually
from lab.systemd_box import why_not
from tests.systemd.cluster_on_boxes import load_on_cluster
from tests.unit.runtime.test_unit_files import kind_of

REASON = why_not() or why_no_machines() or why_not_installed()
pytestmark = [pytest.mark.system, pytest.mark.deep, pytest.mark.alone, pytest.mark.skipif(bool(REASON), reason=REASON)]

READY_SECONDS = 60.0
STOP_PAUSE_SECONDS = 1.5
"""0.5 s are promised, and held by `fail_over` on a quiet machine; here three systemds and their clients have two cores."""
SYNCED = {"flush.messages": "1"}
"""Acknowledged when it is synced: what is to outlive the power of all boxes at once."""
FIRST_ALONE_SECONDS = 33.0
"""Longer than a watchdog waits; and shorter than a producer tries, with the boots around it."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, wheelhouse: Path) -> Iterator[InstalledCluster]:
    """As README says: one box after the other, the first of which has no other box to form a
    cluster with.
    """
    with three_machines(tmp_path_factory.mktemp("cluster"), wheelhouse) as cluster:
        first, *others = cluster.machines.values()
        answer = install(cluster, first)
        assert "waits for members 2 and 3 of the ZooKeeper ensemble" in answer and "install the other boxes now" in answer
        assert all_alive_and_never_restarted(first)
        side_by_side(*(lambda machine=machine: install(cluster, machine) for machine in others))  # type: ignore[misc]
        cluster.await_ready(READY_SECONDS)
        yield cluster


def install(cluster: InstalledCluster, machine: ClusterMachine) -> str:
    return machine.install("--offline", "/wheelhouse", *cluster.options(machine.number)).stderr


def all_alive_and_never_restarted(machine: ClusterMachine) -> bool:
    """A box that waits for a quorum waits: no unit has failed, none was restarted."""
    assert machine.box.output("systemctl list-units --failed --no-legend --plain 'millrace*'") == ""
    restarts = machine.restarts()
    assert not any(restarts.values()), restarts
    return all(machine.pids().values())


def controller_of(cluster: InstalledCluster) -> ClusterMachine:
    """The box whose controller is that of the cluster."""
    with cluster.clients():
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        return cluster.machines[int(eventually(lambda: max(0, admin.list_topics(timeout=5).controller_id), "there is a controller", 20))]


def test_three_boxes_are_one_cluster_by_their_settings_alone_and_no_unit_had_to_be_started_again(cluster: InstalledCluster) -> None:
    for machine in cluster.machines.values():
        assert all_alive_and_never_restarted(machine)
        listed = machine.millrace("box", "list").stdout
        assert all(other.host in listed for other in cluster.machines.values()), listed
        assert machine.box.unit("millrace.target")["ActiveState"] == "active"


def test_boxes_that_name_their_networks_serve_each_other_with_little_exposed(cluster: InstalledCluster) -> None:
    for machine in cluster.machines.values():
        machine.edit_settings(lambda text: f'"cluster.networks" = "{NETWORK}.0/24"\n{text}')
        machine.box.run("systemctl restart millrace.target")
    cluster.await_ready(READY_SECONDS)
    for machine in cluster.machines.values():
        for unit in machine.services():
            exposure = machine.box.output(f"systemd-analyze security --no-pager {unit} | sed -n 's/.*exposure level.*: \\([0-9.]*\\) .*/\\1/p'")
            assert float(exposure) <= {"acceptor": 1.1}.get(kind_of(unit), 1.0), unit
    with load_on_cluster(cluster, "named") as load:
        load.await_news("replicated")
        load.await_in_sync()


def test_what_followers_fetch_a_moment_after_it_was_written_comes_from_the_page_cache(cluster: InstalledCluster) -> None:
    def cold_reads() -> float:
        return sum(machine.metric("millrace_fetch_cold_reads_total") for machine in cluster.machines.values())

    before = cold_reads()
    with load_on_cluster(cluster, "fresh") as load:
        load.await_news("again")
        if has_cachestat():  # else the growing end of a file may be taken for absent
            assert cold_reads() == before


def test_a_box_that_is_stopped_hands_over_its_leaderships_before_its_processes_stop(cluster: InstalledCluster) -> None:
    with load_on_cluster(cluster, "stopped") as load:
        machine = cluster.machines[load.leaders()[load.probed][0]]
        began = time.monotonic()
        machine.box.run("systemctl stop millrace.target 'millrace-*'")
        assert machine.processes() == [] and machine.box.output("ls /dev/shm") == ""
        load.await_news("after the stop")
        pause = load.pause(began)
        print(f"a box is stopped: {pause:.2f} s without acks=all")
        assert pause < STOP_PAUSE_SECONDS
        assert "partitions over to other boxes" in machine.box.journal("-u", "millrace-controller")
        machine.box.run("systemctl start millrace.target")
        cluster.await_ready(READY_SECONDS)
        load.await_in_sync()
        assert all_alive_and_never_restarted(machine)


def test_a_machine_that_shuts_down_hands_over_leaderships_while_it_has_a_network(cluster: InstalledCluster) -> None:
    with load_on_cluster(cluster, "shut-down") as load:
        machine = controller_of(cluster)
        load.lead_by(machine.number)
        began = time.monotonic()
        machine.box.power_off()
        machine.box.await_off()
        load.await_news("after the machine is off")
        pause = load.pause(began)
        print(f"a machine is shut down: {pause:.2f} s without acks=all")
        assert pause < STOP_PAUSE_SECONDS
        machine.power_on()
        cluster.await_ready(READY_SECONDS)
        load.await_in_sync()
        assert all_alive_and_never_restarted(machine)


def test_every_unit_that_is_killed_is_started_again_by_systemd_and_nothing_acknowledged_is_lost(cluster: InstalledCluster) -> None:
    machine = controller_of(cluster)
    before = {other.number: other.restarts() for other in cluster.machines.values()}
    with load_on_cluster(cluster, "killed") as load:
        load.lead_by(machine.number)
        for unit in machine.services():
            pid, began = machine.pid(unit), time.monotonic()
            machine.box.run(["systemctl", "kill", "--signal=KILL", unit])
            machine.await_active(unit, unlike=pid)
            load.await_news(f"after the death of {unit}")
            print(f"{unit} is killed: {load.pause(began):.2f} s without acks=all")
        cluster.await_ready(READY_SECONDS)
        load.await_in_sync()
    after = {other.number: other.restarts() for other in cluster.machines.values()}
    before[machine.number] = {unit: count + 1 for unit, count in before[machine.number].items()}
    assert after == before


def test_a_machine_whose_power_is_cut_comes_back_by_itself_with_everything_that_was_acknowledged(cluster: InstalledCluster) -> None:
    machine = controller_of(cluster)
    with load_on_cluster(cluster, "cut") as load:
        load.lead_by(machine.number)
        began = time.monotonic()
        machine.box.cut_power()
        load.await_news("after the power cut")
        print(f"the power of a machine is cut: {load.pause(began):.2f} s without acks=all")
        machine.power_on()
        cluster.await_ready(READY_SECONDS)
        load.await_in_sync()
        assert all_alive_and_never_restarted(machine)


def test_after_a_power_cut_of_all_the_first_box_waits_the_second_serves_with_it_and_the_third_may_come_late(cluster: InstalledCluster) -> None:
    first, second, late = cluster.machines.values()
    with load_on_cluster(cluster, "all-cut", SYNCED) as load:
        began = time.monotonic()
        side_by_side(*(machine.box.cut_power for machine in cluster.machines.values()))
        first.power_on()
        waits = "waits for members 2 and 3 of the ZooKeeper ensemble; one of them is enough"
        eventually(lambda: waits in first.box.unit("millrace-zookeeper")["StatusText"], "the first box says whom it waits for")
        assert "waits for members 2 and 3" in first.millrace("status", check=False).stdout
        alone_at = time.monotonic()
        eventually(lambda: time.monotonic() > alone_at + FIRST_ALONE_SECONDS, "it has waited", FIRST_ALONE_SECONDS + 5)
        assert all_alive_and_never_restarted(first)
        second.power_on()
        for machine in (first, second):
            eventually(lambda machine=machine: machine.get("/readyz") == 200, f"box {machine.number} serves", READY_SECONDS)  # type: ignore[misc]
        # What the late box led waits for it: the others may have lost the ends of their logs, and it alone may not
        # (services/controller/decisions/leader_selection.py).
        late.power_on()
        cluster.await_ready(READY_SECONDS)
        load.await_news("with all three boxes")
        print(f"all machines lost their power: acks=all again {time.monotonic() - began:.1f} s later")
        load.await_in_sync()
        for machine in cluster.machines.values():
            assert all_alive_and_never_restarted(machine)


def test_boxes_are_upgraded_one_after_the_other_under_load(cluster: InstalledCluster) -> None:
    tree = cluster.sources / "second"
    copy_sources(tree)
    service = tree / "services" / "acceptor" / "__main__.py"
    service.write_text(service.read_text() + "\n# of the second release\n")
    before = {machine.number: machine.box.output("readlink /opt/millrace/current") for machine in cluster.machines.values()}
    with load_on_cluster(cluster, "upgraded") as load:
        for machine in cluster.machines.values():
            began = time.monotonic()
            answer = machine.install("--offline", "/wheelhouse", tree="second")
            assert " serves: Kafka" in answer.stderr, answer.stderr
            load.await_news(f"after the upgrade of box {machine.number}")
            print(f"box {machine.number} is upgraded in {time.monotonic() - began:.0f} s: {load.pause(began):.2f} s without acks=all")
            load.await_in_sync()  # as README has its reader wait before the next one
            assert os.path.basename(machine.box.output("readlink /opt/millrace/current")) != os.path.basename(before[machine.number])
        cluster.await_ready(READY_SECONDS)
