"""What passes ingest, shown to commands of this machine: bounded, filtered, and never waited for."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.running_box import listener
from services.ingest.records.live_tap import RECORDS_A_SECOND, TAPS_MAX, VALUE_BYTES_MAX
from tests.unit.services.ingest.stepped_ingest import SteppedIngest

LINE = b"<11>1 2024-10-11T22:14:15Z web app 7 - - line %d\n"


@pytest.fixture
def box(tmp_path: Path) -> Iterator[SteppedIngest]:
    made = SteppedIngest(tmp_path, senders={"listener": [listener("other", "syslog")]})
    made.start()
    yield made
    made.close()


class Watcher:
    """What `millrace ingest tap` does, in the test's own process."""

    def __init__(self, box: SteppedIngest, request: bytes = b"", **wanted: str) -> None:
        self._box = box
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.connect(box.layout.tap_socket(0))
        self.connection.setblocking(False)
        self.connection.send(request or json.dumps({"listener": None, "sender": None} | wanted).encode())

    def next(self) -> dict[str, Any] | None:
        """Return what comes next; None if the connection was closed."""
        found: list[bytes] = []

        def has_come() -> bool:
            try:
                found.append(self.connection.recv(1 << 18))
            except BlockingIOError:
                return False
            return True

        self._box.run_until(has_come, "a message of the tap")
        return json.loads(found[0]) if found[0] else None

    def rest(self) -> list[dict[str, Any]]:
        """Return what has come."""
        found = []
        while True:
            try:
                found.append(json.loads(self.connection.recv(1 << 18)))
            except BlockingIOError:
                return found

    def opened(self) -> Watcher:
        assert self.next() == {"watching": True, "not_shown": 0}
        return self


@pytest.fixture
def watch(box: SteppedIngest) -> Iterator[Callable[..., Watcher]]:
    made: list[Watcher] = []

    def start(**wanted: Any) -> Watcher:
        made.append(Watcher(box, **wanted))
        return made[-1]

    yield start
    for each in made:
        each.connection.close()


def test_a_tap_shows_records_with_their_fields_and_what_is_refused(box: SteppedIngest, watch: Callable[..., Watcher]) -> None:
    tap = watch().opened()
    box.connect().sendall(LINE % 1 + b"no syslog\n")
    first, second = tap.next(), tap.next()
    assert first is not None and second is not None
    assert (first["listener"], first["topic"], first["sender"].partition(":")[0]) == ("syslog-tcp", "syslog", "127.0.0.1")
    fields = json.loads(first["value"])
    assert (fields["host"], fields["app"], fields["severity_name"], fields["message"]) == ("web", "app", "err", "line 1")
    assert "no syslog" in second["value"]
    with socket.create_connection(box.http.getsockname()) as sender:
        sender.sendall(b"POST /ingest/absent HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
        refused = tap.next()
        assert refused is not None and refused["what"] == "refused: forbidden_topic" and refused["listener"] == "http"
    box.run_until(lambda: box.ledger().stored == 2)


def test_a_tap_of_a_listener_or_a_sender_shows_no_other(box: SteppedIngest, watch: Callable[..., Watcher]) -> None:
    of_listener, of_sender, of_nobody = watch(listener="other").opened(), watch(sender="127.0.0.1").opened(), watch(sender="127.0.0.2").opened()
    box.connect().sendall(LINE % 1)
    box.run_until(lambda: box.ledger().stored == 1)
    box.connect("other").sendall(LINE % 2)
    found = of_listener.next()
    assert found is not None and "line 2" in found["value"] and found["listener"] == "other"
    assert ["line 1" in str(of_sender.next()), "line 2" in str(of_sender.next())] == [True, True]
    with pytest.raises(BlockingIOError):
        of_nobody.connection.recv(1)


def test_a_flood_is_shown_in_part_and_stored_whole(box: SteppedIngest, watch: Callable[..., Watcher]) -> None:
    """No one reads the tap: neither its buffer nor its rate may hold the sender."""
    tap = watch().opened()
    count = 20 * RECORDS_A_SECOND
    with box.connect() as sender:
        sender.setblocking(False)
        rest = memoryview(b"".join(LINE % number for number in range(count)))

        def is_stored() -> bool:
            nonlocal rest
            try:
                rest = rest[sender.send(rest) :] if rest else rest
            except BlockingIOError:
                pass
            return box.ledger().stored == count

        box.run_until(is_stored)
    assert len(box.records()) == count
    found: list[dict[str, Any]] = []
    while not found or "the last" not in found[-1]["value"]:  # the share of this moment may be used up
        count += 1
        box.connect().sendall(b"<11>the last\n")
        box.run_until(lambda count=count: box.ledger().stored == count)
        found += tap.rest()
    assert len(found) + sum(each["not_shown"] for each in found) == count and len(found) < count / 2


def test_a_long_value_is_cut_and_a_further_tap_is_refused(box: SteppedIngest, watch: Callable[..., Watcher]) -> None:
    tap = watch().opened()
    box.connect().sendall(b"<11>1 - web app - - - " + b"x" * 2 * VALUE_BYTES_MAX + b"\n")
    found = tap.next()
    assert found is not None and len(found["value"]) == VALUE_BYTES_MAX < found["size_bytes"]
    for _ in range(TAPS_MAX - 1):
        watch().opened()
    refused = watch()
    assert "taps watch already" in str(refused.next()) and refused.next() is None
    tap.connection.close()
    assert any("watching" in str(watch().next()) for _ in range(100)), "its place is free"


def test_what_is_no_request_ends_the_connection(watch: Callable[..., Watcher]) -> None:
    for request in (b"[]", b"{}", b"x", b"{" * 10_000):
        wrong = watch(request=request)
        assert "no request" in str(wrong.next()) and wrong.next() is None
