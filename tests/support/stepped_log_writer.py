"""A log-writer that only accepts channels: real socket, table and rings, and completions when the
test says so. Stepped by hand.
"""

from __future__ import annotations

import os
import select
from typing import Any

from appliance.base.layout import BoxLayout
from appliance.ipc.channel import SinkChannel
from appliance.ipc.channel_acceptor import ChannelAcceptor
from appliance.runtime.poller import Poller
from appliance.shm.counters import Counters
from appliance.shm.doorbell import Doorbell
from appliance.shm.partition_table import DISK_ONLINE, SLEEPING_WORD, PartitionTableWriter


class SteppedLogWriter:
    """One incarnation. Descriptors that it took are in `taken`, the sources that left in `gone`."""

    def __init__(self, layout: BoxLayout, disk: str, incarnation: int) -> None:
        self.layout = layout
        self.disk = disk
        self.incarnation = incarnation
        self.is_dead = False
        self.partitions: list[Any] = []
        self.taken: list[tuple[str, int, tuple[Any, ...]]] = []
        """(source, its incarnation, descriptor)."""
        self.gone: list[tuple[str, str]] = []
        self.counters = Counters.create_or_adopt(layout, f"log-writer@{disk}", incarnation)
        self.table = PartitionTableWriter.create(layout.shared_memory_name("table", disk, incarnation), incarnation)
        self.table.set_disk_state(DISK_ONLINE)
        self.poller = Poller()
        self.bell = Doorbell(self.table.shared.words, SLEEPING_WORD)
        self.poller.register(self.bell.fileno(), select.EPOLLIN, self.bell.drain)
        self.door = ChannelAcceptor(self.bell.fileno(), self.poller, self.counters, self._describe, self._on_gone)
        self.door.open(layout.log_writer_socket(disk))

    def _describe(self) -> dict[str, Any]:
        return {"table": self.table.shared.name, "incarnation": self.incarnation, "partitions": self.partitions}

    def _on_gone(self, channel: SinkChannel, reason: str) -> None:
        self.gone.append((channel.source, reason))

    def turn(self) -> int:
        """Look at the sockets, then take what is in the rings."""
        work = self.poller.poll(0)
        for channel in self.door.channels:
            for entry in channel.take(256):
                self.taken.append((channel.source, channel.incarnation, entry))
                work += 1
        return work

    def complete(self, tokens: list[int], error_code: int = 0) -> None:
        """Completions for the newest source, in one burst."""
        channel = self.door.channels[-1]
        channel.complete([(1, 0, error_code, 0, token, 1_000 + token, -1, 0, 1_001 + token, 0, 1, 0) for token in tokens])

    def die(self) -> None:
        """As `kill -9` leaves it: sockets hang up, names stay."""
        for control, channel in self.door.connections.items():
            control.close()
            if channel is not None:
                channel.close()
        self.door.connections.clear()
        self.door.channels.clear()
        if self.door.listening is not None:
            self.door.listening.close()
        self.poller.close()
        self.bell.close()
        self.counters.close()
        self.is_dead = True

    def close(self) -> None:
        """The clean end; nothing after a death."""
        if self.is_dead:
            return
        self.door.close()
        self.poller.close()
        self.bell.close()
        self.table.close()
        self.counters.close()
        if os.path.exists(self.layout.log_writer_socket(self.disk)):
            os.unlink(self.layout.log_writer_socket(self.disk))
