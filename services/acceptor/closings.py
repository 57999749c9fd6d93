"""Closed connections: each is counted by its reason; those that the client caused are also logged, with a limit.

In each period of `PERIOD_NS` the first `LINES_A_PERIOD` are logged one by one, the others in one line with
their counts at its end. Owned by one acceptor. Weak spot: such a line has one address of many.
"""

from __future__ import annotations

from collections import Counter as Tally

from appliance.base.clock import Clock
from appliance.base.logging import Logger
from appliance.shm.counters import Counter, Counters

CLIENT_LEFT = "client-left"
"""The client closed the connection, or it broke. Never logged."""
STOPPING = "stopping"
"""The box stops: no fault."""
IDLE = "idle"
"""Unused for `connections.max.idle.ms`: no fault."""
CONNECTION_LIMIT = "connection-limit"
"""Too many connections in total."""
ADDRESS_LIMIT = "connection-limit-of-address"
"""Too many from that address."""
ADDRESS_RATE = "connection-rate-of-address"
"""That address opens more connections a second than its quota."""
DESCRIPTOR_LIMIT = "descriptor-limit"
"""The process may open no more descriptors: the connection was idle, or it was new."""
FRAME_TIMEOUT = "frame-timeout"
"""A request was started and not completed in time."""
MEMORY_LIMIT = "memory-limit"
"""All connections together hold too much, this one among the most and for longest."""
SLOW_BODY = "slow-body"
"""A large produce arrives too slowly while others wait for the arena."""
DISK_READ_FAILED = "disk-read-failed"
"""A response was sent in part, and the rest of it could not be read."""
UNANSWERED = "produce-without-acks-failed"
"""The only way to report an error with acks=0."""
TLS_HANDSHAKE = "tls-handshake"
"""The client and the listener did not agree on TLS."""
CERTIFICATE_REFUSED = "tls-certificate"
"""The certificate of the client is not accepted, or no rule maps it to a principal."""
TLS_UNAVAILABLE = "tls-unavailable"
"""The certificate files of the listener cannot be used."""
AUTHENTICATION_FAILED = "authentication-failed"
"""The client could not authenticate. Logged once a minute (`sasl_connections`)."""
AUTHENTICATION_TIMEOUT = "authentication-timeout"
"""It did not authenticate in time."""
AUTHENTICATION_OVERLOAD = "authentication-overload"
"""Too many passwords wait to be verified."""
SESSION_EXPIRED = "session-expired"
"""It did not authenticate again in time."""
USER_REFUSED = "local-user"
"""A user of this machine that is none of the box's, on the Unix socket of a box without an authorizer."""
UNREADABLE = "request-refused-by-controller"
"""Controller or coordinator could not decode a forwarded request."""
CONTROLLER_SILENT = "controller-silent"
"""The controller did not answer in time, or too much waits for it already."""

LINES_A_PERIOD = 5
PERIOD_NS = 10_000_000_000
WORDS_MAX = 200
"""A message may quote what the client sent."""


class Closings:
    """Counts and logs."""

    def __init__(self, counters: Counters, clock: Clock, log: Logger) -> None:
        self._counters = counters
        self._clock = clock
        self._logger = log
        self._period_ends_ns = 0
        self._lines = 0
        self._unlogged: Tally[str] = Tally()
        self._lines_saved = counters.counter("acceptor.closed_untold")
        for reason in (CLIENT_LEFT, STOPPING, IDLE, CONNECTION_LIMIT, ADDRESS_LIMIT, FRAME_TIMEOUT, MEMORY_LIMIT, SLOW_BODY, UNANSWERED, DISK_READ_FAILED):
            self._counter(reason)
        for reason in (AUTHENTICATION_FAILED, AUTHENTICATION_TIMEOUT, AUTHENTICATION_OVERLOAD, SESSION_EXPIRED):
            self._counter(reason)
        for reason in (ADDRESS_RATE, USER_REFUSED, UNREADABLE, CONTROLLER_SILENT, DESCRIPTOR_LIMIT, TLS_HANDSHAKE, CERTIFICATE_REFUSED, TLS_UNAVAILABLE):
            self._counter(reason)

    def count(self, reason: str) -> None:
        """Count a closed connection that is not logged."""
        self._counter(reason).add()

    def log(self, reason: str, address: str, words: str) -> None:
        """Count and log a connection from `address` that was closed for what it did."""
        self.count(reason)
        self.sweep(self._clock.monotonic_ns())
        if self._lines < LINES_A_PERIOD:
            self._lines += 1
            self._logger.info(f"closed a connection from {address} ({reason}): {words[:WORDS_MAX]}", client=address, reason=reason)
        else:
            self._unlogged[reason] += 1
            self._lines_saved.add()

    def sweep(self, now_ns: int) -> None:
        """At the end of a period: log the counts of the others. Called once a second."""
        if now_ns < self._period_ends_ns:
            return
        self._period_ends_ns = now_ns + PERIOD_NS
        self._lines = 0
        if self._unlogged:
            numbers = ", ".join(f"{count} {reason}" for reason, count in self._unlogged.most_common())
            self._logger.info(f"closed more connections, not logged one by one: {numbers}", lines_untold=self._unlogged.total())
            self._unlogged.clear()

    def _counter(self, reason: str) -> Counter:
        return self._counters.counter(f'acceptor.closed{{reason="{reason}"}}')
