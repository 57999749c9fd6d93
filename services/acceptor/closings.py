"""Every closed connection is counted by its reason; what was closed for a fault of the client's is logged too, but never as a flood.

In a period of `PERIOD_NS` the first `LINES_A_PERIOD` are told one by one, the rest by one line with their numbers when the period is
over. Owned by one acceptor. Weak spot: the address in such a line is one of many.
"""

from __future__ import annotations

from collections import Counter as Tally

from appliance.base.clock import Clock
from appliance.base.logging import Logger
from appliance.shm.counters import Counter, Counters

CLIENT_LEFT = "client-left"
"""The client hung up, or its connection broke: nobody's fault. Never logged."""
STOPPING = "stopping"
IDLE = "idle"
CONNECTION_LIMIT = "connection-limit"
ADDRESS_LIMIT = "connection-limit-of-address"
DESCRIPTOR_LIMIT = "descriptor-limit"
FRAME_TIMEOUT = "frame-timeout"
MEMORY_LIMIT = "memory-limit"
SLOW_BODY = "slow-body"
DISK_READ_FAILED = "disk-read-failed"
"""The head of a response has left, and the rest of it could not be read."""
UNANSWERED = "produce-without-acks-failed"
UNREADABLE = "request-refused-by-controller"
"""The controller, which reads what is handed on to it, found it malformed."""
CONTROLLER_SILENT = "controller-silent"

LINES_A_PERIOD = 5
PERIOD_NS = 10_000_000_000
WORDS_MAX = 200
"""A violation may quote what a stranger sent."""


class Closings:
    """Counts and tells."""

    def __init__(self, counters: Counters, clock: Clock, log: Logger) -> None:
        self._counters = counters
        self._clock = clock
        self._log = log
        self._period_ends_ns = 0
        self._lines = 0
        self._untold: Tally[str] = Tally()
        self._lines_saved = counters.counter("acceptor.closed_untold")
        for reason in (CLIENT_LEFT, STOPPING, IDLE, CONNECTION_LIMIT, ADDRESS_LIMIT, FRAME_TIMEOUT, MEMORY_LIMIT, SLOW_BODY, UNANSWERED, DISK_READ_FAILED):
            self._counter(reason)
        for reason in (UNREADABLE, CONTROLLER_SILENT, DESCRIPTOR_LIMIT):
            self._counter(reason)

    def count(self, reason: str) -> None:
        """A connection was closed and there is nothing to tell."""
        self._counter(reason).add()

    def tell(self, reason: str, address: str, words: str) -> None:
        """A connection from `address` was closed for what it did."""
        self.count(reason)
        self.sweep(self._clock.monotonic_ns())
        if self._lines < LINES_A_PERIOD:
            self._lines += 1
            self._log.info(f"closed a connection from {address} ({reason}): {words[:WORDS_MAX]}", client=address, reason=reason)
        else:
            self._untold[reason] += 1
            self._lines_saved.add()

    def sweep(self, now_ns: int) -> None:
        """When the period is over: say what was not told in it, and begin another. Called by the owner once a second."""
        if now_ns < self._period_ends_ns:
            return
        self._period_ends_ns = now_ns + PERIOD_NS
        self._lines = 0
        if self._untold:
            numbers = ", ".join(f"{count} {reason}" for reason, count in self._untold.most_common())
            self._log.info(f"closed more connections, not told one by one: {numbers}", lines_untold=self._untold.total())
            self._untold.clear()

    def _counter(self, reason: str) -> Counter:
        return self._counters.counter(f'acceptor.closed{{reason="{reason}"}}')
