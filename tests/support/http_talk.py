"""A sender of HTTP to a session without a socket: bytes of requests, and answers read back by a parser of their own."""

from __future__ import annotations

from http.client import HTTPResponse
from io import BytesIO
from typing import Any, NamedTuple

import orjson

from appliance.senders.listener import Listener, ListenerTransport, Protocol
from services.ingest.protocols.http.http_session import HttpSession
from tests.support.recording_connection import RecordingConnection

LISTENER = Listener("http", Protocol.HTTP, ListenerTransport.TCP, 0)


class Response(NamedTuple):
    """One answer. `headers` have lower-case names."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def words(self) -> Any:
        return orjson.loads(self.body)


class _Bytes:
    def __init__(self, data: BytesIO) -> None:
        self._data = data

    def makefile(self, _mode: str) -> BytesIO:
        return self._data


def request(target: str, body: bytes = b"", method: str = "POST", **headers: str) -> bytes:
    """A request with a length. Names of headers have `_` for `-`."""
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunked(target: str, *pieces: bytes, **headers: str) -> bytes:
    """The same with a chunked body."""
    start = request(target, b"", "PUT", Transfer_Encoding="chunked", **headers)
    return start.replace(b"PUT ", b"POST ", 1) + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


class HttpTalk:
    """One connection. `intake` holds what came."""

    def __init__(self, listener: Listener = LISTENER, topics: tuple[str, ...] = ("web",), principal: str = "") -> None:
        self.connection = RecordingConnection(listener, principal=principal)
        self.intake = self.connection.intake
        self.intake.topics = set(topics)
        self.session = HttpSession(self.connection)

    def send(self, data: bytes, step: int = 0) -> None:
        """In pieces of `step` bytes; 0: at once."""
        for start in range(0, len(data), step or len(data) or 1):
            self.session.received(data[start : start + (step or len(data))])

    def answers(self, method: str = "POST") -> list[Response]:
        """What was answered since the last call; every byte of it."""
        data = BytesIO(self.connection.take_sent())
        size = len(data.getvalue())
        responses = []
        while data.tell() < size:
            response = HTTPResponse(_Bytes(data), method=method)  # type: ignore[arg-type]
            response.close = lambda: None  # type: ignore[method-assign]
            response.begin()
            body = b"" if response.length == 0 or method == "HEAD" else data.read(response.length or 0)
            responses.append(Response(response.status, {name.lower(): value for name, value in response.headers.items()}, body))
        return responses

    def ask(self, data: bytes, step: int = 0) -> list[Response]:
        """Send, settle, and what is answered."""
        self.send(data, step)
        self.intake.complete_all()
        return self.answers()
