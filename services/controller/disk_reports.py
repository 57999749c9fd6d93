"""Keep `Cluster.disks` and `Cluster.reports`: which disks the box has, and what their log-writers
reported.

Owned by the controller process; it notifies the other components of connects and disconnects. A
report belongs to one incarnation of a log-writer and is dropped with it. Disks are also added and
removed while the box runs (`ipc/box_disks.py`). Weak: as there.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.logging import Logger
from appliance.ipc.box_disks import BoxDisks
from services.controller.admin.move_administration import MoveAdministration
from services.controller.decisions.cluster import Cluster, DiskReport
from services.controller.disk_bring_up import DiskBringUp
from services.controller.disk_commands import DiskCommands
from services.controller.isr_keeper import IsrKeeper


class DiskReports:
    """`on_news` is called when something may have become possible."""

    def __init__(
        self,
        cluster: Cluster,
        box_disks: BoxDisks,
        disks: DiskCommands,
        bring_up: DiskBringUp,
        isr: IsrKeeper,
        moves: MoveAdministration,
        log: Logger,
        on_news: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._box_disks = box_disks
        self._disks = disks
        self._bring_up = bring_up
        self._isr = isr
        self._moves = moves
        self._log = log
        self._on_news = on_news

    def on_connected(self, disk: str) -> None:
        """A log-writer has connected and reported its disk's contents."""
        report = DiskReport.from_writer_info(disk, self._disks.writer_info(disk))
        self._cluster.add_report(report)
        bump = "; raising their leader epochs first" if report.needs_epoch_bump else ""
        self._log.info(f"log-writer@{disk} connected with {len(report.partitions)} partitions{bump}", disk=disk, peer=f"log-writer@{disk}")
        self._moves.on_disk_connected(report)
        self._bring_up.on_connected(report)
        self._on_news()

    def on_gone(self, disk: str) -> None:
        """A log-writer has died or was stopped."""
        self._cluster.reports.pop(disk, None)
        self._bring_up.on_gone(disk)
        self._isr.on_disk_gone(disk)
        message = f"log-writer@{disk} disconnected; its partitions without a replica on another box wait for its return"
        self._log.info(message, disk=disk, peer=f"log-writer@{disk}")

    def look(self, now_ns: int) -> None:
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
