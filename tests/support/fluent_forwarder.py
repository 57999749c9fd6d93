"""A sender of Fluent chunks as fluentd's and Fluent Bit's outputs are: chunks with ids, several under way, sent again until each is acknowledged.

fluentd itself is not to be had for tests, and the loggers of PyPI and npm forget what was not acknowledged. Weak spot: it waits for nothing between two
connections but the box.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence

import msgpack

from tests.support.running_box import Address

ACK_SECONDS = 10.0
SECONDS_MAX = 60.0


class FluentForwarder:
    """`send` returns when all is acknowledged."""

    def __init__(self, address: Address, under_way_max: int = 1, on_acknowledged: Callable[[], object] = lambda: None) -> None:
        self._address = address
        self._under_way_max = under_way_max
        self._on_acknowledged = on_acknowledged
        self.connections = 0

    def send(self, tag: str, chunks: Sequence[bytes]) -> bool:
        """PackedForward messages of these chunks. False if some were not acknowledged in time."""
        waiting = {f"{tag}-{number}-{time.monotonic_ns()}": chunk for number, chunk in enumerate(chunks)}
        deadline = time.monotonic() + SECONDS_MAX
        while waiting and time.monotonic() < deadline:
            try:
                with socket.create_connection(self._address, timeout=ACK_SECONDS) as connection:
                    self.connections += 1
                    self._send_on(connection, tag, waiting)
            except OSError:
                time.sleep(0.02)  # nobody listens, or the connection broke: the box comes back
        return not waiting

    def _send_on(self, connection: socket.socket, tag: str, waiting: dict[str, bytes]) -> None:
        answers = msgpack.Unpacker()
        unsent, under_way = list(waiting), 0
        while unsent or under_way:
            while unsent and under_way < self._under_way_max:
                chunk_id = unsent.pop(0)
                connection.sendall(msgpack.packb([tag, waiting[chunk_id], {"chunk": chunk_id}]))
                under_way += 1
            received = connection.recv(4096)
            if not received:
                raise ConnectionError("the box closed the connection")
            answers.feed(received)
            for answer in answers:
                del waiting[answer["ack"]]
                under_way -= 1
                self._on_acknowledged()
