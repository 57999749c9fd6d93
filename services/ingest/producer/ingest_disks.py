"""Disks that an ingest counts as dead: offline, hung, or without a log-writer for 10 s.

Owned by one ingest agent, which refreshes it every turn (0.3 µs a disk). A slow disk is not dead:
it serves, and its senders slow down. A log-writer that has just died is not dead either: it
restarts within a second, and its lines keep their order by waiting. A dead disk stays dead until
its log-writer reports otherwise, because the next log-writer on a failed disk starts offline.

Weak: a recovery that takes longer than `AWAY_NS` counts as a death; lines bypass that disk until it
serves.
"""

from __future__ import annotations

from appliance.base.logging import Logger
from appliance.ipc.proxies import LogWriterProxies
from appliance.shm.counters import Counters
from appliance.shm.partition_table import DISK_OFFLINE

AWAY_NS = 10_000_000_000


class DeadDisks:
    """Only `refresh` and `forget` change `dead`."""

    def __init__(self, proxies: LogWriterProxies, counters: Counters, log: Logger) -> None:
        self._proxies = proxies
        self._log = log
        self._away_since_ns: dict[str, int] = {}
        self._dead_count = counters.gauge("ingest.dead_disks")
        self.dead: frozenset[str] = frozenset()

    def refresh(self, now_ns: int) -> bool:
        """Update `dead`; return True if a disk died or returned."""
        dead = set(self.dead)
        for disk, proxy in self._proxies.by_disk.items():
            table = proxy.table
            if table is None:
                if now_ns - self._away_since_ns.setdefault(disk, now_ns) >= AWAY_NS:
                    dead.add(disk)
                continue
            self._away_since_ns.pop(disk, None)
            if table.disk_state == DISK_OFFLINE or proxy.is_hung:
                dead.add(disk)
            else:
                dead.discard(disk)
        if dead == self.dead:
            return False
        self._log_changes(dead - self.dead, self.dead - dead)
        self.dead = frozenset(dead)
        self._dead_count.set(len(dead))
        return True

    def forget(self, disk: str) -> None:
        """The disk was removed from the box."""
        self._away_since_ns.pop(disk, None)
        self.dead -= {disk}
        self._dead_count.set(len(self.dead))

    def _log_changes(self, died: set[str], came_back: frozenset[str]) -> None:
        for disk in sorted(died):
            message = f"disk {disk} takes no lines: it is offline, hung or without a log-writer"
            self._log.warning(f"{message}; lines of its partitions go to the next live ones", disk=disk)
        for disk in sorted(came_back):
            self._log.notice(f"disk {disk} takes lines again", disk=disk)
