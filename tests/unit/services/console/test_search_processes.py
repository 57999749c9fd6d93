"""How many searches may run for whom. Real processes, without a box."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import pytest
from starlette.requests import Request

from appliance.base.layout import BoxLayout
from services.console.search_processes import ENDED_MAX, SearchAnswer, Searcher, SearchProcesses
from services.console.search_route import SearchRoute

pytestmark = [pytest.mark.slow, pytest.mark.system]

REQUEST = b"{}"


def test_one_process_is_kept_for_the_unix_socket(layout: BoxLayout) -> None:
    async def run() -> None:
        processes = SearchProcesses(layout, 2)
        by_tcp = await processes.start(REQUEST, Searcher("10.0.0.1"))
        assert "kept for the box itself" in str(processes.why_busy(Searcher("10.0.0.2")))
        assert processes.why_busy(Searcher(None)) is None
        by_unix = await processes.start(REQUEST, Searcher(None))
        assert "as many searches run" in str(processes.why_busy(Searcher(None)))
        by_tcp.close()
        by_unix.close()
        assert processes.why_busy(Searcher("10.0.0.2")) is None

    asyncio.run(run())


def test_a_network_follows_with_one_search(layout: BoxLayout) -> None:
    async def run() -> None:
        processes = SearchProcesses(layout, 4)
        answer = await processes.start(REQUEST, Searcher("2001:db8::1", follows=True))
        assert "a search that follows runs" in str(processes.why_busy(Searcher("2001:db8::2", follows=True)))
        assert processes.why_busy(Searcher("2001:db8::2")) is None and processes.why_busy(Searcher("10.0.0.1", follows=True)) is None
        answer.close()
        assert processes.why_busy(Searcher("2001:db8::2", follows=True)) is None

    asyncio.run(run())


def test_a_network_has_half_of_the_processes(layout: BoxLayout) -> None:
    async def run() -> None:
        processes = SearchProcesses(layout, 4)
        answers = [await processes.start(REQUEST, Searcher(address)) for address in ("2001:db8::1", "2001:db8::2")]
        assert "this address has half" in str(processes.why_busy(Searcher("2001:db8::3")))
        assert processes.why_busy(Searcher("10.0.0.1")) is None
        for answer in answers:
            answer.close()

    asyncio.run(run())


def test_searches_that_do_not_end_after_their_kill_are_bounded(layout: BoxLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    """As while their disk hangs."""

    async def run() -> None:
        processes = SearchProcesses(layout, 2)
        with monkeypatch.context() as patched:
            patched.setattr(os, "waitpid", lambda _pid, _options: (0, 0))
            for _ in range(ENDED_MAX):
                assert processes.why_busy(Searcher(None)) is None
                (await processes.start(REQUEST, Searcher(None))).close()
            assert "still wait for a disk" in str(processes.why_busy(Searcher(None)))
        while processes.why_busy(Searcher(None)) is not None:
            await asyncio.sleep(0.01)

    asyncio.run(run())


def test_without_processes_searching_is_off(layout: BoxLayout) -> None:
    assert SearchProcesses(layout, 0).is_off and not SearchProcesses(layout, 1).is_off


class OneAnswer:
    """Processes whose only search has begun."""

    is_off = False

    def __init__(self) -> None:
        self.closed = 0

    def why_busy(self, _searcher: Searcher) -> str | None:
        return None

    async def start(self, _request: bytes, _searcher: Searcher) -> SearchAnswer:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(b'{"search":{}}\n')
        reader, writer = await asyncio.open_connection(sock=ours)
        return SearchAnswer(self._on_closed, reader, writer)

    def _on_closed(self) -> None:
        self.closed += 1


def test_a_client_that_leaves_before_the_first_byte_frees_its_search() -> None:
    async def run() -> None:
        processes: Any = OneAnswer()
        left = asyncio.Event()
        scope: dict[str, Any] = {"type": "http", "method": "GET", "headers": [], "query_string": b"topic=t", "client": ("10.0.0.1", 1), "path": "/"}

        async def receive() -> dict[str, Any]:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(_message: Any) -> None:
            left.set()
            await asyncio.Event().wait()  # it reads nothing

        response = await SearchRoute(processes, lambda: 0, {}).answer(Request(scope, receive))
        await response(scope, receive, send)
        assert processes.closed == 1
        await asyncio.sleep(0)  # the transport closes its socket in the next turn of the loop

    asyncio.run(run())
