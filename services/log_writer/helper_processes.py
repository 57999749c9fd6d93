"""The helpers of a log-writer as processes: one cleaning run, one mover, one that makes summaries.

The log-writer's side of `services/log_writer/cleaner/__main__.py` and
`services/log_writer/mover/__main__.py`, and of `services/search/summarizer.py`. posix_spawn, not fork: nothing of the log-writer is copied,
and its threads do not matter. A child binds itself to this process and dies with it. Weak spot: a
child whose disk hangs cannot be killed before the disk answers; it is left to the kernel then.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import Callable

from appliance.runtime.poller import Poller
from appliance.runtime.run_options import python_arguments
from appliance.runtime.spawning import BOUND_VARIABLE, PARENT_VARIABLE
from appliance.storage import file_io
from appliance.storage.cleaning_plan import DIRECTORY_FD, CleaningJob, RunReport
from appliance.storage.move_record import PACKET_BYTES_MAX, MoveCommand, MoveJob, MoveSaid
from appliance.storage.partition_directory import PinnedDirectory


class CleaningProcess:
    """A cleaning run. Starts in its constructor, which raises OSError if the machine refuses.

    The run gets the log's directory as a descriptor: a new topic may have its name before the run
    ends. Job and reports pass through files in memory, so neither side waits for a full pipe."""

    def __init__(self, job: CleaningJob, disk: str) -> None:
        self._reports = os.memfd_create("cleaning-reports")
        self._position = 0
        try:
            self.pid = self._start(job, disk)
        except BaseException:
            os.close(self._reports)
            raise
        self.status: int | None = None
        """The exit code as of `waitstatus_to_exitcode`; None while it runs."""

    def _start(self, job: CleaningJob, disk: str) -> int:
        directory = PinnedDirectory(job.directory)
        job_file = -1
        try:
            job_file = os.memfd_create("cleaning-job")
            document = memoryview(job.encode())
            while document:
                document = document[os.write(job_file, document) :]
            actions = [(os.POSIX_SPAWN_DUP2, ours, theirs) for ours, theirs in ((job_file, 0), (self._reports, 1), (directory.fd, DIRECTORY_FD))]
            return _spawn("services.log_writer.cleaner", disk, actions)
        finally:
            directory.close()
            if job_file >= 0:
                os.close(job_file)

    def poll(self) -> list[RunReport]:
        """What it said since the last look.

        `status` is set before its last words are read, so that none is missed.
        """
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        said = os.pread(self._reports, os.fstat(self._reports).st_size - self._position, self._position)
        whole = said[: said.rfind(b"\n") + 1]
        self._position += len(whole)
        return [RunReport.decode(line) for line in whole.splitlines()]

    def close(self) -> None:
        """End it, if it still runs."""
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.status = -signal.SIGKILL
        os.close(self._reports)


class SummaryProcess:
    """Makes summaries of segments. Starts in its constructor, which raises OSError if the machine
    refuses. A killed one is not waited for, because its disk may hang."""

    def __init__(self, job: bytes, disk: str) -> None:
        self._reports = os.memfd_create("summary-reports")
        self._position = 0
        self.status: int | None = None
        """The exit code as of `waitstatus_to_exitcode`; None while it runs."""
        job_file = -1
        try:
            job_file = os.memfd_create("summary-job")
            file_io.write_all(job_file, (job,), 0, len(job))
            self.pid = _spawn("services.search.summarizer", disk, [(os.POSIX_SPAWN_DUP2, job_file, 0), (os.POSIX_SPAWN_DUP2, self._reports, 1)])
        except BaseException:
            os.close(self._reports)
            raise
        finally:
            if job_file >= 0:
                os.close(job_file)

    def poll(self) -> list[bytes]:
        """Return the lines that it has reported since the last call."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        said = os.pread(self._reports, os.fstat(self._reports).st_size - self._position, self._position)
        whole = said[: said.rfind(b"\n") + 1]
        self._position += len(whole)
        return whole.splitlines()

    def kill(self) -> None:
        """End it; `poll` sees its end when its disk lets it go."""
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        os.close(self._reports)


class MoverProcess:
    """A mover. Starts in its constructor, which raises OSError if the machine refuses.

    A report wakes the log-writer's duty cycle by `on_news`, from the poller. A killed mover is not
    waited for, because its disk may hang; `is_gone` says when it has ended."""

    def __init__(self, job: MoveJob, poller: Poller, on_news: Callable[[], None]) -> None:
        self._poller = poller
        self._on_news = on_news
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = ours
        try:
            ours.setblocking(False)
            ours.send(job.encode())
            self.pid = _spawn("services.log_writer.mover", job.disk, [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)])
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


def _spawn(module: str, disk: str, file_actions: list[tuple[int, int, int]]) -> int:
    """Start a Python module as a child that dies with this process; return its pid."""
    environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
    for name in (BOUND_VARIABLE, "LISTEN_PID", "LISTEN_FDS", "NOTIFY_SOCKET"):
        environment.pop(name, None)
    arguments = [sys.executable, *python_arguments(module, environment), disk]
    return os.posix_spawn(sys.executable, arguments, environment, file_actions=file_actions)
