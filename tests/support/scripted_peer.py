"""Another box's Kafka port, played by the test in its own thread: it takes a connection, reads requests, answers when and what the test says.

ApiVersions is answered by itself as the acceptor answers it, unless a test wants to. Frames are cut by hand, so that ours are judged by the test alone.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import time
from collections.abc import Callable
from typing import NamedTuple

from appliance.base.errors import ErrorCode
from appliance.client.address import Address
from appliance.protocol.api_versions import encode_api_versions_response
from appliance.protocol.apis import CODED_APIS, ApiKey
from appliance.protocol.framing import parse_request_header


class PeerRequest(NamedTuple):
    """One request as it came; `body` has its fields."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body: bytes


PATIENCE_SECONDS = 20.0
"""For what another process or the kernel may delay on a busy machine; nothing waits for it to pass."""


def until(condition: Callable[[], object], turn: Callable[[], object], what: str) -> None:
    """Turn until it is so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        turn()
        os.sched_yield()


class ScriptedPeer:
    """`turn` is what makes the other side go on while the test waits for it."""

    def __init__(self, turn: Callable[[], object], tls: ssl.SSLContext | None = None) -> None:
        """`tls`: of all connections; the handshake is part of the first read."""
        self._turn = turn
        self._tls = tls
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.setblocking(False)
        self.address = Address("127.0.0.1", self.listening.getsockname()[1])
        self.sock: socket.socket | None = None
        self.answers_versions = True
        self.received = b""
        self.accepted = 0

    def accept(self) -> None:
        """Take the next connection; it must come."""
        until(self.poll_accept, self._turn, "no peer connected")

    def poll_accept(self) -> bool:
        try:
            self.sock, _ = self.listening.accept()
        except BlockingIOError:
            return False
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what is sent has arrived
        if self._tls is not None:
            self.sock = self._tls.wrap_socket(self.sock, server_side=True, do_handshake_on_connect=False)
        self.received = b""
        self.accepted += 1
        return True

    def next_request(self) -> PeerRequest:
        """The next request; questions for versions are answered on the way."""
        found: list[PeerRequest] = []

        def has_come() -> bool:
            if self.sock is None:
                self.accept()
            request = self.poll_request()
            if request is not None:
                found.append(request)
            return bool(found)

        until(has_come, self._turn, "no request came")
        return found[0]

    def poll_request(self) -> PeerRequest | None:
        """A request that is there, if one is."""
        if self.sock is None:
            return None
        while True:
            if len(self.received) >= 4:
                (size,) = struct.unpack_from(">i", self.received)
                if len(self.received) >= 4 + size:
                    frame, self.received = self.received[4 : 4 + size], self.received[4 + size :]
                    header = parse_request_header(frame, 0, size)
                    request = PeerRequest(header.api_key, header.api_version, header.correlation_id, header.client_id, frame[header.body_position :])
                    if request.api_key != ApiKey.API_VERSIONS or not self.answers_versions:
                        return request
                    self.send(encode_api_versions_response(request.version, request.correlation_id))
                    continue
            try:
                received = self.sock.recv(1 << 20)
            except (BlockingIOError, ssl.SSLWantReadError):
                return None
            except (ConnectionResetError, ssl.SSLError):
                received = b""
            if not received:
                self.hang_up()
                return None
            self.received += received

    def send(self, data: bytes) -> None:
        """All of it, while the other side goes on reading."""
        assert self.sock is not None
        while data:
            try:
                data = data[self.sock.send(data) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._turn()

    def answer(self, request: PeerRequest, body: bytes) -> None:
        self.send(answer_frame(request, body))

    def refuse_versions(self, request: PeerRequest) -> None:
        self.send(encode_api_versions_response(request.version, request.correlation_id, ErrorCode.INVALID_REQUEST))

    def hang_up(self) -> None:
        """Close the connection; the port stays."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None

    def die(self) -> None:
        """The port is gone too."""
        self.hang_up()
        self.listening.close()

    def come_back(self) -> None:
        """Listen again on the same port."""
        self.listening = socket.create_server(self.address)
        self.listening.setblocking(False)


def answer_frame(request: PeerRequest, body: bytes) -> bytes:
    """The whole frame, in the response header that the version wants."""
    flexible = CODED_APIS[request.api_key].is_flexible(request.version) and request.api_key != ApiKey.API_VERSIONS
    payload = struct.pack(">i", request.correlation_id) + (b"\0" if flexible else b"") + body
    return struct.pack(">i", len(payload)) + payload
