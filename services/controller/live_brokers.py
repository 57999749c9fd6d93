"""Send the set of live brokers to log-writers whenever it changes, for acknowledgements that must
not wait for a dead box.

Owned by the controller process of each box. Does nothing on a box that never had neighbours. Weak:
a box that is cut off counts as alive until its session ends.
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
        self._sent: dict[str, tuple[int, frozenset[int]]] = {}
        """Disk → incarnation of its log-writer, and the brokers sent to it."""
        self._retry_at_ms: dict[str, int] = {}

    def do_work(self) -> int:
        """Send what has changed."""
        cluster = self._cluster
        if not cluster.has_other_boxes:
            return 0
        live = frozenset(cluster.brokers)
        count = 0
        for disk, report in cluster.reports.items():
            wanted = (report.incarnation, live)
            if self._sent.get(disk) == wanted or self._now_ms() < self._retry_at_ms.get(disk, 0):
                continue
            name = f"live brokers:{disk}"
            if not self._runner.is_running(name):
                self._runner.start(name, send_live_brokers(disk, live), partial(self._on_sent, disk, wanted))
                count += 1
        return count

    def _on_sent(self, disk: str, wanted: tuple[int, frozenset[int]], outcome: OperationOutcome) -> None:
        if outcome.failure is None and outcome.value in (ErrorCode.NONE, ErrorCode.INVALID_REQUEST):  # the latter: of an older release
            self._sent[disk] = wanted
        else:
            self._retry_at_ms[disk] = self._now_ms() + RETRY_MS
