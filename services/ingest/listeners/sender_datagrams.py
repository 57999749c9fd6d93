"""The room of all senders that come by datagrams: reads their sockets, one for each UDP listener.

Owned by one ingest agent. Nobody can be slowed down, so while the partitions are blocked nothing is read and the kernel's buffers are one more queue.
Weak: one listener's block stops the reading of all, and what overflows then is counted where it happens: by the kernel.
"""

from __future__ import annotations

import select
import socket

from appliance.base.clock import Clock
from appliance.base.logging import Logger
from appliance.runtime.poller import Poller
from appliance.senders.listener import Listener
from appliance.shm.counters import Counters
from services.ingest.listeners.datagram_socket import DatagramSocket
from services.ingest.records.intake import Intake


class SenderDatagrams:
    """`reading` says whether the poller may call us."""

    def __init__(self, poller: Poller, clock: Clock, intake: Intake, counts_drops: bool, counters: Counters, log: Logger) -> None:
        self._poller = poller
        self._clock = clock
        self._intake = intake
        self._counts_drops = counts_drops
        self._counters = counters
        self._log = log
        self._sockets: list[DatagramSocket] = []
        self.reading = False

    def add(self, listener: Listener, sock: socket.socket) -> None:
        """Senders of `listener` come by this socket."""
        self._sockets.append(DatagramSocket(listener, sock, self._intake, self._counts_drops, self._counters, self._log))

    def read(self, reading: bool) -> None:
        """Start or stop reading."""
        if reading == self.reading:
            return
        self.reading = reading
        for each in self._sockets:
            if reading:
                self._poller.register(each.fileno(), select.EPOLLIN, lambda _events, each=each: self._take(each))  # type: ignore[misc]
            else:
                self._poller.unregister(each.fileno())

    def _take(self, each: DatagramSocket) -> None:
        if self.reading:
            each.take()

    def look(self) -> None:
        """Once a second."""
        now_ms = self._clock.monotonic_ms()
        for each in self._sockets:
            each.tick(now_ms)

    def drain(self) -> bool:
        """Stopping: take what has arrived, as far as this turn's share goes. True when nothing is left to be taken."""
        for each in self._sockets:
            self._take(each)
        return not self.reading or all(each.drained for each in self._sockets)

    def close(self) -> None:
        self.read(False)
        for each in self._sockets:
            each.close()
