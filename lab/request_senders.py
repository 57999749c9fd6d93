"""Senders of our own, for protocols whose clients cannot be had or do not wait: requests over HTTP with and without a key, Splunk's acknowledgements, chunks.

Each sends again what was not answered with yes, as the forwarders do whose part it takes. None gives up.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgpack

from appliance.base.clock import SystemClock
from lab.told_senders import Feed, Place, ToldSender

PER_REQUEST = 20
TIMEOUT_SECONDS = 60.0
"""A request that is sent again within one incarnation is a new one: a stall must not cause that."""
PAUSE_SECONDS = 0.02


class RequestSender(ToldSender):
    """One request after the other, each until it is answered with a status of success. `encode` makes a body of texts."""

    def __init__(self, place: Place, feed: Feed, path: str, content_type: str, encode: Callable[[Sequence[str]], bytes], has_key: bool) -> None:
        super().__init__(place, feed)
        self._path, self._content_type, self._encode, self._has_key = path, content_type, encode, has_key

    def send_all(self) -> None:
        connection = http.client.HTTPConnection(*self.place.address, timeout=TIMEOUT_SECONDS)
        while numbers := self.feed.take(PER_REQUEST):
            body = self._encode([self.text(number) for number in numbers])
            headers = {"Content-Type": self._content_type}
            if self._has_key:
                headers["Idempotency-Key"] = self.text(numbers[0])
            while not self._is_taken(connection, body, headers):
                time.sleep(PAUSE_SECONDS)
            self.tell(numbers)
        connection.close()

    def _is_taken(self, connection: http.client.HTTPConnection, body: bytes, headers: dict[str, str]) -> bool:
        try:
            connection.request("POST", self._path, body, headers)
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            return False
        assert answer.status < 300 or answer.status in (429, 503), f"{self._path}: {answer.status}"
        return answer.status < 300


def ndjson_sender(place: Place, feed: Feed) -> RequestSender:
    return RequestSender(place, feed, f"/ingest/{place.topic}", "application/x-ndjson", _lines_of("message"), has_key=True)


def gelf_sender(place: Place, feed: Feed, has_key: bool) -> RequestSender:
    return RequestSender(place, feed, "/gelf", "application/json", _lines_of("short_message"), has_key)


gelf_with_key = partial(gelf_sender, has_key=True)
gelf_without_key = partial(gelf_sender, has_key=False)


def loki_sender(place: Place, feed: Feed) -> RequestSender:
    return RequestSender(place, feed, "/loki/api/v1/push", "application/json", _loki_push, has_key=True)


def _lines_of(field: str) -> Callable[[Sequence[str]], bytes]:
    def encode(texts: Sequence[str]) -> bytes:
        return b"".join(json.dumps({"version": "1.1", "host": "web-1", field: text}).encode() + b"\n" for text in texts)

    return encode


def _loki_push(texts: Sequence[str]) -> bytes:
    now_ns = f"{SystemClock.wall_ms()}000000"
    return json.dumps({"streams": [{"stream": {"job": "shop"}, "values": [[now_ns, text] for text in texts]}]}).encode()


class AckingSender(ToldSender):
    """Splunk's collector with a channel: asks `/ack` until it says true, and sends again on each new connection what it did not say that of.

    Not by time: within one incarnation of ingest what is sent again is a new request, and a leader that is asked about the dead incarnation may take long."""

    def __init__(self, place: Place, feed: Feed) -> None:
        super().__init__(place, feed)
        self._open: dict[int, list[int]] = {}
        """Requests that were not acknowledged, by their first number."""
        self._ack_ids: dict[int, int] = {}
        """Request by the number under which it is asked for."""

    def send_all(self) -> None:
        while self._open or not self.feed.is_over:
            connection = http.client.HTTPConnection(*self.place.address, timeout=TIMEOUT_SECONDS)
            self._ack_ids.clear()
            due = list(self._open)
            try:
                while self._open or due or not self.feed.is_over:
                    self._ask(connection)  # first: what a channel that polls sends is known again after a death of ingest
                    if numbers := self.feed.due(PER_REQUEST):
                        self._open[numbers[0]] = numbers
                        due.append(numbers[0])
                    due = [first for first in due if not self._is_taken(connection, first)]
                    if not numbers:
                        time.sleep(PAUSE_SECONDS)
            except (OSError, http.client.HTTPException):
                time.sleep(PAUSE_SECONDS)  # the connection is gone with ingest
            finally:
                connection.close()

    def _is_taken(self, connection: http.client.HTTPConnection, first: int) -> bool:
        body = b"".join(json.dumps({"sourcetype": "app", "event": self.text(number)}).encode() for number in self._open[first])
        answer = self._post(connection, "event", body)
        if answer["code"] != 0:
            return False
        self._ack_ids[answer["ackId"]] = first
        return True

    def _ask(self, connection: http.client.HTTPConnection) -> None:
        acks = self._post(connection, "ack", json.dumps({"acks": list(self._ack_ids)}).encode())["acks"]
        for text, is_stored in acks.items():
            if is_stored:
                self.tell(self._open.pop(self._ack_ids.pop(int(text))))

    def _post(self, connection: http.client.HTTPConnection, path: str, body: bytes) -> dict[str, Any]:
        connection.request("POST", f"/services/collector/{path}", body, {"X-Splunk-Request-Channel": self.place.word})
        answer: dict[str, Any] = json.load(connection.getresponse())
        return answer


class ChunkSender(ToldSender):
    """Fluent's forward protocol as Fluentd's and Fluent Bit's outputs speak it: several chunks under way, sent again under their ids until acknowledged."""

    UNDER_WAY_MAX = 4
    per_chunk = PER_REQUEST

    def __init__(self, place: Place, feed: Feed) -> None:
        super().__init__(place, feed)
        self._waiting: dict[str, list[int]] = {}

    def send_all(self) -> None:
        while self._waiting or not self.feed.is_over:
            try:
                with socket.create_connection(self.place.address, timeout=TIMEOUT_SECONDS) as connection:
                    self._send_on(connection)
            except OSError:
                time.sleep(PAUSE_SECONDS)

    def _send_on(self, connection: socket.socket) -> None:
        answers = msgpack.Unpacker()
        unsent = list(self._waiting)
        under_way = 0
        while unsent or under_way or not self.feed.is_over:
            while under_way < self.UNDER_WAY_MAX:
                if not unsent:
                    numbers = self.feed.due(self.per_chunk) if under_way else self.feed.take(self.per_chunk)
                    if not numbers:
                        break
                    unsent.append(self.text(numbers[0]))
                    self._waiting[unsent[0]] = numbers
                connection.sendall(self._chunk(unsent.pop(0)))
                under_way += 1
            if under_way:
                received = connection.recv(4096)
                if not received:
                    raise ConnectionError("the box closed the connection")
                answers.feed(received)
                for answer in answers:
                    self.tell(self._waiting.pop(answer["ack"]))
                    under_way -= 1

    def _chunk(self, chunk_id: str) -> bytes:
        now = SystemClock.wall_ms() // 1000
        entries = b"".join(msgpack.packb([now, {"message": self.text(number)}]) for number in self._waiting[chunk_id])
        packed: bytes = msgpack.packb(["app", entries, {"chunk": chunk_id, "size": len(self._waiting[chunk_id])}])
        return packed
