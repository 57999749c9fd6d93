"""Starts a search process (`services.search`) for each search, and passes its answer on.

The process gets its request on a socket, one line of JSON, and writes lines of JSON until it has
ended. To cancel a search, it is killed. Owned by the console's loop. Weak: a process start takes a
quarter of a second of CPU.

One of the processes is kept for the Unix socket, so that clients by TCP cannot block `millrace
search`. One network has at most half of the others, and one search that follows, because such a
search has no end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import NamedTuple

from appliance.base.layout import BoxLayout
from appliance.runtime.run_options import python_arguments
from appliance.runtime.spawning import BOUND_VARIABLE, PARENT_VARIABLE
from appliance.senders.sender_accounts import network_of

CHUNK_BYTES = 64 << 10
LINE_BYTES_MAX = 1 << 20
REAP_SECONDS = 0.5
ENDED_MAX = 4
"""Processes that were killed and have not ended: a disk that hangs holds them."""


class Searcher(NamedTuple):
    """For which client a search runs. `address` is None by the Unix socket."""

    address: str | None
    follows: bool = False

    @property
    def network(self) -> str | bytes | None:
        """The network that a search comes from; None by the Unix socket."""
        return network_of(self.address) if self.address is not None else None

    @property
    def followed_from(self) -> str | bytes | None:
        """The network that a search follows from; None if it does not, or by the Unix socket."""
        return self.network if self.follows else None


class SearchProcesses:
    """The searches that run, at most `processes_max` at a time."""

    def __init__(self, layout: BoxLayout, processes_max: int) -> None:
        self._layout = layout
        self._processes_max = processes_max
        self._ended: set[int] = set()
        self._reap_timer: asyncio.TimerHandle | None = None
        self._running: list[Searcher] = []

    @property
    def is_off(self) -> bool:
        """Whether the settings allow no search."""
        return self._processes_max == 0

    def why_busy(self, searcher: Searcher) -> str | None:
        """Return why a search has to wait; None if it may start."""
        self._reap()
        if len(self._ended) >= ENDED_MAX:
            return "searches that were ended still wait for a disk; look at `millrace status`"
        if len(self._running) >= self._processes_max:
            return "as many searches run as search.processes.max allows; wait for one to end"
        by_tcp = sum(each.address is not None for each in self._running)
        if searcher.address is not None and by_tcp >= max(self._processes_max - 1, 1):
            return "as many searches run as search.processes.max allows by TCP (one is kept for the box itself); wait for one to end"
        if searcher.network is not None and sum(each.network == searcher.network for each in self._running) >= max(self._processes_max // 2, 1):
            return "this address has half of the searches that search.processes.max allows by TCP; wait for one to end"
        if searcher.followed_from is not None and any(each.followed_from == searcher.followed_from for each in self._running):
            return "a search that follows runs for this address; end it, or search without follow"
        return None

    async def start(self, request: bytes, searcher: Searcher) -> SearchAnswer:
        """Return the answer to a request (one line). Raises OSError if no process can be started."""
        self._reap()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._running.append(searcher)
        pid = 0
        try:
            pid = self._spawn(theirs)
            reader, writer = await asyncio.open_connection(sock=ours, limit=LINE_BYTES_MAX)
            writer.write(request + b"\n")
            await writer.drain()
        except BaseException:
            ours.close()
            self.end(pid, searcher)
            raise
        finally:
            theirs.close()
        return SearchAnswer(partial(self.end, pid, searcher), reader, writer)

    def _spawn(self, channel: socket.socket) -> int:
        environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
        for name in (BOUND_VARIABLE, "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
            environment.pop(name, None)
        arguments = [sys.executable, *python_arguments("services.search", environment)]
        return os.posix_spawn(sys.executable, arguments, environment, file_actions=[(os.POSIX_SPAWN_DUP2, channel.fileno(), 0)])

    def end(self, pid: int, searcher: Searcher) -> None:
        """Kill a process, if it still runs, and reap it when it has ended."""
        self._running.remove(searcher)
        if pid:
            os.kill(pid, signal.SIGKILL)  # it is not reaped yet, so the pid is its own
            self._ended.add(pid)
            self._reap_later()

    def _reap(self) -> None:
        for pid in list(self._ended):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._ended.discard(pid)

    def _reap_later(self) -> None:
        """One timer serves all: a process that waits for a hung disk ends only when the disk answers."""
        if self._ended and self._reap_timer is None:
            self._reap_timer = asyncio.get_running_loop().call_later(REAP_SECONDS, self._on_reap_timer)

    def _on_reap_timer(self) -> None:
        self._reap_timer = None
        self._reap()
        self._reap_later()


class SearchAnswer:
    """The answer of one process; `close` ends it. `first_line` is read before the rest."""

    def __init__(self, on_closed: Callable[[], None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._on_closed = on_closed
        self._reader = reader
        self._writer = writer
        self._is_open = True

    async def first_line(self) -> bytes:
        """Return one line; empty if the process failed."""
        try:
            return await self._reader.readuntil(b"\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            return b""

    async def rest(self) -> AsyncIterator[bytes]:
        """Yield what follows, until the process ends."""
        try:
            while chunk := await self._reader.read(CHUNK_BYTES):
                yield chunk
        except ConnectionError:
            return
        finally:
            self.close()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._writer.close()
            self._on_closed()
