"""The header words of a partition table that describe its disk: overdue operations, fence, suspect.

The log-writer stores since when it waits for its disk; other processes compare that with the time.
The controller fences an incarnation whose disk is overdue, the supervisor one whose disk is
removed. Weak: the log-writer sees the fence only when the disk returns control to it. To be sure
that it does nothing more, kill it and keep its memory until it has ended.
"""

from __future__ import annotations

from appliance.shm.mapping import LayoutMismatch, SharedObject, SharedObjectAbsent, list_names
from appliance.shm.partition_table import APPEND_SINCE_WORD, FENCE_WORD, FLUSH_SINCE_WORD, PROBE_SINCE_WORD, PURPOSE, SUSPECT_WORD

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
