"""When does a broker take produces? All brokers are asked in the same way, from outside: a small raw produce to each partition, until it is acknowledged."""

from __future__ import annotations

import socket
import struct
import time

from loadtest.benchmark import BenchmarkFailed
from loadtest.generators.produce_frame import build_produce_frame, reply_layout

FRAME_BYTES = 200
PAUSE_SECONDS = 0.01
REPLY_SECONDS = 2.0


def await_produces(address: tuple[str, int], topic: str, partitions: int, seconds: float) -> None:
    """Until each partition has acknowledged one record. Raises BenchmarkFailed after `seconds`."""
    deadline = time.monotonic() + seconds
    frames = [build_produce_frame(topic, partition, FRAME_BYTES) for partition in range(partitions)]
    error_at = reply_layout(topic).error_at
    while frames:
        try:
            with socket.create_connection(address, timeout=REPLY_SECONDS) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _ask_all(connection, frames, error_at, deadline)
        except OSError:
            pass  # nothing listens yet, or the listener hung up
        if time.monotonic() > deadline:
            raise BenchmarkFailed(f"{len(frames)} of {partitions} partitions of {topic} took no produce in {seconds:g} s")
        time.sleep(PAUSE_SECONDS if frames else 0)


def _ask_all(connection: socket.socket, frames: list[bytes], error_at: int, deadline: float) -> None:
    """Takes those out of `frames` that are acknowledged."""
    while frames and time.monotonic() < deadline:
        connection.sendall(frames[-1])
        reply = _read_reply(connection)
        if reply[error_at : error_at + 2] == b"\0\0":
            frames.pop()
        else:
            time.sleep(PAUSE_SECONDS)


def _read_reply(connection: socket.socket) -> bytes:
    received = b""
    while len(received) < 4 or len(received) < 4 + struct.unpack_from(">i", received)[0]:
        part = connection.recv(65536)
        if not part:
            raise ConnectionResetError
        received += part
    return received
