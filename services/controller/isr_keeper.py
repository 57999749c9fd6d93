"""Wishes of this box's log-writers for in-sync sets: collected, carried out a disk at a time, answered.

Owned by the controller process of each box. One operation a disk; what comes meanwhile waits, the newest wish of each partition. A wish of a life of a
log-writer that is over is dropped unless it is being written; the next life is told nothing before that is settled. While ZooKeeper is away wishes
wait, and the larger set counts for their leaders. Weak spot: none known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from appliance.shm.counters import Counters
from services.controller.decisions.cluster import Cluster
from services.controller.decisions.disk_report import PartitionKey
from services.controller.decisions.isr_operations import PendingIsrChange, apply_isr_changes, complete_isr_changes
from services.controller.zookeeper.operation import OperationOutcome, OperationRunner


class IsrKeeper:
    """Wishes by disk. `runner` is dropped when ZooKeeper is lost; `on_failure` gets what it refused or lost."""

    def __init__(
        self,
        cluster: Cluster,
        runner: OperationRunner,
        can_begin: Callable[[], bool],
        counters: Counters,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._cluster = cluster
        self._runner = runner
        self._can_begin = can_begin
        self._on_failure = on_failure
        self._waiting: dict[str, dict[PartitionKey, PendingIsrChange]] = {}
        self._written: dict[str, set[PartitionKey]] = {}
        """By disk: partitions whose wish is being written, or was when the connection was lost."""
        self._expands = counters.counter("controller.isr_expands")
        self._shrinks = counters.counter("controller.isr_shrinks")
        self._refused = counters.counter("controller.isr_wishes_refused")

    def on_wishes(self, disk: str, documents: list[dict[str, Any]]) -> None:
        """From a log-writer."""
        waiting = self._waiting.setdefault(disk, {})
        for document in documents:
            try:
                wish = PendingIsrChange.from_document(document)
            except (KeyError, TypeError, ValueError, AttributeError):
                self._refused.add()
                continue
            waiting.pop(wish.key, None)
            waiting[wish.key] = wish

    def on_disk_gone(self, disk: str) -> None:
        self._waiting.pop(disk, None)

    def is_settled(self, disk: str) -> bool:
        """Whether nothing is under way that this disk's log-writers wished for."""
        return disk not in self._written

    def do_work(self) -> int:
        """Begin what can begin."""
        if not (self._waiting or self._written) or not self._can_begin():
            return 0
        work = 0
        for disk, keys in list(self._written.items()):
            if not self._runner.is_running(f"isr:{disk}"):
                work += self._runner.start(
                    f"isr:{disk}",
                    complete_isr_changes(self._cluster, set(keys)),
                    lambda outcome, disk=disk: self._on_settled(disk, outcome),  # type: ignore[misc]
                )
        for disk, wishes in list(self._waiting.items()):
            report = self._cluster.reports.get(disk)
            if not wishes or report is None:
                del self._waiting[disk]
                continue
            if disk in self._written:
                continue
            del self._waiting[disk]
            self._written[disk] = set(wishes)
            operation = apply_isr_changes(self._cluster, report, list(wishes.values()))
            work += self._runner.start(f"isr:{disk}", operation, lambda outcome, disk=disk: self._on_carried_out(disk, outcome))  # type: ignore[misc]
        return work

    def _on_settled(self, disk: str, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure)
            return
        self._written.pop(disk, None)

    def _on_carried_out(self, disk: str, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure)
            return
        self._written.pop(disk, None)
        self._expands.add(outcome.value.expanded)
        self._shrinks.add(outcome.value.shrunk)
        self._refused.add(outcome.value.refused)
