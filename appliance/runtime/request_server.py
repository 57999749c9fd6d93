"""A Unix socket for requests of processes and commands of the same box: frames in, answers and
notifications out.

Owned by the controller (`controller.sock`) and the coordinator (`coordinator.sock`). A client that
disconnects or sends an invalid frame or a descriptor is dropped; its request continues, and the answer is
discarded. Weak: answers to a client that does not read stay in memory, up to `UNSENT_FRAMES_MAX`,
then it is dropped.

`supervisor.sock`: answers requests for the state of the processes, and accepts disk orders (under
systemd from root alone, so that no process of the box can give them). Frames with JSON.

Owned by the supervisor. Weak: a client that does not read its answers is disconnected at a limit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from appliance.ipc.frames import Frame, FrameSocket, PeerGone, accept, close_descriptors, is_trusted_user, listen_unix
from appliance.runtime.poller import READABLE, WRITABLE, Poller

UNSENT_FRAMES_MAX = 1000
ACCEPTS_A_TURN = 16


class RequestClient:
    """One connected process."""

    __slots__ = ("is_open", "sent_waiting", "socket", "user")

    def __init__(self, socket: FrameSocket) -> None:
        self.socket = socket
        self.user = socket.peer_user()
        self.is_open = True
        self.sent_waiting = 0


OnFrame = Callable[[RequestClient, Frame], None]


class RequestServer:
    """Accepts connections, reads and sends frames; never waits."""

    def __init__(self, path: str, poller: Poller, on_frame: OnFrame, greeting: Callable[[], tuple[int, bytes]] | None = None) -> None:
        """`greeting` returns kind and payload of the first frame to each new client."""
        self._poller = poller
        self._on_frame = on_frame
        self._greeting = greeting
        self._clients: dict[int, RequestClient] = {}
        self._listening = listen_unix(path)
        poller.register(self._listening.fileno(), READABLE, self._on_connections)

    def _on_connections(self, _events: int) -> None:
        for _ in range(ACCEPTS_A_TURN):
            socket = accept(self._listening)
            if socket is None:
                return
            client = RequestClient(socket)
            self._clients[socket.fileno()] = client
            self._poller.register(socket.fileno(), READABLE, lambda events, client=client: self._on_events(client, events))  # type: ignore[misc]
            if self._greeting is not None:
                kind, payload = self._greeting()
                self.send(client, kind, 0, payload)

    def _on_events(self, client: RequestClient, events: int) -> None:
        try:
            if events & WRITABLE:
                client.socket.flush()
                self._watch(client)
            frames = client.socket.receive() if events & ~WRITABLE else []
        except PeerGone:
            self._drop(client)
            return
        for frame in frames:
            if frame.descriptors:
                close_descriptors(frame)
                self._drop(client)
            if client.is_open:
                self._on_frame(client, frame)

    def send(self, client: RequestClient, kind: int, token: int, payload: bytes) -> None:
        """Send or queue an answer; it is discarded if the client is gone."""
        if not client.is_open:
            return
        try:
            client.socket.send(kind, token, payload)
        except PeerGone:
            self._drop(client)
            return
        client.sent_waiting = client.sent_waiting + 1 if client.socket.wants_write else 0
        if client.sent_waiting > UNSENT_FRAMES_MAX:
            self._drop(client)
            return
        self._watch(client)

    def _watch(self, client: RequestClient) -> None:
        self._poller.modify(client.socket.fileno(), READABLE | WRITABLE if client.socket.wants_write else READABLE)

    def broadcast(self, kind: int, payload: bytes) -> None:
        """Send a notification to all clients."""
        for client in list(self._clients.values()):
            self.send(client, kind, 0, payload)

    def drop_peer(self, client: RequestClient) -> None:
        """Close the connection of a client that broke the protocol."""
        self._drop(client)

    def _drop(self, client: RequestClient) -> None:
        if client.is_open:
            client.is_open = False
            descriptor = client.socket.fileno()
            self._poller.unregister(descriptor)
            self._clients.pop(descriptor, None)
            client.socket.close()

    def close(self) -> None:
        for client in list(self._clients.values()):
            self._drop(client)
        self._poller.unregister(self._listening.fileno())
        self._listening.close()


STATUS = 1
"""Frame kind of a status request and its answer."""
DISK_ORDER = 2
"""Frame kind of a disk order (JSON: verb, name, path) and its answer (JSON: disk, or error)."""

CLIENTS_MAX = 64
NOT_ROOT = "only root may change the disks and settings of a box that systemd runs; run the command with sudo"


class StatusServer:
    """Answers each STATUS frame with the result of `describe`."""

    def __init__(
        self,
        path: str,
        poller: Poller,
        describe: Callable[[], dict[str, Any]],
        order: Callable[[dict[str, str]], dict[str, str]] | None = None,
        may_order: Callable[[int], bool] = is_trusted_user,
    ) -> None:
        """`may_order`: whether a user (SO_PEERCRED) may give orders."""
        self._path = path
        self._poller = poller
        self._describe = describe
        self._order = order
        self._may_order = may_order
        self._listening = listen_unix(path, is_own=True)
        self._clients: dict[int, FrameSocket] = {}
        poller.register(self._listening.fileno(), READABLE, self._on_accept)

    def _on_accept(self, _events: int) -> None:
        client = accept(self._listening)
        if client is None:
            return
        if len(self._clients) >= CLIENTS_MAX:
            client.close()
            return
        descriptor = client.fileno()
        self._clients[descriptor] = client
        self._poller.register(descriptor, READABLE, lambda events: self._on_client(descriptor, events))

    def _on_client(self, descriptor: int, events: int) -> None:
        client = self._clients[descriptor]
        try:
            if events & WRITABLE:
                client.flush()
            else:
                for frame in client.receive():
                    close_descriptors(frame)
                    if frame.kind == DISK_ORDER and self._order is not None and not client.wants_write:
                        order = _order_of(frame.payload)
                        answer = self._order(order) if self._may_order(client.peer_user()) else {"error": NOT_ROOT}
                        client.send(DISK_ORDER, frame.token, json.dumps(answer).encode())
                        continue
                    if frame.kind != STATUS or client.wants_write:
                        raise PeerGone("it sent an unknown request, or does not read its answers")
                    client.send(STATUS, frame.token, json.dumps(self._describe()).encode())
            self._poller.modify(descriptor, READABLE | WRITABLE if client.wants_write else READABLE)
        except PeerGone:
            self._drop(descriptor)

    def _drop(self, descriptor: int) -> None:
        self._poller.unregister(descriptor)
        self._clients.pop(descriptor).close()

    def close(self) -> None:
        for descriptor in list(self._clients):
            self._drop(descriptor)
        self._poller.unregister(self._listening.fileno())
        self._listening.close()
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            pass


def _order_of(payload: bytes) -> dict[str, str]:
    """Return the fields of an order. Raises PeerGone if they are not texts."""
    try:
        document = json.loads(payload)
    except ValueError as error:
        raise PeerGone("its order is not JSON") from error
    if not isinstance(document, dict) or not all(isinstance(value, str) for value in document.values()):
        raise PeerGone("its order is not made of texts")
    return document
