"""Decide what to do while the cluster refuses the registration of this box, and report why.

A start is refused for a cluster id that the directories do not have (`ForeignCluster`), a broker id
that another box has (`BrokerIdTaken`) or another session of this box (`RegistrationHeld`), and a
directory in another box's record (`DirectoryTaken`, a copied disk). It is tried again every second,
and at once when the blocking registration disappears. Under `millrace run` a first start that is
refused for three session time-outs, at least 10 s, ends with the reason and exit code 2; under
systemd, and once the box has served, it waits with the reason in the status line.

Owned by the controller process. If another session holds the registration of this box, it is
usually the session of the previous incarnation, which times out. A registration that stays longer
belongs to a running box: this box or that one is a copy. A refused box retries for ever, because an
id may become free. Only the first start of a box gives up (`notify_refused`), after all its disks have
reported their directory ids and waiting has not helped.

Weak: a ZooKeeper with slow ticks may have granted the other session a longer time-out than ours.
Then the error is logged before that session ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.runtime.agent import ServiceContext
from appliance.runtime.systemd import notify_refused
from services.controller.decisions.arrival import ForeignCluster
from services.controller.zookeeper.broker_registry import BrokerIdTaken, DirectoryTaken, RegistrationHeld, RegistrationLost

Refusal = BrokerIdTaken | DirectoryTaken | ForeignCluster

TIMEOUTS_OF_A_DEAD_SESSION: Final = 2
"""A session that its owner no longer keeps alive has ended after so many time-outs."""
TIMEOUTS_OF_PATIENCE: Final = 3
PATIENCE_MS_MIN: Final = 10_000
"""Lower bound, for servers that grant longer session time-outs than requested."""


class Admission:
    """Track refusals. `reason` is empty unless the box is refused at the moment.

    `may_give_up()` returns whether this incarnation has not served yet and has a report of each
    disk.
    """

    def __init__(self, context: ServiceContext, may_give_up: Callable[[], bool]) -> None:
        session_timeout_ms = context.box.integer("zookeeper.session.timeout.ms")
        self._broker_id = context.box.broker_id
        self._dead_after_ms = TIMEOUTS_OF_A_DEAD_SESSION * session_timeout_ms
        self._patience_ms = max(TIMEOUTS_OF_PATIENCE * session_timeout_ms, PATIENCE_MS_MIN)
        self._now_ms = context.clock.monotonic_ms
        self._may_give_up = may_give_up
        self._report_status = context.notifier.status
        self._log = context.log
        self.reason = ""
        self._refused_since_ms: int | None = None
        self._holder = 0
        self._held_since_ms = 0
        self._lost_to = 0
        """The session that replaced our registration while our session was alive: its box is
        running.
        """

    def on_refused(self, failure: Refusal) -> None:
        now_ms = self._now_ms()
        if self._refused_since_ms is None:
            self._refused_since_ms = now_ms
        holder = failure.owner if isinstance(failure, RegistrationHeld) else 0
        if holder != self._holder:
            self._holder, self._held_since_ms = holder, now_ms
        is_awaited = bool(holder) and holder != self._lost_to and now_ms - self._held_since_ms <= self._dead_after_ms
        reason = self._reason(failure, is_awaited)
        if reason != self.reason:
            self.reason = reason
            (self._log.info if is_awaited else self._log.error)(reason)
            self._report_status(reason)
        if not is_awaited and now_ms - self._refused_since_ms >= self._patience_ms and self._may_give_up():
            notify_refused(reason)

    def _reason(self, failure: Refusal, is_awaited: bool) -> str:
        if not isinstance(failure, RegistrationHeld):
            return str(failure)
        if is_awaited:
            return (
                f"broker id {self._broker_id} is still registered by another session of this box,"
                " probably that of its previous incarnation; waiting until that session ends"
            )
        return (
            f"broker id {self._broker_id} is in use by a running box with the same identity, at {failure.address}:"
            " one of the two boxes is a copy of the other (a cloned machine, a restored backup). Stop one of them."
            " To make a box of its own from a copy, give it an empty state directory, empty disks and another broker id"
        )

    def on_lost(self, loss: RegistrationLost) -> None:
        """Log that the registration is lost: the other boxes treat this box as gone and elect other
        leaders.
        """
        self._lost_to = loss.owner
        self._log.critical(f"{loss}. This box leads no partition until it is registered again")

    def on_admitted(self) -> None:
        self._refused_since_ms = None
        self._holder = self._lost_to = 0
        if self.reason:
            self.reason = ""
            self._log.notice(f"broker {self._broker_id} is registered")
            self._report_status("")

    def on_disconnected(self) -> None:
        """Restart the waiting times: without ZooKeeper no session can end, so its age proves
        nothing.
        """
        self._refused_since_ms = None
        self._holder = 0
