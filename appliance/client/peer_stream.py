"""One non-blocking connection to a box, TCP or TLS, from connect to close, driven by events of its owner's poller.

A `PeerConnection` makes a new one for each attempt. Once a frame's size is known, its bytes are received
into memory that the owner provides; while the owner has none, nothing is read, and TCP makes the peer
wait. Weak spot: sent data waits in our heap while the peer does not read.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from appliance.base.errors import ProtocolViolation
from appliance.base.logging import Logger
from appliance.base.settings import Box
from appliance.client.address import Address
from appliance.ipc.frames import Registry
from appliance.protocol.framing import SIZE_PREFIX, SIZE_PREFIX_BYTES
from appliance.runtime.background_thread import BackgroundThread, ThreadRefused
from appliance.security.listeners import boxes_use_tls
from appliance.security.transport import WOULD_BLOCK

if TYPE_CHECKING:  # OpenSSL takes 4 MB, which a box without TLS does not need
    from appliance.security.tls_contexts import PeerContext
    from appliance.security.tls_transport import TlsTransport

# ---- names are looked up on a thread: getaddrinfo blocks, and the duty cycle must not


class SocketAddress(NamedTuple):
    """What `socket.socket` and `connect` want."""

    family: int
    sockaddr: Any
    """as `getaddrinfo` gives it"""


class HostLookup:
    """One look-up. `found` is None until it has ended, and empty when there is no such host."""

    def __init__(self, address: Address) -> None:
        self.found: list[SocketAddress] | None = None
        try:
            self.found = _look_up(address, socket.AI_NUMERICHOST | socket.AI_NUMERICSERV)
        except (OSError, UnicodeError):
            try:
                BackgroundThread(self._look_up_name, f"lookup of {address.host}", (address,)).start()
            except ThreadRefused:  # like a resolver that does not answer: the next connection attempt looks it up again
                self.found = []

    def _look_up_name(self, address: Address) -> None:
        try:
            self.found = _look_up(address, socket.AI_NUMERICSERV)
        except (OSError, UnicodeError):
            self.found = []


def _look_up(address: Address, flags: int) -> list[SocketAddress]:
    answers = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=flags)
    return [SocketAddress(family, sockaddr) for family, _, _, _, sockaddr in answers]


UNHEARD_MS = 4_000
"""A network that was cut: sent and not acknowledged, or silent to probes, for so long ends the connection. A peer that is only slow acknowledges."""
KEEPALIVE_S = 1
BYTES_A_TURN = 4 << 20
"""Received for one connection before others have their turn."""
_READS = select.EPOLLIN | select.EPOLLRDHUP
_ENDS = select.EPOLLERR | select.EPOLLHUP
_SENT_AT_ONCE = 64 << 10

Encrypt = Callable[[socket.socket], "TlsTransport"]
"""Takes over a connected socket. Raises ValueError and OSError."""


class StreamOwner(Protocol):
    """Receives the events. `take_memory` and `on_frame` may raise ProtocolViolation, which ends the stream."""

    def on_connected(self) -> None: ...

    def take_memory(self, size_bytes: int) -> memoryview | None:
        """Where a frame of so many bytes goes; None: nowhere yet, ask again by `resume`."""

    def on_frame(self, memory: memoryview, size_bytes: int) -> None: ...

    def on_end(self, reason: str, is_breach: bool) -> None:
        """It ended by itself, to be closed; or the peer broke the protocol."""


class StreamEnded(Exception):
    """The connection is over; its text says why."""


def peer_context(box: Box, log: Logger) -> PeerContext | None:
    """Return how a process of this box encrypts its connections to other boxes; None: it does not."""
    if not boxes_use_tls(box.kafka_listeners[0].protocol, box.text("inter.broker.listener.name")):
        return None
    from appliance.security.tls_contexts import PeerContext

    return PeerContext.of(box, log)


class PeerStream:
    """One connection. Raises StreamEnded if it cannot be started."""

    def __init__(self, target: SocketAddress, registry: Registry, owner: StreamOwner, encrypt: Encrypt | None = None) -> None:
        self.is_connected = False
        self.is_handshaking = False
        """The peer has answered on TCP, and TLS is not agreed on."""
        self._encrypt = encrypt
        self._tls: TlsTransport | None = None
        self._is_unread = False
        """TLS may have input that the poller does not report."""
        self.failure = ""
        """Why sending failed. The owner polls it, because `send` calls no callback."""
        self._owner = owner
        self._registry = registry
        self._is_closed = False
        self._outgoing = bytearray()
        self._prefix = bytearray(SIZE_PREFIX_BYTES)
        self._prefix_bytes = 0
        self._frame: memoryview | None = None
        self._frame_size = -1
        self._received = 0
        self._wants_memory = False
        self._interest = select.EPOLLOUT
        self._socket = _begin_to_connect(target)
        self._descriptor = self._socket.fileno()
        registry.register(self._descriptor, self._interest, self._on_event)

    @property
    def hears_frame(self) -> bool:
        """Whether a part of a frame has arrived."""
        return self._prefix_bytes > 0

    def send(self, data: bytes) -> None:
        """Now or later, in order; only once it is connected."""
        self._outgoing += data
        try:
            self._flush()
        except StreamEnded as ended:
            self.failure = str(ended)

    def resume(self) -> bool:
        """Once a turn: there may be memory for the frame that waits for it. False: there was nothing to do."""
        if self._is_closed or not (self._wants_memory or self._is_unread):
            return False
        self._is_unread = False
        self._guarded(self._receive)
        return not self._wants_memory

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._registry.unregister(self._descriptor)
            (self._tls or self._socket).close()

    # --- events

    def _on_event(self, events: int) -> None:
        if self._is_closed:
            return
        if not self.is_connected:
            self._guarded(self._handshake if self.is_handshaking else self._finish_connecting)
            return
        if events & select.EPOLLOUT:
            if self._tls is not None and self._tls.wants_write:
                events |= select.EPOLLIN
            self._guarded(self._flush)
        if self._wants_memory:
            if events & _ENDS:
                self._guarded(self._end)
        elif events & ~select.EPOLLOUT:
            self._guarded(self._receive)

    def _guarded(self, step: Callable[[], None]) -> None:
        if self._is_closed:
            return  # the step before this one ended it
        try:
            step()
        except ProtocolViolation as violation:
            self._owner.on_end(f"it breaks the protocol: {violation}", True)
        except StreamEnded as ended:
            self._owner.on_end(str(ended), False)

    def _end(self) -> None:
        raise StreamEnded("it closed the connection")

    def _finish_connecting(self) -> None:
        error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise StreamEnded(os.strerror(error).lower())
        if self._encrypt is None:
            self._begin()
            return
        try:
            self._tls = self._encrypt(self._socket)  # which closes the socket if it fails
        except (OSError, ValueError) as failure:
            raise StreamEnded(reason_of(failure) if isinstance(failure, OSError) else str(failure)) from failure
        self.is_handshaking = True
        self._handshake()

    def _handshake(self) -> None:
        from appliance.security.tls_transport import ESTABLISHED, WANTS_WRITE

        assert self._tls is not None
        try:
            state = self._tls.handshake()
        except OSError as failure:
            raise StreamEnded(reason_of(failure)) from failure
        if state == ESTABLISHED:
            self.is_handshaking = False
            self._begin()
        else:
            self._want(select.EPOLLOUT if state == WANTS_WRITE else _READS)

    def _begin(self) -> None:
        self.is_connected = True
        self._set_interest()
        self._owner.on_connected()

    def _flush(self) -> None:
        outgoing = self._outgoing
        try:
            if self._tls is not None:
                while outgoing and (taken := self._tls.send(bytes(memoryview(outgoing)[:_SENT_AT_ONCE]), False)) != WOULD_BLOCK:
                    del outgoing[:taken]
                self._set_interest()
                return
            while outgoing:
                del outgoing[: self._socket.send(outgoing)]
        except BlockingIOError:
            pass
        except OSError as failure:
            raise StreamEnded(reason_of(failure)) from failure
        self._set_interest()

    def _set_interest(self) -> None:
        wants_write = self._outgoing or (self._tls is not None and self._tls.wants_write)
        self._want((0 if self._wants_memory else _READS) | (select.EPOLLOUT if wants_write else 0))

    def _want(self, interest: int) -> None:
        if interest != self._interest and not self._is_closed:
            self._interest = interest
            self._registry.modify(self._descriptor, interest)

    # --- frames

    def _receive(self) -> None:
        budget = BYTES_A_TURN
        while budget > 0 and not self._is_closed:
            if self._frame is None:
                if self._frame_size < 0 and not self._receive_size():
                    return
                if not self._take_memory():
                    return
            frame = self._frame
            assert frame is not None
            count = self._receive_into(frame[self._received : self._frame_size])
            if count < 0:
                return
            budget -= count
            self._received += count
            if self._received == self._frame_size:
                self._frame = None
                size_bytes, self._frame_size, self._received, self._prefix_bytes = self._frame_size, -1, 0, 0
                self._owner.on_frame(frame, size_bytes)
        self._is_unread = self._tls is not None

    def _receive_size(self) -> bool:
        count = self._receive_into(memoryview(self._prefix)[self._prefix_bytes :])
        if count < 0:
            return False
        self._prefix_bytes += count
        if self._prefix_bytes == SIZE_PREFIX_BYTES:
            self._frame_size = SIZE_PREFIX.unpack(self._prefix)[0]
            if self._frame_size <= 0:
                raise ProtocolViolation("peer-answer", f"a frame of {self._frame_size} bytes")
        return self._frame_size > 0

    def _take_memory(self) -> bool:
        self._frame = self._owner.take_memory(self._frame_size)
        wants = self._frame is None
        if wants != self._wants_memory:
            self._wants_memory = wants
            self._set_interest()
        return not wants

    def _receive_into(self, memory: memoryview) -> int:
        """Bytes received, -1 when there are none now."""
        try:
            if self._tls is not None:
                count = self._tls.receive_into(memory[:BYTES_A_TURN])
                if self._tls.wants_write:
                    self._set_interest()
                if count == WOULD_BLOCK:
                    return -1
            else:
                count = self._socket.recv_into(memory)
        except BlockingIOError:
            return -1
        except OSError as failure:
            raise StreamEnded(reason_of(failure)) from failure
        if not count:
            raise StreamEnded("it closed the connection")
        return count


def _begin_to_connect(target: SocketAddress) -> socket.socket:
    try:
        made = socket.socket(target.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    except OSError as failure:
        raise StreamEnded(reason_of(failure)) from failure
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNHEARD_MS)
    error = made.connect_ex(target.sockaddr)
    if error not in (0, errno.EINPROGRESS):
        made.close()
        raise StreamEnded(os.strerror(error).lower())
    return made


def reason_of(failure: OSError) -> str:
    if hasattr(failure, "library"):  # an SSLError, which only TLS raises
        from appliance.security.tls_transport import words_of

        return words_of(failure)
    return (failure.strerror or str(failure)).lower()
