"""RELP clients that keep their windows full: how many lines a second a server acknowledges.

    relp_sender.py HOST PORT CONNECTIONS WINDOW LINE_BYTES SECONDS

Prints "ready" when its sessions are open, sends from the next line on stdin, and after SECONDS prints one line of JSON when everything is acknowledged. A
window is sent again as soon as half of it is acknowledged, as librelp does one by one. Sessions end as they should, by `close`: what a broken one has sent is
looked for in the next. Weak spot: the lines of a connection differ by their number alone.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time

RECEIVE_BYTES = 1 << 18
OFFERS = b"relp_version=0\nrelp_software=relp_sender\ncommands=syslog"
ACKNOWLEDGED = b" rsp 6 200 OK\n"


class Session:
    """One connection. `sent` and `acknowledged` count frames."""

    def __init__(self, address: tuple[str, int], host: str, window: int, line_bytes: int) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(b"1 open %d %b\n" % (len(OFFERS), OFFERS))
        answer = b""
        while not answer.endswith(b"\ncommands=syslog\n"):
            answer += self.socket.recv(4096)
        self.window = window
        self.sent = self.acknowledged = 0
        self.latest_s = self.slowest_s = 0.0
        header = f"<13>1 2026-01-01T00:00:00.000000Z {host} relp 1 - - ".encode()
        line = header + b"%09d " + b"x" * (line_bytes - len(header) - 10)
        self._frame = b"%%d syslog %d %b\n" % (line_bytes, line)
        self._rest = b""

    def fill(self) -> None:
        count = self.window - (self.sent - self.acknowledged)
        if count:
            first = self.sent + 2
            frame = self._frame
            self.socket.sendall(b"".join([frame % (number, number) for number in range(first, first + count)]))
            self.sent += count
            self.latest_s = time.monotonic()

    def close(self) -> None:
        self.socket.sendall(b"%d close 0\n" % (self.sent + 2))
        while self.socket.recv(RECEIVE_BYTES):
            pass  # the answer, and the server's end
        self.socket.close()

    def take(self) -> None:
        data = self._rest + self.socket.recv(RECEIVE_BYTES)
        end = data.rfind(b"\n") + 1
        if not end:
            raise SystemExit(f"the session ended, {self.sent - self.acknowledged} lines are not acknowledged")
        self._rest = data[end:]
        count = data.count(b"\n", 0, end)
        if data.count(ACKNOWLEDGED, 0, end) != count:
            raise SystemExit(f"not acknowledged: {data[:200]!r}")
        self.acknowledged += count
        self.slowest_s = max(self.slowest_s, time.monotonic() - self.latest_s)


def main(host: str, port: int, connections: int, window: int, line_bytes: int, seconds: float) -> None:
    sessions = [Session((host, port), f"host{number}", window, line_bytes) for number in range(connections)]
    print("ready", flush=True)
    sys.stdin.readline()
    poller = select.poll()
    by_descriptor = {session.socket.fileno(): session for session in sessions}
    for descriptor in by_descriptor:
        poller.register(descriptor, select.POLLIN)
    started = time.monotonic()
    for session in sessions:
        session.fill()
    while True:
        is_over = time.monotonic() - started >= seconds
        if is_over and all(session.sent == session.acknowledged for session in sessions):
            break
        for descriptor, _ in poller.poll(10_000):
            session = by_descriptor[descriptor]
            session.take()
            if not is_over and session.sent - session.acknowledged <= session.window // 2:
                session.fill()
    finished = time.monotonic()
    lines = sum(session.acknowledged for session in sessions)
    for session in sessions:
        session.close()
    print(json.dumps({"lines": lines, "seconds": finished - started, "slowest_ms": max(session.slowest_s for session in sessions) * 1000}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]), float(sys.argv[6]))
