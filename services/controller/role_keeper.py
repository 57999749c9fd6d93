"""Tells log-writers what they are whenever that has changed, disk by disk, so that a slow one keeps nobody waiting.

Owned by the controller process of each box. Needs no ZooKeeper: what is known is told while that is away. A disk that was not brought up yet is passed
over, that comes first. Weak spot: a log-writer that refuses a role is asked again twice a second for as long as it refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from services.controller.decisions.cluster import Cluster
from services.controller.decisions.role_operations import send_roles
from services.controller.zookeeper.operation import OperationOutcome, OperationRunner
from services.controller.zookeeper.topic_registry import TopicState

RETRY_MS = 500


class RoleKeeper:
    """`own_runner` is not dropped when ZooKeeper is lost; `is_brought_up(disk)`: leader epochs are settled and nothing else is being done about it."""

    def __init__(self, cluster: Cluster, own_runner: OperationRunner, is_brought_up: Callable[[str], bool], now_ms: Callable[[], int]) -> None:
        self._cluster = cluster
        self._own_runner = own_runner
        self._is_brought_up = is_brought_up
        self._now_ms = now_ms
        self._refused_at_ms: dict[str, int] = {}
        self._again: dict[str, set[tuple[str, int]]] = {}
        """Partitions whose log-writer would not take its role, by disk."""

    def do_work(self) -> int:
        """Tell what is to be told."""
        cluster = self._cluster
        if self._again:
            self._ask_again()
        if not cluster.roles_to_send:
            return 0
        by_disk: dict[str, list[tuple[TopicState, int]]] = {}
        kept: set[tuple[str, int]] = set()
        for name, partition in cluster.roles_to_send:
            topic = cluster.topics.get(name)
            disk = cluster.disk_of_partition(topic, partition) if topic is not None and name not in cluster.deleting else None
            if topic is None or disk is None or disk not in cluster.reports:
                continue  # a log-writer that comes is told everything
            if self._own_runner.is_running(f"roles:{disk}") or not self._is_brought_up(disk):
                kept.add((name, partition))
                continue
            by_disk.setdefault(disk, []).append((topic, partition))
        cluster.roles_to_send = kept
        for disk, partitions in by_disk.items():
            self._own_runner.start(f"roles:{disk}", send_roles(cluster, partitions), partial(self._on_told, disk, partitions))
        return len(by_disk)

    def _on_told(self, disk: str, partitions: list[tuple[TopicState, int]], outcome: OperationOutcome) -> None:
        if outcome.failure is None and outcome.value:
            self._refused_at_ms[disk] = self._now_ms()
            self._again.setdefault(disk, set()).update((topic.name, number) for topic, number in partitions)

    def _ask_again(self) -> None:
        now_ms = self._now_ms()
        for disk in [disk for disk in self._again if now_ms - self._refused_at_ms[disk] >= RETRY_MS]:
            self._cluster.roles_to_send |= self._again.pop(disk)
