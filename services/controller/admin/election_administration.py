"""Elections on request, and the periodic return to preferred leaders.

Owned by the controller process of the box that is the cluster's controller. A pending order is
forgotten with the process, or when another box becomes controller: an unclean election that is no
longer wanted would lose records. The client retries. The return to preferred leaders is checked
every `leader.imbalance.check.interval.seconds`, first a few seconds after this box has become
controller. Weak: orders are carried out one after another, all partitions of an order in one
operation.
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
from services.controller.decisions.elections import LedPartition, hold_elections, plan_leadership_return
from services.controller.decisions.reassignment import Reassignment
from services.controller.zookeeper.operation import OperationOutcome, OperationRunner

FIRST_CHECK_MS = 5_000
"""Delay after a box has become controller, as in Kafka: boxes that start at the same time are
registered by then.
"""

OnElected = Callable[[tuple[str, int], Result], None]


class ElectionOrder(NamedTuple):
    """Partitions by topic and number."""

    partitions: tuple[tuple[str, int], ...]
    is_unclean: bool
    on_result: OnElected


class LeadershipReturn(NamedTuple):
    """Whether, how often, and above which imbalance preferred leaders return."""

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
        """Order elections. `on_result` is called for each partition: refused, or written and
        published.
        """
        self._wanted.append(ElectionOrder(tuple(partitions), is_unclean, on_result))
        self._go_on()

    def forget_orders(self, result: Result) -> None:
        """Answer pending orders with `result`: another box is, or was, the controller."""
        if self._runner.is_running("elections"):
            return
        orders, self._wanted = self._wanted, deque()
        for order in orders:
            for partition in order.partitions:
                order.on_result(partition, result)

    def reconsider(self) -> None:
        """Start what is due, and check the preferred leaders from time to time."""
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
            self._log.info(f"returning {len(partitions)} partitions to their preferred leaders")
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
                    self._log.warning(f"{name}-{number}: an operator ordered an unclean election; acknowledged records may be lost", topic=name)
            order.on_result(partition, Result(ErrorCode.NONE) if refused is None else Result(refused.code, refused.message))
        self._go_on()
