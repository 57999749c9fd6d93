"""Send roles and the set of live brokers to log-writers whenever they change, separately for each
disk, so that a slow one delays no other.

Owned by the controller process of each box. Needs no ZooKeeper: what is known is sent while it is
away. A disk that is not brought up yet gets no roles until it is. Weak: a refused role is sent
again twice a second for as long as it is refused. A box that is cut off counts as alive until its
session ends.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from appliance.base.errors import ErrorCode
from services.controller.decisions.cluster import Cluster
from services.controller.decisions.role_operations import send_live_brokers, send_roles
from services.controller.zookeeper.operation import OperationOutcome, OperationRunner
from services.controller.zookeeper.topic_registry import TopicState

RETRY_MS = 500


class RoleKeeper:
    """`own_runner` is not dropped when ZooKeeper is lost.

    `is_brought_up(disk)`: its leader epochs are settled and no other operation on it runs.
    """

    def __init__(self, cluster: Cluster, own_runner: OperationRunner, is_brought_up: Callable[[str], bool], now_ms: Callable[[], int]) -> None:
        self._cluster = cluster
        self._own_runner = own_runner
        self._is_brought_up = is_brought_up
        self._now_ms = now_ms
        self._refused_at_ms: dict[str, int] = {}
        self._refused: dict[str, set[tuple[str, int]]] = {}
        """Disk → partitions whose log-writer refused their role."""

    def do_work(self) -> int:
        """Send what has changed."""
        cluster = self._cluster
        if self._refused:
            self._retry()
        if not cluster.roles_to_send:
            return 0
        by_disk: dict[str, list[tuple[TopicState, int]]] = {}
        kept: set[tuple[str, int]] = set()
        for name, partition in cluster.roles_to_send:
            topic = cluster.topics.get(name)
            disk = cluster.disk_of_partition(topic, partition) if topic is not None and name not in cluster.deleting else None
            if topic is None or disk is None or disk not in cluster.reports:
                continue  # a log-writer that connects receives all its roles
            if self._own_runner.is_running(f"roles:{disk}") or not self._is_brought_up(disk):
                kept.add((name, partition))
                continue
            by_disk.setdefault(disk, []).append((topic, partition))
        cluster.roles_to_send = kept
        for disk, partitions in by_disk.items():
            self._own_runner.start(f"roles:{disk}", send_roles(cluster, partitions), partial(self._on_sent, disk, partitions))
        return len(by_disk)

    def _on_sent(self, disk: str, partitions: list[tuple[TopicState, int]], outcome: OperationOutcome) -> None:
        if outcome.failure is None and outcome.value:
            self._refused_at_ms[disk] = self._now_ms()
            self._refused.setdefault(disk, set()).update((topic.name, number) for topic, number in partitions)

    def _retry(self) -> None:
        now_ms = self._now_ms()
        for disk in [disk for disk in self._refused if now_ms - self._refused_at_ms[disk] >= RETRY_MS]:
            self._cluster.roles_to_send |= self._refused.pop(disk)


RETRY_MS = 500


class LiveBrokers:
    """Send the live brokers, for acknowledgements that must not wait for a dead box. Nothing to do
    on a box that never had neighbours.

    `runner` is not dropped when ZooKeeper is lost.
    """

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
