"""Agents at a real box: Fluent's and Lumberjack's clients, the books to the line, and kill -9 of ingest under senders that wait for acknowledgements."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pytest
from fluent.sender import FluentSender
from pylogbeat import ConnectionException, PyLogBeatClient

from tests.support import client_packages
from tests.support.fluent_forwarder import FluentForwarder
from tests.support.reconcile import Reconciliation
from tests.support.running_box import RunningBox, start_box
from tests.unit.ingest.test_fluent_clients import send_with_npm

pytestmark = [pytest.mark.system, pytest.mark.slow]

TABLE = """
listen fluent fluent tcp :0 topic=fluent
listen keyed fluent tcp :0 topic=keyed shared-key=secret key=tag
listen beats lumberjack tcp :0 topic=beats
"""
KILLS = 2


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    directory = tmp_path_factory.mktemp("agents")
    (directory / "table").write_text(TABLE)
    box = start_box(directory / "box", settings={"ingest.table.file": str(directory / "table")})
    yield box
    assert box.stop() == 0, box.messages
    assert box.leftovers() == []


@pytest.fixture
def books(box: RunningBox) -> Iterator[Reconciliation]:
    made = Reconciliation(box, "fluent", "keyed", "beats")
    yield made
    made.close()


def test_real_clients_and_every_record_is_stored_once(box: RunningBox, books: Reconciliation) -> None:
    fluent, keyed, beats = (box.sender(name) for name in ("fluent", "keyed", "beats"))
    with FluentSender("app", host=fluent.host, port=fluent.port, nanosecond_precision=True) as sender:
        for number in range(200):
            assert sender.emit("web", {"message": f"python {number}"})
    sent = {"fluent": 200, "keyed": 0, "beats": 300}
    if client_packages.missing_js() is None:
        security = {"clientHostname": "client.example", "sharedKey": "secret"}
        options: dict[str, Any] = {"requireAckResponse": True, "ackResponseTimeout": 10_000, "flushInterval": 20, "security": security}
        for mode in ("PackedForward", "CompressedPackedForward"):
            assert send_with_npm(keyed.port, 100, eventMode=mode, **options) == {"sent": 100, "errors": []}
            sent["keyed"] += 100
    with PyLogBeatClient(beats.host, beats.port, timeout=10) as client:
        for first in range(0, 300, 100):
            client.send([{"message": f"beat {number}", "host": {"name": "web-1"}} for number in range(first, first + 100)])
    for listener, count in sent.items():
        balance = books.hold(listener, count)
        assert balance.stored == count, f"{listener}: {balance}"
    found = books.hold_topics()
    assert Counter(document["message"] for document in found["fluent"]) == Counter(f"python {number}" for number in range(200))
    assert {document["tag"] for document in found["keyed"]} <= {"npm.web"}
    assert Counter(document["message"] for document in found["beats"]) == Counter(f"beat {number}" for number in range(300))


def _kill_under(box: RunningBox, send: Callable[[], bool], passed: threading.Semaphore) -> None:
    """Kills ingest while `send` works in a thread of its own; it tells of each step by `passed`, and whether all went well by its answer."""
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(send()), daemon=True)
    thread.start()
    for _ in range(KILLS):
        for _ in range(15):
            assert passed.acquire(timeout=20), "the sender goes on"
        pid = box.pid("ingest@0")
        os.kill(pid, signal.SIGKILL)
        box.await_restart("ingest@0", pid)
    thread.join(40)
    assert answers == [True]


def test_chunks_of_fluent_are_stored_once_while_ingest_is_killed(box: RunningBox, books: Reconciliation) -> None:
    """As fluentd does it: several chunks under way, those that were not acknowledged are sent again under their ids."""
    passed = threading.Semaphore(0)
    chunks = [b"".join(msgpack.packb([1_760_000_000, {"message": f"chunk {chunk} line {line}"}]) for line in range(50)) for chunk in range(60)]
    forwarder = FluentForwarder(box.sender("fluent"), under_way_max=4, on_acknowledged=passed.release)
    _kill_under(box, lambda: forwarder.send("killed", chunks), passed)
    assert forwarder.connections > KILLS, "it was killed under us"
    found = Counter(document["message"] for document in books.records("fluent"))
    wanted = {f"chunk {chunk} line {line}" for chunk in range(60) for line in range(50)}
    assert not wanted - set(found), f"{len(wanted - set(found))} acknowledged records are lost"
    assert {message: count for message, count in found.items() if count > 1} == {}, "stored twice"
    assert set(found) == wanted


def test_windows_of_lumberjack_are_stored_once_while_ingest_is_killed(box: RunningBox, books: Reconciliation) -> None:
    """As a Beat with one worker does it: a window that was not acknowledged is sent again, first thing on the next connection."""
    passed = threading.Semaphore(0)
    address = box.sender("beats")

    def send() -> bool:
        client = PyLogBeatClient(address.host, address.port, timeout=10)
        for window in range(60):
            events = [{"message": f"window {window} line {line}"} for line in range(50)]
            for _ in range(200):
                try:
                    client.send(events)
                    break
                except (OSError, ConnectionException):
                    client.close()
                    client = PyLogBeatClient(address.host, address.port, timeout=10)
            else:
                return False
            passed.release()
        client.close()
        return True

    _kill_under(box, send, passed)
    found = Counter(document["message"] for document in books.records("beats"))
    assert found == Counter(f"window {window} line {line}" for window in range(60) for line in range(50))
