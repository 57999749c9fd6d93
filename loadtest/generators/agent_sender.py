"""Sends chunks of Fluent's forward protocol, or windows of Lumberjack, as fast as they are acknowledged; a few under way on each connection.

    agent_sender.py HOST PORT FORM SECONDS CONNECTIONS RECORDS

FORM is packed (PackedForward), gzip (CompressedPackedForward), message (one Message a record, the last of RECORDS with a chunk) or beats (Lumberjack,
compressed). Prints one line of JSON: records acknowledged, chunks, seconds. Weak spot: the same records come again and again, made before the clock starts.
"""

from __future__ import annotations

import gzip
import json
import socket
import sys
import time
import zlib
from struct import pack
from threading import Thread

import msgpack

UNDER_WAY = {"packed": 4, "gzip": 4, "message": 4, "beats": 2}
"""A Beat keeps two windows under way."""
PATIENCE_SECONDS = 30
SOURCES = 64


def main(words: list[str]) -> int:
    host, port, form = words[0], int(words[1]), words[2]
    seconds, connections, records = float(words[3]), int(words[4]), int(words[5])
    senders = [Sender(host, port, form, records, number) for number in range(connections)]
    started = time.monotonic()
    threads = [Thread(target=sender.run, args=(started + seconds,)) for sender in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    problems = [sender.problem for sender in senders if sender.problem]
    if problems:
        print(problems[0], file=sys.stderr)
        return 1
    chunks = sum(sender.chunks for sender in senders)
    print(json.dumps({"records": chunks * records, "chunks": chunks, "seconds": time.monotonic() - started}), flush=True)
    return 0


def record(number: int) -> dict[str, object]:
    """About 230 B: a line of a container, as Docker's driver or Fluent Bit sends it."""
    return {
        "log": f"GET /api/orders/{number} 200 12 ms 1834 bytes, upstream 10.0.3.17:8080, agent curl/8.5.0",
        "container_id": "4f66ad9a0b2e4f66ad9a0b2e4f66ad9a0b2e4f66ad9a0b2e4f66ad9a0b2e4f66",
        "container_name": f"/web-{number % 7}",
        "source": "stdout",
        "level": "info",
    }


def _event_time(number: int) -> msgpack.ExtType:
    return msgpack.ExtType(0, pack(">II", 1_795_348_800 + number // 1000, number % 1000 * 1_000_000))


def _beat(number: int) -> bytes:
    content = record(number)
    fields = {"@timestamp": f"2026-11-22T12:00:{number % 60:02d}.{number % 1000:03d}Z", "message": content.pop("log"), "host": {"name": f"web-{number % 7}"}}
    return json.dumps({**fields, "log": {"level": "info", "offset": number * 230}, "container": {"id": content["container_id"]}}).encode()


class Sender:
    """One connection. Over loopback each comes from an address of its own, as real senders do: several ingests share senders by their addresses."""

    def __init__(self, host: str, port: int, form: str, records: int, number: int) -> None:
        source = (f"127.0.0.{1 + number % SOURCES}", 0) if host == "127.0.0.1" else None
        self._socket = socket.create_connection((host, port), PATIENCE_SECONDS, source_address=source)
        self._form = form
        self._name = f"{number}-{time.time_ns():x}"
        self._under_way_max = UNDER_WAY[form]
        self._answers = msgpack.Unpacker()
        self._acks = b""
        self._last_sequence = pack(">I", records)
        entries = [msgpack.packb([_event_time(index), record(index)]) for index in range(records)] if form != "beats" else []
        if form == "beats":
            frames = zlib.compress(b"".join(b"2J" + pack(">II", index + 1, len(beat)) + beat for index, beat in enumerate(map(_beat, range(records)))), 3)
            self._content = b"2W" + pack(">I", records) + b"2C" + pack(">I", len(frames)) + frames
        elif form == "message":
            self._content = b"".join(msgpack.packb(["docker.web", _event_time(index), record(index)]) for index in range(records - 1))
        else:
            packed = b"".join(entries)
            self._content = msgpack.packb(gzip.compress(packed, 6) if form == "gzip" else packed)
        self.chunks = 0
        self.problem = ""

    def run(self, until: float) -> None:
        """Until then, and until the last chunk is acknowledged."""
        sent = 0
        try:
            while time.monotonic() < until or self.chunks < sent:
                while sent - self.chunks < self._under_way_max and time.monotonic() < until:
                    self._socket.sendall(self._chunk(sent))
                    sent += 1
                if self.chunks < sent:
                    self._receive()
        except OSError as error:
            self.problem = str(error)
        finally:
            self._socket.close()

    def _chunk(self, number: int) -> bytes:
        option = {"chunk": f"{self._name}-{number}"}
        if self._form == "beats":
            return self._content
        if self._form == "message":
            return self._content + bytes(msgpack.packb(["docker.web", _event_time(number), record(number), option]))
        if self._form == "gzip":
            option["compressed"] = "gzip"
        return b"\x93" + bytes(msgpack.packb("docker.web")) + self._content + bytes(msgpack.packb(option))

    def _receive(self) -> None:
        data = self._socket.recv(65536)
        if not data:
            raise OSError("the connection was closed")
        if self._form != "beats":
            self._answers.feed(data)
            self.chunks += sum(1 for _ in self._answers)
            return
        self._acks += data
        while len(self._acks) >= 6:
            self.chunks += self._acks[2:6] == self._last_sequence  # the others are of parts of a window
            self._acks = self._acks[6:]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
