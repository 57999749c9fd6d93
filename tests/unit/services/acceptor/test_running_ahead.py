"""Which requests of one connection may be under way together (`services/acceptor/connection.py`): those of one kind that keeps its order, and few."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from appliance.protocol.apis import ApiKey
from appliance.security.transport import PlainTransport
from services.acceptor.connection import REQUEST_BYTES_AHEAD_MAX, REQUESTS_AHEAD_MAX, Connection, PendingReply


@pytest.fixture
def connection() -> Iterator[Connection]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Connection(PlainTransport(ours), "test", 0)


def _take(connection: Connection, api_key: ApiKey, runs_ahead: bool = True, size_bytes: int = 100) -> PendingReply:
    assert connection.may_start(api_key)
    connection.next_bytes, connection.next_key = size_bytes, api_key
    return connection.expect_reply(runs_ahead)


def _answer(connection: Connection, reply: PendingReply, answer: bytes) -> None:
    reply.pieces, reply.ready = [answer], True
    assert connection.collect_ready()


@pytest.mark.parametrize("api_key", [ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT])
def test_requests_of_one_kind_run_ahead_and_their_replies_leave_in_order(connection: Connection, api_key: ApiKey) -> None:
    first, second = _take(connection, api_key), _take(connection, api_key)
    _answer(connection, second, b"second")
    assert not connection.outgoing
    _answer(connection, first, b"first")
    assert list(connection.outgoing) == [b"first", b"second"]


@pytest.mark.parametrize(
    ("under_way", "then"), [(ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT), (ApiKey.OFFSET_COMMIT, ApiKey.PRODUCE), (ApiKey.PRODUCE, ApiKey.FETCH)]
)
def test_another_kind_waits_until_all_replies_have_left(connection: Connection, under_way: ApiKey, then: ApiKey) -> None:
    reply = _take(connection, under_way)
    assert not connection.may_start(then)
    _answer(connection, reply, b"done")
    connection.outgoing.clear()
    assert connection.may_start(then)


def test_nothing_runs_ahead_of_a_request_of_any_other_kind(connection: Connection) -> None:
    reply = _take(connection, ApiKey.HEARTBEAT, runs_ahead=False)
    assert not connection.may_start(ApiKey.OFFSET_COMMIT)
    assert not connection.may_start(ApiKey.PRODUCE)
    assert not connection.may_start(ApiKey.HEARTBEAT)
    _answer(connection, reply, b"done")
    assert connection.may_start(ApiKey.OFFSET_COMMIT), "its answer leaves before that of the next"


@pytest.mark.parametrize(("count", "size_bytes"), [(REQUESTS_AHEAD_MAX, 100), (4, REQUEST_BYTES_AHEAD_MAX // 4)])
def test_only_so_many_and_so_large_ones_are_under_way_together(connection: Connection, count: int, size_bytes: int) -> None:
    replies = [_take(connection, ApiKey.OFFSET_COMMIT, size_bytes=size_bytes) for _ in range(count)]
    assert not connection.may_start(ApiKey.OFFSET_COMMIT)
    _answer(connection, replies[0], b"first")
    connection.outgoing.clear()
    assert connection.may_start(ApiKey.OFFSET_COMMIT)


def test_a_client_that_reads_no_responses_cannot_end_parked_fetches_for_ever(connection: Connection) -> None:
    """What it does not take lies in our heap."""
    parked = _take(connection, ApiKey.FETCH, runs_ahead=False)
    for _ in range(REQUESTS_AHEAD_MAX):
        parked.gives_way = True
        ended, parked = parked, _take(connection, ApiKey.FETCH, runs_ahead=False)
        _answer(connection, ended, b"nothing")
    parked.gives_way = True
    assert not connection.may_start(ApiKey.FETCH)
    connection.outgoing.clear()
    assert connection.may_start(ApiKey.FETCH)
