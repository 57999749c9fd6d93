"""Whether the cluster takes the box: who stands in the way of its registration, since when, and what is said of it.

Owned by the controller process. A registration of this very box that another session holds is its last life's, and goes when that has timed out; one that
stands for longer belongs to a box that lives, and this one, or that, is a copy. Whoever is refused tries again and again, for an id may become free; only
the first start of a box gives up (`give_up`), when all its disks have told who they are and waiting has not helped. Weak spot: the other box's session
may have a longer time-out than ours has, from a ZooKeeper with slow ticks: then the words come before its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.base.logging import Logger
from services.controller.decisions.arrival import ForeignCluster
from services.controller.zookeeper.broker_registry import BrokerIdTaken, DirectoryTaken, RegistrationHeld, RegistrationLost

Refusal = BrokerIdTaken | DirectoryTaken | ForeignCluster

TIMEOUTS_OF_A_DEAD_SESSION: Final = 2
"""What its owner has not kept up is gone by then."""
TIMEOUTS_OF_PATIENCE: Final = 3
PATIENCE_MS_MIN: Final = 10_000
"""For session time-outs that ZooKeeper made longer than they were asked for."""


class Admission:
    """`reason` is empty unless the box was refused. `may_give_up()`: it has not served in this life, and knows what its disks are."""

    def __init__(
        self,
        broker_id: int,
        session_timeout_ms: int,
        now_ms: Callable[[], int],
        may_give_up: Callable[[], bool],
        give_up: Callable[[str], None],
        tell_status: Callable[[str], None],
        log: Logger,
    ) -> None:
        self._broker_id = broker_id
        self._dead_after_ms = TIMEOUTS_OF_A_DEAD_SESSION * session_timeout_ms
        self._patience_ms = max(TIMEOUTS_OF_PATIENCE * session_timeout_ms, PATIENCE_MS_MIN)
        self._now_ms = now_ms
        self._may_give_up = may_give_up
        self._give_up = give_up
        self._tell_status = tell_status
        self._log = log
        self.reason = ""
        self._refused_since_ms: int | None = None
        self._holder = 0
        self._held_since_ms = 0
        self._lost_to = 0
        """The session that took our registration while ours lived: its box runs."""

    def on_refused(self, failure: Refusal) -> None:
        now_ms = self._now_ms()
        if self._refused_since_ms is None:
            self._refused_since_ms = now_ms
        holder = failure.owner if isinstance(failure, RegistrationHeld) else 0
        if holder != self._holder:
            self._holder, self._held_since_ms = holder, now_ms
        is_awaited = bool(holder) and holder != self._lost_to and now_ms - self._held_since_ms <= self._dead_after_ms
        reason = self._words(failure, is_awaited)
        if reason != self.reason:
            self.reason = reason
            (self._log.info if is_awaited else self._log.error)(reason)
            self._tell_status(reason)
        if not is_awaited and now_ms - self._refused_since_ms >= self._patience_ms and self._may_give_up():
            self._give_up(reason)

    def _words(self, failure: Refusal, is_awaited: bool) -> str:
        if not isinstance(failure, RegistrationHeld):
            return str(failure)
        if is_awaited:
            return f"broker id {self._broker_id} is still registered by another session of this box, its last life's perhaps; it waits until that is over"
        return (
            f"broker id {self._broker_id} is in use by a running box with the same identity, at {failure.address}: is this a copy of it, or that one of this"
            f" (a cloned machine, a restored backup)? Stop one of them. A copy becomes a box of its own with an empty state directory, empty disks and"
            " another broker id"
        )

    def on_lost(self, loss: RegistrationLost) -> None:
        """Others believe that we are gone, and elect without us."""
        self._lost_to = loss.owner
        self._log.critical(f"{loss}. This box leads nothing before it is registered again")

    def on_admitted(self) -> None:
        self._refused_since_ms = None
        self._holder = self._lost_to = 0
        if self.reason:
            self.reason = ""
            self._log.notice(f"broker {self._broker_id} is registered now")
            self._tell_status("")

    def on_disconnected(self) -> None:
        """While ZooKeeper is away no session ends, and one that others keep up looks as one that nobody does."""
        self._refused_since_ms = None
        self._holder = 0
