"""Agents at a real box: Fluent's and Lumberjack's clients, and the counts to the line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fluent.sender import FluentSender
from pylogbeat import PyLogBeatClient

from lab import client_packages
from lab.reconcile import Reconciliation
from lab.running_box import RunningBox, listener
from tests.unit.services.ingest.test_fluent_clients import send_with_npm

pytestmark = [pytest.mark.system, pytest.mark.slow]

LISTENERS = [
    listener("fluent", "fluent", topic="fluent"),
    listener("keyed", "fluent", topic="keyed", shared_key="secret", key="tag"),
    listener("beats", "lumberjack", topic="beats"),
]


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, start_shared: Callable[..., RunningBox]) -> Iterator[RunningBox]:
    directory = tmp_path_factory.mktemp("agents")
    box = start_shared(directory / "box", senders={"listener": LISTENERS})
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
        options: dict[str, Any] = {"requireAckResponse": True, "ackResponseTimeout": 60_000, "flushInterval": 20, "security": security}
        for mode in ("PackedForward", "CompressedPackedForward"):
            assert send_with_npm(keyed.port, 100, eventMode=mode, **options) == {"sent": 100, "errors": []}
            sent["keyed"] += 100
    with PyLogBeatClient(beats.host, beats.port, timeout=60) as client:
        for first in range(0, 300, 100):
            client.send([{"message": f"beat {number}", "host": {"name": "web-1"}} for number in range(first, first + 100)])
    for name, count in sent.items():
        balance = books.hold(name, count)
        assert balance.stored == count, f"{name}: {balance}"
    found = books.hold_topics()
    assert Counter(document["message"] for document in found["fluent"]) == Counter(f"python {number}" for number in range(200))
    assert {document["tag"] for document in found["keyed"]} <= {"npm.web"}
    assert Counter(document["message"] for document in found["beats"]) == Counter(f"beat {number}" for number in range(300))
