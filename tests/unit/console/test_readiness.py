"""Who serves, judged by counters; and what HTTP says about it."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest

from appliance.base.clock import ManualClock
from appliance.base.layout import BoxLayout
from appliance.console.application import make_application
from appliance.console.readiness import Readiness, judge_process, read_readiness
from appliance.shm.counters import CounterSnapshot
from tests.unit.base.test_settings import make_box


def snapshot(state: str = "serving", heartbeat_ns: int = 0, pid: int = 1) -> CounterSnapshot:
    return CounterSnapshot("x", pid, 0, heartbeat_ns, state, {})


@pytest.mark.parametrize(
    ("seen", "alive", "reason"),
    [
        (None, False, "not started"),
        (snapshot(), False, "dead"),
        (snapshot("recovering"), True, "recovering"),
        (snapshot(""), True, "starting"),
        (snapshot(heartbeat_ns=100), True, None),
        (snapshot(heartbeat_ns=99), True, "hung"),
    ],
)
def test_a_process_serves_when_it_lives_says_so_and_turns(seen: CounterSnapshot | None, alive: bool, reason: str | None) -> None:
    assert judge_process(seen, alive, now_ns=1100, silence_ns_max=1000) == reason


def test_every_process_of_the_box_is_looked_at() -> None:
    clock, box = ManualClock(), make_box()
    looked_at = []

    def read(_layout: BoxLayout, name: str) -> CounterSnapshot | None:
        looked_at.append(name)
        return None if name == "controller" else snapshot(heartbeat_ns=clock.monotonic_ns(), pid=os.getpid())

    readiness = read_readiness(BoxLayout("/run/x"), box, clock, read)
    assert looked_at == box.process_names()
    assert readiness == Readiness(len(looked_at), {"controller": "not started"})


def ask(path: str, readiness: Readiness) -> tuple[int, Any]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [], "http_version": "1.1", "root_path": ""}
    asyncio.run(make_application(lambda: readiness)(scope, receive, send))
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], json.loads(body) if sent[0]["status"] != 404 else None


def test_readyz_is_503_with_what_is_missing_until_all_serve() -> None:
    assert ask("/readyz", Readiness(2, {"controller": "dead"})) == (503, {"status": "not ready", "processes": 2, "missing": {"controller": "dead"}})
    assert ask("/readyz", Readiness(2, {})) == (200, {"status": "ready", "processes": 2, "missing": {}})


def test_healthz_says_only_that_the_console_lives() -> None:
    assert ask("/healthz", Readiness(2, {"controller": "dead"})) == (200, {"status": "alive"})
    assert ask("/nothing", Readiness(2, {}))[0] == 404
