"""Create the replicas that are assigned to this box, and delete those that are no longer assigned,
on every box; the free space of its disks.

Owned by the controller process of each box. Work is derived from the known tree and never stored,
so nothing is lost with the process. Weak: all topics are checked whenever something has changed,
and once a second (1 ms for a thousand partitions). Log-writers count free space every two seconds,
so partitions that are created in between see the same free space.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.errors import ErrorCode
from appliance.cluster.placement import DiskSpace
from appliance.runtime.agent import ServiceContext
from appliance.shm.counters import read_counters
from services.controller.decisions.cluster import Cluster, ControllerContext
from services.controller.decisions.hosting_operations import clear_stale_placement, give_up_partitions, host_partitions, leave_topic, to_give_up, to_host
from services.controller.disk_commands import DiskCommands
from services.controller.zookeeper.operation import OperationOutcome
from services.controller.zookeeper.requests import ZooKeeperFailed
from services.controller.zookeeper.topic_registry import TopicState

FREE_BYTES_LABEL = "disk.free_bytes"
WITHOUT_DISKS_MS = 2000
"""How long to wait after an arrival for log-writers that are not connected yet."""


class DiskSpaces:
    """Which disks of the box can take a partition, and their free space, as their log-writers count
    it.
    """

    def __init__(self, context: ServiceContext, cluster: Cluster, disks: DiskCommands) -> None:
        self._layout = context.layout
        self._box = context.box
        self._clock = context.clock
        self._cluster = cluster
        self._disks = disks
        self._arrived_ms = 0

    def on_arrived(self) -> None:
        self._arrived_ms = self._clock.monotonic_ms()

    def are_waited_for(self, now_ms: int) -> bool:
        """Whether disks that are not connected may still connect soon."""
        return now_ms - self._arrived_ms < WITHOUT_DISKS_MS

    def available(self) -> list[DiskSpace]:
        """Return the disks that can take a partition now and are not being drained, with their free
        space.

        Empty for a moment after an arrival while log-writers are still to connect: otherwise the
        first topics of a box would all go to the disk that was fastest.
        """
        cluster = self._cluster
        if len(cluster.reports) < len(self._box.disks) and self.are_waited_for(self._clock.monotonic_ms()):
            return []
        spaces = []
        for disk, report in cluster.reports.items():
            if self._disks.connected(disk) and not self._disks.is_offline(disk) and not cluster.is_draining(report.directory_id):
                spaces.append(DiskSpace(report.directory_id, self._free_bytes(disk), len(report.partitions)))
        return spaces

    def _free_bytes(self, disk: str) -> int:
        """Return 0 before the log-writer's first count: then the disks with the fewest partitions
        come first.
        """
        snapshot = read_counters(self._layout, f"log-writer@{disk}")
        return snapshot.values.get(FREE_BYTES_LABEL, 0) if snapshot is not None else 0


class Hosting:
    """`may_host()`: all disks have reported, so a partition that no disk has was never here.
    `spaces()`: disks that can take partitions.
    """

    def __init__(self, context: ControllerContext, spaces: Callable[[], list[DiskSpace]], may_host: Callable[[], bool]) -> None:
        counters = context.counters
        self._cluster = context.cluster
        self._runner = context.runner
        self._spaces = spaces
        self._may_host = may_host
        self._log = context.log
        self._on_failure = context.on_failure
        self._hosted = counters.counter("controller.replicas_hosted")
        self._given_up = counters.counter("controller.replicas_given_up")

    def reconsider(self) -> None:
        """Start what is due and not running; at most one operation per topic."""
        cluster = self._cluster
        may_host = self._may_host() and bool(self._spaces())
        for name, placement in list(cluster.stale_placements.items()):
            count = len(placement.directories)
            self._start(name, clear_stale_placement(cluster, name, placement), "was deleted while this box was away; deleted its replicas here", count)
        for name, topic in cluster.topics.items():
            if name in cluster.deleting:
                self._maybe_leave(topic)
            elif not self._is_busy(name) and name not in cluster.stale_placements:
                self._maybe_change(topic, may_host)

    def _is_busy(self, name: str) -> bool:
        return self._runner.is_running(f"topic:{name}") or name in self._cluster.handing_over

    def _maybe_leave(self, topic: TopicState) -> None:
        cluster, name = self._cluster, topic.name
        has_some = topic.placement or any(key[0] == name and report.holds(topic, key[1]) for report in cluster.reports.values() for key in report.partitions)
        if cluster.fence is None and has_some and not self._is_busy(name):
            self._start(name, leave_topic(cluster, topic), "is being deleted; deleted its replicas here", len(topic.placement))

    def _maybe_change(self, topic: TopicState, may_host: bool) -> None:
        gone = to_give_up(self._cluster, topic)
        if gone:
            operation = give_up_partitions(self._cluster, topic, gone)
            self._start(topic.name, operation, f"is no longer assigned to this box for partitions {_listed(gone)}; deleted their replicas here", len(gone))
            return
        wanted = to_host(self._cluster, topic) if may_host else []
        if wanted:
            operation = host_partitions(self._cluster, topic, wanted, self._spaces)
            self._runner.start(f"topic:{topic.name}", operation, lambda outcome: self._on_hosted(topic.name, len(wanted), outcome))

    def _start(self, name: str, operation: object, what: str, count: int) -> None:
        self._runner.start(f"topic:{name}", operation, lambda outcome: self._on_deleted(name, what, count, outcome))  # type: ignore[arg-type]

    def _on_hosted(self, name: str, count: int, outcome: OperationOutcome) -> None:
        if self._has_failed(outcome):
            return
        if outcome.value is ErrorCode.NONE:
            self._hosted.add(count)
            self._log.info(f"topic {name}: created {count} replicas on this box", topic=name)
        else:
            self._log.warning(f"topic {name}: no disk of this box can take its replicas; retrying", topic=name)

    def _on_deleted(self, name: str, what: str, count: int, outcome: OperationOutcome) -> None:
        if not self._has_failed(outcome) and outcome.value is ErrorCode.NONE:
            self._given_up.add(count)
            self._log.info(f"topic {name} {what}", topic=name)

    def _has_failed(self, outcome: OperationOutcome) -> bool:
        if outcome.failure is not None:
            self._on_failure(outcome.failure if isinstance(outcome.failure, ZooKeeperFailed) else ZooKeeperFailed(str(outcome.failure)))
        return outcome.failure is not None


def _listed(partitions: list[int]) -> str:
    return ", ".join(map(str, partitions[:10])) + (", …" if len(partitions) > 10 else "")
