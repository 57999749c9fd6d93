"""Which disks of the box can take a partition, and their free space, as their log-writers count it.

Owned by the controller process. Weak: log-writers count the space every two seconds, so partitions
that are created in between see the same free space.
"""

from __future__ import annotations

from appliance.cluster.placement import DiskSpace
from appliance.runtime.agent import ServiceContext
from appliance.shm.counters import read_counters
from services.controller.decisions.cluster import Cluster
from services.controller.disk_commands import DiskCommands

FREE_BYTES_LABEL = "disk.free_bytes"
WITHOUT_DISKS_MS = 2000
"""How long to wait after an arrival for log-writers that are not connected yet."""


class DiskSpaces:
    """The free space of one box's disks."""

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
