"""Which disks an ingest counts as dead: those that their log-writer took offline, those that hang, and those without a log-writer for long.

Owned by one ingest agent; looked at every turn (0.3 µs a disk). A slow disk is not dead: it serves, and slows its senders. Nor is one whose
log-writer has just died: it is back in a moment, and its lines keep their order by waiting. A disk that was found dead stays so
until its log-writer says otherwise, because the next life of a log-writer on a dead disk is offline again. Weak spot: a recovery that takes
longer than `AWAY_NS` counts as a death, too; lines go past that disk until it serves.
"""

from __future__ import annotations

from appliance.base.logging import Logger
from appliance.ipc.proxies import LogWriterProxies
from appliance.shm.counters import Counters
from appliance.shm.partition_table import DISK_OFFLINE

AWAY_NS = 10_000_000_000


class IngestDisks:
    """`dead` changes in `look` and `forget` alone."""

    def __init__(self, proxies: LogWriterProxies, counters: Counters, log: Logger) -> None:
        self._proxies = proxies
        self._log = log
        self._away_since_ns: dict[str, int] = {}
        self._dead_count = counters.gauge("ingest.dead_disks")
        self.dead: frozenset[str] = frozenset()

    def look(self, now_ns: int) -> bool:
        """Whether a disk died, or came back."""
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
        self._tell(dead - self.dead, self.dead - dead)
        self.dead = frozenset(dead)
        self._dead_count.set(len(dead))
        return True

    def forget(self, disk: str) -> None:
        """It is no disk of the box any more."""
        self._away_since_ns.pop(disk, None)
        self.dead -= {disk}
        self._dead_count.set(len(self.dead))

    def _tell(self, died: set[str], came_back: frozenset[str]) -> None:
        for disk in sorted(died):
            self._log.warning(f"disk {disk} takes no lines; the next partitions take those of its partitions until it is back", disk=disk)
        for disk in sorted(came_back):
            self._log.notice(f"disk {disk} takes lines again", disk=disk)
