"""The first step of the box's stop: hand over what the box leads while all its processes still
serve.

Owned by the controller process. The process that stops the box creates one file and waits for
another (`runtime/leaving.py`, which also has the time limit). Weak: the file is polled, so the
shutdown begins up to `POLL_MS` late.
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

POLL_MS: Final = 20
_NEVER: Final = 1 << 62


class ControlledShutdown:
    """Runs once per incarnation."""

    def __init__(self, layout: BoxLayout, cluster: Cluster, membership: ClusterMembership, failover: Failover, log: Logger) -> None:
        self._layout = layout
        self._cluster = cluster
        self._membership = membership
        self._failover = failover
        self._log = log
        self._poll_at_ms = 0

    def poll(self, now_ms: int) -> None:
        """Begin when the file of the stop exists."""
        if now_ms < self._poll_at_ms:
            return
        self._poll_at_ms = now_ms + POLL_MS
        if os.path.exists(self._layout.stopping_file):
            self._poll_at_ms = _NEVER
            self._begin()

    def _begin(self) -> None:
        self._failover.is_shutting_down = True
        if self._membership.has_arrived and self._cluster.has_other_boxes:
            self._log.info("the box is stopping: handing its leaderships over to other boxes")
            self._failover.shut_down(self._on_handed_over)
        else:
            self._on_handed_over(0)

    def _on_handed_over(self, moved: int) -> None:
        if moved:
            self._log.info(f"handed {moved} partitions over to other boxes, as leaders or in-sync replicas")
        Path(self._layout.left_file).touch()
