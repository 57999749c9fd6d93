"""Run one piece of disk work at a time in a thread, so that the log-writer's duty cycle never waits
for the disk.

All background work of the log-writer follows the same rules. The thread changes nothing that the
duty cycle reads; `finish` brings the result back. OSError becomes DiskFull, OutOfDescriptors or
StorageFailed. A thread that could not be started, or that died before its work, is OutOfThreads:
nothing was done, and the work can be repeated. Any other exception is raised in the duty cycle as
it is. Only `BatchFlushes` has a thread of its own, which stays: a start costs 0.1 ms, and a
producer waits for each of its rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from appliance.base.errors import OutOfThreads
from appliance.runtime.background_thread import BackgroundThread, ThreadRefused
from appliance.storage import file_io

Result = TypeVar("Result")


class BackgroundTask:
    """`start`, then in each turn: wait while `is_running`; if `has_ended`, `finish`."""

    def __init__(self, name: str, action: str, on_end: Callable[[], None] | None = None, on_sync_failed: Callable[[], None] | None = None) -> None:
        """`action` completes "could not …".

        The thread calls `on_end` when it ends, and `finish` calls it once more. The thread calls
        `on_sync_failed` at once when a sync fails: no later sync reports that failure again, and
        this process may end before its next turn.
        """
        self._name = name
        self._action = action
        self._on_end = on_end
        self._on_sync_failed = on_sync_failed
        self._thread: BackgroundThread | None = None
        self._raised: Exception | None = None
        self._then: Callable[[], object] = _nothing
        self.is_started = False
        """Until `finish`: it runs or has ended. An attribute, because each turn reads it several times."""

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def has_ended(self) -> bool:
        """Whether a result, or a failure, waits for `finish`."""
        return self._thread is not None and not self._thread.is_alive()

    def start(self, work: Callable[[], Result], then: Callable[[Result], object] | None = None) -> None:
        """Run `work` in a thread; `finish` calls `then` with what it returns."""
        self._raised, self._then = OutOfThreads(f"could not {self._action}: its thread ended before its work"), _nothing

        def body() -> None:
            try:
                result = work()
                if then is not None:
                    self._then = partial(then, result)
                self._raised = None
            except Exception as failure:  # `finish` raises it
                self._raised = failure
                if isinstance(failure, file_io.SyncFailed) and self._on_sync_failed is not None:
                    self._on_sync_failed()
            if self._on_end is not None:
                self._on_end()

        self._thread = BackgroundThread(body, self._name)
        self.is_started = True
        try:
            self._thread.start()
        except ThreadRefused as refusal:
            self._raised = OutOfThreads(f"could not {self._action}: {refusal}")
            if self._on_end is not None:
                self._on_end()

    def take_failure(self) -> Exception | None:
        """End a task that has ended, without its `then`; return why it failed, None if it did not."""
        self._thread, failure = None, self._raised
        self.is_started = False
        if self._on_end is not None:
            self._on_end()  # a thread that died before its work (no memory) has not called it
        return file_io.storage_failure(self._action, failure) if isinstance(failure, OSError) else failure

    def finish(self) -> None:
        """End a task that has ended. Raises what its work raised."""
        failure = self.take_failure()
        if failure is not None:
            raise failure
        self._then()

    def join(self, timeout_seconds: float | None = None) -> bool:
        """Wait for the thread; return False if it is still running after that time."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)
        return not self.is_running


def _nothing() -> None:
    pass
