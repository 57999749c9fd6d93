"""One connection that keeps many bytes of large produce requests on their way, reading replies as they come, until its time is up.

    pipelining_producer.py HOST PORT WINDOW_BYTES SECONDS REPLY_BYTES ERROR_AT FRAME_FILE

Prints "ready" when it is connected, starts at the next line on stdin, and prints one line of JSON.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from pathlib import Path


def main(words: list[str]) -> int:
    host, port, *numbers, frame_file = words
    window_bytes, seconds, reply_bytes, error_at = int(numbers[0]), float(numbers[1]), int(numbers[2]), int(numbers[3])
    frame = memoryview(Path(frame_file).read_bytes())
    sock = socket.create_connection((host, int(port)))
    print("ready", flush=True)
    sys.stdin.readline()
    sock.setblocking(False)
    poller = select.poll()
    sent = received = errors = 0
    position = 0
    replies = b""
    started = time.monotonic()
    while True:
        running = time.monotonic() - started < seconds
        may_send = position > 0 or (running and (sent - received + 1) * len(frame) <= window_bytes)
        if not running and not may_send and sent == received:
            break
        poller.register(sock, select.POLLIN | (select.POLLOUT if may_send else 0))
        for _descriptor, events in poller.poll(5000):
            if events & select.POLLOUT:
                position += sock.send(frame[position:])
                if position == len(frame):
                    position = 0
                    sent += 1
            if events & select.POLLIN:
                data = sock.recv(65536)
                if not data:
                    raise SystemExit("the box closed the connection")
                replies += data
                while len(replies) >= reply_bytes:
                    errors += replies[error_at : error_at + 2] != b"\0\0"
                    replies = replies[reply_bytes:]
                    received += 1
    print(json.dumps({"requests": sent, "errors": errors, "seconds": time.monotonic() - started}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
