"""Processes that may use a share of a core each and no more: a control group for each, of either version, in which the kernel counts their time.

So a machine of two cores can stand for one with more: what each process may use is the same whether the others of its kind work or not, and there is time
for all other processes. Owned by the benchmark that makes it. Weak spot: a process that has used its share waits for the next period, so its work comes in
strokes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
V1, V2 = ROOT / "cpu", ROOT
PERIOD_US = 20_000


def _hierarchy() -> Path | None:
    """Where groups that bound CPU time are made."""
    if (V1 / "cpu.cfs_quota_us").exists() or (V1 / "tasks").exists():
        return V1
    control = V2 / "cgroup.subtree_control"
    return V2 if control.exists() and "cpu" in control.read_text().split() else None


def missing_for_cpu_share() -> str | None:
    hierarchy = _hierarchy()
    if hierarchy is None or not os.access(hierarchy, os.W_OK):
        return "no control group that bounds CPU time can be made here: it needs root"
    return None


def _home(hierarchy: Path, pid: int) -> Path:
    """The group that a process belongs to."""
    lines = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    path = next(path for _, names, path in lines if ("cpu" in names.split(",") if hierarchy == V1 else names == ""))
    return hierarchy / path.lstrip("/")


@contextmanager
def cpu_share(pids: Sequence[int], share: float) -> Iterator[None]:
    """Each of these processes may use `share` of a core meanwhile; at the end they are where they were, and the groups are gone."""
    hierarchy = _hierarchy()
    assert hierarchy is not None
    homes = [_home(hierarchy, pid) for pid in pids]
    groups = [hierarchy / f"millrace-loadtest-{os.getpid()}-{pid}" for pid in pids]
    try:
        for group, pid in zip(groups, pids, strict=True):
            group.mkdir()
            if hierarchy == V1:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(int(share * PERIOD_US)))
            else:
                (group / "cpu.max").write_text(f"{int(share * PERIOD_US)} {PERIOD_US}")
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for group, home, pid in zip(groups, homes, pids, strict=True):
            if group.exists():
                (home / "cgroup.procs").write_text(str(pid))
                group.rmdir()
