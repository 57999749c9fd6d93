"""A real thread of the operating system for one C client's blocking calls, beside gevent's hub.

locust runs all users of a process as greenlets of one thread. gevent makes Python's own sockets give way to other greenlets, but not C's: one
`Consumer.poll(1.0)` of librdkafka would stop every user of the process, its timers and its talk with the master for a second. Asking with
`poll(0)` between sleeps stops no user, but then answers are noticed a sleep late, and latencies measured by it are those of the sleep.
So each client has a thread of its own: greenlets wait for it, and it wakes the hub as soon as there is something.

Rules: one client's calls all go through its thread, one after the other. What runs there touches no greenlet, lock, queue or logger, because
gevent has patched them for its own thread; it may count, append to a list, and call `Signal.set`. Weak spot: the interpreter's lock is shared, so what the
thread notices waits for the greenlet that runs now (`SWITCH_SECONDS`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import gevent
from gevent.event import Event
from gevent.threadpool import ThreadPool

SWITCH_SECONDS = 0.001
"""How long a thread that computes may keep the interpreter's lock when another asks for it; Python's default is 5 ms."""


class NativeThread:
    """Made and used in the hub's thread."""

    def __init__(self) -> None:
        sys.setswitchinterval(SWITCH_SECONDS)
        self._pool = ThreadPool(1)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Runs it there; this greenlet waits, others run. Raises what it raises."""
        return self._pool.apply(function, arguments)

    def start(self, function: Callable[[], None]) -> Any:
        """Begins something long there; `.get()` of what comes back waits for its end."""
        return self._pool.spawn(function)

    def close(self) -> None:
        self._pool.kill()


class Signal:
    """Wakes the greenlet that waits, from any thread."""

    def __init__(self) -> None:
        self._event = Event()
        self._watcher = gevent.get_hub().loop.async_()
        self._watcher.start(self._event.set)

    def set(self) -> None:
        self._watcher.send()

    def wait(self, seconds: float) -> None:
        """Returns when it was set, or the time is over; and is unset again."""
        self._event.wait(seconds)
        self._event.clear()

    def close(self) -> None:
        self._watcher.stop()
        self._watcher.close()
