"""Alarms on their way to a web server that takes or refuses them. The JSON is that of Alertmanager's API v2 (postableAlerts) and of its webhooks."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from appliance.base.clock import ManualClock
from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.shm.counters import Counters
from lab.running_box import eventually
from services.console.alarm import CRITICAL, Alarm, AlarmEvent
from services.console.alarm_push import FIRST_RETRY_MS, KEPT_MS, LASTS_MS, REPEAT_MS, SEND_MS, WAITING_MAX, AlarmPush, AlarmSource

ALARM = Alarm("DiskHurts", CRITICAL, None, 0, "disk {disk} hurts", "It does.")
BEGAN_MS = 1_700_000_000_000
NAMED = "2023-11-14T22:13:20.000Z"


def event(disk: str = "d0", ended_ms: int | None = None) -> AlarmEvent:
    return AlarmEvent(ALARM, f"disk {disk} hurts", BEGAN_MS, ended_ms, (("disk", disk),))


class Receiver(ThreadingHTTPServer):
    """Keeps what it gets; answers `status`."""

    daemon_threads = True

    def __init__(self) -> None:
        self.got: list[tuple[str, Any, str | None]] = []
        self.status, self.said = 200, b""
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.got.append((self.path, body, self.headers["authorization"]))
        self.send_response(self.server.status)
        self.send_header("Location", "/elsewhere")
        self.end_headers()
        self.wfile.write(self.server.said)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


class Pushed:
    """The push as the console has it, stepped by hand."""

    def __init__(self, layout: BoxLayout, url: str, wall_ms: int) -> None:
        self.clock = ManualClock(wall_ms)
        self.counters = Counters.create_or_adopt(layout, "console", 1)
        self._said, writing = os.pipe2(os.O_NONBLOCK)
        self.present: list[AlarmEvent] = []
        self.push = AlarmPush(url, AlarmSource("box.example:8080", 7), self.clock, self.counters, Logger("console", descriptor=writing))

    def count(self, name: str) -> int:
        return self.counters.counter(f"alerts.{name}").value

    def turn(self, after_ms: int = 0) -> None:
        """Let the time pass, and turn until no request is under way."""
        self.clock.advance_ms(after_ms)
        self.push.turn(self.present)
        before = self.count("sent"), self.count("failures")
        if self.push.is_sending:

            def is_over() -> bool:
                self.push.turn(self.present)
                return (self.count("sent"), self.count("failures")) != before

            eventually(is_over, "the request ends", 20)

    def said(self) -> str:
        with suppress(BlockingIOError):
            return os.read(self._said, 65536).decode()
        return ""


@pytest.fixture
def pushed(layout: BoxLayout) -> Iterator[Callable[..., Pushed]]:
    made: list[Pushed] = []

    def make(url: str, wall_ms: int = BEGAN_MS) -> Pushed:
        made.append(Pushed(layout, url, wall_ms))
        return made[-1]

    yield make
    for each in made:
        each.push.close()


def test_an_alertmanager_gets_alarms_again_while_they_last_and_when_they_end(receiver: Receiver, pushed: Callable[..., Pushed]) -> None:
    alarms = pushed(f"http://{receiver.url}/api/v2/alerts")
    alarms.present = [event()]
    alarms.push.on_alarm(event())
    alarms.turn()
    alarms.turn(REPEAT_MS - 1)
    assert len(receiver.got) == 1, "nothing changed"
    alarms.turn(1)
    alarms.present = []
    alarms.push.on_alarm(event(ended_ms=BEGAN_MS + 1000))
    alarms.turn()
    alarms.turn(2 * REPEAT_MS)
    assert [path for path, _, _ in receiver.got] == ["/api/v2/alerts"] * 3
    first = receiver.got[0][1]
    assert first == [
        {
            "labels": {"alertname": "DiskHurts", "severity": "critical", "instance": "box.example:8080", "broker": "7", "disk": "d0"},
            "annotations": {"summary": "disk d0 hurts", "description": "It does.", "runbook": "docs/operate.md#diskhurts"},
            "startsAt": NAMED,
            "endsAt": "2023-11-14T22:17:20.000Z",
            "generatorURL": "http://box.example:8080/alarms#DiskHurts",
        }
    ]
    assert LASTS_MS == 240_000 and receiver.got[1][1][0]["endsAt"] == "2023-11-14T22:18:20.000Z"
    assert [each["endsAt"] for each in receiver.got[2][1]] == ["2023-11-14T22:13:21.000Z"]
    assert (alarms.count("sent"), alarms.count("failures"), alarms.push.document["waiting"]) == (3, 0, 0)


def test_another_server_gets_each_change_once_with_the_login_of_the_url(receiver: Receiver, pushed: Callable[..., Pushed]) -> None:
    alarms = pushed(f"http://me:se%40cret@{receiver.url}/hook?key=1")
    alarms.present = [event()]
    alarms.push.on_alarm(event())
    alarms.turn()
    alarms.turn(2 * REPEAT_MS)
    alarms.push.on_alarm(event(ended_ms=BEGAN_MS + 1000))
    alarms.turn()
    assert [(path, body["status"], [each["status"] for each in body["alerts"]], login) for path, body, login in receiver.got] == [
        ("/hook?key=1", "firing", ["firing"], "Basic bWU6c2VAY3JldA=="),
        ("/hook?key=1", "resolved", ["resolved"], "Basic bWU6c2VAY3JldA=="),
    ]
    assert "cret" not in str(alarms.push.document) and "hook" not in str(alarms.push.document)


def test_what_a_server_refuses_is_tried_again_later_and_later_and_the_problem_says_why(receiver: Receiver, pushed: Callable[..., Pushed]) -> None:
    alarms = pushed(f"http://{receiver.url}/api/v2/alerts")
    receiver.status, receiver.said = 400, b"bad label\n" + b"x" * 10_000
    alarms.push.on_alarm(event())
    alarms.turn()
    problem = f"could not send alarms to http://{receiver.url}: it answered 400 Bad Request: bad label x"
    assert alarms.push.problem.startswith(problem) and len(alarms.push.problem) < 500 and problem in alarms.said()
    for wait in (FIRST_RETRY_MS, 2 * FIRST_RETRY_MS):
        alarms.turn(wait - 1)
        before = alarms.count("failures")
        alarms.turn(1)
        assert alarms.count("failures") == before + 1
    assert alarms.said() == "", "it is logged once"
    receiver.status = 307
    alarms.turn(4 * FIRST_RETRY_MS)
    assert "307" in alarms.push.problem and {path for path, _, _ in receiver.got} == {"/api/v2/alerts"}, "no redirect is followed"
    receiver.status = 200
    alarms.turn(8 * FIRST_RETRY_MS)
    assert alarms.push.document["problem"] == "" and alarms.count("sent") == 1 and "again, after 4 failures" in alarms.said()


def test_what_waits_is_bounded_and_an_end_that_is_not_taken_is_dropped(pushed: Callable[..., Pushed]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        alarms = pushed(f"http://127.0.0.1:{closed.getsockname()[1]}/api/v2/alerts")
        for number in range(WAITING_MAX + 3):
            alarms.push.on_alarm(event(f"d{number}", BEGAN_MS + number % 2))
        assert (alarms.push.document["waiting"], alarms.count("dropped")) == (WAITING_MAX, 3)
        alarms.turn()
        assert "refused" in alarms.push.problem and alarms.count("failures") == 1
        alarms.turn(KEPT_MS + 2)
        assert (alarms.push.document["waiting"], alarms.count("dropped")) == (0, 3 + WAITING_MAX)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.0 200 OK\r\n\r\nx"])
def test_a_server_that_does_not_answer_to_the_end_is_cut_off(pushed: Callable[..., Pushed], said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        alarms = pushed(f"http://127.0.0.1:{silent.getsockname()[1]}/api/v2/alerts")
        alarms.push.on_alarm(event())
        alarms.push.turn([])
        connection, _ = silent.accept()
        with connection:
            connection.sendall(said)
            eventually(lambda: connection.recv(1 << 16).endswith(b"]"), "the request is whole")
            alarms.turn(SEND_MS + 1)
        assert alarms.count("failures") + alarms.count("sent") == 1 and alarms.push.document["waiting"] == (not said)


def test_without_a_url_nothing_is_kept(pushed: Callable[..., Pushed]) -> None:
    alarms = pushed("")
    alarms.push.on_alarm(event())
    alarms.turn()
    assert alarms.push.document == {"target": "", "problem": "", "waiting": 0, "sent": 0, "failures": 0}
