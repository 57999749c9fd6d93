"""The UDP sockets of an ingest.

Owned by one ingest agent; the sockets belong to the supervisor and survive this process. Each is
drained in bursts and has the largest receive buffer that the kernel allows. Datagram senders cannot
be slowed down, so while the partitions are blocked nothing is read, and the kernel's buffers are
one more queue. `SO_MEMINFO` returns a socket's drops exactly and at any time. SO_RXQ_OVFL would
report them with the next datagram only, and cost a control message each.

Weak: one blocked listener stops the reading of all; what overflows then is counted by the kernel.
With several ingests on one socket only the first counts kernel drops, because the count is the
socket's.
"""

from __future__ import annotations

import select
import socket
from struct import Struct

from appliance.base.logging import Logger
from appliance.runtime.agent import ServiceContext
from appliance.senders.accounting import INPUT_BYTES_COUNTER, KERNEL_DROPS_COUNTER
from appliance.senders.listener import Listener
from services.ingest.listeners.sender_quotas import SenderBucket, SenderQuotas
from services.ingest.protocols.session import handler_of
from services.ingest.records.ack_group import AckGroup
from services.ingest.records.event import EventSource, address_text
from services.ingest.records.intake import Intake, RefusedReason

RECEIVE_BUFFER_BYTES = 64 << 20
DATAGRAM_BYTES_MAX = 65536
BURST = 256
BURSTS_A_TURN = 4
SENDERS_MAX = 4096

# asm-generic/socket.h and linux/sock_diag.h; the socket module does not name them.
_SO_RCVBUFFORCE, _SO_MEMINFO, _SO_COOKIE = 33, 55, 57
_MEMINFO = Struct("@9I")
_MEMINFO_DROPS = 8
_COOKIE = Struct("@Q")
_UINT32 = 0xFFFFFFFF

Peer = tuple[str, int]


class DatagramSocket:
    """One listener's socket. `drained`: the last `take` emptied it."""

    def __init__(self, listener: Listener, sock: socket.socket, intake: Intake, context: ServiceContext) -> None:
        counters = context.counters
        self.listener = listener
        self._socket = sock
        self._intake = intake
        self._quotas = SenderQuotas(listener, context.clock)
        self._handler = handler_of(listener.protocol)(listener, intake)
        self._counts_drops = context.instance in ("", "0")
        self._buffer = bytearray(DATAGRAM_BYTES_MAX)
        self._view = memoryview(self._buffer)
        self._transport = b"udp" if listener.protocol == "syslog" else str(listener.protocol).encode()
        self._groups: dict[Peer, AckGroup] = {}
        self.drained = False
        label = f'{{listener="{listener.name}"}}'
        self._kernel_drops = counters.counter(KERNEL_DROPS_COUNTER.format(listener=listener.name))
        self._input_bytes = counters.counter(INPUT_BYTES_COUNTER.format(listener=listener.name))
        self._kernel_drops_seen = counters.counter(f"ingest.kernel_drops_seen{label}")
        self._socket_cookie = counters.counter(f"ingest.udp_socket_cookie{label}")
        sock.setblocking(False)
        self._enlarge_receive_buffer(context.log)
        counters.counter(f"ingest.udp_receive_buffer_bytes{label}").set(sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF))
        if self._counts_drops:
            self._reset_drop_counter()

    def fileno(self) -> int:
        return self._socket.fileno()

    def _enlarge_receive_buffer(self, log: Logger) -> None:
        """Enlarge the receive buffer: as root beyond net.core.rmem_max, otherwise up to it; never
        reduce it."""
        if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= RECEIVE_BUFFER_BYTES:
            return
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
        except OSError:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            size_bytes = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
            message = f"the UDP socket of listener {self.listener.name} has a receive buffer of {size_bytes >> 10} KiB"
            log.notice(f"{message}; raise net.core.rmem_max to {RECEIVE_BUFFER_BYTES} to survive longer bursts", listener=self.listener.name)

    def _reset_drop_counter(self) -> None:
        """Start the count at zero if the previous incarnation had another socket."""
        (cookie,) = _COOKIE.unpack(self._socket.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, _COOKIE.size))
        if cookie != self._socket_cookie.value:
            self._socket_cookie.set(cookie)
            self._kernel_drops_seen.set(0)
        self.count_kernel_drops()

    def count_kernel_drops(self) -> None:
        """Add the kernel drops since the last call."""
        if not self._counts_drops:
            return
        drops = _MEMINFO.unpack(self._socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size))[_MEMINFO_DROPS]
        self._kernel_drops.add((drops - self._kernel_drops_seen.value) & _UINT32)
        self._kernel_drops_seen.set(drops)

    def tick(self, now_ms: int) -> None:
        self.count_kernel_drops()
        self._handler.tick(now_ms)

    def take(self) -> None:
        """Read bursts until the socket is empty, a few at most, so that datagrams and streams share
        the turn."""
        self.drained = False
        for _ in range(BURSTS_A_TURN):
            if self._take_burst() < BURST:
                self.drained = True
                return

    def _take_burst(self) -> int:
        recvfrom_into, buffer, view = self._socket.recvfrom_into, self._buffer, self._view
        senders: dict[Peer, list[bytes]] = {}
        last_peer: Peer | None = None
        datagrams: list[bytes] = []
        received = size_bytes = 0
        try:
            while received < BURST:
                size, peer = recvfrom_into(buffer)
                received += 1
                if not size:
                    continue  # an empty datagram has no record
                size_bytes += size
                if peer != last_peer:
                    last_peer = peer
                    datagrams = senders.setdefault(peer, [])
                datagrams.append(bytes(view[:size]))
        except BlockingIOError:
            pass
        except OSError:
            received += 1  # an error queued on the socket (ICMP) is consumed when it is reported
        if senders:
            self._input_bytes.add(size_bytes)
            for peer, datagrams in senders.items():
                self._pass(self._groups.get(peer) or self._add_group(peer), datagrams)
        return received

    def _pass(self, group: AckGroup, datagrams: list[bytes]) -> None:
        """Pass datagrams of one sender to the handler; drop them if it has exceeded its quota."""
        bucket: SenderBucket = group.context
        if bucket.bytes_left < 0 and bucket.wait_ms(*self._intake.records_of(self.listener, group.source)):
            self._intake.refuse(self.listener, group.source, RefusedReason.OVER_QUOTA, len(datagrams))
            return
        bucket.bytes_left -= sum(map(len, datagrams)) + self._handler.received(group, datagrams)

    def _add_group(self, peer: Peer) -> AckGroup:
        if len(self._groups) >= SENDERS_MAX:
            self._groups.clear()
        group = self._groups[peer] = AckGroup(self.listener, EventSource(*address_text(peer[0], peer[1]), self._transport))
        group.context = self._quotas.bucket_of(peer[0])
        return group

    def close(self) -> None:
        self.count_kernel_drops()
        self._socket.close()


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
