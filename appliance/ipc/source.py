"""What a source (acceptor, ingest, coordinator, controller, replica-fetcher) provides to each
log-writer of its box.

Created and closed by its process; log-writers map the arena and ring the doorbell. Objects of dead
incarnations are removed before.

Removes the shared memory of dead incarnations of a source: arenas always, rings unless the
source reads them first.

A killed process leaves the names of its objects; except for counters, none is used again. Called
while a source starts, when no other process of its name runs. Weak: the objects of a source that
never starts again (fewer acceptors after a change of settings) stay until the box stops.
"""

from __future__ import annotations

from appliance.base.layout import BoxLayout
from appliance.shm.arena import SLEEPING_WORD, WATCHING_WORD, Arena
from appliance.shm.doorbell import Doorbell
from appliance.shm.mapping import list_names, unlink


def sweep_arenas(layout: BoxLayout, source: str, incarnation: int) -> int:
    """Unlink the arenas of other incarnations of `source`; returns how many."""
    return _sweep(layout.shared_memory_name("arena", source) + ".", 1, incarnation)


def sweep_rings(layout: BoxLayout, source: str, incarnation: int) -> int:
    """Unlink the rings of other incarnations of `source`; returns how many."""
    return _sweep(layout.shared_memory_name("channel", source) + ".", 3, incarnation)


def _sweep(prefix: str, components_min: int, incarnation: int) -> int:
    """Unlink names PREFIX[disk.attempt.]incarnation. The name of an arena has one component: `d.1`
    is not an incarnation of `d`."""
    swept = 0
    for name in list_names(prefix):
        components = name[len(prefix) :].split(".")
        if len(components) < components_min or (components_min == 1 and len(components) > 1) or components[-1] == f"{incarnation:x}":
            continue
        unlink(name)
        swept += 1
    return swept


class Source:
    """Name, arena and doorbell of one incarnation of a process."""

    def __init__(self, layout: BoxLayout, name: str, incarnation: int, arena_bytes: int, ring_entries: int) -> None:
        self.layout = layout
        self.name = name
        self.incarnation = incarnation
        self.ring_entries = ring_entries
        sweep_arenas(layout, name, incarnation)
        self.arena = Arena.create(layout.shared_memory_name("arena", name, incarnation), arena_bytes, incarnation)
        self.doorbell = Doorbell(self.arena.shared.words, SLEEPING_WORD)

    def watch_rows(self, watching: bool) -> None:
        """Set whether changes of rows ring our doorbell."""
        self.arena.shared.words[WATCHING_WORD] = int(watching)

    def close(self) -> None:
        self.doorbell.close()
        self.arena.close()
