"""The threads that wait for the disk in cold reads, so that the log-reader's duty cycle does not.

A read is passed on with its memory, and its end rings a bell in the poller. Threads start when they are
first needed. Work is taken from a queue that serves its sources in turn. Weak spot: reads that hang
keep all threads of their disk until their deadlines.
"""

from __future__ import annotations

import errno
import os
import queue
import select
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from appliance.runtime.background_thread import BackgroundThread, ThreadRefused
from appliance.runtime.poller import Poller
from services.log_reader.cold_pieces import ColdSegment, Piece

THREADS = 2

Waiter = TypeVar("Waiter")

Job = tuple[Piece[Waiter], ColdSegment, memoryview, int, int]
"""What to read, from which file, into what, from which position, and when that was wanted."""
Done = tuple[Piece[Waiter], ColdSegment, int, int, BaseException | None]
"""The bytes that were read, when that was wanted, and what went wrong."""


class ColdThreads(Generic[Waiter]):
    """Threads that read pieces. `on_done()` is called in the loop if `take_done` has results."""

    def __init__(self, poller: Poller, on_done: Callable[[], None]) -> None:
        self.running = 0
        """Reads that were handed over and not taken back."""
        self._poller = poller
        self._on_done = on_done
        self._jobs: queue.SimpleQueue[Job[Waiter] | None] = queue.SimpleQueue()
        self._done: deque[Done[Waiter]] = deque()
        self._threads: list[BackgroundThread] = []
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        poller.register(self._bell, select.EPOLLIN, self._on_bell)

    def read(self, job: Job[Waiter]) -> None:
        """Queue a read.

        If a thread cannot be started, fewer serve; without any, the read has failed, and the next
        one tries to start a thread again.
        """
        self.running += 1
        if len(self._threads) < THREADS:
            thread = BackgroundThread(_read_jobs, "cold-reads", (self._jobs, self._done, self._bell))
            try:
                thread.start()
            except ThreadRefused as refusal:
                if not self._threads:
                    piece, segment, _, _, began_ns = job
                    self._done.append((piece, segment, 0, began_ns, OSError(errno.EAGAIN, str(refusal))))
                    os.eventfd_write(self._bell, 1)
                    return
            else:
                self._threads.append(thread)
        self._jobs.put(job)

    def take_done(self) -> Done[Waiter] | None:
        """Return a completed or failed read, None if there is none."""
        if not self._done:
            return None
        self.running -= 1
        return self._done.popleft()

    def _on_bell(self, _events: int) -> None:
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            return
        self._on_done()

    def close(self) -> None:
        """Let the threads end. A thread that waits for a hung disk is left behind."""
        for _ in self._threads:
            self._jobs.put(None)
        if not self.running:  # a thread that waits for its disk may still want the bell
            for thread in self._threads:
                thread.join()
            self._poller.unregister(self._bell)
            os.close(self._bell)


def _read_jobs(jobs: queue.SimpleQueue[Job[Waiter] | None], done: deque[Done[Waiter]], bell: int) -> None:
    """Run one thread. Reads release the interpreter lock."""
    while (job := jobs.get()) is not None:
        piece, segment, view, position, began_ns = job
        count, error = 0, None
        try:
            count = segment.cold.read_into(view, position)
        except BaseException as raised:  # whatever it is, the process hears of it
            error = raised
        del view, job
        done.append((piece, segment, count, began_ns, error))
        os.eventfd_write(bell, 1)


Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """A queue that serves its sources in turn, one item each."""

    def __init__(self) -> None:
        self._by_source: OrderedDict[Hashable, deque[Item]] = OrderedDict()
        self._count = 0

    def add(self, source: Hashable, item: Item) -> None:
        """Append an item of a source."""
        self._by_source.setdefault(source, deque()).append(item)
        self._count += 1

    def first(self) -> Item:
        """Return the next item without removing it."""
        return next(iter(self._by_source.values()))[0]

    def take(self) -> Item:
        """Return the next item; then it is another source's turn."""
        source, items = self._by_source.popitem(last=False)
        item = items.popleft()
        if items:
            self._by_source[source] = items
        self._count -= 1
        return item

    def __len__(self) -> int:
        return self._count
