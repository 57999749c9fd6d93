"""Mark directories of this box as being drained: nothing new is placed on them.

Owned by the controller process. A mark in ZooKeeper stays until it is removed, or until the disk is
no longer a disk of the box. Weak: a partition that is being placed at the moment of the mark may
still be created there; the command that drains checks again, and orders its move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from appliance.base.errors import ErrorCode
from appliance.base.logging import Logger
from appliance.shm.counters import Counters
from services.controller.admin.topic_administration import OnResult, Result
from services.controller.decisions.cluster import Cluster
from services.controller.decisions.move_operations import mark_draining
from services.controller.zookeeper.operation import OperationOutcome, OperationRunner


class _Change(NamedTuple):
    directory_ids: tuple[str, ...]
    is_draining: bool
    on_result: OnResult


class DiskDraining:
    """Marks to be written, one after the other."""

    def __init__(self, cluster: Cluster, runner: OperationRunner, counters: Counters, log: Logger, on_failure: Callable[[Exception], None]) -> None:
        self._cluster = cluster
        self._runner = runner
        self._counters = counters
        self._log = log
        self._on_failure = on_failure
        self._wanted: deque[_Change] = deque()

    def mark(self, disk: str, is_draining: bool, on_result: OnResult) -> None:
        """Mark a disk, or remove its mark."""
        ids = tuple(directory_id for directory_id, name in self._cluster.directory_disks.items() if name == disk)
        if not ids:
            on_result(Result(ErrorCode.LOG_DIR_NOT_FOUND, f"There is no disk {disk}, or its log-writer has not reported yet."))
            return
        self._wanted.append(_Change(ids, is_draining, on_result))
        self.reconsider()

    def reconsider(self) -> None:
        """Start what is due, and remove marks of directories that are no longer on this box."""
        cluster = self._cluster
        for disk in cluster.disks:
            self._counters.gauge(f'controller.disk_draining{{disk="{disk}"}}').set(int(self.is_draining(disk)))
        if not cluster.has_arrived or self._runner.is_running("draining"):
            return
        stale = tuple(directory_id for directory_id in cluster.box.draining if cluster.disk_of(directory_id) is None)
        if not self._wanted and stale:
            self._wanted.append(_Change(stale, False, lambda _result: None))
        if self._wanted:
            change = self._wanted[0]
            self._runner.start("draining", mark_draining(cluster, change.directory_ids, change.is_draining), self._on_marked)

    def is_draining(self, disk: str) -> bool:
        return any(self._cluster.is_draining(directory_id) for directory_id, name in self._cluster.directory_disks.items() if name == disk)

    def _on_marked(self, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure)
            return
        change = self._wanted.popleft()
        disks = sorted({disk for directory_id in change.directory_ids if (disk := self._cluster.disk_of(directory_id)) is not None})
        for disk in disks:
            self._log.info(f"disk {disk} {'takes no new partitions' if change.is_draining else 'takes new partitions again'}", disk=disk)
        change.on_result(Result(ErrorCode.NONE))
        self.reconsider()
