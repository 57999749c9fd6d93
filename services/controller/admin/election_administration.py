"""Elections that somebody ordered, and leadership that returns by itself to the boxes that should have it.

Owned by the controller process of the box that is the cluster's controller. An order that has not been carried out is forgotten with the process, or when
another box is controller (an unclean election that nobody wants any more loses records), and the client asks again. The return of leadership is looked at
every `leader.imbalance.check.interval.seconds`, first a few seconds after this box has become controller. Weak spot: elections are one operation after
another, all partitions of an order in one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from appliance.base.errors import ErrorCode
from appliance.base.logging import Logger
from appliance.shm.counters import Counters
from services.controller.admin.topic_administration import Result
from services.controller.decisions.cluster import Cluster
from services.controller.decisions.election_operations import hold_elections
from services.controller.decisions.elections import LedPartition, plan_leadership_return
from services.controller.decisions.reassignment import Reassignment
from services.controller.zookeeper.operation import OperationOutcome, OperationRunner

FIRST_CHECK_MS = 5_000
"""After a box has become controller, as in Kafka: those that come up at the same time are there by then."""

OnElected = Callable[[tuple[str, int], Result], None]


class ElectionOrder(NamedTuple):
    """Partitions by topic and number."""

    partitions: tuple[tuple[str, int], ...]
    is_unclean: bool
    on_result: OnElected


class LeadershipReturn(NamedTuple):
    """Whether, how often and from which imbalance on leadership returns."""

    is_enabled: bool = True
    interval_ms: int = 300_000
    imbalance_percentage_max: int = 10


class ElectionAdministration:
    """Elections, one order after another. `on_failure` gets what ZooKeeper refused or lost."""

    def __init__(
        self,
        cluster: Cluster,
        runner: OperationRunner,
        leadership_return: LeadershipReturn,
        now_ms: Callable[[], int],
        counters: Counters,
        log: Logger,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._cluster = cluster
        self._runner = runner
        self._return = leadership_return
        self._now_ms = now_ms
        self._log = log
        self._on_failure = on_failure
        self._wanted: deque[ElectionOrder] = deque()
        self._check_at_ms: int | None = None
        self._held = counters.counter("controller.elections_ordered")
        self._returned = counters.counter("controller.leaderships_returned")

    def elect(self, partitions: Sequence[tuple[str, int]], is_unclean: bool, on_result: OnElected) -> None:
        """`on_result` is called for every partition: refused, or written and known to the image."""
        self._wanted.append(ElectionOrder(tuple(partitions), is_unclean, on_result))
        self._go_on()

    def forget_orders(self, result: Result) -> None:
        """Another box is controller, or was: who waits is told `result`."""
        if self._runner.is_running("elections"):
            return
        orders, self._wanted = self._wanted, deque()
        for order in orders:
            for partition in order.partitions:
                order.on_result(partition, result)

    def reconsider(self) -> None:
        """Start what is wanted and not under way, and look after leadership from time to time."""
        if self._cluster.fence is None:
            self._check_at_ms = None
            return
        self._go_on()
        now_ms = self._now_ms()
        if self._check_at_ms is None:
            self._check_at_ms = now_ms + FIRST_CHECK_MS
        elif now_ms >= self._check_at_ms:
            self._check_at_ms = now_ms + self._return.interval_ms
            if self._return.is_enabled:
                self._return_leadership()

    def _return_leadership(self) -> None:
        led = (
            LedPartition(name, partition, topic.replicas[partition], state, Reassignment.of(topic.assignment, partition).is_under_way)
            for name, topic in self._cluster.topics.items()
            if name not in self._cluster.deleting
            for partition, state in topic.states.items()
        )
        partitions = plan_leadership_return(led, self._cluster.eligible_brokers(), self._return.imbalance_percentage_max)
        if partitions:
            self._log.info(f"{len(partitions)} partitions are led by their preferred leaders again")
            self.elect(partitions, False, self._on_returned)

    def _on_returned(self, _partition: tuple[str, int], result: Result) -> None:
        if result.code is ErrorCode.NONE:
            self._returned.add()

    def _go_on(self) -> None:
        if self._wanted and self._cluster.fence is not None:
            order = self._wanted[0]
            self._runner.start("elections", hold_elections(self._cluster, order.partitions, order.is_unclean), self._on_held)

    def _on_held(self, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure)
            return
        order = self._wanted.popleft()
        for partition, refused in outcome.value.items():
            if refused is None:
                self._held.add()
                if order.is_unclean:
                    name, number = partition
                    self._log.warning(f"{name}-{number} was given a leader by an operator, in sync or not", topic=name)
            order.on_result(partition, Result(ErrorCode.NONE) if refused is None else Result(refused.code, refused.message))
        self._go_on()
