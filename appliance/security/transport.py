"""How bytes reach a peer and come from it: an interface; `PlainTransport` is TCP, `TlsTransport` encrypts.

`receive_into`, `send` and `send_file` never block; -1 says "not now". Owned by one connection. Weak spot: `send_file` reads through the
page cache, and a range that is not resident would make the caller wait for its disk; `services/acceptor/fetch/residency.py` looks first.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import termios
from typing import Protocol

from appliance.base.networks import packed_address

WOULD_BLOCK = -1
NOT_RESIDENT = -2
"""Not the socket but the disk would have to be waited for (`services/acceptor/fetch/residency.py`)."""


def peer_name(host: str) -> str | bytes:
    """Return a host as names of certificates are compared: packed if it is an address."""
    return packed_address(host) or host.lower().rstrip(".")


class ClientTransport(Protocol):
    """What a connection needs of its socket. All raise OSError when the peer is gone."""

    def fileno(self) -> int: ...

    def receive_into(self, buffer: memoryview) -> int:
        """Bytes received; 0 at the end of the stream, WOULD_BLOCK when there are none now."""

    def receivable_bytes(self) -> int:
        """How much has come and was not received yet."""

    def send(self, data: bytes | memoryview, more: bool) -> int:
        """Bytes taken, or WOULD_BLOCK. `more` says that the next piece follows at once."""

    def send_file(self, descriptor: int, position: int, size_bytes: int) -> int:
        """Bytes taken from the file, or WOULD_BLOCK."""

    def close(self) -> None: ...


class PlainTransport:
    """TCP without encryption: recv_into, send, sendfile."""

    __slots__ = ("_descriptor", "_socket")

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._descriptor = sock.fileno()

    def fileno(self) -> int:
        return self._descriptor

    def receive_into(self, buffer: memoryview) -> int:
        try:
            return self._socket.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return WOULD_BLOCK

    def receivable_bytes(self) -> int:
        answer = bytearray(4)
        fcntl.ioctl(self._descriptor, termios.FIONREAD, answer)
        return int.from_bytes(answer, sys.byteorder)

    def send(self, data: bytes | memoryview, more: bool) -> int:
        try:
            return self._socket.send(data, socket.MSG_MORE if more else 0)
        except (BlockingIOError, InterruptedError):
            return WOULD_BLOCK

    def send_file(self, descriptor: int, position: int, size_bytes: int) -> int:
        try:
            return os.sendfile(self._descriptor, descriptor, position, size_bytes)
        except (BlockingIOError, InterruptedError):
            return WOULD_BLOCK

    def close(self) -> None:
        self._socket.close()
