"""Streams of real senders as they came over a connection: `python -m tests.golden.capture_senders` makes tests/golden/senders/*.stream again.

A file has one connection, in hexadecimal lines of 64 bytes. Times and random ids in them are those of the day they were made. Weak spot: what a client sends
only when it is refused or left without an answer is not in them.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from fluent.sender import FluentSender
from pylogbeat import PyLogBeatClient

from appliance.senders.listener import Listener, ListenerTransport, Protocol
from lab import client_packages
from lab.running_box import eventually
from services.ingest.protocols.fluent.fluent_session import FluentSession
from services.ingest.protocols.lumberjack.lumberjack_session import LumberjackSession
from tests.support.session_server import SessionServer

TARGET = Path(__file__).parent / "senders"
FLUENT = Listener("fluent", Protocol.FLUENT, ListenerTransport.TCP, 0)
LUMBERJACK = Listener("beats", Protocol.LUMBERJACK, ListenerTransport.TCP, 0)
LINE_BYTES = 64


def read_stream(name: str) -> bytes:
    """The bytes of one connection."""
    return bytes.fromhex((TARGET / f"{name}.stream").read_text())


def stream_names() -> list[str]:
    return sorted(path.stem for path in TARGET.glob("*.stream"))


def _write(name: str, stream: bytes) -> None:
    lines = [stream[start : start + LINE_BYTES].hex() for start in range(0, len(stream), LINE_BYTES)]
    (TARGET / f"{name}.stream").write_text("\n".join(lines) + "\n")
    print(f"{name}: {len(stream)} bytes")


def _fluent_python(nanoseconds: bool) -> bytes:
    with SessionServer(FLUENT, FluentSession) as server:
        sender = FluentSender("app", host="127.0.0.1", port=server.port, nanosecond_precision=nanoseconds)
        for number in range(3):
            sender.emit("web", {"message": f"line {number}", "level": "error", "deep": {"list": [1, None, 2.5]}})
        eventually(lambda: len(server.intake.records) == 3, "all came")
        sender.close()
        return bytes(server.streams[0])


def _fluent_npm(**options: object) -> bytes:
    with SessionServer(FLUENT, FluentSession) as server:
        script = client_packages.SOURCES / "js" / "fluent_sender.mjs"
        command = [client_packages.NODE, script, str(server.port), client_packages.JS, json.dumps(options), "3"]
        subprocess.run(command, check=True, timeout=60, stdout=subprocess.DEVNULL)
        return bytes(server.streams[0])


def _pylogbeat() -> bytes:
    with SessionServer(LUMBERJACK, LumberjackSession) as server:
        with PyLogBeatClient("127.0.0.1", server.port, timeout=5) as client:
            for first in (0, 2):
                client.send([{"@timestamp": "2026-11-22T12:00:00.123Z", "message": f"line {first + number}", "log": {"level": "warn"}} for number in range(2)])
        return bytes(server.streams[0])


def main() -> None:
    TARGET.mkdir(exist_ok=True)
    _write("fluent-logger-python", _fluent_python(False))
    _write("fluent-logger-python-nanoseconds", _fluent_python(True))
    for mode in ("Message", "PackedForward", "CompressedPackedForward"):
        _write(f"fluent-logger-npm-{mode}", _fluent_npm(eventMode=mode, requireAckResponse=True, flushInterval=20))
    _write("pylogbeat", _pylogbeat())


if __name__ == "__main__":
    main()
