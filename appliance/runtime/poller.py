"""The only place where a process waits: epoll with a callback per descriptor.

Owned by the runner of the process; agents register sockets, eventfds and pidfds. Level-triggered,
so that a callback may read a bounded amount and is called again. Weak: an event that was fetched
before its descriptor was closed and reused in the same turn reaches the callback of the new owner.
Callbacks therefore use non-blocking descriptors and ignore EAGAIN.
"""

from __future__ import annotations

import select
from collections.abc import Callable

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT
HANG_UP = select.EPOLLHUP | select.EPOLLRDHUP | select.EPOLLERR

EVENTS_A_TURN = 256

EventCallback = Callable[[int], None]


class Poller:
    """epoll with callbacks. `callback(events)` receives the epoll mask, which may always contain
    HUP and ERR."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, EventCallback] = {}

    def fileno(self) -> int:
        """Return the epoll descriptor, which is readable if `poll` would find an event. For a
        process with its own event loop (the console)."""
        return self._epoll.fileno()

    def register(self, descriptor: int, events: int, callback: EventCallback) -> None:
        self._epoll.register(descriptor, events)
        self._callbacks[descriptor] = callback

    def modify(self, descriptor: int, events: int) -> None:
        self._epoll.modify(descriptor, events)

    def unregister(self, descriptor: int) -> None:
        """Remove a descriptor; call it before closing. Unknown or closed ones are ignored, because
        two sides may clean up."""
        if self._callbacks.pop(descriptor, None) is not None:
            try:
                self._epoll.unregister(descriptor)
            except (OSError, ValueError):
                pass  # the kernel removed it when it was closed

    def poll(self, timeout_ms: float) -> int:
        """Wait at most `timeout_ms` (0: not at all) and run the callbacks of ready descriptors;
        returns the number of events."""
        events = self._epoll.poll(timeout_ms / 1000 if timeout_ms else 0, EVENTS_A_TURN)
        callbacks = self._callbacks
        for descriptor, mask in events:
            callback = callbacks.get(descriptor)
            if callback is not None:
                callback(mask)
        return len(events)

    def __len__(self) -> int:
        return len(self._callbacks)

    def close(self) -> None:
        self._callbacks.clear()
        self._epoll.close()
