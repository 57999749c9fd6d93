"""Fluent's real clients, Python's and npm's, against a session behind a socket."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import orjson
import pytest
from fluent.sender import FluentSender

from appliance.senders.listener import Listener, ListenerTransport, Protocol
from lab import client_packages
from services.ingest.protocols.fluent.fluent_session import FluentSession
from tests.support.session_server import SessionServer

LISTENER = Listener("fluent", Protocol.FLUENT, ListenerTransport.TCP, 0)

needs_js = pytest.mark.skipif(client_packages.missing_js() is not None, reason=str(client_packages.missing_js()))


def documents(server: SessionServer) -> list[dict[str, Any]]:
    return [orjson.loads(record.value) for record in server.intake.records]


def await_records(server: SessionServer, count: int) -> list[dict[str, Any]]:
    deadline = time.monotonic() + 60
    while len(server.intake.records) < count:
        assert time.monotonic() < deadline, f"{len(server.intake.records)} of {count} records came"
        time.sleep(0.002)
    return documents(server)


@pytest.mark.parametrize("nanoseconds", [False, True])
def test_pythons_fluent_logger(nanoseconds: bool) -> None:
    with SessionServer(LISTENER, FluentSession) as server:
        sender = FluentSender("app", host="127.0.0.1", port=server.port, nanosecond_precision=nanoseconds)
        for number in range(20):
            assert sender.emit("web", {"message": f"line {number}", "level": "error", "from": "userA", "deep": {"a": [1, None, 2.5]}}), sender.last_error
        found = await_records(server, 20)
        sender.close()
    assert [document["message"] for document in found] == [f"line {number}" for number in range(20)]
    assert {(document["tag"], document["severity"], document["severity_name"]) for document in found} == {("app.web", 3, "err")}
    assert found[0]["fields"] == {"level": "error", "from": "userA", "deep": {"a": [1, None, 2.5]}}
    assert ("event_time_ns" in found[0]) == nanoseconds and found[0]["time"].endswith("Z")
    assert not server.intake.refused and not server.intake.closed, "no client waits without a chunk"


def send_with_npm(port: int, count: int, **options: object) -> dict[str, Any]:
    script = client_packages.SOURCES / "js" / "fluent_sender.mjs"
    command = [str(client_packages.NODE), str(script), str(port), str(client_packages.JS), json.dumps(options), str(count)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout, ended.stderr
    answer = json.loads(ended.stdout)
    assert isinstance(answer, dict)
    return answer


@needs_js
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["Message", "PackedForward", "CompressedPackedForward"])
def test_npms_fluent_logger_in_its_modes_with_acknowledgements(mode: str) -> None:
    with SessionServer(LISTENER, FluentSession) as server:
        answer = send_with_npm(server.port, 30, eventMode=mode, requireAckResponse=True, ackResponseTimeout=5000, flushInterval=20)
        found = await_records(server, 30)
    assert answer == {"sent": 30, "errors": []}
    assert [document["message"] for document in found] == [f"line {number}" for number in range(30)]
    assert found[0]["tag"] == "npm.web" and found[0]["fields"] == {"level": "warn", "number": 0, "nested": {"ok": True}}
    assert all(unit.identities is not None for unit in server.intake.closed) and server.intake.closed


@needs_js
@pytest.mark.slow
def test_npms_fluent_logger_proves_the_shared_key() -> None:
    with SessionServer(LISTENER._replace(shared_key="very secret"), FluentSession) as server:
        security = {"clientHostname": "client.example", "sharedKey": "very secret"}
        answer = send_with_npm(server.port, 3, security=security, requireAckResponse=True, ackResponseTimeout=5000)
        assert answer == {"sent": 3, "errors": []}
        assert len(await_records(server, 3)) == 3
    with SessionServer(LISTENER._replace(shared_key="another"), FluentSession) as server:
        answer = send_with_npm(server.port, 1, security=security, requireAckResponse=True, ackResponseTimeout=300, enableReconnect=False)
        assert answer["sent"] <= 0 and "shared_key mismatch" in str(answer["errors"])
        assert not server.intake.records and server.connections[0].closed == "fluent-wrong-key"
