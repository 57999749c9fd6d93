"""Orders to move partitions between disks: check them, and write them to ZooKeeper.

Owned by the controller process. A pending order survives a loss of ZooKeeper: its operation is
dropped and started again. All pending orders of a topic are one write. Weak: a pending order is
forgotten with the process; the next one carries out only what ZooKeeper has.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from appliance.base.errors import ErrorCode
from appliance.cluster.znodes import MoveOrder
from services.controller.admin.waiting_requests import OnResult, Result
from services.controller.decisions.cluster import ControllerContext
from services.controller.decisions.move_operations import MoveKey, order_moves
from services.controller.zookeeper.operation import OperationOutcome

Wanted = dict[int, tuple[MoveOrder | None, list[OnResult]]]
"""partition → its target (None: no move), and the callbacks for when that is durable"""


class MoveOrders:
    """Orders by topic.

    `is_online(disk)`: its log-writer is connected and the disk works. `on_ordered` is called when
    some are durable, `on_failure` gets what ZooKeeper refused or lost.
    """

    def __init__(self, context: ControllerContext, is_online: Callable[[str], bool], on_ordered: Callable[[], None]) -> None:
        self._cluster = context.cluster
        self._runner = context.runner
        self.is_online = is_online
        self._log = context.log
        self._notify_ordered = on_ordered
        self._on_failure = context.on_failure
        self._wanted: dict[str, Wanted] = {}
        self._under_way: dict[str, Wanted] = {}
        self._ordered = context.counters.counter("controller.moves_ordered")
        self._cancelled = context.counters.counter("controller.moves_cancelled")

    @property
    def is_busy(self) -> bool:
        return bool(self._wanted or self._under_way)

    def waits_for(self, name: str) -> bool:
        """Whether a change of a topic's moves is pending."""
        return name in self._wanted

    def on_arrived(self) -> None:
        """Restart what was under way when ZooKeeper was lost."""
        for name, wanted in self._under_way.items():
            self._wanted[name] = {**wanted, **self._wanted.get(name, {})}
        self._under_way.clear()

    def order(self, name: str, partition: int, disk: str | None, throttle: int | None, on_result: OnResult) -> None:
        """Move a partition to `disk` (None: a directory that this box does not have); its current
        disk cancels its move.
        """
        refused = self._refusal(name, partition, disk)
        if refused is not None:
            on_result(refused)
            return
        topic = self._cluster.topics[name]
        directory_id = self._cluster.reports[str(disk)].directory_id
        order = None if topic.placement[partition] == directory_id else MoveOrder(directory_id, throttle)
        self._want(name, partition, order, on_result)

    def cancel(self, name: str, partition: int, on_result: OnResult) -> None:
        self._want(name, partition, None, on_result)

    def _want(self, name: str, partition: int, order: MoveOrder | None, on_result: OnResult) -> None:
        wanted = self._wanted.setdefault(name, {})
        _, listeners = wanted.get(partition, (None, []))
        wanted[partition] = order, [*listeners, on_result]

    def _refusal(self, name: str, partition: int, disk: str | None) -> Result | None:
        if disk is None:
            return Result(ErrorCode.LOG_DIR_NOT_FOUND, "This box has no such log directory.")
        if disk not in self._cluster.reports or not self.is_online(disk):
            return Result(ErrorCode.KAFKA_STORAGE_ERROR, f"Disk {disk} is offline.")
        topic = self._cluster.topics.get(name)
        if topic is None or name in self._cluster.deleting or partition not in topic.replicas:
            return Result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        if partition not in topic.placement or partition not in topic.states:
            return Result(ErrorCode.REPLICA_NOT_AVAILABLE, "The partition has no replica on this broker.")
        source = self._cluster.disk_of_partition(topic, partition)
        if source is None or source not in self._cluster.reports or not self.is_online(source):
            return Result(ErrorCode.KAFKA_STORAGE_ERROR, "The partition's disk is offline.")
        if source != disk and self._cluster.is_draining(self._cluster.reports[disk].directory_id):
            return Result(ErrorCode.POLICY_VIOLATION, f"Disk {disk} is being drained.")
        return None

    def moves_from(self, disk: str) -> list[MoveKey]:
        """Return the moves whose source is `disk`."""
        topics = self._cluster.topics
        return [MoveKey(name, number) for name, topic in topics.items() for number in topic.moves if self._cluster.disk_of_partition(topic, number) == disk]

    def start(self) -> None:
        """Start what is pending and not running."""
        if not self._cluster.has_arrived:
            return
        for name in list(self._wanted):
            if name in self._cluster.handing_over or self._runner.is_running(f"topic:{name}"):
                continue
            wanted = self._wanted.pop(name)
            topic = self._cluster.topics.get(name)
            listeners = [on_result for _, each in wanted.values() for on_result in each]
            if topic is None or name in self._cluster.deleting:
                _answer(listeners, Result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
                continue
            # A partition that has reached its target meanwhile needs no order.
            orders = {partition: None if order and topic.placement.get(partition) == order.directory_id else order for partition, (order, _) in wanted.items()}
            changed = {partition: order for partition, order in orders.items() if topic.moves.get(partition) != order}
            if not changed:
                _answer(listeners, Result(ErrorCode.NONE))
                continue
            self._under_way[name] = wanted
            self._runner.start(f"topic:{name}", order_moves(self._cluster, topic, changed), partial(self._on_ordered, name, wanted, changed))

    def _on_ordered(self, name: str, wanted: Wanted, changed: dict[int, MoveOrder | None], outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure)
            return  # it stays under way, and restarts with the next arrival
        del self._under_way[name]
        for partition, order in sorted(changed.items()):
            (self._ordered if order is not None else self._cancelled).add()
            target = f"ordered to disk {self._cluster.disk_of(order.directory_id)}" if order is not None else "cancelled"
            self._log.info(f"move of {name}-{partition} {target}", topic=name, partition=partition)
        self._notify_ordered()
        _answer([on_result for _, listeners in wanted.values() for on_result in listeners], Result(ErrorCode.NONE))


def _answer(listeners: list[OnResult], result: Result) -> None:
    for on_result in listeners:
        on_result(result)
