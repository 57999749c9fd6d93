"""Which disks of the box can take a partition now, and how much is free on each, as their log-writers count it.

Owned by the controller process; who places partitions asks it. Weak spot: log-writers count it once in two seconds, so partitions that are made in between
all see the same free space.
"""

from __future__ import annotations

from appliance.cluster.placement import DiskSpace
from appliance.runtime.agent import ServiceContext
from appliance.shm.counters import read_counters
from services.controller.decisions.cluster import Cluster
from services.controller.disk_commands import DiskCommands

FREE_BYTES_LABEL = "disk.free_bytes"
WITHOUT_DISKS_MS = 2000
"""After an arrival so long is waited for log-writers that are still to come."""


class DiskSpaces:
    """Of the disks of one box."""

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
        """Whether disks that are not there may come in a moment."""
        return now_ms - self._arrived_ms < WITHOUT_DISKS_MS

    def available(self) -> list[DiskSpace]:
        """The disks that can take a partition now (none that is being drained), with the free space that their log-writers count. None for a moment after an
        arrival, while log-writers are still to come: the first topics of a box shall not crowd the disk that was quickest."""
        cluster = self._cluster
        if len(cluster.reports) < len(self._box.disks) and self.are_waited_for(self._clock.monotonic_ms()):
            return []
        spaces = []
        for disk, report in cluster.reports.items():
            if self._disks.connected(disk) and not self._disks.is_offline(disk) and not cluster.is_draining(report.directory_id):
                spaces.append(DiskSpace(report.directory_id, self._free_bytes(disk), len(report.partitions)))
        return spaces

    def _free_bytes(self, disk: str) -> int:
        """0 before the log-writer has counted: then the disks with the fewest partitions come first."""
        snapshot = read_counters(self._layout, f"log-writer@{disk}")
        return snapshot.values.get(FREE_BYTES_LABEL, 0) if snapshot is not None else 0
