"""What the controller process of a box does for the replicas on its own disks, whether or not it is
the controller of the cluster.

It brings up disks whose log-writers connect, sends roles, carries out AlterPartition requests,
creates assigned replicas and deletes those no longer assigned. It hands leaderships over when a
disk dies or the box shuts down, and elects for dead boxes. Each part is a component with its own
state; this one has their order. Weak: without ZooKeeper, known roles are sent and everything else
waits.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.settings import Box
from appliance.ipc.box_disks import BoxDisks
from services.controller.admin.move_administration import MoveAdministration
from services.controller.decisions.cluster import ControllerContext, DiskReport
from services.controller.disk_bring_up import DiskBringUp
from services.controller.disk_commands import DiskCommands
from services.controller.failover import Failover
from services.controller.hosting import DiskSpaces, Hosting
from services.controller.isr_keeper import IsrKeeper
from services.controller.role_keeper import LiveBrokers, RoleKeeper
from services.controller.zookeeper.operation import OperationRunner


class BoxReplicas:
    """The parts of it. `own_runner` is not dropped when the box leaves the cluster."""

    def __init__(self, context: ControllerContext, box: Box, own_runner: OperationRunner, disks: DiskCommands, spaces: DiskSpaces) -> None:
        cluster, now_ms = context.cluster, context.clock.monotonic_ms
        session_ms = box.integer("zookeeper.session.timeout.ms")
        self.isr = IsrKeeper(context)
        self.bring_up = bring_up = DiskBringUp(context, disks, self.isr.is_settled, box.integer("log.disk.deadline.ms"))
        self._roles = RoleKeeper(cluster, own_runner, bring_up.is_brought_up, now_ms)
        self._live_brokers = LiveBrokers(cluster, own_runner, now_ms)
        self._hosting = Hosting(context, spaces.available, bring_up.all_reported)
        self.failover = Failover(context, bring_up.is_dead, disks.is_full, bring_up.is_brought_up, lambda: bring_up.patience_ms(session_ms))

    def is_fenced(self) -> bool:
        """True while no box may elect this one: some disk has not reported its losses yet, or the
        box is shutting down.
        """
        return self.failover.is_shutting_down or not self.bring_up.all_settled()

    def on_arrived(self) -> None:
        self.bring_up.on_arrived()
        self.failover.on_arrived()

    def reconsider(self) -> None:
        """While the box has arrived: start what is due and not running."""
        self.bring_up.reconsider()
        self.failover.reconsider()
        self._hosting.reconsider()

    def do_work(self) -> int:
        """Carry out AlterPartition requests, and send changed roles."""
        return self.isr.do_work() + self._roles.do_work() + self._live_brokers.do_work()


class DiskReports:
    """Keep `Cluster.disks` and `Cluster.reports`: which disks the box has, and what their
    log-writers reported.

    It notifies the other components of connects and disconnects. A report belongs to one
    incarnation of a log-writer and is dropped with it. Disks are also added and removed while the
    box runs (`ipc/box_disks.py`). `on_news` is called when something may have become possible.
    """

    def __init__(
        self,
        context: ControllerContext,
        box_disks: BoxDisks,
        disks: DiskCommands,
        replicas: BoxReplicas,
        moves: MoveAdministration,
        on_news: Callable[[], None],
    ) -> None:
        self._cluster = context.cluster
        self._box_disks = box_disks
        self._disks = disks
        self._bring_up = replicas.bring_up
        self._isr = replicas.isr
        self._moves = moves
        self._log = context.log
        self._on_news = on_news

    def on_connected(self, disk: str) -> None:
        """A log-writer has connected and reported its disk's contents."""
        report = DiskReport.from_writer_info(disk, self._disks.writer_info(disk))
        if self._cluster.is_restored:
            report.distrust()
        elif self._cluster.settled is not None:
            report.distrust(self._cluster.settled)
        self._cluster.add_report(report)
        bump = "; raising their leader epochs first" if report.needs_epoch_bump else ""
        self._log.info(f"log-writer@{disk} connected with {len(report.partitions)} partitions{bump}", disk=disk, peer=f"log-writer@{disk}")
        self._moves.on_disk_connected(report)
        self._bring_up.on_connected(report)
        self._on_news()

    def on_restored(self) -> None:
        """This box was restored from a copy, with its disks."""
        for report in self._cluster.reports.values():
            report.distrust()

    def on_gone(self, disk: str) -> None:
        """A log-writer has died or was stopped."""
        report = self._cluster.reports.pop(disk, None)
        if report is not None and self._cluster.settled is not None:
            self._cluster.settled |= report.partitions.keys() - report.unbumped
        self._bring_up.on_gone(disk)
        self._isr.on_disk_gone(disk)
        message = f"log-writer@{disk} disconnected; its partitions without a replica on another box wait for its return"
        self._log.info(message, disk=disk, peer=f"log-writer@{disk}")

    def poll(self, now_ns: int) -> None:
        """Apply disks that were added, removed or replaced while the box runs."""
        came, went, replaced = self._box_disks.look(now_ns)
        for disk in came:
            self._bring_up.on_added(disk.name)
            self._cluster.disks.append(disk.name)
            self._disks.add_disk(disk.name)
        for disk in went:
            self._disks.remove_disk(disk.name)
            self._cluster.remove_disk(disk.name)
            self._bring_up.on_removed(disk.name)
            self._bring_up.reconsider_replacements()
            self._on_news()
        for disk in replaced:
            self._disks.replace_disk(disk.name)
