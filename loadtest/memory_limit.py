"""A bound on the memory of a box, its page cache included: a control group, of either version, that its processes are born into.

Owned by the benchmark that makes it. Weak spot: needs root, and a hierarchy that may be written to; a page that a process outside touched first is not
counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
V1, V2 = ROOT / "memory", ROOT


def _hierarchy() -> Path | None:
    """Where groups that bound memory are made."""
    if (V1 / "memory.limit_in_bytes").exists() or (V1 / "memory.use_hierarchy").exists():
        return V1
    control = V2 / "cgroup.subtree_control"
    return V2 if control.exists() and "memory" in control.read_text().split() else None


def missing_for_memory_limit() -> str | None:
    hierarchy = _hierarchy()
    if hierarchy is None or not os.access(hierarchy, os.W_OK):
        return "no control group that bounds memory can be made here: it needs root"
    return None


@contextmanager
def memory_limit(size_bytes: int) -> Iterator[Path]:
    """A group that holds so much; it is empty at the end, or this raises OSError."""
    hierarchy = _hierarchy()
    assert hierarchy is not None
    group = hierarchy / f"millrace-loadtest-{os.getpid()}"
    group.mkdir()
    try:
        (group / ("memory.limit_in_bytes" if hierarchy == V1 else "memory.max")).write_text(str(size_bytes))
        yield group
    finally:
        group.rmdir()


@contextmanager
def inside(group: Path) -> Iterator[None]:
    """Processes that we start meanwhile belong to `group`."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    own = next(path for _, names, path in lines if names == ("memory" if group.parent == V1 else ""))
    _enter(group)
    try:
        yield
    finally:
        _enter(group.parent / own.lstrip("/"))


def _enter(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))
