"""Clients that mean no good, all at once, from several addresses of the loopback network: what a broker has to bear beside its real clients.

    attackers.py HOST PORT TOPIC IDLE SENDERS READERS LIARS

IDLE connections that say nothing; SENDERS that drip a byte of a request a second; READERS that ask for everything and never read it;
LIARS at a time that announce what they never send, and come again as soon as they are thrown out. Prints "ready" when all are there, starts to drip
and to lie at the next line on stdin, ends at the line after, and prints one line of JSON. Weak spot: it shares the machine with the box
it attacks; what it takes of the cores is reported with the figures.
"""

from __future__ import annotations

import contextlib
import json
import resource
import select
import socket
import struct
import sys
import time

CONNECTIONS_AN_ADDRESS = 500
LIES_A_SECOND = 200
FETCH, PRODUCE, METADATA = 1, 0, 3


def frame(api_key: int, version: int, body: bytes) -> bytes:
    request = struct.pack(">hhih", api_key, version, 1, -1) + body
    return struct.pack(">i", len(request)) + request


def fetch_frame(topic: bytes) -> bytes:
    """Fetch 11 of everything in partition 0."""
    head = struct.pack(">iiiibii", -1, 0, 1, 55 << 20, 0, 0, -1)
    partition = struct.pack(">iiqqi", 0, -1, 0, -1, 55 << 20)
    return frame(FETCH, 11, head + struct.pack(">ih", 1, len(topic)) + topic + struct.pack(">i", 1) + partition + struct.pack(">ih", 0, 0))


LIES = (
    struct.pack(">i", 2**31 - 1) + b"x" * 64,
    struct.pack(">i", -5),
    frame(99, 0, b""),
    frame(METADATA, 1, struct.pack(">i", 2**31 - 1)),
    frame(PRODUCE, 7, struct.pack(">hhii", -1, 1, 1000, 90_000) + b"\0\1a" * 10),
    frame(PRODUCE, 7, struct.pack(">hhiih", -1, 1, 1000, 1, 1) + b"t" + struct.pack(">iii", 1, 0, 2**30)),
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
)


class Attackers:
    """All of them, in one thread."""

    def __init__(self, address: tuple[str, int], topic: str) -> None:
        self._address = address
        self._topic = topic.encode()
        self._made = 0
        self.refused = self.lies = 0
        self.socks: list[socket.socket] = []
        self.drippers: list[socket.socket] = []

    def connect(self) -> socket.socket:
        self._made += 1
        source = f"127.0.0.{2 + self._made // CONNECTIONS_AN_ADDRESS % 250}"
        return socket.create_connection(self._address, timeout=30, source_address=(source, 0))

    def gather(self, idle: int, senders: int, readers: int) -> None:
        self.socks = [self.connect() for _ in range(idle)]
        for _ in range(readers):
            sock = self.connect()
            sock.sendall(fetch_frame(self._topic) * 20)
            self.socks.append(sock)
        for number in range(senders):
            sock = self.connect()
            # Half of them want space in the arena for a large produce, half hold a piece of a request in the heap.
            sock.sendall(struct.pack(">ihhih", 8 << 20, PRODUCE, 7, 1, -1) if number % 2 else struct.pack(">ihhih", 1 << 20, METADATA, 1, 1, -1))
            self.drippers.append(sock)

    def attack(self, liars: int) -> None:
        """Until a line arrives on stdin."""
        next_drip = time.monotonic()
        while not select.select([sys.stdin], [], [], 1 / LIES_A_SECOND if liars else 0.1)[0]:
            if time.monotonic() >= next_drip:
                next_drip += 1
                self.drippers = [sock for sock in self.drippers if self._drips(sock)]
            for _ in range(liars):
                self._lie()

    def _drips(self, sock: socket.socket) -> bool:
        try:
            sock.send(b"\0")
        except OSError:
            self.refused += 1
            return False
        return True

    def _lie(self) -> None:
        with contextlib.suppress(OSError), self.connect() as sock:
            sock.sendall(LIES[self.lies % len(LIES)])
            self.lies += 1


def main(words: list[str]) -> int:
    host, port, topic, *numbers = words
    idle, senders, readers, liars = map(int, numbers)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    attackers = Attackers((host, int(port)), topic)
    attackers.gather(idle, senders, readers)
    print("ready", flush=True)
    sys.stdin.readline()
    attackers.attack(liars)
    print(json.dumps({"lies": attackers.lies, "thrown_out": attackers.refused}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
