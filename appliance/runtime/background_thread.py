"""A daemon thread whose start never blocks for ever: either it runs, or `ThreadRefused` is raised.

`threading.Thread.start` waits for the new thread without a deadline. If the thread dies before it
runs any Python (there was memory for its stack, but none for the interpreter's), the wait never
ends, and the watchdog kills the process. Here, a refusal by the kernel and such a death raise the
same exception, which the caller treats as a temporary failure. The death is detected by a weak
reference to an object that only the new thread holds; its callback is a C function and needs no
memory.

Owned by its creator. Weak: if the machine does not schedule the new thread within `START_SECONDS`,
the start counts as failed.
"""

from __future__ import annotations

import _thread
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

START_SECONDS = 5.0


class ThreadRefused(RuntimeError):
    """No thread could be started."""


class Refusals:
    """Counts refused threads of this process and keeps the latest reason. The runner counts and
    logs them."""

    def __init__(self) -> None:
        self.count = 0
        self.latest = ""

    def add(self, reason: str) -> None:
        self.count += 1
        self.latest = reason


REFUSALS = Refusals()


class _RunningMark:
    """An object that only the new thread holds."""

    __slots__ = ("__weakref__",)


class BackgroundThread:
    """A daemon thread; call `start` once. Exceptions of `target` go to `threading.excepthook`, as
    with any thread."""

    def __init__(self, target: Callable[..., object], name: str, args: tuple[Any, ...] = ()) -> None:
        self.name = name
        self._target = target
        self._args = args
        self._events: queue.SimpleQueue[object] = queue.SimpleQueue()
        """Receives an item when the thread runs, and one when it has ended."""
        self._turn = _thread.allocate_lock()
        """Acquired once: by the thread, which then runs, or by its creator, which has then given
        up."""
        self._mark: weakref.ref[_RunningMark] | None = None

    def start(self, waits: bool = True) -> None:
        """Return when the thread runs. Raises ThreadRefused if it will never run.

        With `waits` False it returns at once, for callers that may not wait: then only the kernel's refusal is raised, and
        `is_alive` becomes False for a thread that died before it ran.
        """
        mark = _RunningMark()
        reference = self._mark = weakref.ref(mark, self._events.put)
        try:
            _thread.start_new_thread(self._run, (mark,))
        except (RuntimeError, MemoryError) as error:
            raise self._refused(str(error) or "no memory") from error
        del mark
        if not waits:
            return
        try:
            event: object = self._events.get(timeout=START_SECONDS)
        except queue.Empty:
            event = reference
        if event is reference:
            if self._turn.acquire(blocking=False):
                words = "it ended before it could run, for lack of memory" if reference() is None else f"it did not run within {START_SECONDS:g} s"
                raise self._refused(words)
            self._events.get()  # it started just before the deadline

    def _refused(self, reason: str) -> ThreadRefused:
        refusal = ThreadRefused(f"could not start thread {self.name}: {reason}")
        REFUSALS.add(str(refusal))
        self._mark = None
        return refusal

    def _run(self, mark: _RunningMark) -> None:
        del mark  # the interpreter keeps it until this returns; a traceback would keep it longer
        self._events.put(None)
        if not self._turn.acquire(blocking=False):
            return
        threading.current_thread().name = self.name
        try:
            self._target(*self._args)
        except SystemExit:
            pass
        except BaseException:
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))

    def is_alive(self) -> bool:
        """Return whether the thread runs; False before its start."""
        return self._mark is not None and self._mark() is not None

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, or for `timeout` seconds; see `is_alive`."""
        if not self.is_alive():
            return
        try:
            self._events.put(self._events.get(timeout=timeout))  # for the next caller
        except queue.Empty:
            pass
