"""The one place where a process waits: epoll, and a callback for each descriptor.

Owned by the process's runner; agents register their sockets, eventfds and pidfds. Level-triggered, so a callback may take a bounded
bite and come back. Weak spot: an event that was fetched before its descriptor was closed and reused in the same turn reaches the new
owner's callback; callbacks therefore use non-blocking descriptors and treat EAGAIN as nothing.
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
    """epoll with callbacks. `callback(events)` gets the epoll mask, which always may have HUP and ERR in it."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, EventCallback] = {}

    def fileno(self) -> int:
        """Readable when `poll` would find something: for a process whose own loop waits (the console)."""
        return self._epoll.fileno()

    def register(self, descriptor: int, events: int, callback: EventCallback) -> None:
        self._epoll.register(descriptor, events)
        self._callbacks[descriptor] = callback

    def modify(self, descriptor: int, events: int) -> None:
        self._epoll.modify(descriptor, events)

    def unregister(self, descriptor: int) -> None:
        """Forget a descriptor; call it before closing. Unknown or already closed ones are no error: teardown may come from two sides."""
        if self._callbacks.pop(descriptor, None) is not None:
            try:
                self._epoll.unregister(descriptor)
            except (OSError, ValueError):
                pass  # closed before: the kernel has forgotten it already

    def poll(self, timeout_ms: float) -> int:
        """Wait at most `timeout_ms` (0: not at all) and run the callbacks of what is ready; returns how many events there were."""
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
