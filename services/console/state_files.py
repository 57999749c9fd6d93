"""Keeps files of the console in `STATE/console`: reads them once, writes what changed, in a thread, one at a
time.

The loop never waits for the state disk: a write that takes long delays the next ones, whose changes
add up in their owners (`KeptFile`). A file that is damaged is renamed to NAME.damaged, counted, and its
problem is shown on the page. Owned by the console's loop. Weak: what changed in the seconds before a
power cut is lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from appliance.base.clock import Clock
from appliance.base.errors import StorageFailed
from appliance.base.logging import Logger
from appliance.runtime.background_thread import BackgroundThread, ThreadRefused
from appliance.shm.counters import Counters
from appliance.storage import file_io

EVERY_MS = 5_000
RETRY_MS = 60_000
CLOSE_SECONDS = 2.0
_NOT_KEPT = "could not read or write"
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Change(NamedTuple):
    """Bytes to write at a position of the file; at None they are the whole file."""

    position: int | None
    content: bytes


class DamagedFile(ValueError):
    """A kept file, or a part of it, is not what was written."""


class KeptFile(Protocol):
    """The owner of a file's content; all in the loop."""

    name: str
    bytes_max: int

    def load(self, content: bytes | None) -> None:
        """Take the content of an earlier incarnation; None if there is none. Raises DamagedFile; what
        is readable has then been taken."""

    def take(self) -> list[Change]:
        """Return what changed since the last call."""

    def repeat(self) -> None:
        """What `take` returned was not written: return the whole content next time."""


class StateFiles:
    """`turn` several times a second; `close` writes what is left."""

    def __init__(self, directory: str, kept: Sequence[KeptFile], clock: Clock, counters: Counters, log: Logger) -> None:
        self._directory = directory
        self._kept = kept
        self._clock = clock
        self._log = log
        self.problems: dict[str, str] = {}
        """By file: what was damaged, or why nothing can be kept now."""
        self._failures, self._damaged = counters.counter("console.state_failures"), counters.counter("console.state_damaged")
        self._thread: BackgroundThread | None = None
        self._on_done: Callable[[], None] = lambda: None
        self._next_ms = 0
        self._unread = list(kept)
        """Until a file is read it is not written: what is in it would be lost."""

    @property
    def is_working(self) -> bool:
        """Whether the thread is at work."""
        return self._thread is not None and self._thread.is_alive()

    def turn(self) -> None:
        """Take the outcome of the last thread, and start the next if there is something to do."""
        if self._thread is not None:
            if self._thread.is_alive():
                return
            self._thread = None
            self._on_done()
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + EVERY_MS
        if self._unread:
            found: dict[str, bytes | Exception | None] = {}
            self._begin(lambda: self._read_all(found), lambda: self._loaded(found))
        elif changes := [(kept, taken) for kept in self._kept if (taken := kept.take())]:
            failed: dict[str, Exception] = {}
            self._begin(lambda: self._write_all(changes, failed), lambda: self._written(changes, failed))

    def _begin(self, work: Callable[[], None], on_done: Callable[[], None]) -> None:
        thread = BackgroundThread(work, "console-state")
        try:
            thread.start()
        except ThreadRefused:
            self._next_ms = self._clock.monotonic_ms() + RETRY_MS
            for kept in self._kept:
                kept.repeat()
            return
        self._thread, self._on_done = thread, on_done

    def close(self) -> None:
        """Write what is left, unless the disk takes longer than `CLOSE_SECONDS`."""
        for _ in range(2):
            if self._thread is not None:
                self._thread.join(CLOSE_SECONDS)
            self._next_ms = 0
            self.turn()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    # ---- in the thread

    def _read_all(self, found: dict[str, bytes | Exception | None]) -> None:
        for kept in self._unread:
            try:
                found[kept.name] = self._read(kept)
            except FileNotFoundError:
                found[kept.name] = None
            except OSError as problem:
                found[kept.name] = problem

    def _read(self, kept: KeptFile) -> bytes:
        descriptor = file_io.open_file(f"{self._directory}/{kept.name}", os.O_RDONLY | _OPEN)
        try:
            return file_io.pread_all(descriptor, 0, min(file_io.size_of(descriptor), kept.bytes_max + 1))
        finally:
            file_io.close(descriptor)

    def _write_all(self, changes: list[tuple[KeptFile, list[Change]]], failed: dict[str, Exception]) -> None:
        for kept, taken in changes:
            try:
                self._write(f"{self._directory}/{kept.name}", taken)
            except (OSError, StorageFailed) as problem:
                failed[kept.name] = problem

    def _write(self, path: str, changes: list[Change]) -> None:
        for change in changes:
            if change.position is None:
                file_io.replace_file(path, change.content)
        parts = [change for change in changes if change.position is not None]
        if not parts:
            return
        descriptor = file_io.open_file(path, os.O_WRONLY | _OPEN)
        try:
            for position, content in parts:
                file_io.write_all(descriptor, (content,), position or 0, len(content))
            file_io.sync_data(descriptor)
        finally:
            file_io.close(descriptor)

    # ---- in the loop, after it

    def _loaded(self, found: dict[str, bytes | Exception | None]) -> None:
        for kept in list(self._unread):
            content = found.get(kept.name, OSError("it was not read"))
            if isinstance(content, Exception):
                self._fail(kept, content)
                continue
            self._unread.remove(kept)
            self.problems.pop(kept.name, None)
            try:
                if content is not None and len(content) > kept.bytes_max:
                    raise DamagedFile(f"it has more than {kept.bytes_max} bytes")
                kept.load(content)
            except DamagedFile as problem:
                self._damaged.add()
                path = f"{self._directory}/{kept.name}"
                self.problems[kept.name] = f"{path} is damaged: {problem}; it is kept as {kept.name}.damaged"
                self._log.warning(self.problems[kept.name])
                with suppress(OSError):
                    file_io.rename(path, f"{path}.damaged")
                kept.repeat()

    def _written(self, changes: list[tuple[KeptFile, list[Change]]], failed: dict[str, Exception]) -> None:
        for kept, _ in changes:
            if kept.name in failed:
                self._fail(kept, failed[kept.name])
            elif self.problems.get(kept.name, "").startswith(_NOT_KEPT):
                del self.problems[kept.name]

    def _fail(self, kept: KeptFile, problem: Exception) -> None:
        self._failures.add()
        self._next_ms = self._clock.monotonic_ms() + RETRY_MS
        if kept.name not in self.problems:
            self._log.warning(f"{_NOT_KEPT} {self._directory}/{kept.name}: {problem}; retrying")
        self.problems[kept.name] = f"{_NOT_KEPT} {self._directory}/{kept.name}: {problem}; it is tried again every minute"
        kept.repeat()
