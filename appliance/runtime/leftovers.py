"""What dead boxes leave behind, and who clears it: shared-memory objects, sockets, runtime directories.

A box that stopped cleanly leaves nothing. After `kill -9` of the supervisor its next life clears what nobody will read again; the rest is
cleared by its owners, because it says what had happened: a log-writer reads its predecessor's table, an ingest drains its old
channels, everybody adopts its counters. Weak spot: a box that was killed and never started again stays until its state directory is gone.
"""

from __future__ import annotations

import os
import select

from appliance.base.box_registry import forget_box
from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.base.trusted_files import open_directory
from appliance.runtime.directories import boxes_of_state, is_supervisor, known_boxes, running_supervisor
from appliance.shm.counters import list_counters, pid_in_counters, unlink_all
from appliance.shm.mapping import list_names, unlink

DYING_MS_MAX = 5_000

PURPOSES_OF_OWNERS = frozenset({"table", "channel", "counters"})
"""Objects of a dead life that their owners' next life reads first and then removes."""


def await_previous_life(state: str, clock: Clock) -> list[int]:
    """Wait for processes of a supervisor that was killed just now: the kernel kills them, but not in no time. Returns who is still there."""
    layouts = boxes_of_state(state) if running_supervisor(state, state) is None else []
    deadline_ms = clock.monotonic_ms() + DYING_MS_MAX
    while alive := [pid for layout in layouts for pid in living_processes(layout)]:
        if clock.monotonic_ms() >= deadline_ms:
            return alive
        select.select([], [], [], 0.01)
    return []


def living_processes(layout: BoxLayout) -> list[int]:
    """Pids of processes of this box that live, by their counters."""
    return [pid for name in list_counters(layout) if (pid := living_pid(layout, name))]


def living_pid(layout: BoxLayout, process_name: str) -> int:
    """Pid of this process if it lives, else 0; a pid that was given to somebody else has another name."""
    pid = pid_in_counters(layout, process_name)
    try:
        with open(f"/proc/{pid}/comm") as file:
            comm = file.read().rstrip("\n")
    except OSError:
        return 0
    return pid if comm in (process_name[:15], "java") and not _is_zombie(pid) else 0


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True


def clear_previous_life(layout: BoxLayout) -> int:
    """Before the first child of a new life starts: unlink what none of them will read. Returns how many objects."""
    prefix = layout.shared_memory_prefix
    names = [name for name in list_names(prefix) if name[len(prefix) :].partition(".")[0] not in PURPOSES_OF_OWNERS]
    for name in names:
        unlink(name)
    return len(names)


def clear_dead_life(state: str) -> int:
    """As `clear_previous_life`, for the box of this state directory if it is dead: before /dev/shm is found too small for what it still holds."""
    return sum(clear_previous_life(layout) for layout in boxes_of_state(state) if running_supervisor(state, state) is None)


def clear_vanished_boxes() -> list[str]:
    """Remove what is left of dead boxes whose state directory is gone: they cannot come back. Returns their names."""
    cleared = []
    for layout in known_boxes():
        try:
            box = layout.read_box()
            gone = not os.path.lexists(box["state_directory"]) and not is_supervisor(int(box["pid"]), layout)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if gone and clear_box(layout):
            cleared.append(layout.box)
    return cleared


def clear_box(layout: BoxLayout) -> bool:
    """The last act of a box: no shared memory, no socket, no runtime directory. Every process is gone by now. False, and nothing is changed, if the runtime
    directory is another user's."""
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


def _empty(descriptor: int) -> None:
    """Remove what is in the directory, and close it. No link is followed, whatever becomes of the paths meanwhile."""
    try:
        for name in os.listdir(descriptor):
            try:
                os.unlink(name, dir_fd=descriptor)
            except IsADirectoryError:
                _empty(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor))
                _remove_directory(name, descriptor)
            except FileNotFoundError:
                pass  # its process was faster
    except OSError:
        pass  # a process still works in it; the next start clears what is left
    finally:
        os.close(descriptor)


def _remove_directory(path: str, dir_fd: int | None = None) -> None:
    try:
        os.rmdir(path, dir_fd=dir_fd)
    except OSError:
        pass  # a process still writes in it; the next start clears it
