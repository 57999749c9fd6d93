"""Starts a search process (`services.search`) for each search, and passes its answer on.

The process gets its request on a socket, one line of JSON, and writes lines of JSON until it has
ended. To cancel a search, it is killed. Owned by the console's loop. Weak: a process start takes a
quarter of a second of CPU.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator

from appliance.base.layout import BoxLayout
from appliance.runtime.run_options import python_arguments
from appliance.runtime.spawning import BOUND_VARIABLE, PARENT_VARIABLE

CHUNK_BYTES = 64 << 10
LINE_BYTES_MAX = 1 << 20
REAP_SECONDS = 0.5


class SearchProcesses:
    """The searches that run. At most `processes_max` at a time; `is_busy` says that there are."""

    def __init__(self, layout: BoxLayout, processes_max: int) -> None:
        self._layout = layout
        self._processes_max = processes_max
        self._ended: set[int] = set()
        self._running = 0

    @property
    def is_busy(self) -> bool:
        return self._running >= self._processes_max

    async def start(self, request: bytes) -> SearchAnswer:
        """Return the answer to a request (one line). Raises OSError if no process can be started."""
        self._reap()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._running += 1
        pid = 0
        try:
            pid = self._spawn(theirs)
            reader, writer = await asyncio.open_connection(sock=ours, limit=LINE_BYTES_MAX)
            writer.write(request + b"\n")
            await writer.drain()
        except BaseException:
            ours.close()
            self.end(pid)
            raise
        finally:
            theirs.close()
        return SearchAnswer(self, pid, reader, writer)

    def _spawn(self, channel: socket.socket) -> int:
        environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
        for name in (BOUND_VARIABLE, "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
            environment.pop(name, None)
        arguments = [sys.executable, *python_arguments("services.search", environment)]
        return os.posix_spawn(sys.executable, arguments, environment, file_actions=[(os.POSIX_SPAWN_DUP2, channel.fileno(), 0)])

    def end(self, pid: int) -> None:
        """Kill a process, if it still runs, and reap it when it has ended."""
        self._running -= 1
        if pid:
            os.kill(pid, signal.SIGKILL)  # it is not reaped yet, so the pid is its own
            self._ended.add(pid)
            asyncio.get_running_loop().call_later(REAP_SECONDS, self._reap)

    def _reap(self) -> None:
        for pid in list(self._ended):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._ended.discard(pid)
        if self._ended:
            asyncio.get_running_loop().call_later(REAP_SECONDS, self._reap)


class SearchAnswer:
    """The answer of one process; `close` ends it. `first_line` is read before the rest."""

    def __init__(self, processes: SearchProcesses, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._processes = processes
        self._pid = pid
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
            self._processes.end(self._pid)
