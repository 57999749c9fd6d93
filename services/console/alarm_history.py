"""The alarms that are kept over a restart of the console: present ones, and the last that ended.

A file of a CRC and a line of JSON, at most `EVENTS` of each kind, written by `StateFiles` when an alarm
begins or ends. Owned by the console's loop.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import orjson

from services.console.alarm import CRITICAL, EVENTS, TEXT_MAX, WARNING, Alarm, AlarmEvent, AlarmWatch
from services.console.state_files import Change, DamagedFile

_LABELS_MAX = 8
_TIME_MAX = 1 << 53


class AlarmHistory:
    """The file of the events of an `AlarmWatch`; call `note` when one of them began or ended."""

    name = "alarms"
    bytes_max = 2 << 20

    def __init__(self, watch: AlarmWatch, alarms: Iterable[Alarm]) -> None:
        self._watch = watch
        self._alarms = {alarm.name: alarm for alarm in alarms}
        self._is_changed = False

    def note(self) -> None:
        self._is_changed = True

    repeat = note

    def take(self) -> list[Change]:
        """Return the whole file, if it changed."""
        if not self._is_changed:
            return []
        self._is_changed = False
        return [Change(None, packed(self._watch.events))]

    def load(self, content: bytes | None) -> None:
        """Give the watch the events of an earlier incarnation. Raises DamagedFile."""
        if content is not None:
            self._watch.restore(unpacked(content, self._alarms))


def packed(events: list[AlarmEvent]) -> bytes:
    """Return the content of the file: of present and of past events the latest."""
    present = [event for event in events if event.ended_wall_ms is None][:EVENTS]
    past = [event for event in events if event.ended_wall_ms is not None][:EVENTS]
    body = orjson.dumps([_document(event) for event in (*present, *past)])
    return b"%08x\n%b\n" % (zlib.crc32(body), body)


def _document(event: AlarmEvent) -> dict[str, Any]:
    return {
        "alarm": event.alarm.name,
        "severity": event.alarm.severity,
        "meaning": event.alarm.meaning,
        "words": event.words[:TEXT_MAX],
        "began_ms": event.began_wall_ms,
        "ended_ms": event.ended_wall_ms,
        "labels": [[name, value[:TEXT_MAX]] for name, value in event.labels],
    }


def unpacked(content: bytes, alarms: dict[str, Alarm]) -> list[AlarmEvent]:
    """Return the events of a file. An alarm that this release does not have keeps its texts. Raises
    DamagedFile."""
    head, _, body = content.partition(b"\n")
    body = body.removesuffix(b"\n")
    if head != b"%08x" % zlib.crc32(body):
        raise DamagedFile("its CRC does not match")
    try:
        return [_event(document, alarms) for document in orjson.loads(body)]
    except (ValueError, TypeError, KeyError) as problem:
        raise DamagedFile(f"it is not a list of alarms ({problem!r})"[:TEXT_MAX]) from problem


def _event(document: dict[str, Any], alarms: dict[str, Alarm]) -> AlarmEvent:
    name, severity, meaning, words = (document[key] for key in ("alarm", "severity", "meaning", "words"))
    if not all(isinstance(text, str) and len(text) <= 2 * TEXT_MAX for text in (name, meaning, words)) or severity not in (CRITICAL, WARNING):
        raise ValueError("a text")
    times = began, ended = document["began_ms"], document["ended_ms"]
    if not isinstance(began, int) or not all(time is None or (isinstance(time, int) and 0 <= time < _TIME_MAX) for time in times):
        raise ValueError("a time")
    labels = tuple((str(label)[:TEXT_MAX], str(value)[:TEXT_MAX]) for label, value in document["labels"][:_LABELS_MAX])
    return AlarmEvent(alarms.get(name) or Alarm(name, severity, None, 0, words, meaning), words, began, ended, labels)
