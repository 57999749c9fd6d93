"""A request that the controller cannot read, or does not answer, closes its connection under a name of its own."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, cast

import pytest

from appliance.protocol.apis import ApiKey
from appliance.protocol.framing import RequestHeader
from services.acceptor.closings import CONTROLLER_SILENT, UNANSWERED, UNREADABLE
from services.acceptor.connection import Connection
from services.acceptor.handlers.forwarded import ForwardedHandler
from services.acceptor.transport import PlainTransport


class _Link:
    """A connection to a controller with scripted answers."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer

    def request(self, kind: int, payload: bytes, timeout_ms: int, on_response: Callable[[bytes | None], None], *_more: object) -> None:
        on_response(self.answer)


@pytest.mark.parametrize(("answer", "reason"), [(b"", UNREADABLE), (None, CONTROLLER_SILENT)])
def test_a_request_that_is_refused_closes_its_connection_with_a_reason_and_words(answer: bytes | None, reason: str) -> None:
    ours, theirs = socket.socketpair()
    connection = Connection(PlainTransport(ours), "test", 0)
    replied: list[Connection] = []
    handler = ForwardedHandler(cast(Any, _Link(answer)), replied.append)
    handler.handle(connection, RequestHeader(ApiKey.DESCRIBE_CONFIGS, 1, 7, "", 0), memoryview(b"\xff" * 8), 8)
    assert replied == [connection] and not connection.collect_ready()
    assert connection.closing is not None and connection.closing[0] == reason != UNANSWERED
    assert f"API {int(ApiKey.DESCRIBE_CONFIGS)}, version 1" in connection.closing[1]
    ours.close()
    theirs.close()
