"""Extend the box's lease (`shm/lease.py`) by reading its own registration from ZooKeeper four times
per session time-out.

Owned by the controller process; does nothing on a box that never had neighbours. A reply proves
that the session was alive when the request was sent, so the registration is certain for one session
time-out from then on. Weak: a cut-off member of the ensemble answers reads for up to its sync
limit. The time-out is the requested one; a server with other bounds may have granted a shorter one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.cluster.znodes import broker_path
from appliance.shm.lease import LeaseWriter
from services.controller.zookeeper.requests import Exists, Request
from services.controller.zookeeper.session import OnReply, ZooKeeperReply

_MS: Final = 1_000_000
REQUESTS_PER_TIMEOUT: Final = 4


class LeaseKeeper:
    """Send at most one request at a time."""

    def __init__(
        self,
        layout: BoxLayout,
        incarnation: int,
        broker_id: int,
        session_timeout_ms: int,
        submit: Callable[[Request, OnReply], None],
        session_id: Callable[[], int],
        clock: Clock,
    ) -> None:
        self._layout = layout
        self._incarnation = incarnation
        self._path = broker_path(broker_id)
        self._timeout_ns = session_timeout_ms * _MS
        self._submit = submit
        self._session_id = session_id
        self._clock = clock
        self._writer: LeaseWriter | None = None
        self._next_ns = 0
        self._is_in_flight = False

    def do_work(self, is_needed: bool) -> int:
        """Send a request if one is due. `is_needed`: the box has arrived, and there are other
        boxes.
        """
        now_ns = self._clock.monotonic_ns()
        if not is_needed or self._is_in_flight or now_ns < self._next_ns:
            return 0
        if self._writer is None:
            self._writer = LeaseWriter(self._layout, self._incarnation)
        self._next_ns = now_ns + self._timeout_ns // REQUESTS_PER_TIMEOUT
        self._is_in_flight = True
        sent_ns, session_id = self._clock.boottime_ns(), self._session_id()
        self._submit(Exists(self._path), lambda reply: self._on_reply(reply, sent_ns, session_id))
        return 1

    def _on_reply(self, reply: ZooKeeperReply, sent_ns: int, session_id: int) -> None:
        self._is_in_flight = False
        if self._writer is None or reply.failure is not None or session_id != self._session_id():
            return
        if reply.value is not None and reply.value.owner == session_id:
            self._writer.extend(sent_ns + self._timeout_ns)
        else:
            self._writer.end()  # the registration is gone, or another session's

    def park_ms(self, most_ms: int) -> int:
        """Return how long no request is due, at most `most_ms`."""
        if self._writer is None or self._is_in_flight:
            return most_ms
        return max(0, min(most_ms, (self._next_ns - self._clock.monotonic_ns()) // _MS))

    def end(self) -> None:
        """End the lease: the session is over, or will be closed."""
        if self._writer is not None:
            self._writer.end()

    def close(self) -> None:
        """Unmap the lease; it stays valid for the next incarnation of the controller."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
