"""One mover as a process: start it, read its reports, send it orders, kill it.

The log-writer's side of `services/log_writer/mover/__main__.py`; posix_spawn, as for cleaning runs. A
report wakes the log-writer's duty cycle, which never waits for the mover. The child binds itself to this
process and dies with it. A killed child is not waited for, because one whose disk hangs cannot die before
the disk answers; `is_gone` says when it has.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import Callable

from appliance.runtime.parent_death import BOUND_VARIABLE, PARENT_VARIABLE
from appliance.runtime.poller import Poller
from appliance.runtime.run_options import python_arguments
from appliance.storage.move_record import PACKET_BYTES_MAX, MoveCommand, MoveJob, MoveSaid


class MoverProcess:
    """Starts in its constructor. Raises OSError if the machine refuses. `on_news` is called from the poller."""

    def __init__(self, job: MoveJob, poller: Poller, on_news: Callable[[], None]) -> None:
        self._poller = poller
        self._on_news = on_news
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = ours
        try:
            ours.setblocking(False)
            ours.send(job.encode())
            self.pid = self._start(job.disk, theirs.fileno())
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.status: int | None = None
        """The exit code as of `waitstatus_to_exitcode`; None while it runs."""
        self.has_ended = False
        """It will say nothing more."""
        poller.register(ours.fileno(), select.EPOLLIN, self._wake)

    def _start(self, disk: str, channel: int) -> int:
        environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
        environment.pop(BOUND_VARIABLE, None)
        for name in ("LISTEN_PID", "LISTEN_FDS", "NOTIFY_SOCKET"):
            environment.pop(name, None)
        arguments = [sys.executable, *python_arguments("services.log_writer.mover", environment), disk]
        return os.posix_spawn(sys.executable, arguments, environment, file_actions=[(os.POSIX_SPAWN_DUP2, channel, 0)])

    def _wake(self, _events: int) -> None:
        self._on_news()

    def poll(self) -> list[MoveSaid]:
        """What it said since the last look."""
        said: list[MoveSaid] = []
        while not self.has_ended:
            try:
                packet = self._channel.recv(PACKET_BYTES_MAX)
            except BlockingIOError:
                break
            except ConnectionResetError:
                packet = b""
            if packet:
                said.append(MoveSaid.decode(packet))
            else:
                self._let_go()
        return said

    def order(self, order: MoveCommand) -> bool:
        """Send an order; return False if the mover does not read."""
        if self.has_ended:
            return False
        try:
            return self._channel.send(order.encode()) > 0
        except (BlockingIOError, ConnectionError):
            return False

    def kill(self) -> None:
        """From now on it does nothing more; see `is_gone`."""
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
        self._let_go()

    def is_gone(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    def _let_go(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            self._poller.unregister(self._channel.fileno())
            self._channel.close()
