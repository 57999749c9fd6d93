"""Bring up each log-writer that connects: settle its leader epochs and send its roles before any
other command.

Owned by the controller process of each box. A disk counts as dead if it failed or hangs, or if its
log-writer has been away for longer than the disk's deadline; then other boxes take over its
replicas (`failover`). Weak: a recovery longer than the deadline counts as death, too. The disk's
replicas follow afterwards.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.shm.counters import Counter
from services.controller.decisions.cluster import ControllerContext
from services.controller.decisions.disk_operations import bring_up_disk, missing_partitions, orphans_on
from services.controller.decisions.disk_report import DiskReport
from services.controller.disk_commands import DiskCommands
from services.controller.zookeeper.operation import OperationOutcome

OTHERS_TIME_MS = 10_000
"""After an unclean boot a leader waits this long for another in-sync member that has lost nothing.
If all boxes lost power, none may come.
"""


class DiskBringUp:
    """`is_free(disk)` returns whether no AlterPartition request of an earlier incarnation of its
    log-writer is being written.
    """

    def __init__(self, context: ControllerContext, disks: DiskCommands, is_free: Callable[[str], bool], deadline_ms: int) -> None:
        self._cluster = cluster = context.cluster
        self._runner = context.runner
        self._disks = disks
        self._is_free = is_free
        self._deadline_ms = deadline_ms
        self._now_ms = context.clock.monotonic_ms
        self._counters = context.counters
        self._log = context.log
        self._on_failure = context.on_failure
        self.waiting: set[str] = set()
        """Disks to be brought up."""
        self._arrived_ms = 0
        self._were_roles_sent = False
        self._brought_up: dict[str, DiskReport] = {}
        """Reports of the log-writers that were brought up since the last arrival."""
        self._away_since_ms = dict.fromkeys(cluster.disks, self._now_ms())
        self._missing_gauges = {disk: self._missing_gauge(disk) for disk in cluster.disks}

    def _missing_gauge(self, disk: str) -> Counter:
        return self._counters.gauge(f'controller.partitions_missing{{disk="{disk}"}}')

    # --- what is known of a disk

    def is_brought_up(self, disk: str) -> bool:
        """Whether its log-writer is connected and may receive roles. Refused roles are retried
        separately.
        """
        report = self._cluster.reports.get(disk)
        return report is not None and self._brought_up.get(disk) is report and not self._runner.is_running(f"disk:{disk}") and self._is_free(disk)

    def all_brought_up(self) -> bool:
        return all(self.is_brought_up(disk) for disk in self._cluster.disks)

    def all_reported(self) -> bool:
        """Whether every disk that is not dead has reported its contents.

        Then a partition that is on no disk and has no placement was never here.
        """
        return all(self.is_brought_up(disk) or self.is_dead(disk) for disk in self._cluster.disks)

    def are_roles_sent(self) -> bool:
        """Whether every disk has received its roles since this process started, or is dead.

        Before that, a log-writer may still lead what an old image said.
        """
        if not self._were_roles_sent:
            self._were_roles_sent = self.all_reported()
        return self._were_roles_sent

    def patience_ms(self, usual_ms: int) -> int:
        """Return how long to wait for unregistered boxes: longer after a power cut, which may have
        hit them, too.
        """
        return OTHERS_TIME_MS if any(report.needs_epoch_bump for report in self._cluster.reports.values()) else usual_ms

    def all_settled(self) -> bool:
        """Whether it is known of every disk what it has lost: then other boxes may elect this one."""
        return all(disk in self._cluster.reports and not self._cluster.reports[disk].unbumped for disk in self._cluster.disks)

    def is_dead(self, disk: str) -> bool:
        """Whether other boxes are to take over its replicas."""
        if self._disks.connected(disk):
            return self._disks.is_offline(disk)
        return self._now_ms() - self._away_since_ms.get(disk, 0) >= self._deadline_ms

    # --- they come and go

    def on_connected(self, report: DiskReport) -> None:
        self._away_since_ms.pop(report.disk, None)
        self.waiting.add(report.disk)
        self.reconsider_replacements()

    def on_gone(self, disk: str) -> None:
        self._away_since_ms.setdefault(disk, self._now_ms())
        self.waiting.discard(disk)
        self._missing_gauges[disk].set(0)

    def on_added(self, disk: str) -> None:
        self._missing_gauges[disk] = self._missing_gauge(disk)
        self._away_since_ms[disk] = self._now_ms()

    def on_removed(self, disk: str) -> None:
        self.waiting.discard(disk)
        self._away_since_ms.pop(disk, None)

    def on_arrived(self) -> None:
        """The tree was loaded again: bring up every connected disk again."""
        self._arrived_ms = self._now_ms()
        self.waiting = set(self._cluster.reports)
        self._brought_up.clear()

    def reconsider_replacements(self) -> None:
        """Retry disks that replace a given-up one: its partitions may have waited for a copy on
        another disk.
        """
        self.waiting.update(disk for disk, report in self._cluster.reports.items() if report.replaces)

    # --- bringing up

    def reconsider(self) -> None:
        """Start what is due and not running."""
        others_are_overdue = self._now_ms() - self._arrived_ms >= OTHERS_TIME_MS
        for disk in sorted(self.waiting):
            if self._disks.is_offline(disk) or not self._is_free(disk):
                continue  # retried when it has connected again
            report = self._cluster.reports[disk]
            started = self._runner.start(
                f"disk:{disk}",
                bring_up_disk(self._cluster, report, others_are_overdue),
                lambda outcome, report=report: self._on_brought_up(report, outcome),  # type: ignore[misc]
            )
            if started:
                self.waiting.discard(disk)

    def _on_brought_up(self, report: DiskReport, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure)
            return
        if self._brought_up.get(report.disk) is not report and (orphans := orphans_on(self._cluster, report)):
            message = (
                f"{len(orphans)} logs of disk {report.disk} are orphans: {_some(orphans)}. Their partitions lie on other disks, from where"
                " they are served; look with: millrace disk orphans"
            )
            self._log.warning(message, disk=report.disk)
        self._brought_up[report.disk] = report
        self._missing_gauges[report.disk].set(report.missing)
        if report.missing:
            self._report_missing(report, missing_partitions(self._cluster, report))
        if outcome.value and self._cluster.reports.get(report.disk) is report:
            if outcome.value != report.refused:
                message = f"{outcome.value} partitions of disk {report.disk} refused their role or wait for other boxes; retrying"
                self._log.warning(message, disk=report.disk, peer=f"log-writer@{report.disk}")
            self.waiting.add(report.disk)
        report.refused = outcome.value

    def _report_missing(self, report: DiskReport, names: list[str]) -> None:
        self._log.critical(
            f"{report.missing} partitions that ZooKeeper places on disk {report.disk} are missing there: {_some(names)}. Clients get"
            " KAFKA_STORAGE_ERROR for those without a replica on another box; restore their directories, or delete the topics",
            disk=report.disk,
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
