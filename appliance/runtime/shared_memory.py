"""Calculates how much of /dev/shm a box needs, before it starts. Without this check a process that
finds it full would restart for ever.

The sum covers all objects of a start, and those that the next incarnation of one process creates
while others still map the old ones: the memory of a log-reader, and a table per disk (all
log-writers may restart at once). Arenas and rings of sources are memory files, which /dev/shm does
not limit: they may have half of the memory of the machine or container. Pure; the sizes are those
of `appliance/shm`. Weak: other programs may fill /dev/shm after the check.

Detects that another program deleted objects of this process in /dev/shm, and restarts the
affected processes one after the other.

Mappings of a deleted object remain usable, so nothing stops at once. But no process can attach it
any more: its counters cannot be read, and a restarted peer finds no ring, arena or table. A process
that lost an object stops in its turn, and its next incarnation creates the object. A file of the
runtime directory stores whose turn it is, also under systemd; the next process may stop when the
previous one serves. Log-writers go first: without partition tables ingest and coordinator cannot
serve. Owned by the runner.

Weak: the file stores one process; if that never serves again, the others wait for `PATIENCE_MS`.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import re
import stat
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from appliance.base.clock import Clock
from appliance.base.errors import StepsDown
from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.base.settings import Box
from appliance.base.trusted_files import box_group
from appliance.shm import arena, counters, partition_table
from appliance.shm.arena import DATA_POSITION
from appliance.shm.counters import Counters, read_counters
from appliance.shm.mapping import list_names, lost_objects
from appliance.shm.ring import ENTRY_BYTES, RINGS_POSITION

CONTROLLER_ARENA_BYTES = 1 << 20
CONTROLLER_RING_ENTRIES = 256
"""The same values as in `services/controller/disk_commands.py`; a test compares them."""


class SharedMemoryNeed(NamedTuple):
    """Need in bytes."""

    sealed: int
    """Arenas and rings of sources with a reserve for one that restarts; not of /dev/shm."""
    cold_reads: int
    """Memory of log-readers: chosen by the settings, rounded up."""
    restart: int
    """Reserve for a process that restarts."""
    others: int
    """Tables and counters."""

    @property
    def total(self) -> int:
        return self.cold_reads + self.restart + self.others


def shared_memory_need(box: Box) -> SharedMemoryNeed:
    """Return the need of a box with these settings, disks and processes."""
    disks = len(box.disks)
    entries = box.integer("channel.ring.entries")
    reader = _pages(arena.size_bytes_of(box.integer("log.reader.arena.bytes")))
    acceptor, ingest = (_arena_bytes(box.integer(name)) for name in ("acceptor.arena.bytes", "ingest.arena.bytes"))
    replicas = _arena_bytes(box.replica_arena_bytes) if box.may_have_neighbours else 0
    sources = box.acceptors + box.ingests + box.may_have_neighbours
    tables = disks * _pages(partition_table.SIZE_BYTES)
    arenas = box.acceptors * acceptor + box.ingests * ingest + _arena_bytes(box.integer("coordinator.arena.bytes")) + replicas
    rings = (sources + 2) * disks * _rings_bytes(entries) + disks * _rings_bytes(CONTROLLER_RING_ENTRIES)
    return SharedMemoryNeed(
        sealed=arenas + _arena_bytes(CONTROLLER_ARENA_BYTES) + max(acceptor, ingest, replicas) + rings,
        cold_reads=disks * reader,
        restart=reader + tables,
        others=tables + (len(box.process_names()) + 1) * _pages(counters.SIZE_BYTES),
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


LOOK_NS = 1_000_000_000
PATIENCE_MS = 20_000
LOCK_TRIES, LOCK_PAUSE_SECONDS = 100, 0.01
"""At a start, which counts the loss now or never. Others hold the lock for microseconds, unless they have no processor."""
SERVING = "serving"
TURN_BYTES_MAX = 512
_PROCESS_NAME = re.compile(r"[A-Za-z0-9@._-]{1,200}")


class RestartTurn(NamedTuple):
    """Content of the file: which process restarts, its pid before, and since when. `is_counted`:
    its next incarnation has counted it."""

    process: str
    pid: int
    since_ms: int
    is_counted: bool = False


class SharedMemoryWatch:
    """Call `turn` once a second or more often; it checks once a second."""

    def __init__(
        self, layout: BoxLayout, process: str, log_writers: Sequence[str], clock: Clock, counters: Counters, log: Logger, pid: int | None = None
    ) -> None:
        """`log_writers`: names of the log-writers of the box, which restart first."""
        self._layout = layout
        self._log_writers = () if process in log_writers else tuple(log_writers)
        self._process = process
        self._pid = os.getpid() if pid is None else pid
        self._clock = clock
        self._log = log
        self._path = layout.shared_memory_turn_file
        self._next_ns = 0
        self._lost: list[str] = []
        self._lost_ms = 0
        """When the loss was detected, monotonic."""
        self._losses = counters.counter("runtime.shared_memory_losses")
        self._count_former_loss()

    def turn(self, now_ns: int) -> None:
        """Raise StepsDown if objects are lost and it is the turn of this process to restart."""
        if now_ns < self._next_ns:
            return
        self._next_ns = now_ns + LOOK_NS
        lost = lost_objects(self._layout.shared_memory_prefix)
        if not lost:
            return
        loss = f"another program deleted {len(lost)} shared-memory objects of this process in /dev/shm ({', '.join(lost[:3])}{', …' if len(lost) > 3 else ''})"
        if lost != self._lost:
            self._lost_ms = self._lost_ms or self._clock.monotonic_ms()
            self._lost = lost
            self._log.error(f"{loss}; it restarts when no other process does; keep other programs away from /dev/shm", reason="shared-memory")
        if self._take_turn():
            raise StepsDown(loss)

    def _take_turn(self) -> bool:
        waits = self._clock.monotonic_ms() - self._lost_ms < PATIENCE_MS
        if waits and any(read_counters(self._layout, name) is None for name in self._log_writers):
            return False

        def take(turn: RestartTurn | None) -> RestartTurn | None:
            if turn is not None and turn.process != self._process and not self._is_over(turn):
                return None
            return RestartTurn(self._process, self._pid, self._clock.monotonic_ms())

        return self._change(take)

    def _is_over(self, turn: RestartTurn) -> bool:
        if not 0 <= self._clock.monotonic_ms() - turn.since_ms < PATIENCE_MS:
            return True
        snapshot = read_counters(self._layout, turn.process)
        return snapshot is not None and snapshot.pid != turn.pid and snapshot.state == SERVING

    def _count_former_loss(self) -> None:
        """Count the loss for the previous incarnation, whose counters may be among the deleted
        objects."""
        if not os.path.exists(self._path):
            return

        def count(turn: RestartTurn | None) -> RestartTurn | None:
            if turn is None or turn.process != self._process or turn.pid == self._pid or turn.is_counted:
                return None
            return turn._replace(is_counted=True)

        if self._change(count, LOCK_TRIES):
            self._losses.add()

    def _change(self, change: Callable[[RestartTurn | None], RestartTurn | None], tries: int = 1) -> bool:
        """Change the file under its lock. False if nothing changed, another process has the lock
        each time that it is tried, or the file cannot be written."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            if not _belongs_to_all(os.fstat(descriptor), descriptor):
                return False
            if not _is_locked(descriptor, tries):
                return False
            changed = change(_decode(os.pread(descriptor, TURN_BYTES_MAX, 0)))
            if changed is None:
                return False
            os.ftruncate(descriptor, 0)
            os.write(descriptor, json.dumps(changed).encode())
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True


def _is_locked(descriptor: int, tries: int) -> bool:
    """Lock the file, with a pause between two tries. False if another process has it each time."""
    for left in reversed(range(tries)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if left:
                time.sleep(LOCK_PAUSE_SECONDS)
    return False


def _belongs_to_all(status: os.stat_result, descriptor: int) -> bool:
    """Let both users of the box change the file. False if it may be another one, because processes
    with less rights write to its directory."""
    if box_group() is not None and status.st_uid == os.geteuid():
        os.fchmod(descriptor, 0o660)
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def _decode(content: bytes) -> RestartTurn | None:
    """Return the turn; None for anything that `_change` does not write, because processes that face
    the network write the file too."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, list) or list(map(type, fields)) != [str, int, int, bool] or not _PROCESS_NAME.fullmatch(fields[0]):
        return None
    return RestartTurn(*fields)
