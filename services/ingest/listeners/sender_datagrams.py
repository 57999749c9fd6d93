"""The UDP sockets of an ingest, one for each UDP listener.

Owned by one ingest agent. Datagram senders cannot be slowed down, so while the partitions are
blocked nothing is read, and the kernel's buffers are one more queue. Weak: one blocked listener
stops the reading of all; what overflows then is counted by the kernel.
"""

from __future__ import annotations

import select
import socket

from appliance.runtime.agent import ServiceContext
from appliance.senders.listener import Listener
from services.ingest.listeners.datagram_socket import DatagramSocket
from services.ingest.records.intake import Intake


class SenderDatagrams:
    """`reading`: the poller calls `_take`."""

    def __init__(self, context: ServiceContext, intake: Intake) -> None:
        self._context = context
        self._poller = context.poller
        self._intake = intake
        self._sockets: list[DatagramSocket] = []
        self.reading = False

    def add(self, listener: Listener, sock: socket.socket) -> None:
        """Read datagrams of `listener` from this socket."""
        self._sockets.append(DatagramSocket(listener, sock, self._intake, self._context))

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

    def sweep(self) -> None:
        """Once a second: count kernel drops and tick the handlers."""
        now_ms = self._context.clock.monotonic_ms()
        for each in self._sockets:
            each.tick(now_ms)

    def drain(self) -> bool:
        """Stop: take what has arrived, within this turn's share. True if nothing is left."""
        for each in self._sockets:
            self._take(each)
        return not self.reading or all(each.drained for each in self._sockets)

    def close(self) -> None:
        self.read(False)
        for each in self._sockets:
            each.close()
