"""The receiving end of sd_notify. The kernel vouches for the pid of the sender (SCM_CREDENTIALS).

Weak: messages of a child that dies before they are read match no child and are dropped.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from struct import Struct

_CREDENTIALS = Struct("=iII")
_MESSAGE_BYTES = 4096


class NotifySocket:
    """A datagram socket at `path`, which children find in NOTIFY_SOCKET."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        self._socket.bind(path)
        os.chmod(path, 0o600)

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> Iterator[tuple[int, str, str]]:
        """Yield each received assignment as (pid, name, value)."""
        while True:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(_MESSAGE_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
            except (BlockingIOError, InterruptedError):
                return
            pid = 0
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                    pid = _CREDENTIALS.unpack_from(content)[0]
            for line in data.decode("utf-8", "replace").splitlines():
                name, _, value = line.partition("=")
                yield pid, name, value

    def close(self) -> None:
        self._socket.close()
