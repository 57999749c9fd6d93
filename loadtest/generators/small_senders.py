"""Many senders of small HTTP requests at a steady rate, each with an address and a connection of its own; or one that sends bombs.

    small_senders.py HOST PORT SENDERS REQUESTS_PER_SECOND SECONDS
    small_senders.py HOST PORT bombs SECONDS

A bomb is a gzip body of 300 bytes that opens to 99,000 documents; the next follows the answer. Prints one line of JSON: p50, p99 and longest time to the answer
in µs, requests, and answers other than 200. Weak spot: requests are due at fixed times, but a sender whose answer is outstanding sends its next one late.
"""

from __future__ import annotations

import gzip
import json
import select
import socket
import sys
import time

BOMB_DOCUMENTS = 99_000
FIRST_SENDER, BOMBER = 0x7F000100, "127.0.0.9"
LINE = b'{"message":"GET /api/orders/4711 200 12 ms","app":"web"}\n'


def request(host: str, body: bytes, more: str = "") -> bytes:
    head = f"POST /ingest/syslog HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/x-ndjson\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def connect(host: str, port: int, source: str) -> socket.socket:
    sender = socket.create_connection((host, port), 30, (source, 0))
    sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sender


def report(times_us: list[float], refused: int) -> None:
    times_us.sort()
    p50, p99 = (times_us[int(len(times_us) * share)] for share in (0.5, 0.99))
    print(json.dumps({"p50_us": p50, "p99_us": p99, "max_us": times_us[-1], "requests": len(times_us), "refused": refused}), flush=True)


def send_bombs(host: str, port: int, seconds: float) -> None:
    sender = connect(host, port, BOMBER)
    bomb = request(host, gzip.compress(b"{}\n" * BOMB_DOCUMENTS, 9), "Content-Encoding: gzip\r\n")
    end, times_us, refused = time.monotonic() + seconds, list[float](), 0
    while time.monotonic() < end:
        began = time.monotonic()
        sender.sendall(bomb)
        answer = sender.recv(65536)
        refused += not answer.startswith(b"HTTP/1.1 200")
        times_us.append((time.monotonic() - began) * 1e6)
    report(times_us, refused)


def send_small(host: str, port: int, count: int, rate: float, seconds: float) -> None:
    senders = [connect(host, port, socket.inet_ntoa((FIRST_SENDER + number).to_bytes(4, "big"))) for number in range(count)]
    small, poll = request(host, LINE), select.epoll()
    by_descriptor = {sender.fileno(): sender for sender in senders}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.EPOLLIN)
    due: dict[int, float] = {}
    times_us, refused, sent = list[float](), 0, 0
    began = time.monotonic()
    while (now := time.monotonic()) < began + seconds or (due and now < began + seconds + 30):
        while now < began + seconds and began + sent / rate <= now:
            descriptor = senders[sent % count].fileno()
            if descriptor in due:
                break
            due[descriptor] = began + sent / rate
            by_descriptor[descriptor].sendall(small)
            sent += 1
        for descriptor, _ in poll.poll(max(0.0, min(0.05, began + sent / rate - time.monotonic()))):
            answer = by_descriptor[descriptor].recv(65536)
            times_us.append((time.monotonic() - due.pop(descriptor)) * 1e6)
            refused += not answer.startswith(b"HTTP/1.1 200")
    report(times_us, refused + len(due))


def main(words: list[str]) -> int:
    host, port = words[0], int(words[1])
    if words[2] == "bombs":
        send_bombs(host, port, float(words[3]))
    else:
        send_small(host, port, int(words[2]), float(words[3]), float(words[4]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
