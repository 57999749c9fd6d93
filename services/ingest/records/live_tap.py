"""Shows records to commands of this machine as they pass (`millrace ingest tap`), and what is
refused.

A command connects to `tap@K.sock` (SEQPACKET), sends one message of JSON (`listener`, `sender`: null
for any), and receives one for each record or count. `ingest` never waits for it: what exceeds
`RECORDS_A_SECOND`, or the buffer of the socket, is not shown, and the next message says how many
were not. Without a tap the router sees None. Owned by one ingest agent. Weak: all taps share the
rate; refused input is a reason and a count, because what cannot be decoded has no text.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from appliance.base.clock import Clock
from appliance.ipc.frames import accept_trusted, listen_unix
from appliance.runtime.poller import READABLE, Poller
from services.ingest.records.ack_group import AckGroup

TAPS_MAX = 4
RECORDS_A_SECOND = 500
"""One takes up to 10 µs, so all together take at most half a percent of the process."""
_SHARES_A_SECOND = 10
VALUE_BYTES_MAX = 16 << 10
"""Of a longer value the beginning is shown."""
REQUEST_BYTES_MAX = 4 << 10


class _Tap:
    """One connection. Until its request is there, it wants nothing."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.is_open = False
        self.listener: str | None = None
        self.sender: str | None = None
        self._not_shown = 0

    def wants(self, listener: str, host: bytes) -> bool:
        return self.is_open and self.listener in (None, listener) and self.sender in (None, host.decode("ascii", "replace"))

    def skip(self, count: int) -> None:
        self._not_shown += count

    def send(self, document: dict[str, Any]) -> None:
        """Send at once or not at all; whose reader is gone is removed by the poller's next event."""
        try:
            self.connection.send(orjson.dumps(document | {"not_shown": self._not_shown}))
            self._not_shown = 0
        except OSError:
            self._not_shown += 1


class LiveTap:
    """The listening socket and its connections. `on_watched` gets this object while a command
    watches, otherwise None."""

    def __init__(self, path: str, poller: Poller, clock: Clock, on_watched: Callable[[LiveTap | None], None]) -> None:
        self._path = path
        self._poller = poller
        self._clock = clock
        self._on_watched = on_watched
        self._taps: dict[int, _Tap] = {}
        self._share_end_ms = 0
        self._left = 0
        self._listening = listen_unix(path, socket.SOCK_SEQPACKET)
        self._poller.register(self._listening.fileno(), READABLE, self._on_connection)

    def close(self) -> None:
        for descriptor in list(self._taps):
            self._drop(descriptor)
        self._poller.unregister(self._listening.fileno())
        self._listening.close()
        if os.path.exists(self._path):
            os.unlink(self._path)

    # -- what passes

    def records(self, group: AckGroup, topic: str, values: Sequence[bytes]) -> None:
        """Show received records on their way to a topic."""
        for tap in self._taps.values():
            if not tap.wants(group.listener.name, group.source.host):
                continue
            shown = self._granted(len(values))
            for value in values[:shown]:
                text = value[:VALUE_BYTES_MAX].decode("utf-8", "replace")
                self._show(tap, group.listener.name, group.source.address, topic=topic, value=text, size_bytes=len(value))
            tap.skip(len(values) - shown)

    def count(self, listener: str, host: bytes, address: bytes, what: str, count: int) -> None:
        """Show that input was refused, or that records are repeated or lost: `what` says why."""
        for tap in self._taps.values():
            if tap.wants(listener, host):
                if self._granted(1):
                    self._show(tap, listener, address, what=what, count=count)
                else:
                    tap.skip(count)

    def _show(self, tap: _Tap, listener: str, address: bytes, **more: Any) -> None:
        tap.send({"time_ms": self._clock.wall_ms(), "listener": listener, "sender": address.decode("ascii", "replace")} | more)

    def _granted(self, wanted: int) -> int:
        """Return how many of `wanted` messages may be sent now."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._share_end_ms:
            self._share_end_ms = now_ms + 1_000 // _SHARES_A_SECOND
            self._left = RECORDS_A_SECOND // _SHARES_A_SECOND
        granted = min(wanted, self._left)
        self._left -= granted
        return granted

    # -- connections

    def _on_connection(self, _events: int) -> None:
        connection = accept_trusted(self._listening)
        if connection is None:
            return
        connection.setblocking(False)
        if len(self._taps) >= 2 * TAPS_MAX:
            connection.close()
            return
        descriptor = connection.fileno()
        self._taps[descriptor] = _Tap(connection)
        self._poller.register(descriptor, READABLE, lambda _events: self._on_readable(descriptor))

    def _on_readable(self, descriptor: int) -> None:
        tap = self._taps[descriptor]
        try:
            request = tap.connection.recv(REQUEST_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            request = b""
        if tap.is_open or not request:
            self._drop(descriptor)  # it has ended, or says more than there is to say
            return
        try:
            wanted = orjson.loads(request)
            tap.listener, tap.sender = wanted["listener"], wanted["sender"]
            problem = f"{TAPS_MAX} taps watch already; end one of them" if sum(each.is_open for each in self._taps.values()) >= TAPS_MAX else None
        except (orjson.JSONDecodeError, KeyError, TypeError):
            problem = "no request of a tap"
        if problem is not None:
            tap.send({"error": problem})
            self._drop(descriptor)
            return
        tap.is_open = True
        tap.send({"watching": True})
        self._on_watched(self)

    def _drop(self, descriptor: int) -> None:
        tap = self._taps.pop(descriptor)
        self._poller.unregister(descriptor)
        tap.connection.close()
        if not any(each.is_open for each in self._taps.values()):
            self._on_watched(None)
