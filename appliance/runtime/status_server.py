"""`supervisor.sock`: answers requests for the state of the processes, and accepts disk orders.
Frames with JSON.

Owned by the supervisor. Weak: a client that does not read its answers is disconnected at a limit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from appliance.ipc.frames import FrameSocket, PeerGone, accept, listen_unix
from appliance.runtime.poller import READABLE, WRITABLE, Poller

STATUS = 1
"""Frame kind of a status request and its answer."""
DISK_ORDER = 2
"""Frame kind of a disk order (JSON: verb, name, path) and its answer (JSON: disk, or error)."""

CLIENTS_MAX = 64


class StatusServer:
    """Answers each STATUS frame with the result of `describe`."""

    def __init__(
        self, path: str, poller: Poller, describe: Callable[[], dict[str, Any]], order: Callable[[dict[str, str]], dict[str, str]] | None = None
    ) -> None:
        self._path = path
        self._poller = poller
        self._describe = describe
        self._order = order
        self._listening = listen_unix(path)
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
                    for passed in frame.descriptors:
                        os.close(passed)
                    if frame.kind == DISK_ORDER and self._order is not None and not client.wants_write:
                        client.send(DISK_ORDER, frame.token, json.dumps(self._order(_order_of(frame.payload))).encode())
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
