"""Which handler takes a request: one table from API key to handler.

Owned by one acceptor. Raises ProtocolViolation for everything that closes a connection (unknown API, unsupported version, malformed bytes).
"""

from __future__ import annotations

from typing import Protocol

from appliance.protocol.apis import ApiKey
from appliance.protocol.request_header import RequestHeader, parse_request_header
from services.acceptor.arena_slots import ArenaSlot
from services.acceptor.connection import Connection
from services.acceptor.handlers.produce import ProduceHandler


class Handler(Protocol):
    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None: ...


class Dispatch:
    """From frames to handlers."""

    def __init__(self, produce: ProduceHandler, handlers: dict[int, Handler]) -> None:
        self._produce = produce
        self._handlers = handlers

    def on_request(self, connection: Connection, buffer: memoryview, position: int, limit: int, body_slot: ArenaSlot | None) -> bool:
        """Take the request at `buffer[position:limit]`. False: no room in the arena now."""
        header = parse_request_header(buffer, position, limit)
        if header.api_key == ApiKey.PRODUCE:
            return self._produce.handle(connection, header, buffer, limit, body_slot)
        self._handlers[header.api_key].handle(connection, header, buffer, limit)
        return True
