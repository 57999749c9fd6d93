"""Length-prefixed frames over a non-blocking Unix stream socket, with file descriptors.

Frame: u32 length of the rest · u8 kind · u64 token · payload. Descriptors are attached to the first
byte of their frame. Weak: the descriptors of two frames that one call receives cannot be
distinguished, so they are only sent in handshakes, where one frame is in flight.

The interface of the poller for links and proxies; the poller itself is above them
(`runtime/poller.py`).
"""

from __future__ import annotations

import array
import os
import socket
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import NamedTuple, Protocol

from appliance.base.errors import MillraceError
from appliance.base.invariants import check
from appliance.base.trusted_files import box_group

HEADER = Struct("<IBQ")
MAX_FRAME_BYTES = 64 << 20
MAX_PAYLOAD_BYTES = MAX_FRAME_BYTES - HEADER.size
PEER_CREDENTIALS = Struct("=iII")
"""SO_PEERCRED and SCM_CREDENTIALS: pid, user id, group id."""
_RECEIVE_BYTES = 1 << 18
_MAX_DESCRIPTORS = 8


class PeerGone(MillraceError):
    """The other process hung up: it died, or closed the socket."""


class Frame(NamedTuple):
    """One message."""

    kind: int
    token: int
    payload: bytes
    descriptors: tuple[int, ...]


class FrameSocket:
    """One end of a connection. `send` queues what the socket does not accept; `flush` continues
    when it is writable."""

    def __init__(self, sock: socket.socket, frame_bytes_max: int = MAX_FRAME_BYTES) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._frame_bytes_max = frame_bytes_max
        self._received = bytearray()
        self._descriptors: list[int] = []
        self._outgoing: deque[tuple[memoryview, tuple[int, ...]]] = deque()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        return bool(self._outgoing)

    def send(self, kind: int, token: int = 0, payload: bytes = b"", descriptors: tuple[int, ...] = ()) -> None:
        """Send or queue one frame. Raises PeerGone. A payload above MAX_PAYLOAD_BYTES is an
        InvariantViolation."""
        check(len(payload) <= MAX_PAYLOAD_BYTES, f"a frame of kind {kind} with {len(payload)} bytes is too long")
        frame = HEADER.pack(HEADER.size - 4 + len(payload), kind, token) + payload
        self._outgoing.append((memoryview(frame), descriptors))
        self.flush()

    def flush(self) -> None:
        """Send queued bytes, as many as the socket accepts. Raises PeerGone."""
        while self._outgoing:
            frame, descriptors = self._outgoing[0]
            try:
                if descriptors:
                    rights = array.array("i", descriptors)
                    sent = self._socket.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                else:
                    sent = self._socket.send(frame)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                raise PeerGone(str(error)) from error
            if sent == len(frame):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = (frame[sent:], ())

    def receive(self) -> list[Frame]:
        """Return all complete frames that were received. Raises PeerGone at the end of the stream,
        for an invalid length, and for more descriptors than a frame can have."""
        gone = False
        while True:
            try:
                data, ancillary, _flags, _address = self._socket.recvmsg(_RECEIVE_BYTES, socket.CMSG_SPACE(4 * _MAX_DESCRIPTORS), socket.MSG_CMSG_CLOEXEC)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                gone = True
                break
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    rights = array.array("i")
                    rights.frombytes(content[: len(content) // rights.itemsize * rights.itemsize])
                    self._descriptors.extend(rights)
            if len(self._descriptors) > _MAX_DESCRIPTORS:
                raise PeerGone("a frame carries too many descriptors")
            if not data:
                gone = True
                break
            self._received += data
            if len(data) < _RECEIVE_BYTES or len(self._received) > self._frame_bytes_max:
                break
        frames = self._take_frames()
        if gone and not frames:
            raise PeerGone("hung up")
        return frames

    def _take_frames(self) -> list[Frame]:
        frames: list[Frame] = []
        received = self._received
        position = 0
        while len(received) - position >= HEADER.size:
            length, kind, token = HEADER.unpack_from(received, position)
            if length < HEADER.size - 4 or length > self._frame_bytes_max:
                raise PeerGone(f"a frame of {length} bytes is not one of ours")
            end = position + 4 + length
            if end > len(received):
                break
            descriptors, self._descriptors = tuple(self._descriptors), []
            frames.append(Frame(kind, token, bytes(received[position + HEADER.size : end]), descriptors))
            position = end
        if position:
            del received[:position]
        return frames

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []
        self._socket.close()

    def peer_user(self) -> int:
        """Return the user that the process at the other end had when it connected."""
        return peer_user(self._socket)


def close_descriptors(frame: Frame) -> None:
    """Close the descriptors of a frame that is not handled."""
    for descriptor in frame.descriptors:
        os.close(descriptor)


def listen_unix(path: str, kind: int = socket.SOCK_STREAM, is_own: bool = False) -> socket.socket:
    """Listen at `path`, replacing the socket file of a previous incarnation. Its mode is 0600; 0660
    in a box with two users, unless the socket is for its owner and root alone (`is_own`)."""
    listening = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    temporary = f"{path}.{os.getpid()}"
    if os.path.lexists(temporary):
        os.unlink(temporary)  # of a process that had our pid and died between bind and rename
    listening.bind(temporary)
    os.chmod(temporary, 0o600 if is_own or box_group() is None else 0o660)
    listening.listen(128)
    os.rename(temporary, path)
    return listening


def connect_unix(path: str) -> FrameSocket | None:
    """Connect to a listening process; None if none listens."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.connect(path)
    except OSError:
        sock.close()
        return None
    return FrameSocket(sock)


def accept(listening: socket.socket, frame_bytes_max: int = MAX_FRAME_BYTES) -> FrameSocket | None:
    """Return one waiting connection; None if there is none, or if it was another user's."""
    accepted = accept_trusted(listening)
    return None if accepted is None else FrameSocket(accepted, frame_bytes_max)


def accept_trusted(listening: socket.socket) -> socket.socket | None:
    """As `accept`, for sockets without frames. Closes a connection of a user that is none of the
    box's, so that the processes of a box do not depend on the modes of directories alone."""
    try:
        accepted, _ = listening.accept()
        user, group = peer_identity(accepted)
    except OSError:
        return None
    if is_trusted_user(user) or (box_group() is not None and group == box_group()):
        return accepted
    accepted.close()
    return None


def peer_user(connected: socket.socket) -> int:
    """Return the user that the process at the other end had when it connected (SO_PEERCRED)."""
    return peer_identity(connected)[0]


def peer_identity(connected: socket.socket) -> tuple[int, int]:
    """Return user and group that the process at the other end had when it connected (SO_PEERCRED)."""
    _pid, user, group = PEER_CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size))
    return user, group


def is_trusted_user(user_id: int) -> bool:
    """Return whether this is the user of this process, or root."""
    return user_id in (0, os.geteuid())


class Registry(Protocol):
    """The poller of the runtime, or its replacement in tests."""

    def register(self, descriptor: int, events: int, callback: Callable[[int], None]) -> None: ...

    def modify(self, descriptor: int, events: int) -> None: ...

    def unregister(self, descriptor: int) -> None: ...
