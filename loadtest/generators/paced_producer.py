"""Sends small produce requests at a steady rate over some connections, one in flight on each, and says how long each took.

    paced_producer.py HOST PORT CONNECTIONS RATE SECONDS REPLY_BYTES ERROR_AT FRAME_FILE

Prints "ready" when it is connected, starts at the next line on stdin, and prints one line of JSON. A latency counts from the moment when the
request was due, so a broker that stalls is not spared the requests that had to wait meanwhile. It asks for short time slices, so that it waits less
for a core than what it measures. Weak spot: Python's own 0.1 ms are in each.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from collections import deque
from pathlib import Path

from appliance.runtime.scheduling import take_short_slices


def main(words: list[str]) -> int:
    take_short_slices()
    host, port, *numbers, frame_file = words
    connections, rate, seconds, reply_bytes, error_at = int(numbers[0]), float(numbers[1]), float(numbers[2]), int(numbers[3]), int(numbers[4])
    frame = Path(frame_file).read_bytes()
    socks = [socket.create_connection((host, int(port))) for _ in range(connections)]
    for sock in socks:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print("ready", flush=True)
    sys.stdin.readline()
    latencies, errors, in_time = produce(socks, frame, rate, seconds, reply_bytes, error_at)
    latencies.sort()
    print(
        json.dumps(
            {
                "requests": len(latencies),
                "errors": errors,
                "in_time": in_time,
                "p50_us": latencies[len(latencies) // 2] // 1000,
                "p99_us": latencies[int(len(latencies) * 0.99)] // 1000,
                "p999_us": latencies[int(len(latencies) * 0.999)] // 1000,
                "max_us": latencies[-1] // 1000,
            }
        )
    )
    return 1 if errors else 0


def produce(socks: list[socket.socket], frame: bytes, rate: float, seconds: float, reply_bytes: int, error_at: int) -> tuple[list[int], int, int]:
    """(latencies in ns, replies with an error, requests that were sent when they were due)"""
    free = deque(socks)
    due_of: dict[int, int] = {}
    by_descriptor = {sock.fileno(): sock for sock in socks}
    poller = select.epoll()
    for descriptor in by_descriptor:
        poller.register(descriptor, select.EPOLLIN)
    latencies: list[int] = []
    errors = in_time = 0
    interval_ns = int(1e9 / rate)
    next_ns = time.monotonic_ns()
    end_ns = next_ns + int(seconds * 1e9)
    while next_ns < end_ns or due_of:
        now_ns = time.monotonic_ns()
        while free and next_ns <= now_ns and next_ns < end_ns:
            sock = free.popleft()
            due_of[sock.fileno()] = next_ns
            in_time += now_ns - next_ns < interval_ns
            sock.sendall(frame)
            next_ns += interval_ns
        wait = (next_ns - time.monotonic_ns()) / 1e9 if free and next_ns < end_ns else 1.0
        # epoll's own timeout has whole milliseconds, and every request would be late by a part of one.
        select.select([poller], [], [], max(0.0, wait))
        for descriptor, _events in poller.poll(0):
            reply = by_descriptor[descriptor].recv(65536)
            if len(reply) != reply_bytes:
                raise SystemExit(f"a reply of {len(reply)} bytes, {reply_bytes} were expected")
            latencies.append(time.monotonic_ns() - due_of.pop(descriptor))
            errors += reply[error_at : error_at + 2] != b"\0\0"
            free.append(by_descriptor[descriptor])
    return latencies, errors, in_time


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
