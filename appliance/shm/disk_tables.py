"""Finds the current partition table of a disk: of several (a log-writer has just ended) that of the
running process, otherwise the youngest.

For observers (console, commands); sources get the name in WELCOME.

The header words of a partition table that describe its disk: overdue operations, fence, suspect.

The log-writer stores since when it waits for its disk; other processes compare that with the time.
The controller fences an incarnation whose disk is overdue, the supervisor one whose disk is
removed. Weak: the log-writer sees the fence only when the disk returns control to it. To be sure
that it does nothing more, kill it and keep its memory until it has ended.

Caches which partition is in which row of a partition table. Partitions rarely change; roles
change in bursts.

After a change of the table's generation a refresh costs about 20 ns per row, and 3 µs per new row.
Owned by the reading process. Weak: a row whose writer is interrupted is missing until a later
refresh reads it whole.
"""

from __future__ import annotations

from appliance.base.layout import BoxLayout
from appliance.base.model import TopicId
from appliance.shm.mapping import LayoutMismatch, SharedObject, SharedObjectAbsent, is_held, list_names
from appliance.shm.partition_table import (
    APPEND_SINCE_WORD,
    FENCE_WORD,
    FLUSH_SINCE_WORD,
    PROBE_SINCE_WORD,
    PURPOSE,
    SUSPECT_WORD,
    PartitionTableReader,
    TornRow,
)


def table_names(layout: BoxLayout, disk: str) -> list[str]:
    """Return the names of all tables of a disk. Another disk may have its name plus a dot; its
    tables have a second dot."""
    prefix = layout.shared_memory_name("table", disk) + "."
    return [name for name in list_names(prefix) if "." not in name[len(prefix) :]]


def attach_table(layout: BoxLayout, disk: str) -> PartitionTableReader | None:
    """Map the partition table of a disk read-only; None if there is none. Raises LayoutMismatch."""
    best: tuple[bool, int, PartitionTableReader] | None = None
    for name in table_names(layout, disk):
        try:
            table = PartitionTableReader.attach(name)
        except SharedObjectAbsent:
            continue
        candidate = (is_held(name), table.shared.incarnation, table)
        if best is None or candidate[:2] > best[:2]:
            if best is not None:
                best[2].close()
            best = candidate
        else:
            table.close()
    return None if best is None else best[2]


FLUSH_FACTOR = 20
"""A slice of a flush round may write hundreds of megabytes, so it has this many deadlines."""


def overdue_operation(words: memoryview, now_ns: int, deadline_ns: int) -> str:
    """Return the operation that waits longer than its deadline: "append", "probe" or "flush"; empty
    if none does."""
    for name, word, allowed_ns in (
        ("append", APPEND_SINCE_WORD, deadline_ns),
        ("probe", PROBE_SINCE_WORD, deadline_ns),
        ("flush", FLUSH_SINCE_WORD, deadline_ns * FLUSH_FACTOR),
    ):
        since_ns = words[word]
        if since_ns and now_ns - since_ns > allowed_ns:
            return name
    return ""


def is_held_by_disk(tables_prefix: str, pid: int, now_ns: int, deadline_ns: int) -> bool:
    """Return whether the incarnation `pid` of a log-writer was fenced or is overdue.
    `tables_prefix`: the start of the names of its disk's tables."""
    for name in _tables(tables_prefix):
        shared = _attach(name, writable=False)
        if shared is not None:
            held = shared.pid == pid and bool(shared.words[FENCE_WORD] or overdue_operation(shared.words, now_ns, deadline_ns))
            shared.close()
            if held:
                return True
    return False


def fence_life(table_name: str) -> None:
    """Fence the log-writer that created this table for good: it publishes nothing more. A table
    that is gone is ignored."""
    shared = _attach(table_name, writable=True)
    if shared is not None:
        shared.words[FENCE_WORD] = 1
        shared.close()


def give_up_lives(tables_prefix: str) -> None:
    """Fence all log-writers of these tables and mark them as suspect: no later incarnation trusts
    their rows."""
    for name in _tables(tables_prefix):
        shared = _attach(name, writable=True)
        if shared is not None:
            shared.words[FENCE_WORD] = 1
            shared.words[SUSPECT_WORD] = 1
            shared.close()


def _tables(prefix: str) -> list[str]:
    """Return the tables of a disk. Another disk may have its name plus a dot, whose tables have a
    second dot after the prefix."""
    return [name for name in list_names(prefix) if "." not in name[len(prefix) :]]


def _attach(name: str, writable: bool) -> SharedObject | None:
    try:
        return SharedObject.attach(name, PURPOSE, writable)
    except (SharedObjectAbsent, LayoutMismatch):
        return None


RowKey = tuple[TopicId, int]
"""Topic id and partition."""
NEVER = -1


class KnownRows:
    """Lists by row index: `keys` (None for an unused row) and `row_generations` (0 there)."""

    def __init__(self, table: PartitionTableReader) -> None:
        self.table = table
        self.keys: list[RowKey | None] = []
        self.row_generations: list[int] = []
        self._identities: list[int] = []
        self._generation = NEVER

    @property
    def is_old(self) -> bool:
        """Return whether the table changed since the last `look`, or rows could not be read then."""
        return self._generation != self.table.generation

    def look(self) -> bool:
        """Refresh the lists; returns whether a row was added or removed."""
        table = self.table
        self._generation = table.generation  # read before the rows: a later change is seen by the next call
        identities = table.identities()
        if identities == self._identities:
            return False
        missing = len(identities) - len(self._identities)
        known = self._identities + [0] * missing
        self.keys += [None] * missing
        self.row_generations += [0] * missing
        for index, identity in enumerate(identities):
            if identity != known[index] and not self._read(index):
                identities[index] = 0
                self._generation = NEVER
        self._identities = identities
        return True

    def _read(self, index: int) -> bool:
        self.keys[index], self.row_generations[index] = None, 0
        try:
            row = self.table.read(index)
        except TornRow:
            return False
        if row.row_generation:
            self.keys[index], self.row_generations[index] = (TopicId(row.topic_id), row.partition), row.row_generation
        return True
