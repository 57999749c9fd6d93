"""Applies `millrace disk add | remove | replace`, apart from starting and stopping processes.

It changes the disks in box.json and for the next start, and invalidates the tables and sockets of
the processes of a removed or replaced disk. It does so before it writes box.json: a process that
reads the change must not reach the old processes under the name of the new ones. Used under
`millrace run` and under systemd.

Weak: whether a disk blocks its log-writer is read from its table and heartbeat now; the disk may
answer a moment later.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.layout import BoxLayout, Disk
from appliance.base.settings import Box
from appliance.runtime.children import is_in_kernel
from appliance.runtime.disk_orders import ADD, REPLACE, changed_disks, keep_disks
from appliance.runtime.known_disks import give_up, write_known_disk
from appliance.runtime.preflight import write_box
from appliance.shm.counters import read_counters
from appliance.shm.disk_tables import give_up_lives, is_held_by_disk


class LogWriterSample(NamedTuple):
    """The state of a log-writer: its pid (0: none), its last heartbeat (monotonic ms), and whether
    it is stopped on purpose, as for a disk that is not mounted."""

    pid: int
    heard_ms: int
    is_stopped: bool = False


class DiskChanges:
    """Applies disk orders for one incarnation of a box. `given`: the log directories as its options
    name them."""

    def __init__(self, layout: BoxLayout, clock: Clock, given: list[str], look: Callable[[str], LogWriterSample]) -> None:
        self._layout = layout
        self._clock = clock
        self._given = given
        self._look = look

    def carry_out(self, box: Box, order: dict[str, str], let_go: Callable[[str, bool], None]) -> tuple[Box, Disk]:
        """Apply `order`; returns the changed box, which is written to box.json, and the disk.

        `let_go(disk, is_lost)` is called for a disk that its processes no longer serve; `is_lost`
        is true if they have to be killed. Raises RequestRefused, or OSError if a file cannot be
        written.
        """
        verb, name = order.get("verb", ""), order.get("name", "")
        disks, disk = changed_disks(box.disks, verb, name, order.get("path", ""))
        if verb == REPLACE:
            self._give_up(box, box.disk(name), disk)
        keep_disks(box.state_directory, self._given, disks)
        changed = box._replace(disks=disks)
        if verb != ADD:
            is_lost = verb == REPLACE or self.is_held(box, disk.name)
            if is_lost:
                give_up_lives(self._tables_prefix(disk.name))
            let_go(disk.name, is_lost)
            for socket in (self._layout.log_writer_socket(disk.name), self._layout.log_reader_socket(disk.name)):
                if verb == REPLACE and os.path.lexists(socket):
                    os.unlink(socket)
        write_box(self._layout, changed)
        return changed, disk

    def _give_up(self, box: Box, old: Disk, new: Disk) -> None:
        """Give up the old directory: from now on, any directory at the new path takes its place."""
        snapshot = read_counters(self._layout, f"log-writer@{old.name}")
        if snapshot is not None and snapshot.state != "offline" and not self._look(old.name).is_stopped and not self.is_held(box, old.name):
            raise RequestRefused(
                ErrorCode.INVALID_REQUEST,
                f"disk {old.name} is {snapshot.state or 'starting'}; only a disk that is offline or hangs can be replaced; see `millrace disk list`",
            )
        known = give_up(box.state_directory, old.path)
        if new.path != old.path:
            write_known_disk(box.state_directory, known._replace(path=new.path))

    def is_held(self, box: Box, disk: str) -> bool:
        """Return whether the disk blocks its log-writer: its table says so, or it sends no
        heartbeat and is in an uninterruptible wait."""
        writer = self._look(disk)
        if not writer.pid:
            return False
        deadline_ms = box.integer("log.disk.deadline.ms")
        if is_held_by_disk(self._tables_prefix(disk), writer.pid, self._clock.monotonic_ns(), deadline_ms * 1_000_000):
            return True
        return self._clock.monotonic_ms() - writer.heard_ms > deadline_ms and is_in_kernel(writer.pid)

    def _tables_prefix(self, disk: str) -> str:
        return self._layout.shared_memory_name("table", disk) + "."
