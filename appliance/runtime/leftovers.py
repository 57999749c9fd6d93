"""Removes what dead boxes leave behind: shared-memory objects, sockets, runtime directories.

A box that stops cleanly leaves nothing. If the supervisor was killed, its next incarnation removes
what no process will read again. The rest is removed by its owners, which read it first: a
log-writer reads the table of its predecessor, each process adopts its counters. Weak: a box that
was killed and never restarted stays until its state directory is deleted.
"""

from __future__ import annotations

import os
import select

from appliance.base.box_registry import forget_box
from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.base.trusted_files import open_directory
from appliance.runtime.directories import boxes_of_state, known_boxes, running_supervisor
from appliance.shm.counters import list_counters, pid_in_counters, unlink_all
from appliance.shm.mapping import list_names, unlink

DYING_MS_MAX = 5_000
DEPTH_MAX = 8

SUPERVISOR_COMM = "millrace"

PURPOSES_OF_OWNERS = frozenset({"table", "counters"})
"""Purposes of objects that the next incarnation of their owner reads before it removes them."""


def await_previous_life(state: str, clock: Clock) -> list[int]:
    """Wait up to 5 s for the processes of a supervisor that was killed; the kernel kills them soon
    after. Returns the pids that still run."""
    layouts = boxes_of_state(state) if running_supervisor(state, state) is None else []
    deadline_ms = clock.monotonic_ms() + DYING_MS_MAX
    while alive := [pid for layout in layouts for pid in living_processes(layout)]:
        if clock.monotonic_ms() >= deadline_ms:
            return alive
        select.select([], [], [], 0.01)
    return []


def living_processes(layout: BoxLayout) -> list[int]:
    """Return the pids of the running processes of this box, from their counters."""
    return [pid for name in list_counters(layout) if (pid := living_pid(layout, name))]


def living_pid(layout: BoxLayout, process_name: str) -> int:
    """Return the pid of this process if it runs, otherwise 0. A JVM of ZooKeeper counts, too: it
    may outlive the supervisor, which keeps its counters, for a moment."""
    pid, is_held = pid_in_counters(layout, process_name)
    return pid if is_held or (_comm(pid) == "java" and not _is_zombie(pid)) else 0


def _comm(pid: int) -> str:
    """Return the name of the process; '' if there is none."""
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().rstrip("\n")
    except OSError:
        return ""


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True


def clear_previous_life(layout: BoxLayout) -> int:
    """Unlink the objects that no process will read, before the first child starts. Returns how
    many."""
    prefix = layout.shared_memory_prefix
    names = [name for name in list_names(prefix) if name[len(prefix) :].partition(".")[0] not in PURPOSES_OF_OWNERS]
    for name in names:
        unlink(name)
    return len(names)


def clear_dead_life(state: str) -> int:
    """Like `clear_previous_life`, for the box of this state directory if it is dead. Runs before
    /dev/shm is checked for free space."""
    return sum(clear_previous_life(layout) for layout in boxes_of_state(state) if running_supervisor(state, state) is None)


def clear_vanished_boxes() -> list[str]:
    """Remove the rest of dead boxes whose state directory was deleted, because they cannot restart.
    Returns their names."""
    cleared = []
    for layout in known_boxes():
        try:
            box = layout.read_box()
            # Last whether the state directory is missing: its disk may be mounted again at any moment.
            vanished = not _is_running(int(box["pid"]), layout) and _is_missing(box["state_directory"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if vanished and clear_box(layout):
            cleared.append(layout.box)
    return cleared


def _is_missing(path: str) -> bool:
    """Return whether nothing has this path. An error of the disk does not mean that."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


def _is_running(supervisor_pid: int, layout: BoxLayout) -> bool:
    """Return whether a process of the box runs. Its state lock cannot show that while the state
    directory is away, for example unmounted."""
    return bool(living_processes(layout)) or (_comm(supervisor_pid) == SUPERVISOR_COMM and not _is_zombie(supervisor_pid))


def clear_box(layout: BoxLayout) -> bool:
    """Remove all shared memory, sockets and the runtime directory of a box whose processes have
    ended.

    Returns False and changes nothing if the runtime directory belongs to another user.
    """
    try:
        descriptor = open_directory(layout.runtime_directory, owners={os.geteuid()})
    except FileNotFoundError:
        unlink_all(layout)
    except OSError:
        return False
    else:
        unlink_all(layout)
        _empty(descriptor)
        _remove_directory(layout.runtime_directory)
    forget_box(layout.box)
    return True


def _empty(descriptor: int, depth: int = 0) -> None:
    """Remove the content of the directory and close it, down to `DEPTH_MAX`: processes that face
    the network write to one. Links are not followed, even if paths change meanwhile."""
    try:
        for name in os.listdir(descriptor):
            try:
                os.unlink(name, dir_fd=descriptor)
            except IsADirectoryError:
                if depth < DEPTH_MAX:
                    _empty(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor), depth + 1)
                _remove_directory(name, descriptor)
            except FileNotFoundError:
                pass  # its process removed it first
    except OSError:
        pass  # a process still uses it; the next start removes the rest
    finally:
        os.close(descriptor)


def _remove_directory(path: str, dir_fd: int | None = None) -> None:
    try:
        os.rmdir(path, dir_fd=dir_fd)
    except OSError:
        pass  # a process still writes to it; the next start removes it
