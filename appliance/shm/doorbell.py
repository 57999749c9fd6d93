"""Doorbells: how a process that sleeps learns that a ring or a row has changed.

An eventfd belongs to the consumer; producers get a duplicate over a Unix socket. A producer rings only when the consumer's
sleeping word is set, and both sides put a full fence between their store and their load (README.md): the producer publishes, fences,
looks at the sleeping word; the consumer sets the word, fences, looks at the rings once more, then waits with a bounded time-out.
Weak spot: an eventfd never tells that its other side died; the control socket of the channel does.
"""

from __future__ import annotations

import os

from appliance.shm.atomic import fence


class Doorbell:
    """The consumer's side: the eventfd to wait on and the sleeping word in memory that its producers map."""

    def __init__(self, words: memoryview, sleeping_index: int) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._words = words
        self._sleeping_index = sleeping_index

    def fileno(self) -> int:
        return self.descriptor

    def prepare_to_sleep(self) -> None:
        """Set the sleeping word, then fence: the caller must look at its rings once more before it waits."""
        self._words[self._sleeping_index] = 1
        fence()

    def wake(self) -> None:
        """Clear the sleeping word."""
        self._words[self._sleeping_index] = 0

    def drain(self, _events: int = 0) -> None:
        """Take the rings that have come (a callback for the poller)."""
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            pass

    def close(self) -> None:
        os.close(self.descriptor)


class DoorbellButton:
    """A producer's side of somebody else's doorbell."""

    __slots__ = ("_sleeping_index", "_words", "descriptor", "rings")

    def __init__(self, descriptor: int, words: memoryview, sleeping_index: int) -> None:
        self.descriptor = descriptor
        self._words = words
        self._sleeping_index = sleeping_index
        self.rings = 0

    def ring_if_sleeping(self) -> bool:
        """To be called after publishing. Fences, then rings if the consumer sleeps."""
        fence()
        if self._words[self._sleeping_index]:
            self.rings += 1
            try:
                os.eventfd_write(self.descriptor, 1)
            except BlockingIOError:
                pass  # the counter is full: it has been rung already
            return True
        return False

    def close(self) -> None:
        os.close(self.descriptor)
