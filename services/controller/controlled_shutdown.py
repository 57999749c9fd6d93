"""The stop of the whole box, of which the first step is the controller's: what the box leads goes to others while everybody still serves.

Owned by the controller process. Who stops the box makes one file, and goes on when he sees the other (`runtime/leaving.py`, which also says how long he
waits). Weak spot: found by looking for the file, so it begins up to `LOOK_MS` late.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from services.controller.decisions.cluster import Cluster
from services.controller.failover import Failover
from services.controller.zookeeper.cluster_membership import ClusterMembership

LOOK_MS: Final = 20
_NEVER: Final = 1 << 62


class ControlledShutdown:
    """Once in the life of a process."""

    def __init__(self, layout: BoxLayout, cluster: Cluster, membership: ClusterMembership, failover: Failover, log: Logger) -> None:
        self._layout = layout
        self._cluster = cluster
        self._membership = membership
        self._failover = failover
        self._log = log
        self._look_at_ms = 0

    def look(self, now_ms: int) -> None:
        """Whether the box is about to stop; then it begins."""
        if now_ms < self._look_at_ms:
            return
        self._look_at_ms = now_ms + LOOK_MS
        if os.path.exists(self._layout.stopping_file):
            self._look_at_ms = _NEVER
            self._begin()

    def _begin(self) -> None:
        self._failover.is_leaving = True
        if self._membership.has_arrived and self._cluster.has_other_boxes:
            self._log.info("the box is about to stop: what other boxes can lead goes to them")
            self._failover.leave(self._on_left)
        else:
            self._on_left(0)

    def _on_left(self, moved: int) -> None:
        if moved:
            self._log.info(f"{moved} partitions were given to other boxes, as leaders or in sync")
        Path(self._layout.left_file).touch()
