"""Syslog over UDP: one socket, drained in bursts, with the largest receive buffer that the kernel gives.

Owned by one ingest agent; the socket itself belongs to the supervisor and outlives us. While every partition is blocked nothing is read:
the kernel's buffer is one more queue, and what it drops is counted. `SO_MEMINFO` tells the socket's drops exactly and at any time;
SO_RXQ_OVFL would tell them with the next datagram only, and cost a control message each.
Weak: with several ingests on one socket only the first counts kernel drops, because the count is the socket's.
"""

from __future__ import annotations

import select
import socket
from struct import Struct

from appliance.agents.syslog_intake import SyslogIntake, address_text
from appliance.base.logging import Logger
from appliance.ingest.accounting import KERNEL_DROPS_COUNTER
from appliance.ingest.event import EventSource
from appliance.ingest.syslog_framing import cut_message, unframe_datagram
from appliance.runtime.poller import Poller
from appliance.shm.counters import Counters

RECEIVE_BUFFER_BYTES = 64 << 20
DATAGRAM_BYTES_MAX = 65536
BURST = 256
BURSTS_A_TURN = 4
SOURCES_MAX = 4096

# asm-generic/socket.h and linux/sock_diag.h; the socket module does not name them.
_SO_RCVBUFFORCE, _SO_MEMINFO, _SO_COOKIE = 33, 55, 57
_MEMINFO = Struct("@9I")
_MEMINFO_DROPS = 8
_COOKIE = Struct("@Q")
_UINT32 = 0xFFFFFFFF


class SyslogDatagrams:
    """The UDP side. `reading` says whether the poller may call us."""

    def __init__(
        self, sock: socket.socket, poller: Poller, intake: SyslogIntake, max_message_bytes: int, counts_drops: bool, counters: Counters, log: Logger
    ) -> None:
        self._socket = sock
        self._poller = poller
        self._intake = intake
        self._max_message_bytes = max_message_bytes
        self._counts_drops = counts_drops
        self._buffer = bytearray(DATAGRAM_BYTES_MAX)
        self._view = memoryview(self._buffer)
        self._sources: dict[tuple[str, int], EventSource] = {}
        self.reading = False
        self.drained = False
        self._kernel_drops = counters.counter(KERNEL_DROPS_COUNTER)
        self._kernel_drops_seen = counters.counter("ingest.kernel_drops_seen")
        self._socket_cookie = counters.counter("ingest.udp_socket_cookie")
        self._truncated = counters.counter('ingest.truncated{transport="udp"}')
        sock.setblocking(False)
        self._enlarge_receive_buffer(log)
        counters.counter("ingest.udp_receive_buffer_bytes").set(sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF))
        if counts_drops:
            self._meet_socket()

    def _enlarge_receive_buffer(self, log: Logger) -> None:
        """As root beyond net.core.rmem_max, else as far as that allows; never smaller than it was given to us."""
        if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= RECEIVE_BUFFER_BYTES:
            return
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
        except OSError:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            size_bytes = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
            words = f"the syslog UDP socket has a receive buffer of {size_bytes >> 10} KiB"
            log.notice(f"{words}; raise net.core.rmem_max to {RECEIVE_BUFFER_BYTES} to survive longer bursts")

    def _meet_socket(self) -> None:
        """A socket that the previous life did not have starts its count at zero."""
        (cookie,) = _COOKIE.unpack(self._socket.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, _COOKIE.size))
        if cookie != self._socket_cookie.value:
            self._socket_cookie.set(cookie)
            self._kernel_drops_seen.set(0)
        self.count_kernel_drops()

    def count_kernel_drops(self) -> None:
        """Add what the kernel has dropped since we last looked."""
        if not self._counts_drops:
            return
        drops = _MEMINFO.unpack(self._socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size))[_MEMINFO_DROPS]
        self._kernel_drops.add((drops - self._kernel_drops_seen.value) & _UINT32)
        self._kernel_drops_seen.set(drops)

    def read(self, reading: bool) -> None:
        """Start or stop reading."""
        if reading != self.reading:
            self.reading = reading
            if reading:
                self._poller.register(self._socket.fileno(), select.EPOLLIN, self.on_readable)
            else:
                self._poller.unregister(self._socket.fileno())

    def on_readable(self, _events: int) -> None:
        """Take bursts until the socket is empty, a few at most. Streams have a share of their own, so they cannot starve datagrams."""
        self.drained = False
        for _ in range(BURSTS_A_TURN):
            if self.reading and self._take_burst() < BURST:
                self.drained = True
                return

    def _take_burst(self) -> int:
        recvfrom_into, buffer, view = self._socket.recvfrom_into, self._buffer, self._view
        datagrams: list[tuple[bytes, EventSource]] = []
        received = size_bytes = 0
        try:
            while received < BURST:
                size, peer = recvfrom_into(buffer)
                received += 1
                source = self._sources.get(peer) or self._add_source(peer)
                message = bytes(view[:size])
                if 0x31 <= buffer[0] <= 0x39:
                    message = unframe_datagram(message)
                if len(message) > self._max_message_bytes:
                    message = cut_message(message, self._max_message_bytes)
                    self._truncated.add()
                if size:  # an empty datagram holds no line
                    size_bytes += size
                    datagrams.append((message, source))
        except BlockingIOError:
            pass
        except OSError:
            received += 1  # an error queued on the socket (ICMP); it is consumed by being reported
        if datagrams:
            self._intake.take_datagrams(datagrams, size_bytes)
        return received

    def _add_source(self, peer: tuple[str, int]) -> EventSource:
        if len(self._sources) >= SOURCES_MAX:
            self._sources.clear()
        source = EventSource(*address_text(peer[0], peer[1]), b"udp")
        self._sources[peer] = source
        return source

    def close(self) -> None:
        self.read(False)
        if self._counts_drops:
            self.count_kernel_drops()
        self._socket.close()
