"""Asks the embedded ZooKeeper whether it serves (`srvr`), without waiting, and keeps for it the counters that a JVM cannot.

Owned by the supervisor, whose poller carries the connection. While it does not serve it is asked every 50 ms, afterwards twice in a watchdog period.
Weak spot: `srvr` says nothing about a disk that hangs under its transaction log until a session needs it.
"""

from __future__ import annotations

import socket

from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.runtime.poller import HANG_UP, READABLE, WRITABLE, Poller
from appliance.shm.counters import PURPOSE, Counters
from appliance.shm.mapping import PID_WORD, SharedObject

NAME = "zookeeper"
ASK_MS_WHILE_STARTING = 50
ANSWER_MS_MAX = 1_000


class ZooKeeperWatch:
    """One question at a time. `serves` is what the last answer said; `heard_ms` when it last said so."""

    def __init__(self, layout: BoxLayout, address: str, poller: Poller, clock: Clock) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._layout = layout
        self._poller = poller
        self._clock = clock
        self._counters = Counters.create_or_adopt(layout, NAME, clock.monotonic_ns(), clock.wall_ms())
        self._socket: socket.socket | None = None
        self._answer = b""
        self._asked_ms = 0
        self.serves = False
        self.heard_ms = 0

    def on_started(self, pid: int, now_ms: int) -> None:
        """A new JVM has this pid."""
        self._hang_up()
        self.serves = False
        self.heard_ms = now_ms
        self._counters.close()
        self._counters = Counters.create_or_adopt(self._layout, NAME, self._clock.monotonic_ns(), self._clock.wall_ms())
        shared = SharedObject.attach(self._layout.shared_memory_name("counters", NAME), PURPOSE, writable=True)
        shared.words[PID_WORD] = pid  # the object says who made it; its readers want the process it speaks of
        shared.close()
        self._counters.beat(self._clock.monotonic_ns())

    def set_state(self, state: str) -> None:
        self._counters.set_state(state)

    def ask(self, now_ms: int) -> None:
        """Ask, unless a question is under way; one without an answer for too long is given up."""
        if self._socket is not None:
            if now_ms - self._asked_ms < ANSWER_MS_MAX:
                return
            self._hang_up()
        self._asked_ms = now_ms
        self._answer = b""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._socket.connect_ex(self._address)
        self._poller.register(self._socket.fileno(), WRITABLE, self._on_event)

    def _on_event(self, events: int) -> None:
        sock = self._socket
        assert sock is not None
        try:
            if events & WRITABLE and not events & HANG_UP:
                sock.send(b"srvr")
                self._poller.modify(sock.fileno(), READABLE)
                return
            data = sock.recv(4096)
        except OSError:
            data = b""
        self._answer += data
        if b"\nMode: " in self._answer:
            self.serves = True
            self.heard_ms = self._clock.monotonic_ms()
            self._counters.beat(self._clock.monotonic_ns())
            self._hang_up()
        elif not data:
            self._hang_up()

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._poller.unregister(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        self._hang_up()
        self._counters.close()
