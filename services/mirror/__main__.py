"""mirror: copies topics of other clusters into one. `millrace mirror` becomes this process, so that it holds no library of the command.

`run FILE`, `check FILE`, `status FILE [--json]`. Exit codes: 0 done, or stopped on request; 1 failed, or (status)
something needs attention; 78 the file is wrong (no restart).
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import sys
import traceback
from typing import Any

from appliance.base.clock import Clock, SystemClock
from appliance.base.errors import ConfigurationProblems
from appliance.base.logging import Logger, logger_from_environment
from appliance.runtime.service_main import EXIT_FAILED, EXIT_OTHER_RELEASE, name_process
from appliance.runtime.systemd import notify
from services.mirror.cluster_check import check_clusters
from services.mirror.mirror import Mirror, MirrorFenced
from services.mirror.mirror_file import MirrorOptions, mirror_name, read_mirror_file
from services.mirror.mirror_status import has_problem, status_document, status_text, write_status

RUNTIME_ROOT = "/run/millrace-mirror"
"""Under it the unit of a mirror has a directory with its name (RuntimeDirectory=)."""

WATCHDOG_MS = 10_000


class MirrorStopped(Exception):
    """SIGTERM or SIGINT, while the mirror sleeps or goes through many topics or groups."""


class StopSignal:
    """Set by a signal handler, which ends a sleep. No threading.Event: a handler must not wait for its lock."""

    def __init__(self) -> None:
        self.is_set = False
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def set(self) -> None:
        self.is_set = True
        os.eventfd_write(self._descriptor, 1)

    def close(self) -> None:
        os.close(self._descriptor)

    def sleep(self, seconds: float) -> None:
        """Sleep, or raise MirrorStopped."""
        if self._poll.poll(seconds * 1000):
            raise MirrorStopped


def main(arguments: list[str]) -> int:
    verb, path, *flags = arguments
    try:
        options = read_mirror_file(path, os.environ.get("RUNTIME_DIRECTORY") or _unit_directory(path))
    except ConfigurationProblems as problems:
        for problem in problems.problems:
            print(f"millrace: {problem}", file=sys.stderr)
        return EXIT_OTHER_RELEASE if verb == "run" else EXIT_FAILED
    if verb == "check":
        print(f"{path}: mirror {options.name} of {', '.join(source.name for source in options.sources)}: the file is right", flush=True)
        return show_clusters(options)
    if verb == "status":
        return show_status(options, "--json" in flags)
    return run_mirror(options)


def _unit_directory(path: str) -> str | None:
    directory = os.path.join(RUNTIME_ROOT, mirror_name(path))
    return directory if os.path.isdir(directory) else None


def show_clusters(options: MirrorOptions) -> int:
    """Print what works with each cluster, and what does not."""
    checks = check_clusters(options)
    for check in checks:
        for line in check.lines():
            print(line, flush=True)
    return EXIT_FAILED if any(check.problems for check in checks) else 0


def show_status(options: MirrorOptions, as_json: bool) -> int:
    try:
        with open(options.status_file, encoding="utf-8") as file:
            document: dict[str, Any] = json.load(file)
    except (OSError, ValueError) as error:
        print(f"millrace: no status of mirror {options.name} in {options.status_file}: {error}; is it running?", file=sys.stderr)
        return EXIT_FAILED
    now_ms = SystemClock().wall_ms()
    try:
        print(json.dumps(document, indent=2) if as_json else status_text(document, now_ms), flush=True)
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_FAILED if has_problem(document, now_ms) else 0


def run_mirror(options: MirrorOptions) -> int:
    """Copy until SIGTERM or SIGINT."""
    name_process("mirror")
    log = logger_from_environment(f"mirror@{options.name}")
    lock = take_lock(options, log)
    if lock is None:
        return EXIT_FAILED
    stop = StopSignal()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    mirror = Mirror(options, SystemClock(), log.warning, stop.sleep)
    log.info(f"started: {len(options.sources)} sources, status in {options.status_file}")
    notify("READY=1")
    reporter = StatusReporter(mirror, mirror.clock, log)

    def on_progress() -> None:
        if stop.is_set:
            raise MirrorStopped
        reporter.turn()

    mirror.on_progress = on_progress
    try:
        _turn_until(stop, mirror, reporter, log)
    except MirrorStopped:
        pass
    except MirrorFenced as error:
        log.error(str(error))
        return EXIT_FAILED
    except Exception as error:
        log.error(f"failed with {type(error).__name__}: {error}\n{traceback.format_exc()}")
        return EXIT_FAILED
    finally:
        notify("STOPPING=1")
        reporter.write(is_running=False)
        mirror.close()
        log.close()
        os.close(lock)
    return 0


def take_lock(options: MirrorOptions, log: Logger) -> int | None:
    """Lock a file beside the status file for this process, and return its descriptor; None: another process has the lock.

    Two mirrors of one name on several machines fence each other by their transactional id."""
    path = f"{os.path.splitext(options.status_file)[0]}.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        log.error(f"could not lock {path}: {error.strerror}; let this user write there, or set status-file in the mirror's file")
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        log.error(f"mirror {options.name} runs already (pid {owner or 'unknown'}, lock {path}); stop it first")
        return None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor


def _turn_until(stop: StopSignal, mirror: Mirror, reporter: StatusReporter, log: Logger) -> None:
    while not stop.is_set:
        mirror.step()
        reporter.turn()
        log.sweep(mirror.clock.monotonic_ns())


class StatusReporter:
    """Writes the status file in time; a file that cannot be written is reported once."""

    def __init__(self, mirror: Mirror, clock: Clock, log: Logger) -> None:
        self._mirror = mirror
        self._clock = clock
        self._log = log
        self._started_ms = clock.wall_ms()
        self._due_ms = self._watchdog_due_ms = 0
        self._problem = ""

    def turn(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._watchdog_due_ms:
            self._watchdog_due_ms = now_ms + WATCHDOG_MS
            notify("WATCHDOG=1")
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + self._mirror.options.status_ms
        self.write()

    def write(self, is_running: bool = True) -> None:
        try:
            write_status(self._mirror.options.status_file, status_document(self._mirror, self._started_ms, is_running))
            self._problem = ""
        except OSError as error:
            if str(error) != self._problem:
                self._log.warning(f"could not write {self._mirror.options.status_file}: {error.strerror}; retrying")
            self._problem = str(error)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
