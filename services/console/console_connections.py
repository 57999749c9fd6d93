"""Connections of the console: how many there may be, and how long each may take.

uvicorn has no time limit for a header that does not come, so idle sockets of one address could shut
out probes. A connection must send a whole header within `HEADER_SECONDS`, take its answer within
`ANSWER_SECONDS` (a streamed one: some of it), and share its network (an IPv4 address, or an IPv6
/64, all of which one machine can use) with fewer than `ADDRESS_CONNECTIONS_MAX` others, unless it is
that of a proxy of the console (`http.proxy.networks`), which has those of many users. None of the
limits holds for the Unix socket, by which install.sh asks for readiness. Owned by the console's
loop. Weak: a machine with eight networks can still take all `CONNECTIONS_MAX`.
"""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from appliance.base.networks import Network, lies_in, packed_address
from appliance.senders.sender_accounts import network_of
from services.console.search_route import STREAMED

HEADER_SECONDS = 5.0
"""Also the time after which a kept connection without a request is closed (uvicorn's default)."""
ANSWER_SECONDS = 30.0
CONNECTIONS_MAX = 256
ADDRESS_CONNECTIONS_MAX = 32


class ConsoleConnections:
    """Counts the open connections by network. `on_closed` counts what the console closed, by reason."""

    def __init__(
        self,
        on_closed: Callable[[str], None],
        header_seconds: float = HEADER_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
        proxies: Sequence[Network] = (),
    ) -> None:
        self._proxies = proxies
        self.on_closed = on_closed
        self.header_seconds = header_seconds
        self.answer_seconds = answer_seconds
        self._open = 0
        self._by_network: Tally[str | bytes] = Tally()

    def acquire(self, address: str) -> bool:
        """Return False if there are too many already."""
        network = network_of(address)
        if self._open >= CONNECTIONS_MAX:
            return False
        if self._by_network[network] >= ADDRESS_CONNECTIONS_MAX and not lies_in(packed_address(address), self._proxies):
            return False
        self._open += 1
        self._by_network[network] += 1
        return True

    def release(self, address: str) -> None:
        self._open -= 1
        network = network_of(address)
        self._by_network[network] -= 1
        if not self._by_network[network]:
            del self._by_network[network]


def bounded_protocol(connections: ConsoleConnections) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with the limits of this module."""

    class BoundedProtocol(H11Protocol):
        """One connection. `_request` is the request cycle that `_timer` was armed for; None while
        the next header is expected."""

        def __init__(
            self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any], _loop: asyncio.AbstractEventLoop | None = None
        ) -> None:
            super().__init__(config, server_state, app_state, _loop)
            self._address: str | None = None
            self._request: object = None
            self._timer: asyncio.TimerHandle | None = None
            self._streamed: object = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if self.client is None:
                return  # the Unix socket
            if not connections.acquire(self.client[0]):
                connections.on_closed("connection-limit")
                transport.abort()
                return
            self._address = self.client[0]
            self._timer = self.loop.call_later(connections.header_seconds, self._on_overdue)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self._address is not None and self._timer is not None:
                self._timer.cancel()
                self._timer = None
                connections.release(self._address)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def _watch(self) -> None:
            """Start the time of the answer when a header is complete, that of the next header when
            the answer is. More bytes of a header give it no more time."""
            request = None if self.cycle is None or self.cycle.response_complete else self.cycle
            if request is self._request or self._timer is None:
                return
            self._request = request
            self._timer.cancel()
            self._timer = self.loop.call_later(connections.answer_seconds if self._owes_answer else connections.header_seconds, self._on_overdue)

        @property
        def _owes_answer(self) -> bool:
            """uvicorn regards an answer as complete when the transport has it."""
            return self._request is not None or self.transport.get_write_buffer_size() > 0

        def _on_overdue(self) -> None:
            streamed = self.scope.get(STREAMED) if self._request is not None else None
            if streamed != self._streamed and streamed is not None:
                self._streamed = streamed
                self._timer = self.loop.call_later(connections.answer_seconds, self._on_overdue)
                return
            if self._owes_answer:
                connections.on_closed("answer-timeout")
            elif self.cycle is None or self.conn.trailing_data[0]:
                connections.on_closed("header-timeout")
            self.transport.abort()

    return BoundedProtocol
