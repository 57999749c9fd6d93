"""A daemon thread whose start never waits for ever: it runs, or `ThreadRefused` is raised.

`threading.Thread.start` waits for the new thread without a deadline. If that dies before it can run any Python (there was memory for its stack, but none for
the interpreter's), the wait never ends, and the watchdog kills the process. Here the kernel's refusal and such a death are one answer, which the caller
treats as a failure that may heal. How the death is seen: the new thread alone holds an object, and the callback of its weak reference is a C function, which
needs no memory of the dead thread's. Owned by whoever starts it. Weak spot: of a machine that does not schedule the new thread within `START_SECONDS` it is
believed that it never will.
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
    """How often that happened in this process, and which thread it was last. Read by the runner, which counts and logs it."""

    def __init__(self) -> None:
        self.count = 0
        self.latest = ""

    def add(self, words: str) -> None:
        self.count += 1
        self.latest = words


REFUSALS = Refusals()


class _Life:
    """Held by the new thread alone."""

    __slots__ = ("__weakref__",)


class BackgroundThread:
    """`start` it once. What `target` raises goes to `threading.excepthook`, as with any thread."""

    def __init__(self, target: Callable[..., object], name: str, args: tuple[Any, ...] = ()) -> None:
        self.name = name
        self._target = target
        self._args = args
        self._events: queue.SimpleQueue[object] = queue.SimpleQueue()
        """Filled when the thread runs, and when it has ended."""
        self._turn = _thread.allocate_lock()
        """Taken once: by the thread, which then runs, or by the starter, which has given up."""
        self._life: weakref.ref[_Life] | None = None

    def start(self) -> None:
        """Returns when the thread runs. Raises ThreadRefused, and then it never will."""
        life = _Life()
        reference = self._life = weakref.ref(life, self._events.put)
        try:
            _thread.start_new_thread(self._run, (life,))
        except (RuntimeError, MemoryError) as error:
            raise self._refused(str(error) or "no memory") from error
        del life
        try:
            event: object = self._events.get(timeout=START_SECONDS)
        except queue.Empty:
            event = reference
        if event is reference:
            if self._turn.acquire(blocking=False):
                words = "it ended before it could run, for want of memory" if reference() is None else f"it did not run within {START_SECONDS:g} s"
                raise self._refused(words)
            self._events.get()  # it has begun at the last moment

    def _refused(self, reason: str) -> ThreadRefused:
        refusal = ThreadRefused(f"could not start thread {self.name}: {reason}")
        REFUSALS.add(str(refusal))
        self._life = None
        return refusal

    def _run(self, life: _Life) -> None:
        del life  # the interpreter holds it until this returns; a traceback would hold it for longer
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
        """Whether it runs; false before its start."""
        return self._life is not None and self._life() is not None

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, or for so many seconds; see `is_alive`."""
        if not self.is_alive():
            return
        try:
            self._events.put(self._events.get(timeout=timeout))  # for the next one that waits
        except queue.Empty:
            pass
