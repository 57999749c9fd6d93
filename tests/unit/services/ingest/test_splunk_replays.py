"""Splunk's collector with a whole ingest behind it.

Equal requests of one incarnation are all stored; a request that is repeated after a death is stored once
if its channel polls.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from services.ingest.listeners.sender_connection import SenderConnection
from services.ingest.protocols.splunk import splunk_hec
from services.ingest.protocols.splunk.splunk_acks import AckLedger
from tests.unit.services.ingest.stepped_ingest import SteppedIngest


class _Died(Exception):
    pass


class Client:
    """One client on one channel; `kill` begins the next incarnation of ingest."""

    def __init__(self, box: SteppedIngest, monkeypatch: pytest.MonkeyPatch) -> None:
        self.box = box
        self._monkeypatch = monkeypatch
        self._begin()

    def _begin(self) -> None:
        self._monkeypatch.setattr(splunk_hec.COLLECTOR, "_acks", AckLedger())
        self._socket = socket.create_connection(self.box.http.getsockname())
        self._socket.setblocking(False)

    def close(self) -> None:
        self._socket.close()

    def kill(self) -> None:
        self.close()
        self.box.kill_ingest()
        self.box.start_ingest()
        self.box.run_until(lambda: self.box.is_ready)
        self._begin()

    def die_before_an_answer(self, path: str, body: bytes) -> None:
        """Ingest handles the request and dies before it sends the answer."""

        def die(_connection: SenderConnection) -> bool:
            raise _Died

        self._send(path, body)
        with self._monkeypatch.context() as patched, pytest.raises(_Died):
            patched.setattr(SenderConnection, "flush", die)
            for _ in range(100):
                self.box.step()
        self.kill()

    def _send(self, path: str, body: bytes) -> None:
        head = b"POST /services/collector/%b HTTP/1.1\r\nHost: localhost\r\nX-Splunk-Request-Channel: c\r\nContent-Length: %d\r\n\r\n"
        self._socket.sendall(head % (path.encode(), len(body)) + body)

    def post(self, path: str, body: bytes) -> Any:
        self._send(path, body)
        received = b""

        def is_whole() -> bool:
            nonlocal received
            try:
                received += self._socket.recv(65536)
            except BlockingIOError:
                pass
            return received.endswith(b"}")

        self.box.run_until(is_whole, "an answer")
        return orjson.loads(received.partition(b"\r\n\r\n")[2])

    def send(self, line: str = "hello") -> int:
        ack_id: int = self.post("raw", line.encode())["ackId"]
        return ack_id

    def poll(self, *ack_ids: int) -> list[bool]:
        return list(self.post("ack", orjson.dumps({"acks": ack_ids}))["acks"].values())


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    box = SteppedIngest(tmp_path)
    box.start()
    made = Client(box, monkeypatch)
    yield made
    made.close()
    box.close()


@pytest.mark.parametrize("does_poll", [False, True])
def test_equal_requests_are_all_stored(client: Client, does_poll: bool) -> None:
    if does_poll:
        client.poll()
    ack_ids = [client.send() for _ in range(3)]
    client.box.run_until(lambda: len(client.box.messages()) == 3, "three records")
    if does_poll:
        client.box.run_until(lambda: all(client.poll(*ack_ids)), "all are true")
        client.send()
        client.box.run_until(lambda: len(client.box.messages()) == 4, "one more")


def test_without_polls_equal_events_after_a_death_are_new(client: Client) -> None:
    client.send()
    client.box.run_until(lambda: len(client.box.messages()) == 1, "a record")
    client.kill()
    client.send()
    client.box.run_until(lambda: len(client.box.messages()) == 2, "another")


@pytest.mark.parametrize("polls_first", [False, True])
def test_what_a_polling_channel_sends_again_after_a_death_is_stored_once(client: Client, polls_first: bool) -> None:
    client.poll()
    told, *_ = [client.send() for _ in range(3)]
    client.box.run_until(lambda: len(client.box.messages()) == 3, "three records")
    client.box.run_until(lambda: all(client.poll(told)), "the first is true")
    client.kill()
    if polls_first:
        client.poll()
    again = [client.send() for _ in range(2)]
    client.box.run_until(lambda: all(client.poll(*again)), "both are true")
    assert len(client.box.messages()) == 3, "the two that were not acknowledged"
    client.send()
    client.box.run_until(lambda: len(client.box.messages()) == 4, "all are acknowledged, the next is new")
    client.kill()
    client.send("other")
    client.box.run_until(lambda: len(client.box.messages()) == 5, "and so is another")


def test_a_request_whose_last_answer_was_not_sent_is_recognised_after_the_death(client: Client) -> None:
    client.poll()
    ack_id = client.send()
    client.box.run_until(lambda: client.box.ledger().stored == 1, "it is stored")
    client.send("other")  # the journal records what happened to the first with the second
    client.box.run_until(lambda: client.box.ledger().stored == 2, "both are stored")
    client.die_before_an_answer("ack", orjson.dumps({"acks": [ack_id]}))
    client.poll()
    again = client.send()
    client.box.run_until(lambda: client.poll(again) == [True], "it is acknowledged")
    assert client.box.messages() == ["hello", "other"]
    client.send()
    client.box.run_until(lambda: len(client.box.messages()) == 3, "what is sent after the acknowledgement is new")
