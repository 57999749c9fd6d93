"""`millrace ingest tap`: connects to the ingests of the box and prints what passes.

Each ingest shows a bounded part (`services.ingest.records.live_tap`) and says how much it did not
show. One that is restarted is connected to again, and with the box the command ends. Weak: lines of several ingests are printed in the
order of their arrival here.
"""

from __future__ import annotations

import ipaddress
import json
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from appliance.base.errors import MillraceError
from appliance.base.settings import Box
from appliance.base.terminal_text import terminal_json, terminal_text
from appliance.command.failures import UsageProblem
from appliance.command.finding import FoundBox
from appliance.command.output import count_text, plural, say, until_reader_closes
from appliance.command.record_text import local_time, parsed_value, record_line
from appliance.runtime.leftovers import living_processes
from appliance.senders.sender_tables import tables_of

MESSAGE_BYTES_MAX = 1 << 18
RECONNECT_SECONDS = 0.5
GONE_SECONDS = 5.0
"""A box that does not run for so long is not being restarted."""


class Taps:
    """The connections. Raises `MillraceError` if no ingest takes one."""

    def __init__(self, paths: list[str], request: bytes, box_runs: Callable[[], bool]) -> None:
        self._box_runs = box_runs
        self._gone_since = 0.0
        self._missing = dict.fromkeys(paths, 0.0)
        self._request = request
        self._selector = selectors.DefaultSelector()
        problems = [problem for path in paths if (problem := self._connect(path)) is not None]
        if len(problems) == len(paths):
            raise MillraceError(f"no ingest of the box shows its lines: {problems[0]}; look at `millrace status`")

    def _connect(self, path: str) -> str | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(path)
            connection.send(self._request)
        except PermissionError as error:
            connection.close()
            raise MillraceError(f"this user may not see lines: {error.strerror} ({path}); run it as the box's user, or with sudo") from error
        except OSError as error:
            connection.close()
            self._missing[path] = time.monotonic() + RECONNECT_SECONDS
            return str(error)
        del self._missing[path]
        self._selector.register(connection, selectors.EVENT_READ, path)
        return None

    def _check_box(self) -> None:
        if self._selector.get_map() or self._box_runs():
            self._gone_since = 0.0
            return
        self._gone_since = self._gone_since or time.monotonic()
        if time.monotonic() - self._gone_since >= GONE_SECONDS:
            raise MillraceError("the box has ended, so there is nothing more to show; `millrace status` says how it is")

    def documents(self) -> Iterator[dict[str, Any]]:
        """Yield what the ingests send. Raises `MillraceError` when the box has ended."""
        while True:
            self._check_box()
            for path in [path for path, at in self._missing.items() if at <= time.monotonic()]:
                self._connect(path)
            for key, _ in self._selector.select(RECONNECT_SECONDS):
                connection, path = key.fileobj, key.data
                assert isinstance(connection, socket.socket)
                try:
                    message = connection.recv(MESSAGE_BYTES_MAX)
                except ConnectionError:
                    message = b""
                if message:
                    yield json.loads(message)
                    continue
                self._selector.unregister(connection)
                connection.close()
                self._missing[path] = time.monotonic() + RECONNECT_SECONDS


def watch_tap(found: FoundBox, name: str | None, count: int | None, as_json: bool) -> None:
    """Print lines until `count` of them, or Ctrl-C. Raises UsageProblem for an unknown name."""
    box = Box.from_document({**found.box})
    listeners = [listener.name for listener in tables_of(box).listeners]
    request = {"listener": name if name in listeners else None, "sender": None if name in listeners else _address(name, listeners)}
    paths = [found.layout.tap_socket(number) for number in range(sum(process.startswith("ingest@") for process in box.process_names()))]
    is_coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    shown = left_out = 0
    taps = Taps(paths, json.dumps(request).encode(), lambda: bool(living_processes(found.layout)))
    try:
        with until_reader_closes():
            for document in taps.documents():
                if "error" in document:
                    raise MillraceError(document["error"])
                if more := document.pop("not_shown"):
                    left_out += more
                    say(f"millrace: {count_text(more)} more were not shown")
                if document.pop("watching", False):
                    say(f"millrace: watching {name or 'all listeners'}; Ctrl-C ends it")
                    continue
                sys.stdout.write((tap_json(document) if as_json else tap_line(document, is_coloured)) + "\n")
                sys.stdout.flush()
                shown += 1
                if shown == count:
                    return
    except KeyboardInterrupt:
        say(f"ended by Ctrl-C: {plural(shown, 'line')} shown, {count_text(left_out)} not shown")


def _address(name: str | None, listeners: list[str]) -> str | None:
    if name is None:
        return None
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        raise UsageProblem(f"{name} is neither a listener nor an address; there are the listeners {', '.join(listeners)}") from None


def tap_json(document: dict[str, Any]) -> str:
    """Return what an ingest sent as one line of JSON; a value that is a whole JSON object as such."""
    fields = parsed_value(document["value"].encode()) if "value" in document else None
    return terminal_json(document if fields is None else document | {"value": fields})


def tap_line(document: dict[str, Any], is_coloured: bool) -> str:
    """Return what an ingest sent as one line: listener, sender, and what is stored where; or why
    not."""
    origin = f"{document['listener']} {document['sender']}"
    if "what" in document:
        return f"{local_time(document['time_ms'])} {origin}: {document['what']} ({plural(document['count'], 'record')})"
    value = document["value"]
    text = f"{origin} -> {document['topic']}: {record_line(document['time_ms'], value.encode(), is_coloured)}"
    fields = parsed_value(value.encode())
    if fields is None:
        return text
    more: dict[str, Any] = {}
    for each in (fields.get("structured_data"), fields.get("fields")):
        more |= each if isinstance(each, dict) else {}  # of a record as it came, they may be anything
    if more:
        text += f" {terminal_json(more)}"
    return f"{text} (not parsed: {terminal_text(str(fields.get('parse_error')))})" if fields.get("parsed") is False else text
