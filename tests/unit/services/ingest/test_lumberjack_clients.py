"""Lumberjack's real clients, pylogbeat and python-logstash-async, against a session behind a socket."""

from __future__ import annotations

import logging
from typing import Any

import orjson
from logstash_async.formatter import LogstashFormatter
from logstash_async.handler import SynchronousLogstashHandler
from logstash_async.transport import BeatsTransport
from pylogbeat import PyLogBeatClient

from appliance.senders.listener import Listener, ListenerTransport, Protocol
from services.ingest.protocols.lumberjack.lumberjack_session import LumberjackSession
from tests.support.session_server import SessionServer

LISTENER = Listener("beats", Protocol.LUMBERJACK, ListenerTransport.TCP, 0)


def documents(server: SessionServer) -> list[dict[str, Any]]:
    return [orjson.loads(record.value) for record in server.intake.records]


def beat(number: int) -> dict[str, Any]:
    return {
        "@timestamp": "2026-11-22T12:00:00.123Z",
        "@metadata": {"beat": "filebeat", "version": "8.15.0"},
        "message": f"line {number}",
        "host": {"name": "web-1"},
        "log": {"level": "warn", "offset": number * 7, "file": {"path": "/var/log/app.log"}},
        "process": {"pid": 4711, "name": "nginx"},
    }


def test_pylogbeat_and_every_window_is_acknowledged() -> None:
    with SessionServer(LISTENER, LumberjackSession) as server:
        with PyLogBeatClient("127.0.0.1", server.port, timeout=30) as client:
            client.send([beat(number) for number in range(50)])
            client.send([beat(number) for number in range(50, 60)])
            assert client._last_ack == 60
    found = documents(server)
    assert [document["message"] for document in found] == [f"line {number}" for number in range(60)]
    first = found[0]
    assert [first[name] for name in ("time", "host", "app", "proc_id", "severity_name")] == ["2026-11-22T12:00:00.123Z", "web-1", "nginx", "4711", "warning"]
    assert first["fields"] == {name: value for name, value in beat(0).items() if name not in ("@timestamp", "message")}
    assert server.intake.records[0].time_ms == 1_795_348_800_123
    assert server.intake.streams[0].ends[0] is True, "the peer ended the stream when everything was acknowledged"


def test_a_window_of_more_than_one_piece_is_acknowledged_in_the_end() -> None:
    with SessionServer(LISTENER, LumberjackSession) as server, PyLogBeatClient("127.0.0.1", server.port, timeout=30) as client:
        client.send([beat(number) for number in range(3000)])
    assert len(server.intake.records) == 3000 and not server.intake.refused


def test_python_logstash_async_by_its_beats_transport() -> None:
    with SessionServer(LISTENER, LumberjackSession) as server:
        handler = SynchronousLogstashHandler("127.0.0.1", server.port, transport="logstash_async.transport.BeatsTransport")
        handler.setFormatter(LogstashFormatter(extra_prefix="extra"))
        logger = logging.Logger("shop")
        logger.addHandler(handler)
        logger.warning("order %d is late", 7, extra={"order": 7})
        logger.error("order %d is lost", 8)
        handler.close()
    found = documents(server)
    assert [(document["message"], document["severity"]) for document in found] == [("order 7 is late", 4), ("order 8 is lost", 3)]
    assert found[0]["host"] and found[0]["proc_id"] and found[0]["time"] and found[0]["app"]
    assert found[0]["fields"]["extra"]["order"] == 7
    assert len(server.connections) == 2 and not server.intake.refused, "a connection for each flush"


def test_python_logstash_async_sends_a_flush_in_windows_of_25() -> None:
    with SessionServer(LISTENER, LumberjackSession) as server:
        transport = BeatsTransport("127.0.0.1", server.port, False, False, None, None, None, None, timeout=30)
        transport.send([orjson.dumps(beat(number)) for number in range(60)])
    assert [unit.record_count for unit in server.intake.closed] == [25, 25, 10]
    assert len(documents(server)) == 60
