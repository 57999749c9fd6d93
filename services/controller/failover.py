"""Elect for dead boxes, and react to this box's own failures: disks that are dead, hung or long
away, and its shutdown.

Owned by the controller process of each box. As controller of the cluster it elects for dead boxes;
for this box's own replicas it writes itself, controller or not. Work is derived from the known
state in each turn and never stored, so nothing is lost with the process. Weak: a dead disk's
partitions without another replica stay as they are; their clients get KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from appliance.base.layout import BoxLayout
from appliance.runtime.children import GIVEN_AWAY
from services.controller.decisions.cluster import ControllerContext
from services.controller.decisions.leader_operations import (
    Elections,
    controlled_shutdown,
    elect_after_deaths,
    fence_box,
    take_up_replicas,
    to_elect,
    to_take_up,
    to_withdraw,
    withdraw_replicas,
)
from services.controller.zookeeper.operation import OperationOutcome

OnHandedOver = Callable[[int], None]


class Failover:
    """`is_dead(disk)`: it failed, hangs, or its log-writer has been away longer than the deadline.

    `is_full(disk)`: it refuses appends and serves reads.
    `is_brought_up(disk)`: its log-writer is connected and its leader epochs are settled.
    `patience_ms()`: how long after an arrival to wait for unregistered boxes.
    """

    def __init__(
        self,
        context: ControllerContext,
        is_dead: Callable[[str], bool],
        is_full: Callable[[str], bool],
        is_brought_up: Callable[[str], bool],
        patience_ms: Callable[[], int],
    ) -> None:
        counters = context.counters
        self._cluster = context.cluster
        self._runner = context.runner
        self._patience_ms = patience_ms
        self._now_ms = context.clock.monotonic_ms
        self._awaited_until_ms = 0
        self._is_dead = is_dead
        self._is_full = is_full
        self._is_brought_up = is_brought_up
        self._log = context.log
        self._on_failure = context.on_failure
        self.is_shutting_down = False
        self._on_done: list[OnHandedOver] = []
        self._is_handed_over = False
        self._elections = counters.counter('controller.elections{reason="death"}')
        self._withdrawals = counters.counter('controller.elections{reason="disk"}')
        self._handed_over = counters.counter(GIVEN_AWAY)
        self._unclean = counters.counter("controller.unclean_elections")
        self._offline = counters.gauge("controller.offline_partitions")

    def on_arrived(self) -> None:
        """The tree was loaded. An unregistered box may have lost its session when this one did, or
        may be starting, too.
        """
        self._is_handed_over = False
        self._awaited_until_ms = self._now_ms() + self._patience_ms()
        self._cluster.awaited = self._cluster.box_records.keys() - self._cluster.brokers.keys()

    def reconsider(self) -> None:
        """Start what is due and not running."""
        cluster = self._cluster
        if cluster.awaited and self._now_ms() >= self._awaited_until_ms:
            cluster.awaited = set()
        if cluster.fence is not None:
            self._maybe_elect()
        else:
            self._offline.set(0)
        for disk in list(cluster.disks):
            is_dead = self._is_dead(disk)
            if is_dead or (self._is_full(disk) and to_withdraw(cluster, disk, serves_reads=True)):
                self._maybe_withdraw(disk, serves_reads=not is_dead)
            elif disk in cluster.reports and self._is_brought_up(disk) and not self.is_shutting_down:
                self._maybe_take_up(disk)
        if self.is_shutting_down:
            self._maybe_shut_down()
        elif cluster.is_fenced(cluster.broker_id) and self._all_settled() and not self._runner.is_running("fence"):
            self._runner.start("fence", fence_box(cluster, False), self._on_written)

    def _all_settled(self) -> bool:
        reports = self._cluster.reports
        return all((self._is_brought_up(disk) and not reports[disk].unbumped) or self._is_dead(disk) for disk in self._cluster.disks)

    # --- boxes that are gone

    def _maybe_elect(self) -> None:
        if self._runner.is_running("failover"):
            return
        partitions = to_elect(self._cluster)
        self._offline.set(sum(1 for topic, number in partitions if topic.states[number].leader not in self._cluster.brokers))
        if partitions:
            self._runner.start("failover", elect_after_deaths(self._cluster, partitions), self._on_elected)

    def _on_elected(self, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure)
            return
        elections: Elections = outcome.value
        if elections == Elections():
            return
        self._elections.add(elections.elected)
        self._unclean.add(elections.unclean)
        live = ", ".join(map(str, self._cluster.live_brokers()))
        counts = f"{elections.elected} with a new leader, {elections.without_leader} without a leader, {elections.shrunk} with fewer in-sync replicas"
        self._log.warning(f"held elections after a box died; live brokers are {live}; partitions: {counts}")
        if elections.unclean:
            self._log.critical(f"{elections.unclean} partitions were elected a leader that was not in sync: acknowledged records may be lost")

    # --- disks of this box

    def _maybe_withdraw(self, disk: str, serves_reads: bool) -> None:
        name = f"disk-leads:{disk}"
        if not self._runner.is_running(name) and (concerned := to_withdraw(self._cluster, disk, serves_reads)):
            operation = withdraw_replicas(self._cluster, concerned, serves_reads)
            self._runner.start(name, operation, lambda outcome: self._on_withdrawn(disk, "has no space" if serves_reads else "cannot serve", outcome))

    def _maybe_take_up(self, disk: str) -> None:
        """Lead what has no leader and is in sync on this disk: no replica could take over when the
        leader withdrew.
        """
        name = f"disk-leads:{disk}"
        if not self._runner.is_running(name) and (concerned := to_take_up(self._cluster, self._cluster.reports[disk])):
            self._runner.start(name, take_up_replicas(self._cluster, concerned), self._on_written)

    def _on_withdrawn(self, disk: str, reason: str, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure)
        elif outcome.value:
            self._withdrawals.add(outcome.value)
            message = f"disk {disk} {reason}: handed {outcome.value} of its replicas over to other boxes"
            self._log.error(message, disk=disk)

    def _on_written(self, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure)

    # --- the stop of the box

    def shut_down(self, on_handed_over: OnHandedOver) -> None:
        """Begin the controlled shutdown. `on_handed_over(partitions moved)` is called when no other box
        can take over more.
        """
        self.is_shutting_down = True
        self._on_done.append(on_handed_over)
        self._maybe_shut_down()

    def _maybe_shut_down(self) -> None:
        if self._is_handed_over:
            self._report_handed_over(0)
        elif self._on_done and not self._runner.is_running("controlled shutdown"):
            self._runner.start("controlled shutdown", controlled_shutdown(self._cluster, self._handed_over.add, self._now_ms), self._on_handed_over)

    def _on_handed_over(self, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure)
            return
        self._is_handed_over = True
        self._report_handed_over(outcome.value)

    def _report_handed_over(self, moved: int) -> None:
        callbacks, self._on_done = self._on_done, []
        for on_handed_over in callbacks:
            on_handed_over(moved)


POLL_MS: Final = 20
_NEVER: Final = 1 << 62


class ControlledShutdown:
    """The first step of the box's stop: hand over what the box leads while all its processes still
    serve. Runs once per incarnation.

    The process that stops the box creates one file and waits for another (`runtime/children.py`,
    which also has the time limit). Weak: the file is polled, so the shutdown begins up to `POLL_MS`
    late.
    """

    def __init__(self, layout: BoxLayout, context: ControllerContext, failover: Failover) -> None:
        self._layout = layout
        self._context = context
        self._failover = failover
        self._poll_at_ms = 0

    def poll(self, now_ms: int) -> None:
        """Begin when the file of the stop exists."""
        if now_ms < self._poll_at_ms:
            return
        self._poll_at_ms = now_ms + POLL_MS
        if os.path.exists(self._layout.stopping_file):
            self._poll_at_ms = _NEVER
            self._begin()

    def _begin(self) -> None:
        self._failover.is_shutting_down = True
        if self._context.can_begin() and self._context.cluster.has_other_boxes:
            self._context.log.info("the box is stopping: handing its leaderships over to other boxes")
            self._failover.shut_down(self._on_handed_over)
        else:
            self._on_handed_over(0)

    def _on_handed_over(self, moved: int) -> None:
        if moved:
            self._context.log.info(f"handed {moved} partitions over to other boxes, as leaders or in-sync replicas")
        Path(self._layout.left_file).touch()
