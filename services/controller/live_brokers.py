"""Tells log-writers which boxes live, whenever that has changed: for what may not wait for a box that is gone.

Owned by the controller process of each box. A box that was never one of several says nothing. Weak spot: a box that is cut off counts as alive until its
session is over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from appliance.base.errors import ErrorCode
from services.controller.decisions.cluster import Cluster
from services.controller.decisions.role_operations import send_live_brokers
from services.controller.zookeeper.operation import OperationOutcome, OperationRunner

RETRY_MS = 500


class LiveBrokers:
    """`runner` is not dropped when ZooKeeper is lost."""

    def __init__(self, cluster: Cluster, runner: OperationRunner, now_ms: Callable[[], int]) -> None:
        self._cluster = cluster
        self._runner = runner
        self._now_ms = now_ms
        self._told: dict[str, tuple[int, frozenset[int]]] = {}
        """Disk → life of its log-writer, and what it was told."""
        self._again_ms: dict[str, int] = {}

    def do_work(self) -> int:
        """Tell what is to be told."""
        cluster = self._cluster
        if not cluster.has_other_boxes:
            return 0
        live = frozenset(cluster.brokers)
        told = 0
        for disk, report in cluster.reports.items():
            word = (report.incarnation, live)
            if self._told.get(disk) == word or self._now_ms() < self._again_ms.get(disk, 0):
                continue
            name = f"live brokers:{disk}"
            if not self._runner.is_running(name):
                self._runner.start(name, send_live_brokers(disk, live), partial(self._on_told, disk, word))
                told += 1
        return told

    def _on_told(self, disk: str, word: tuple[int, frozenset[int]], outcome: OperationOutcome) -> None:
        if outcome.failure is None and outcome.value in (ErrorCode.NONE, ErrorCode.INVALID_REQUEST):  # the latter: of an older release
            self._told[disk] = word
        else:
            self._again_ms[disk] = self._now_ms() + RETRY_MS
