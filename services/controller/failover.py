"""Elections when somebody dies, and this box's own misfortunes: disks that are dead, hung or long away, and the stop of the box.

Owned by the controller process of each box. As controller of the cluster it elects for boxes that are gone; for this box's replicas it writes by
itself, whoever is controller. What is to be done is found in what is known, never remembered. Weak spot: a disk's partitions that have no other replica stay
as they are; clients of them get KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.logging import Logger
from appliance.runtime.leaving import GIVEN_AWAY
from appliance.shm.counters import Counters
from services.controller.decisions.cluster import Cluster
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
from services.controller.zookeeper.operation import OperationOutcome, OperationRunner

OnLeft = Callable[[int], None]


class Failover:
    """`is_dead(disk)`: it failed, hangs, or its log-writer has been away for longer than the deadline. `is_brought_up(disk)`: its log-writer is there and
    its leader epochs are settled. `patience_ms()`: after an arrival, how long boxes are awaited that are not registered."""

    def __init__(
        self,
        cluster: Cluster,
        runner: OperationRunner,
        is_dead: Callable[[str], bool],
        is_brought_up: Callable[[str], bool],
        patience_ms: Callable[[], int],
        now_ms: Callable[[], int],
        counters: Counters,
        log: Logger,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._cluster = cluster
        self._runner = runner
        self._patience_ms = patience_ms
        self._now_ms = now_ms
        self._awaited_until_ms = 0
        self._is_dead = is_dead
        self._is_brought_up = is_brought_up
        self._log = log
        self._on_failure = on_failure
        self.is_leaving = False
        self._left: list[OnLeft] = []
        self._has_left = False
        self._elections = counters.counter('controller.elections{reason="death"}')
        self._withdrawals = counters.counter('controller.elections{reason="disk"}')
        self._departures = counters.counter(GIVEN_AWAY)
        self._unclean = counters.counter("controller.unclean_elections")
        self._offline = counters.gauge("controller.offline_partitions")

    def on_arrived(self) -> None:
        """Everything was loaded anew. Who is not registered may have lost its session when we lost ours, or be starting as we are."""
        self._has_left = False
        self._awaited_until_ms = self._now_ms() + self._patience_ms()
        self._cluster.awaited = self._cluster.box_records.keys() - self._cluster.brokers.keys()

    def reconsider(self) -> None:
        """Start what is to be done and not under way."""
        cluster = self._cluster
        if cluster.awaited and self._now_ms() >= self._awaited_until_ms:
            cluster.awaited = set()
        if cluster.fence is not None:
            self._maybe_elect()
        else:
            self._offline.set(0)
        for disk in list(cluster.disks):
            if self._is_dead(disk):
                self._maybe_withdraw(disk)
            elif disk in cluster.reports and self._is_brought_up(disk) and not self.is_leaving:
                self._maybe_take_up(disk)
        if self.is_leaving:
            self._maybe_leave()
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
        living = ", ".join(map(str, self._cluster.live_brokers()))
        words = f"{elections.elected} partitions have another leader, {elections.without_leader} have none, {elections.shrunk} have fewer replicas in sync"
        self._log.warning(f"brokers {living} live: {words}")
        if elections.unclean:
            self._log.critical(f"{elections.unclean} partitions are led by a replica that was not in sync: acknowledged records may be lost")

    # --- disks of this box

    def _maybe_withdraw(self, disk: str) -> None:
        name = f"disk-leads:{disk}"
        if not self._runner.is_running(name) and (concerned := to_withdraw(self._cluster, disk)):
            self._runner.start(name, withdraw_replicas(self._cluster, concerned), lambda outcome: self._on_withdrawn(disk, outcome))

    def _maybe_take_up(self, disk: str) -> None:
        """What this box leads again by itself: somebody else withdrew when nobody could take over."""
        name = f"disk-leads:{disk}"
        if not self._runner.is_running(name) and (concerned := to_take_up(self._cluster, self._cluster.reports[disk])):
            self._runner.start(name, take_up_replicas(self._cluster, concerned), self._on_written)

    def _on_withdrawn(self, disk: str, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure)
        elif outcome.value:
            self._withdrawals.add(outcome.value)
            self._log.error(f"disk {disk} cannot serve: {outcome.value} of its replicas are given to other boxes, as leaders or in sync", disk=disk)

    def _on_written(self, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure)

    # --- the stop of the box

    def leave(self, on_left: OnLeft) -> None:
        """The box is about to stop: `on_left(partitions moved)` is called when it leads nothing that another box can lead."""
        self.is_leaving = True
        self._left.append(on_left)
        self._maybe_leave()

    def _maybe_leave(self) -> None:
        if self._has_left:
            self._tell_left(0)
        elif self._left and not self._runner.is_running("leave"):
            self._runner.start("leave", controlled_shutdown(self._cluster, self._departures.add, self._now_ms), self._on_left)

    def _on_left(self, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure)
            return
        self._has_left = True
        self._tell_left(outcome.value)

    def _tell_left(self, moved: int) -> None:
        left, self._left = self._left, []
        for on_left in left:
            on_left(moved)
