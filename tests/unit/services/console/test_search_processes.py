"""How many searches may run for whom. Real processes, without a box."""

from __future__ import annotations

import asyncio

from appliance.base.layout import BoxLayout
from services.console.search_processes import Searcher, SearchProcesses

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


def test_without_processes_searching_is_off(layout: BoxLayout) -> None:
    assert SearchProcesses(layout, 0).is_off and not SearchProcesses(layout, 1).is_off
