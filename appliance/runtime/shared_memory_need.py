"""Calculates how much of /dev/shm a box needs, before it starts. Without this check a process that
finds it full would restart for ever.

The sum covers all objects of a start, and those that the next incarnation of one process creates
while others still map the old ones: an arena with its rings, and a table per disk (all log-writers
may restart at once). Pure; the sizes are those of `appliance/shm`. Weak: other programs may fill
/dev/shm after the check.
"""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple

from appliance.base.settings import Box
from appliance.shm import arena, counters, partition_table
from appliance.shm.arena import DATA_POSITION
from appliance.shm.mapping import list_names
from appliance.shm.ring import ENTRY_BYTES, RINGS_POSITION

CONTROLLER_ARENA_BYTES = 1 << 20
CONTROLLER_RING_ENTRIES = 256
"""The same values as in `services/controller/disk_commands.py`; a test compares them."""


class SharedMemoryNeed(NamedTuple):
    """Need in bytes."""

    arenas: int
    """Arenas: chosen by the settings, rounded up."""
    restart: int
    """Reserve for a process that restarts."""
    others: int
    """Tables, counters, rings and the controller's arena."""

    @property
    def total(self) -> int:
        return self.arenas + self.restart + self.others


def shared_memory_need(box: Box) -> SharedMemoryNeed:
    """Return the need of a box with these settings, disks and processes."""
    disks = len(box.disks)
    entries = box.integer("channel.ring.entries")
    reader = _pages(arena.size_bytes_of(box.integer("log.reader.arena.bytes")))
    acceptor, ingest = (_arena_bytes(box.integer(name)) for name in ("acceptor.arena.bytes", "ingest.arena.bytes"))
    replicas = _arena_bytes(box.replica_arena_bytes) if box.may_have_neighbours else 0
    sources = box.acceptors + box.ingests + box.may_have_neighbours
    tables = disks * _pages(partition_table.SIZE_BYTES)
    return SharedMemoryNeed(
        arenas=box.acceptors * acceptor + box.ingests * ingest + disks * reader + _arena_bytes(box.integer("coordinator.arena.bytes")) + replicas,
        restart=max(acceptor, ingest, reader, replicas) + disks * _rings_bytes(entries) + tables,
        others=tables
        + (len(box.process_names()) + 1) * _pages(counters.SIZE_BYTES)
        + (sources + 1) * disks * _rings_bytes(entries)
        + _arena_bytes(CONTROLLER_ARENA_BYTES)
        + disks * _rings_bytes(CONTROLLER_RING_ENTRIES),
    )


def held_bytes(prefix: str) -> int:
    """Return the bytes of objects with this prefix: a dead incarnation's, which the next one adopts
    or removes."""
    held = 0
    for name in list_names(prefix):
        try:
            held += os.stat(f"/dev/shm{name}").st_blocks * 512
        except OSError:
            continue  # it was deleted a moment ago
    return held


def _arena_bytes(data_bytes: int) -> int:
    return _pages(DATA_POSITION + (1 << max(16, (data_bytes - 1).bit_length())))


def _rings_bytes(entries: int) -> int:
    return _pages(RINGS_POSITION + 2 * entries * ENTRY_BYTES)


def _pages(size_bytes: int) -> int:
    return (size_bytes + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
