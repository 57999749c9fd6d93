"""How many connections a second may be opened: with an acceptor, with one of its listeners, from an address (KIP-612).

As in Kafka, a listener above its rate, or an acceptor above that of all, takes no connection for a moment, so that
clients wait in the kernel's queue; the listener of boxes has its own rate only, if there are others. A connection of
an address above its quota is closed after a moment, so that a client that connects again at once is slowed down.
The Unix socket has no rate. Owned by one acceptor. Weak: the rates of listeners are those of one acceptor.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from typing import Final

from appliance.base.setting_row import INT32_MAX
from appliance.security.quotas import WINDOW_MS, SampledRate
from services.acceptor.listening_socket import ListeningSocket

PAUSE_MS_MAX: Final = WINDOW_MS
"""Kafka waits for one window at most."""
DELAYED_MAX: Final = 1_000
"""Connections that are closed later, at most; beyond them at once."""
_NS_A_MS: Final = 1_000_000


class ConnectionRates:
    """Counts new connections. `connection_throttle_ms`: the quota of an address, None while no address has one."""

    def __init__(self, wanted: int) -> None:
        """`wanted`: connections a second of all listeners together."""
        self.wanted = wanted
        self.connection_throttle_ms: Callable[[str], int] | None = None
        self._all = SampledRate()
        self._of_listeners: dict[str, SampledRate] = {}
        self._delayed: deque[tuple[int, socket.socket]] = deque()
        """sockets of refused connections, and when each is closed"""

    def pause_ms(self, listening: ListeningSocket, is_only_own: bool, now_ms: int) -> int:
        """Count a connection; return for how long its listener must not take another one. `is_only_own`: the rate of all does not hold for it."""
        own = listening.creation_rate
        pause_ms = 0
        if own < INT32_MAX:
            rate = self._of_listeners.setdefault(listening.name, SampledRate())
            rate.record(1, now_ms)
            pause_ms = rate.throttle_ms(own, now_ms)
        if self.wanted < INT32_MAX and not is_only_own:
            self._all.record(1, now_ms)
            pause_ms = max(pause_ms, self._all.throttle_ms(self.wanted, now_ms))
        return min(PAUSE_MS_MAX, pause_ms)

    def close_later(self, sock: socket.socket, throttle_ms: int, now_ns: int) -> None:
        """Close the socket of a refused connection after this time; nothing is read from it."""
        if len(self._delayed) >= DELAYED_MAX:
            self._delayed.popleft()[1].close()
        self._delayed.append((now_ns + min(PAUSE_MS_MAX, throttle_ms) * _NS_A_MS, sock))

    def sweep(self, now_ns: int) -> None:
        """Close what is due, once a second."""
        while self._delayed and self._delayed[0][0] <= now_ns:
            self._delayed.popleft()[1].close()

    def close(self) -> None:
        while self._delayed:
            self._delayed.popleft()[1].close()
