"""What a source (acceptor, ingest, coordinator, controller, replica-fetcher) provides to each
log-writer of its box.

Created and closed by its process; log-writers map the arena and ring the doorbell. The kernel frees
the arena of a killed source when no log-writer maps it.
"""

from __future__ import annotations

from appliance.base.layout import BoxLayout
from appliance.shm.arena import SLEEPING_WORD, WATCHING_WORD, Arena
from appliance.shm.doorbell import SourceDoorbell


class Source:
    """Name, arena and doorbell of one incarnation of a process."""

    def __init__(self, layout: BoxLayout, name: str, incarnation: int, arena_bytes: int, ring_entries: int) -> None:
        self.layout = layout
        self.name = name
        self.incarnation = incarnation
        self.ring_entries = ring_entries
        self.arena = Arena.create(layout.shared_memory_name("arena", name, incarnation), arena_bytes, incarnation)
        self.doorbell = SourceDoorbell(self.arena.shared.words, SLEEPING_WORD)

    def watch_rows(self, watching: bool) -> None:
        """Set whether changes of rows ring our doorbell."""
        self.arena.shared.words[WATCHING_WORD] = int(watching)

    def close(self) -> None:
        self.doorbell.close()
        self.arena.close()
