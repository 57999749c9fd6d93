"""A request that the controller cannot read, or does not answer, closes its connection under a name of its own."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, cast

import pytest

from appliance.base.errors import ErrorCode
from appliance.client.peers import CONTROLLER_CLIENT, UNAUTHORIZED
from appliance.ipc.request_frames import unpack_kafka_request
from appliance.protocol.apis import ApiKey
from appliance.protocol.framing import RequestHeader
from appliance.protocol.topic_apis import (
    CREATE_TOPICS_REQUEST,
    CREATE_TOPICS_RESPONSE,
    CreatableTopic,
    CreatedTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from appliance.security.principals import ANONYMOUS
from appliance.security.transport import PlainTransport
from services.acceptor.closings import CONTROLLER_SILENT, UNANSWERED, UNREADABLE
from services.acceptor.connection import Connection
from services.acceptor.handlers.forwarded import ForwardedHandler


class _Link:
    """A connection to a controller with scripted answers."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer
        self.asked: list[bytes] = []

    def request(self, kind: int, payload: bytes, timeout_ms: int, on_response: Callable[[bytes | None], None], *_more: object) -> None:
        self.asked.append(payload)
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


@pytest.mark.parametrize(("has_authorizer", "is_forwarded"), [(True, False), (False, True)])
def test_a_box_with_an_authorizer_refuses_what_a_box_without_one_passes_on(has_authorizer: bool, is_forwarded: bool) -> None:
    """Otherwise a client that is denied something here could do it there."""
    created = CREATE_TOPICS_RESPONSE.encode(7, CreateTopicsResponse(topics=(CreatedTopic("t"),)))
    body = CREATE_TOPICS_REQUEST.encode(7, CreateTopicsRequest((CreatableTopic("t", 1, 1),), 1_000))
    link, replied = _Link(created), list[Connection]()
    judge = cast(Any, object()) if has_authorizer else None
    ours, theirs = socket.socketpair()
    connection = Connection(PlainTransport(ours), "test", 0)
    handler = ForwardedHandler(cast(Any, link), replied.append, judge)
    handler.handle(connection, RequestHeader(ApiKey.CREATE_TOPICS, 7, 7, f"{CONTROLLER_CLIENT}2{UNAUTHORIZED}", 0), memoryview(body), len(body))
    assert replied == [connection] and bool(link.asked) == is_forwarded
    answer = connection.replies[0].pieces[0]
    assert isinstance(answer, bytes)
    (topic,) = CREATE_TOPICS_RESPONSE.decode(answer, 9, len(answer), 7).topics
    assert topic.error_code == (ErrorCode.NONE if is_forwarded else ErrorCode.NOT_CONTROLLER)
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    ("address", "client_id", "is_from_box"), [("::1", f"{CONTROLLER_CLIENT}2", True), ("::1", "test", False), ("::2", f"{CONTROLLER_CLIENT}2", False)]
)
def test_a_request_is_from_a_box_by_its_client_id_and_address(address: str, client_id: str, is_from_box: bool) -> None:
    """A client may choose any client id; the controller counts it by its user."""
    ours, theirs = socket.socketpair()
    link = _Link(None)
    connection = Connection(PlainTransport(ours), address, 0)
    handler = ForwardedHandler(cast(Any, link), lambda _connection: None, None, lambda asked: asked.address == "::1")
    handler.handle(connection, RequestHeader(ApiKey.CREATE_TOPICS, 7, 7, client_id, 0), memoryview(b""), 0)
    origin = unpack_kafka_request(link.asked[0]).origin
    assert origin.is_from_box == is_from_box and origin.principal == ANONYMOUS
    ours.close()
    theirs.close()
