"""The same as replay.c for machines without a C compiler: same arguments, same checks, same line of JSON.

Weak spot: it needs more CPU than the broker it loads, so on few cores it is what limits; the report says which of the two was used.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
import time
from collections import Counter, deque
from pathlib import Path

CORRELATION_IN_REQUEST = 8
SILENCE_SECONDS = 15.0


class Connection:
    """One connection with its window."""

    def __init__(self, address: tuple[str, int], frames: list[bytes], number: int, stride: int, in_flight: int) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.in_flight = in_flight
        self.sent_at: deque[float] = deque()
        self.received = b""
        self._frames, self._number, self._stride = frames, number, stride
        self._next_sent = 0
        self.next_answered = 0

    def send_more(self, now: float) -> int:
        """Fills the window; blocks if the broker does not read, which a few small frames never meet."""
        count = self.in_flight - len(self.sent_at)
        if count:
            self.socket.sendall(b"".join([self._frame(correlation) for correlation in range(self._next_sent, self._next_sent + count)]))
            self._next_sent += count
            self.sent_at.extend([now] * count)
        return count

    def _frame(self, correlation: int) -> bytes:
        frame = self._frames[(self._number + correlation * self._stride) % len(self._frames)]
        return frame[:CORRELATION_IN_REQUEST] + (correlation & 0xFFFFFFFF).to_bytes(4, "big") + frame[CORRELATION_IN_REQUEST + 4 :]


class Replay:
    """All connections and what was counted."""

    def __init__(self, connections: list[Connection], reply_bytes: int, error_at: int) -> None:
        self.connections = {connection.socket.fileno(): connection for connection in connections}
        self.errors: Counter[int] = Counter()
        self.latencies_us: Counter[int] = Counter()
        self.sends = self.receives = self.replies = self.requests = 0
        self._reply_bytes = reply_bytes
        self._error_at = error_at

    def run(self, seconds: float) -> float:
        """Returns how long it took until the last reply."""
        poller = select.epoll()
        for descriptor in self.connections:
            poller.register(descriptor, select.EPOLLIN)
        started = now = time.monotonic()
        stop_at = started + seconds
        for connection in self.connections.values():
            self._send_more(connection, now)
        while now < stop_at or self.replies < self.requests:
            ready = poller.poll(SILENCE_SECONDS)
            if not ready:
                raise SystemExit("replay: the broker no longer answers")
            now = time.monotonic()
            for descriptor, _ in ready:
                connection = self.connections[descriptor]
                self._receive(connection, now)
                if now < stop_at:
                    self._send_more(connection, now)
        return now - started

    def _send_more(self, connection: Connection, now: float) -> None:
        self.requests += connection.send_more(now)
        self.sends += 1

    def _receive(self, connection: Connection, now: float) -> None:
        received = connection.socket.recv(1 << 20)
        self.receives += 1
        if not received:
            raise SystemExit("replay: the broker closed a connection")
        received = connection.received + received
        size = self._reply_bytes
        whole = len(received) // size * size
        for position in range(0, whole, size):
            self._check(connection, received[position : position + size], now)
        connection.received = received[whole:]
        if len(connection.received) >= 4 and struct.unpack_from(">i", connection.received)[0] + 4 != size:
            raise SystemExit(f"replay: a reply has another size: {connection.received[:120].hex(' ')}")

    def _check(self, connection: Connection, reply: bytes, now: float) -> None:
        reply_size, correlation = struct.unpack_from(">iI", reply)
        if reply_size + 4 != self._reply_bytes or correlation != connection.next_answered & 0xFFFFFFFF or not connection.sent_at:
            raise SystemExit(f"replay: a reply is for another request or has another size: {reply[:120].hex(' ')}")
        connection.next_answered += 1
        self.replies += 1
        self.latencies_us[int((now - connection.sent_at.popleft()) * 1e6)] += 1
        error = struct.unpack_from(">h", reply, self._error_at)[0]
        if error:
            self.errors[error] += 1

    def percentile(self, share: float) -> int:
        seen = 0
        for latency, count in sorted(self.latencies_us.items()):
            seen += count
            if seen > self.replies * share:
                return latency
        return -1


def main(words: list[str]) -> int:
    host, port, connection_count, in_flight, seconds, reply_bytes, error_at, stride, *files = words
    frames = [Path(file).read_bytes() for file in files]
    connections = [Connection((host, int(port)), frames, index, int(stride), int(in_flight)) for index in range(int(connection_count))]
    replay = Replay(connections, int(reply_bytes), int(error_at))
    took = replay.run(float(seconds))
    first_error = next(iter(replay.errors), 0)
    document = {"requests": replay.replies, "errors": replay.errors.total(), "first_error": first_error, "seconds": took,
                "p50_us": replay.percentile(0.5), "p99_us": replay.percentile(0.99), "sends": replay.sends, "receives": replay.receives}  # fmt: skip
    print(json.dumps(document))
    return 1 if replay.errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
