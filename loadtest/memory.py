"""Proportional memory (PSS) of a process, arenas and other shared memory separately, as `millrace status` has it (`appliance/command/process_memory.py`)."""

from __future__ import annotations

import os

from appliance.command.process_memory import ARENA, SHARED_MEMORY, Memory, process_memory, sum_of

__all__ = ["ARENA", "MB", "SHARED_MEMORY", "Memory", "is_python", "process_memory", "sum_of"]

MB = 1_000_000


def is_python(pid: int) -> bool:
    """The embedded ZooKeeper is a JVM, which the promises about Python processes leave out."""
    return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")
