"""Doorbells: wake a process that sleeps when a ring or a row has changed.

The consumer owns an eventfd; producers receive a duplicate over a Unix socket. A producer rings
only if the sleeping flag of the consumer is set. Both sides have a full fence between their store
and their load (README.md): the producer publishes, fences, reads the flag; the consumer sets the
flag, fences, checks the rings again, then waits with a time-out. Weak: an eventfd does not report
the death of its other side; the control socket of the channel does.

Both sides of an eventfd share its flags, so a consumer could make a producer wait. A source, which
may be taken over, has a socket pair instead (`SourceDoorbell`): each end has flags of its own, and
a log-writer rings without waiting.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from appliance.shm.mapping import fence

_COUNT = [bytearray(8)]
_DRAIN_BYTES = 4096


def drain(descriptor: int) -> None:
    """Reset an eventfd. Producers share its flags and could make it block, so this read does not
    depend on them (Linux 5.8)."""
    try:
        os.preadv(descriptor, _COUNT, -1, os.RWF_NOWAIT)
    except BlockingIOError:
        pass


class Doorbell:
    """The consumer's side: the eventfd to wait on, and the sleeping flag in memory that its
    producers map."""

    def __init__(self, words: memoryview, sleeping_index: int, descriptor: int = -1) -> None:
        """`descriptor`: to wait on; by default an eventfd."""
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if descriptor < 0 else descriptor
        self._words = words
        self._sleeping_index = sleeping_index

    def fileno(self) -> int:
        return self.descriptor

    def prepare_to_sleep(self) -> None:
        """Set the sleeping flag and fence.

        The caller must check its rings again before it waits.
        """
        self._words[self._sleeping_index] = 1
        fence()

    def wake(self) -> None:
        """Clear the sleeping flag."""
        self._words[self._sleeping_index] = 0

    def drain(self, _events: int = 0) -> None:
        """Reset the eventfd (a callback of the poller)."""
        drain(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)


class SourceDoorbell(Doorbell):
    """The doorbell of a source: `button_descriptor` is for its log-writers."""

    def __init__(self, words: memoryview, sleeping_index: int) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        super().__init__(words, sleeping_index, ours.detach())
        self.button_descriptor = theirs.detach()

    def drain(self, _events: int = 0) -> None:
        with suppress(BlockingIOError):
            os.read(self.descriptor, _DRAIN_BYTES)

    def close(self) -> None:
        super().close()
        os.close(self.button_descriptor)


class DoorbellButton:
    """A producer's side of the doorbell of another process."""

    __slots__ = ("_sleeping_index", "_words", "descriptor", "rings")

    def __init__(self, descriptor: int, words: memoryview, sleeping_index: int) -> None:
        self.descriptor = descriptor
        self._words = words
        self._sleeping_index = sleeping_index
        self.rings = 0

    def ring_if_sleeping(self) -> bool:
        """Ring if the consumer sleeps; call it after publishing. Returns whether it rang."""
        fence()
        if self._words[self._sleeping_index]:
            self.rings += 1
            try:
                os.eventfd_write(self.descriptor, 1)
            except BlockingIOError:
                pass  # the eventfd counter is at its maximum: it was rung before
            return True
        return False

    def close(self) -> None:
        os.close(self.descriptor)


class SourceDoorbellButton(DoorbellButton):
    """A log-writer's side of the doorbell of a source."""

    __slots__ = ("_socket",)

    def __init__(self, descriptor: int, words: memoryview, sleeping_index: int) -> None:
        super().__init__(descriptor, words, sleeping_index)
        self._socket = socket.socket(fileno=descriptor)

    def ring_if_sleeping(self) -> bool:
        fence()
        if self._words[self._sleeping_index]:
            self.rings += 1
            with suppress(OSError):  # it was rung before and not drained, or the source is gone
                self._socket.send(b"\0", socket.MSG_DONTWAIT)
            return True
        return False

    def close(self) -> None:
        self._socket.close()
