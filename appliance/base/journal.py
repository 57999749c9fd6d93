"""journald's native protocol: one datagram per event, with fields
(systemd.io/JOURNAL_NATIVE_PROTOCOL).

Implemented here because `systemd-python` imports `logging` (2.6 MB PSS in each of a dozen
processes, this 0.4 MB), needs a compiler, and blocks while journald hangs. Owned by one `Logger`.
Nothing here waits: an entry that journald does not accept at once is dropped, and the logger counts
it. Weak: dropped entries are not queued.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from array import array
from collections.abc import Mapping

SOCKET_PATH = "/run/systemd/journal/socket"
STREAM_VARIABLE = "JOURNAL_STREAM"
_TOO_LARGE = (errno.EMSGSIZE, errno.ENOBUFS)
_NOBODY = (errno.ENOENT, errno.ECONNREFUSED, errno.EACCES, errno.EPERM)


class JournalAbsent(Exception):
    """The socket of journald does not exist, or this process may not use it."""


def is_journal(descriptor: int) -> bool:
    """Return whether the descriptor is the stream that systemd connected to journald:
    JOURNAL_STREAM has its device and inode (systemd.exec(5))."""
    device, _, inode = os.environ.get(STREAM_VARIABLE, "").partition(":")
    if not (device.isdigit() and inode.isdigit()):
        return False
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (int(device), int(inode))


def encode_entry(fields: Mapping[str, str]) -> bytes:
    """Encode `NAME=value` per line; a value with line ends as `NAME`, its length in 64 bits, and
    the value."""
    pieces: list[bytes] = []
    for name, value in fields.items():
        encoded = value.encode("utf-8", "backslashreplace")
        if b"\n" in encoded:
            pieces += (name.encode(), b"\n", len(encoded).to_bytes(8, "little"), encoded, b"\n")
        else:
            pieces += (name.encode(), b"=", encoded, b"\n")
    return b"".join(pieces)


class Journal:
    """The connection to journald."""

    def __init__(self, path: str = SOCKET_PATH) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)

    def send(self, entry: bytes) -> bool:
        """Send an entry. Returns False if journald does not accept it now. Raises JournalAbsent."""
        try:
            self._socket.sendto(entry, self._path)
        except OSError as error:
            if error.errno in _NOBODY:
                raise JournalAbsent from None
            return error.errno in _TOO_LARGE and self._send_in_memory(entry)
        return True

    def _send_in_memory(self, entry: bytes) -> bool:
        """Send an entry larger than a datagram as a sealed file in memory; journald reads only
        files that cannot change."""
        try:
            descriptor = os.memfd_create("millrace-log", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError:
            return False
        try:
            view = memoryview(entry)
            while view:
                view = view[os.write(descriptor, view) :]
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
            self._socket.sendmsg([], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [descriptor]))], 0, self._path)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True

    def close(self) -> None:
        self._socket.close()
