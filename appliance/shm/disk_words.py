"""What the header words of a partition table say of its disk, and what others store there: overdue, fenced, given up.

The log-writer stores since when it waits for its disk; whoever needs the disk compares that with the time. The controller fences a life whose disk is
overdue, the supervisor gives one up whose disk is taken out of the box. Weak spot: a fence is seen when the disk lets the log-writer
go, not before; who must be sure that it does nothing more kills it, and keeps its memory until it is gone.
"""

from __future__ import annotations

from appliance.shm.mapping import LayoutMismatch, SharedObject, SharedObjectAbsent, list_names
from appliance.shm.partition_table import APPEND_SINCE_WORD, FENCE_WORD, FLUSH_SINCE_WORD, PROBE_SINCE_WORD, PURPOSE, SUSPECT_WORD

FLUSH_FACTOR = 20
"""A slice of a flush round may have hundreds of megabytes to write: so many deadlines are given to it."""


def overdue_operation(words: memoryview, now_ns: int, deadline_ns: int) -> str:
    """What the disk has kept waiting for longer than it may: "append", "probe", "flush"; empty when nothing."""
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
    """Whether the life `pid` of a log-writer was fenced, or is overdue. `tables_prefix`: what the names of its disk's tables begin with."""
    for name in _tables(tables_prefix):
        shared = _attach(name, writable=False)
        if shared is not None:
            held = shared.pid == pid and bool(shared.words[FENCE_WORD] or overdue_operation(shared.words, now_ns, deadline_ns))
            shared.close()
            if held:
                return True
    return False


def fence_life(table_name: str) -> None:
    """Tell the life of a log-writer that made this table to publish nothing more. For good. One that is gone needs none."""
    shared = _attach(table_name, writable=True)
    if shared is not None:
        shared.words[FENCE_WORD] = 1
        shared.close()


def give_up_lives(tables_prefix: str) -> None:
    """The directory behind these tables is given up: their makers publish nothing more, and no next life believes their rows."""
    for name in _tables(tables_prefix):
        shared = _attach(name, writable=True)
        if shared is not None:
            shared.words[FENCE_WORD] = 1
            shared.words[SUSPECT_WORD] = 1
            shared.close()


def _tables(prefix: str) -> list[str]:
    """A disk may be called as another one and a dot: what has a second dot behind the prefix belongs to that one."""
    return [name for name in list_names(prefix) if "." not in name[len(prefix) :]]


def _attach(name: str, writable: bool) -> SharedObject | None:
    try:
        return SharedObject.attach(name, PURPOSE, writable)
    except (SharedObjectAbsent, LayoutMismatch):
        return None
