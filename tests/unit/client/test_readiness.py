"""Connections with descriptors of any size are waited for."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from typing import cast

import pytest

from appliance.client.connection import ClientConnection, await_readable

SELECT_MAX = 1024


class BareConnection(socket.socket):
    """A socket that stands for a connection without TLS."""

    has_buffered = False


@pytest.fixture
def high_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """One end has a descriptor that select(2) does not know."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4 * SELECT_MAX), max(hard, 4 * SELECT_MAX)))
    near, far = socket.socketpair()
    descriptor = 2 * SELECT_MAX
    while os.path.exists(f"/proc/self/fd/{descriptor}"):
        descriptor += 1
    os.dup2(near.fileno(), descriptor)
    high = BareConnection(fileno=descriptor)
    yield high, far
    for sock in (near, far, high):
        sock.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_descriptor_above_the_limit_of_select_is_returned_only_when_readable(high_pair: tuple[socket.socket, socket.socket]) -> None:
    high, far = high_pair
    connection = cast("ClientConnection", high)
    assert await_readable([connection], 0) == []
    far.sendall(b"x")
    assert await_readable([connection], 1_000) == [connection]


def test_a_connection_that_its_peer_closed_is_returned_as_readable(high_pair: tuple[socket.socket, socket.socket]) -> None:
    high, far = high_pair
    far.close()
    assert await_readable([cast("ClientConnection", high)], 1_000) == [high]
