"""Sends alarms that begin and end to the HTTP server of `alerts.url`, by a thread.

A path that ends in /api/v2/alerts is an Alertmanager's: it gets its API's list of alerts, again each
minute while one lasts, with an end in the near future, so that it resolves them if the console dies. Any other server
gets each change once, in the JSON that Alertmanager sends to webhooks (version 4). What waits is the
latest state of each alarm, so repeats do not add up; an end that was refused for `KEPT_MS` is dropped
and counted. No redirect is followed, and at most `ANSWER_BYTES` of an answer are read. Owned by the
console's loop. Weak: after a lost answer a webhook gets a change twice; of an alarm whose begin still
waits when the console restarts it gets the end alone.
"""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

import orjson

from appliance.base.clock import Clock
from appliance.base.logging import Logger
from appliance.runtime.background_thread import BackgroundThread, ThreadRefused
from appliance.shm.counters import Counters
from services.console.alarm import TEXT_MAX, AlarmEvent

ALERTMANAGER_PATH: Final = "/api/v2/alerts"
REPEAT_MS: Final = 60_000
LASTS_MS: Final = 4 * REPEAT_MS
"""How far the end of a present alarm is ahead; Prometheus does the same."""
FIRST_RETRY_MS, LAST_RETRY_MS = 5_000, 300_000
KEPT_MS: Final = 3_600_000
WAITING_MAX: Final = 500
"""Also the most alarms of one request."""
STEP_SECONDS: Final = 5.0
SEND_MS: Final = 30_000
"""A server that takes longer is cut off."""
ANSWER_BYTES: Final = 400


class AlarmSource(NamedTuple):
    """The box as the receiver sees it; `page` is the address of its page of alarms, `instance` HOST:PORT."""

    instance: str
    broker_id: int

    @property
    def page(self) -> str:
        return f"http://{self.instance}/alarms"


class AlarmPush:
    """`on_alarm` for each change; `turn` several times a second with the present alarms."""

    def __init__(self, url: str, source: AlarmSource, clock: Clock, counters: Counters, log: Logger) -> None:
        self._source = source
        self._clock = clock
        self._log = log
        self._target = urlsplit(url) if url else None
        self.is_alertmanager = self._target is not None and self._target.path.endswith(ALERTMANAGER_PATH)
        self._waiting: dict[Any, AlarmEvent] = {}
        self._sent, self._failures = counters.counter("alerts.sent"), counters.counter("alerts.failures")
        self._dropped = counters.counter("alerts.dropped")
        self._sending: _Sending | None = None
        self._next_ms = self._next_repeat_ms = 0
        self._failures_in_a_row = 0
        self.problem = ""
        """Why the last try failed; empty if it did not."""

    @property
    def shown_target(self) -> str:
        """The server, without what may be secret: path, user and password."""
        return "" if self._target is None else f"{self._target.scheme}://{_host(self._target)}"

    @property
    def document(self) -> dict[str, Any]:
        """What the page of alarms shows."""
        return {"target": self.shown_target, "problem": self.problem, "waiting": len(self._waiting), "sent": self._sent.value, "failures": self._failures.value}

    @property
    def is_sending(self) -> bool:
        """Whether a request is under way, or its outcome not taken yet."""
        return self._sending is not None

    def on_alarm(self, event: AlarmEvent) -> None:
        if self._target is None:
            return
        self._waiting.pop(event.key, None)
        self._waiting[event.key] = event
        while len(self._waiting) > WAITING_MAX:
            del self._waiting[next(iter(self._waiting))]
            self._dropped.add()

    def turn(self, present: Iterable[AlarmEvent]) -> None:
        """Take the outcome of the last request, and send the next if it is time."""
        if self._target is None:
            return
        now_ms = self._clock.monotonic_ms()
        if self._sending is not None:
            if self._sending.is_running:
                if now_ms - self._sending.began_ms > SEND_MS:
                    self._sending.abort()
                return
            self._on_outcome(self._sending, now_ms)
            self._sending = None
        if now_ms < self._next_ms:
            return
        wall_ms = self._clock.wall_ms()
        self._drop_old(wall_ms)
        events = dict(self._waiting)
        if self.is_alertmanager and now_ms >= self._next_repeat_ms:
            self._next_repeat_ms = now_ms + REPEAT_MS
            for event in present:
                if len(events) < WAITING_MAX:
                    events.setdefault(event.key, event)
        if events:
            self._begin(self._target, list(events.values()), now_ms, wall_ms)

    def _begin(self, target: SplitResult, events: list[AlarmEvent], now_ms: int, wall_ms: int) -> None:
        body = (alerts_body if self.is_alertmanager else webhook_body)(events, self._source, wall_ms)
        sending = _Sending(target, orjson.dumps(body), events, now_ms)
        try:
            BackgroundThread(sending.run, "console-alarms").start()
        except ThreadRefused as refused:
            sending.problem = str(refused)
        self._sending = sending

    def _on_outcome(self, sending: _Sending, now_ms: int) -> None:
        self.problem = ""
        if sending.problem:
            self.problem = f"could not send alarms to {self.shown_target}: {sending.problem}; check `alerts.url` and that server"
        else:
            if self._failures_in_a_row:
                self._log.info(f"sent alarms to {self.shown_target} again, after {self._failures_in_a_row} failures")
            self._failures_in_a_row = 0
            for event in sending.events:
                if self._waiting.get(event.key) is event:
                    del self._waiting[event.key]
            self._sent.add(len(sending.events))
            return
        self._failures.add()
        self._failures_in_a_row += 1
        self._next_ms = now_ms + min(FIRST_RETRY_MS << min(self._failures_in_a_row - 1, 10), LAST_RETRY_MS)
        self._next_repeat_ms = 0
        if self._failures_in_a_row == 1:
            self._log.warning(f"{self.problem}; retrying")

    def _drop_old(self, wall_ms: int) -> None:
        """Drop ends that could not be sent for long: a receiver that refuses one must not refuse all."""
        for key, event in list(self._waiting.items()):
            if event.ended_wall_ms is not None and wall_ms - event.ended_wall_ms > KEPT_MS:
                del self._waiting[key]
                self._dropped.add()

    def close(self) -> None:
        """Cut off what is being sent."""
        if self._sending is not None:
            self._sending.abort()


class _Sending:
    """One request in a thread."""

    def __init__(self, target: SplitResult, body: bytes, events: list[AlarmEvent], began_ms: int) -> None:
        self._target = target
        self._body = body
        self.events = events
        self.began_ms = began_ms
        self.problem: str | None = None
        """None while it runs; empty if it was sent."""
        self._socket: socket.socket | None = None
        """http.client forgets its own when an answer is the last of its connection."""

    @property
    def is_running(self) -> bool:
        return self.problem is None

    def run(self) -> None:
        target = self._target
        headers = {"Content-Type": "application/json", "User-Agent": "millrace"}
        if target.username is not None:
            user = f"{unquote(target.username)}:{unquote(target.password or '')}"
            headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
        path = (target.path or "/") + (f"?{target.query}" if target.query else "")
        kind = HTTPSConnection if target.scheme == "https" else HTTPConnection
        problem, connection = "it was cut off", None
        try:
            connection = kind(target.hostname or "", target.port, timeout=STEP_SECONDS)
            connection.connect()
            self._socket = connection.sock
            connection.request("POST", path, self._body, headers)
            answer = connection.getresponse()
            said = " ".join(answer.read(ANSWER_BYTES).decode(errors="replace").split())
            is_taken = 200 <= answer.status < 300
            problem = "" if is_taken else f"it answered {answer.status} {answer.reason}{': ' if said else ''}{said}"[:TEXT_MAX]
        except (OSError, HTTPException, ValueError) as failure:
            problem = str(failure)[:TEXT_MAX] or type(failure).__name__
        finally:
            if connection is not None:
                connection.close()
            self.problem = problem

    def abort(self) -> None:
        """End the thread's wait for the server."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def _host(target: SplitResult) -> str:
    host = target.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    return shown if target.port is None else f"{shown}:{target.port}"


def alerts_body(events: Iterable[AlarmEvent], source: AlarmSource, wall_ms: int) -> list[dict[str, Any]]:
    """Return Alertmanager's `postableAlerts` (its API v2): an alarm that lasts ends `LASTS_MS` from now."""
    return [
        {
            "labels": _labels(event, source),
            "annotations": _annotations(event),
            "startsAt": _time(event.began_wall_ms),
            "endsAt": _time(wall_ms + LASTS_MS if event.ended_wall_ms is None else event.ended_wall_ms),
            "generatorURL": f"{source.page}#{event.alarm.name}",
        }
        for event in events
    ]


def webhook_body(events: Iterable[AlarmEvent], source: AlarmSource, _wall_ms: int) -> dict[str, Any]:
    """Return what Alertmanager sends to a webhook (version 4 of its format)."""
    alerts = [
        {
            "status": "firing" if event.ended_wall_ms is None else "resolved",
            "labels": _labels(event, source),
            "annotations": _annotations(event),
            "startsAt": _time(event.began_wall_ms),
            "endsAt": "0001-01-01T00:00:00Z" if event.ended_wall_ms is None else _time(event.ended_wall_ms),
            "generatorURL": f"{source.page}#{event.alarm.name}",
            "fingerprint": "",
        }
        for event in events
    ]
    return {
        "version": "4",
        "groupKey": f"millrace:{source.instance}",
        "truncatedAlerts": 0,
        "status": "firing" if any(alert["status"] == "firing" for alert in alerts) else "resolved",
        "receiver": "millrace",
        "groupLabels": {},
        "commonLabels": {"instance": source.instance},
        "commonAnnotations": {},
        "externalURL": source.page,
        "alerts": alerts,
    }


def _labels(event: AlarmEvent, source: AlarmSource) -> dict[str, str]:
    own = {"alertname": event.alarm.name, "severity": event.alarm.severity, "instance": source.instance, "broker": str(source.broker_id)}
    return {name: value[:TEXT_MAX] for name, value in event.labels if value} | own


def _annotations(event: AlarmEvent) -> dict[str, str]:
    return {"summary": event.words[:TEXT_MAX], "description": event.alarm.meaning, "runbook": event.alarm.runbook}


def _time(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
