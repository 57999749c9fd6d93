"""Collect AlterPartition requests of this box's log-writers, and carry them out disk by disk.

Owned by the controller process of each box. One operation runs per disk; meanwhile the newest
request of each partition waits. Requests of an ended incarnation of a log-writer are dropped unless
they are being written; its next incarnation receives no role before their outcome is known. While
ZooKeeper is away requests wait, and their leaders count with the larger of both sets.
"""

from __future__ import annotations

from typing import Any

from services.controller.decisions.cluster import ControllerContext
from services.controller.decisions.disk_report import PartitionKey
from services.controller.decisions.isr_operations import PendingIsrChange, apply_isr_changes, complete_isr_changes
from services.controller.zookeeper.operation import OperationOutcome


class IsrKeeper:
    """Requests by disk."""

    def __init__(self, context: ControllerContext) -> None:
        counters = context.counters
        self._cluster = context.cluster
        self._runner = context.runner
        self._can_begin = context.can_begin
        self._on_failure = context.on_failure
        self._waiting: dict[str, dict[PartitionKey, PendingIsrChange]] = {}
        self._written: dict[str, set[PartitionKey]] = {}
        """Disk → partitions whose request is being written, or was when the connection was lost."""
        self._expands = counters.counter("controller.isr_expands")
        self._shrinks = counters.counter("controller.isr_shrinks")
        self._refused = counters.counter("controller.isr_wishes_refused")

    def on_requests(self, disk: str, documents: list[dict[str, Any]]) -> None:
        """Add requests of a log-writer."""
        waiting = self._waiting.setdefault(disk, {})
        for document in documents:
            try:
                request = PendingIsrChange.from_document(document)
            except (KeyError, TypeError, ValueError, AttributeError):
                self._refused.add()
                continue
            waiting.pop(request.key, None)
            waiting[request.key] = request

    def on_disk_gone(self, disk: str) -> None:
        self._waiting.pop(disk, None)

    def is_settled(self, disk: str) -> bool:
        """Whether no request of this disk's log-writers is being written or has an unknown outcome."""
        return disk not in self._written

    def do_work(self) -> int:
        """Start what can be started."""
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
        for disk, requests in list(self._waiting.items()):
            report = self._cluster.reports.get(disk)
            if not requests or report is None:
                del self._waiting[disk]
                continue
            if disk in self._written:
                continue
            del self._waiting[disk]
            self._written[disk] = set(requests)
            operation = apply_isr_changes(self._cluster, report, list(requests.values()))
            work += self._runner.start(f"isr:{disk}", operation, lambda outcome, disk=disk: self._on_applied(disk, outcome))  # type: ignore[misc]
        return work

    def _on_settled(self, disk: str, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure)
            return
        self._written.pop(disk, None)

    def _on_applied(self, disk: str, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure)
            return
        self._written.pop(disk, None)
        self._expands.add(outcome.value.expanded)
        self._shrinks.add(outcome.value.shrunk)
        self._refused.add(outcome.value.refused)
