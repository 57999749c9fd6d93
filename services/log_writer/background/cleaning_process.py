"""One cleaning run as a process: start it, read its reports, end it.

The log-writer's side of `services/log_writer/cleaner/__main__.py`. posix_spawn, not fork: nothing of the
log-writer is copied, and its threads do not matter. The run gets the log's directory as a descriptor: a
new topic may have its name before the run ends. Job and reports pass through files in memory, so neither
side waits for a full pipe. The child binds itself to this process and dies with it. Weak spot: a child
whose disk hangs cannot be killed before the disk answers; it is left to the kernel then.
"""

from __future__ import annotations

import os
import signal
import sys

from appliance.runtime.parent_death import BOUND_VARIABLE, PARENT_VARIABLE
from appliance.runtime.run_options import python_arguments
from appliance.storage.cleaning_plan import DIRECTORY_FD, CleaningJob, RunReport
from appliance.storage.partition_directory import PinnedDirectory


class CleaningProcess:
    """Starts in its constructor. Raises OSError if the machine refuses."""

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
        environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
        environment.pop(BOUND_VARIABLE, None)
        for name in ("LISTEN_PID", "LISTEN_FDS", "NOTIFY_SOCKET"):
            environment.pop(name, None)
        arguments = [sys.executable, *python_arguments("services.log_writer.cleaner", environment), disk]
        directory = PinnedDirectory(job.directory)
        job_file = -1
        try:
            job_file = os.memfd_create("cleaning-job")
            document = memoryview(job.encode())
            while document:
                document = document[os.write(job_file, document) :]
            actions = [(os.POSIX_SPAWN_DUP2, ours, theirs) for ours, theirs in ((job_file, 0), (self._reports, 1), (directory.fd, DIRECTORY_FD))]
            return os.posix_spawn(sys.executable, arguments, environment, file_actions=actions)
        finally:
            directory.close()
            if job_file >= 0:
                os.close(job_file)

    def poll(self) -> list[RunReport]:
        """What it said since the last look. `status` is set before its last words are read, so that none is missed."""
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
