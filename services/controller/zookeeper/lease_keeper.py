"""Keeps the box's lease (`shm/lease.py`): asks ZooKeeper again and again for the box's own registration, and says how long the answer is good for.

Owned by the controller process; on a box that never had neighbours it does nothing. An answer shows that the session lived when the question was sent,
so the registration stands for the session's time-out from then on. It is asked four times in that time. Weak spots: a member of the ensemble that is itself
cut off answers reads for up to its sync limit; and the time-out is the one that was asked for, which a server with other bounds may have shortened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.cluster.znodes import broker_path
from appliance.shm.lease import LeaseWriter
from services.controller.zookeeper.requests import Exists, Request
from services.controller.zookeeper.session import OnReply, Reply

_MS: Final = 1_000_000
ASKED_IN_TIMEOUT: Final = 4


class LeaseKeeper:
    """One question under way at most."""

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
        self._is_asking = False

    def do_work(self, is_needed: bool) -> int:
        """Ask, if it is time. `is_needed`: there are other boxes, and ours has arrived."""
        now_ns = self._clock.monotonic_ns()
        if not is_needed or self._is_asking or now_ns < self._next_ns:
            return 0
        if self._writer is None:
            self._writer = LeaseWriter(self._layout, self._incarnation)
        self._next_ns = now_ns + self._timeout_ns // ASKED_IN_TIMEOUT
        self._is_asking = True
        sent_ns, session_id = self._clock.boottime_ns(), self._session_id()
        self._submit(Exists(self._path), lambda reply: self._on_reply(reply, sent_ns, session_id))
        return 1

    def _on_reply(self, reply: Reply, sent_ns: int, session_id: int) -> None:
        self._is_asking = False
        if self._writer is None or reply.failure is not None or session_id != self._session_id():
            return
        if reply.value is not None and reply.value.owner == session_id:
            self._writer.extend(sent_ns + self._timeout_ns)
        else:
            self._writer.end()  # it is gone, or somebody else's

    def park_ms(self, most_ms: int) -> int:
        """How long nobody need turn for it."""
        if self._writer is None or self._is_asking:
            return most_ms
        return max(0, min(most_ms, (self._next_ns - self._clock.monotonic_ns()) // _MS))

    def end(self) -> None:
        """The session is over, or is about to be ended."""
        if self._writer is not None:
            self._writer.end()

    def close(self) -> None:
        """The word stays, for the next life of the controller."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
