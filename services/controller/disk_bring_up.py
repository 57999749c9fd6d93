"""Log-writers that come and go: each that comes is brought up (its leader epochs settled, its roles told) before anything else is said to it.

Owned by the controller process of each box. A disk counts as dead when it failed or hangs, and when its log-writer has been away for longer than the
disk's deadline: then other boxes are to serve what it held (`failover`). Weak spot: a recovery that takes longer than the deadline counts as
death, too; the disk's replicas follow when it is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from appliance.base.logging import Logger
from appliance.shm.counters import Counter, Counters
from services.controller.decisions.cluster import Cluster
from services.controller.decisions.disk_operations import bring_up_disk, missing_partitions
from services.controller.decisions.disk_report import DiskReport
from services.controller.disk_commands import DiskCommands
from services.controller.zookeeper.operation import OperationOutcome, OperationRunner

OTHERS_TIME_MS = 10_000
"""After an unclean boot a leader waits so long for another member of its in-sync set that has lost nothing. When all boxes lost power none may come."""


class DiskBringUp:
    """`is_free(disk)`: nothing is being written that an earlier life of its log-writer wished for."""

    def __init__(
        self,
        cluster: Cluster,
        runner: OperationRunner,
        disks: DiskCommands,
        is_free: Callable[[str], bool],
        deadline_ms: int,
        now_ms: Callable[[], int],
        counters: Counters,
        log: Logger,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._cluster = cluster
        self._runner = runner
        self._disks = disks
        self._is_free = is_free
        self._deadline_ms = deadline_ms
        self._now_ms = now_ms
        self._counters = counters
        self._log = log
        self._on_failure = on_failure
        self.waiting: set[str] = set()
        """Disks that are to be brought up."""
        self._arrived_ms = 0
        self._were_told = False
        self._lives: dict[str, DiskReport] = {}
        """Lives of log-writers that were brought up since the last arrival."""
        self._away_since_ms = dict.fromkeys(cluster.disks, now_ms())
        self._missing_gauges = {disk: self._missing_gauge(disk) for disk in cluster.disks}

    def _missing_gauge(self, disk: str) -> Counter:
        return self._counters.gauge(f'controller.partitions_missing{{disk="{disk}"}}')

    # --- what is known of a disk

    def is_brought_up(self, disk: str) -> bool:
        """Whether its log-writer is there and may be told its roles. One that refused some of them is asked for those again, beside."""
        report = self._cluster.reports.get(disk)
        return report is not None and self._lives.get(disk) is report and not self._runner.is_running(f"disk:{disk}") and self._is_free(disk)

    def all_brought_up(self) -> bool:
        return all(self.is_brought_up(disk) for disk in self._cluster.disks)

    def all_told(self) -> bool:
        """Whether every disk that is not dead has told what it holds: what none of them has, and no placement names, was never here."""
        return all(self.is_brought_up(disk) or self.is_dead(disk) for disk in self._cluster.disks)

    def are_roles_sent(self) -> bool:
        """Whether every disk was told, since we began, what it is now (or is dead): until then one may lead what an old image said."""
        if not self._were_told:
            self._were_told = self.all_told()
        return self._were_told

    def patience_ms(self, usual_ms: int) -> int:
        """How long to wait for boxes that are not registered: longer when this one was cut off from its power, as they may have been."""
        return OTHERS_TIME_MS if any(report.needs_epoch_bump for report in self._cluster.reports.values()) else usual_ms

    def all_settled(self) -> bool:
        """Whether it is known of every disk what it has lost, if anything: others may elect this box."""
        return all(disk in self._cluster.reports and not self._cluster.reports[disk].unbumped for disk in self._cluster.disks)

    def is_dead(self, disk: str) -> bool:
        """Whether others are to serve what it holds."""
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
        """Everything was loaded anew: whatever is there is looked at again."""
        self._arrived_ms = self._now_ms()
        self.waiting = set(self._cluster.reports)
        self._lives.clear()

    def reconsider_replacements(self) -> None:
        """What a disk was given up with may have waited for another disk, which had perhaps a copy of it (`disk_operations`)."""
        self.waiting.update(disk for disk, report in self._cluster.reports.items() if report.replaces)

    # --- bringing up

    def reconsider(self) -> None:
        """Start what waits and can be done."""
        others_had_their_time = self._now_ms() - self._arrived_ms >= OTHERS_TIME_MS
        for disk in sorted(self.waiting):
            if self._disks.is_offline(disk) or not self._is_free(disk):
                continue  # it can do nothing for us; it is asked when it has come back
            report = self._cluster.reports[disk]
            started = self._runner.start(
                f"disk:{disk}",
                bring_up_disk(self._cluster, report, others_had_their_time),
                lambda outcome, report=report: self._on_brought_up(report, outcome),  # type: ignore[misc]
            )
            if started:
                self.waiting.discard(disk)

    def _on_brought_up(self, report: DiskReport, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure)
            return
        self._lives[report.disk] = report
        self._missing_gauges[report.disk].set(report.missing)
        if report.missing:
            self._tell_missing(report, missing_partitions(self._cluster, report))
        if outcome.value and self._cluster.reports.get(report.disk) is report:
            if outcome.value != report.refused:
                words = f"{outcome.value} partitions of disk {report.disk} have not taken their role, or wait for other boxes; it is tried again"
                self._log.warning(words, disk=report.disk, peer=f"log-writer@{report.disk}")
            self.waiting.add(report.disk)
        report.refused = outcome.value

    def _tell_missing(self, report: DiskReport, names: Iterable[str]) -> None:
        listed = list(names)
        shown = ", ".join(listed[:10]) + (", …" if len(listed) > 10 else "")
        self._log.critical(
            f"{report.missing} partitions that ZooKeeper places on disk {report.disk} are not there; clients get KAFKA_STORAGE_ERROR for those that no other"
            f" box has: {shown}. Put their directories back, or delete the topics",
            disk=report.disk,
        )
