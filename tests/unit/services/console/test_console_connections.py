"""How many connections the console keeps, and for how long: uvicorn's protocol on a real loop, over loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from appliance.base.networks import read_networks
from appliance.ipc.frames import listen_unix
from services.console.console_connections import ADDRESS_CONNECTIONS_MAX, CONNECTIONS_MAX, ConsoleConnections, bounded_protocol

SHORT, LONG = 0.02, 60.0
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"

Talk = Callable[[tuple[str, int]], Awaitable[None]]


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers `/` at once, `/large` with more than a kernel keeps."""
    body = b"x" * (64 << 20) if scope["path"] == "/large" else b"ok"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


def serve(connections: ConsoleConnections, talk: Talk, listening: socket.socket | None = None) -> None:
    """Run `talk` against a server with these limits."""

    async def run() -> None:
        config = uvicorn.Config(application, log_config=None, access_log=False, lifespan="off", timeout_keep_alive=3600)
        protocol, state = bounded_protocol(connections), ServerState()
        sock = listening or socket.create_server(("127.0.0.1", 0))
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: protocol(config=config, server_state=state, app_state={}), sock=sock)  # type: ignore[call-arg]
        try:
            await asyncio.wait_for(talk(sock.getsockname()), 20)
        finally:
            server.close()

    asyncio.run(run())


async def received(reader: asyncio.StreamReader) -> bytes:
    """Everything until the server ends the connection."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("begun", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: loc"])
def test_a_connection_without_a_whole_header_is_closed(begun: bytes) -> None:
    closed: list[str] = []

    async def talk(address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(begun)
        assert await received(reader) == b""
        writer.close()

    serve(ConsoleConnections(closed.append, SHORT, LONG), talk)
    assert closed == ["header-timeout"]


def test_a_second_header_has_the_same_time_and_a_kept_connection_ends_without_a_count() -> None:
    closed: list[str] = []

    async def talk(address: tuple[str, int]) -> None:
        for rest in (b"", b"GET /"):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(REQUEST + rest)
            assert (await received(reader)).endswith(b"ok")
            writer.close()

    serve(ConsoleConnections(closed.append, SHORT, LONG), talk)
    assert closed == ["header-timeout"]


def test_an_answer_that_is_not_taken_ends_the_connection() -> None:
    closed: list[str] = []
    ended = asyncio.Event()

    def on_closed(reason: str) -> None:
        closed.append(reason)
        ended.set()

    async def talk(address: tuple[str, int]) -> None:
        _, writer = await asyncio.open_connection(*address, limit=1)
        writer.write(REQUEST.replace(b"/ ", b"/large ", 1))
        await ended.wait()
        writer.transport.abort()

    serve(ConsoleConnections(on_closed, LONG, SHORT), talk)
    assert closed == ["answer-timeout"]


def test_an_address_has_a_share_that_is_free_again_when_its_connections_end() -> None:
    closed: list[str] = []

    async def talk(address: tuple[str, int]) -> None:
        idle = [await asyncio.open_connection(*address) for _ in range(ADDRESS_CONNECTIONS_MAX)]
        reader, writer = await asyncio.open_connection(*address)
        assert await received(reader) == b""
        other, other_writer = await asyncio.open_connection(*address, local_addr=("127.0.0.2", 0))
        other_writer.write(REQUEST)
        assert (await other.readline()).startswith(b"HTTP/1.1 200")
        for each in (writer, other_writer, *(one for _, one in idle)):
            each.close()
            await each.wait_closed()
        answer = b""
        while not answer:  # the server learns of the ends a moment later
            reader, writer = await asyncio.open_connection(*address)
            writer.write(REQUEST)
            answer = await reader.readline()
            writer.close()

    serve(ConsoleConnections(closed.append), talk)
    assert set(closed) == {"connection-limit"}


def test_all_addresses_together_have_a_limit() -> None:
    connections = ConsoleConnections(lambda _reason: None)
    addresses = [f"192.0.2.{number // ADDRESS_CONNECTIONS_MAX}" for number in range(CONNECTIONS_MAX)]
    assert all(connections.acquire(address) for address in addresses)
    assert not connections.acquire("192.0.2.99")
    connections.release(addresses[0])
    assert connections.acquire("192.0.2.99")


def test_the_addresses_of_an_ipv6_network_share_one_limit() -> None:
    connections = ConsoleConnections(lambda _reason: None)
    opened = [connections.acquire(f"2001:db8::{number:x}") for number in range(CONNECTIONS_MAX)]
    assert opened.count(True) == ADDRESS_CONNECTIONS_MAX
    assert connections.acquire("2001:db8:0:1::1") and connections.acquire("192.0.2.1")
    connections.release("2001:db8::0")
    assert connections.acquire("2001:db8::ffff")


def test_the_unix_socket_has_no_limit(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    closed: list[str] = []

    async def talk(_address: object) -> None:
        opened = [await asyncio.open_unix_connection(path) for _ in range(ADDRESS_CONNECTIONS_MAX + 1)]
        reader, writer = opened[-1]
        writer.write(REQUEST)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        for _, each in opened:
            each.close()

    serve(ConsoleConnections(closed.append), talk, listen_unix(path))
    assert closed == []


def test_a_proxy_of_the_console_may_have_all_connections() -> None:
    """Each of its users has one, and refused logins keep theirs for seconds."""
    connections = ConsoleConnections(lambda _reason: None, proxies=read_networks("10.0.0.2"))
    assert sum(connections.acquire("10.0.0.3") for _ in range(ADDRESS_CONNECTIONS_MAX + 1)) == ADDRESS_CONNECTIONS_MAX
    assert sum(connections.acquire("10.0.0.2") for _ in range(CONNECTIONS_MAX)) == CONNECTIONS_MAX - ADDRESS_CONNECTIONS_MAX
