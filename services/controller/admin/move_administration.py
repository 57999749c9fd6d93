"""Move partitions between the disks of this box: carry each order in ZooKeeper one step forward.

Owned by the controller process. An order (`move_orders`) is durable; each incarnation of the
controller continues it and chooses each step from the log-writers' reports
(`services/controller/decisions/move_operations.py`). Copying and handing over need no ZooKeeper and are not
dropped with it. At most one partition of a source disk is frozen at a time, for no longer than the
disk's deadline. Weak: the progress of a copy comes from a file that is written about once a second,
so a partition that has caught up may lag again when it is frozen.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from appliance.base.errors import ErrorCode
from appliance.base.settings import Box
from appliance.cluster.znodes import MoveOrder
from appliance.ipc.descriptors import DescriptorKind
from appliance.ipc.disk_reports import CAUGHT_UP, FAILED
from services.controller.admin.move_orders import MoveOrders
from services.controller.admin.move_progress import MoveProgressFiles
from services.controller.decisions.cluster import ControllerContext, DiskReport
from services.controller.decisions.move_operations import (
    HandedOver,
    HandOver,
    MoveFacts,
    MoveKey,
    Phase,
    Step,
    begin_copy,
    hand_over,
    next_step,
    promote,
    settle,
    take_back,
    write_down_moved,
)
from services.controller.zookeeper.operation import DiskCommand, Operation, OperationOutcome, OperationRunner
from services.controller.zookeeper.topic_registry import TopicState

POLL_NS = 20_000_000
"""Between two polls of the copies that have caught up."""
FULL_POLL_NS = 250_000_000
"""Between two polls of all moves that can continue."""
THOROUGH_POLL_NS = 1_000_000_000
"""Between two polls of all moves, per thousand of them."""
BEGUN_MAX = 16
"""Copies that are ordered from a target disk at a time; it makes them one after the other."""
RETRY_NS_FIRST = 500_000_000
RETRY_NS_MAX = 30_000_000_000


class Move:
    """A move in ZooKeeper, as this incarnation of the controller knows it."""

    __slots__ = ("attempts", "begun", "is_reported_lost", "key", "not_before_ns", "order", "topic_id")

    def __init__(self, key: MoveKey, topic_id: str, order: MoveOrder) -> None:
        self.key = key
        self.topic_id = topic_id
        self.order = order
        self.begun: tuple[int, int] | None = None
        """The incarnations of the source's and the target's log-writers that know of it."""
        self.attempts = 0
        self.not_before_ns = 0
        self.is_reported_lost = False

    def put_off(self, now_ns: int) -> None:
        self.not_before_ns = now_ns + min(RETRY_NS_MAX, RETRY_NS_FIRST << min(self.attempts, 16))
        self.attempts += 1


class MoveAdministration:
    """`runner` is dropped when ZooKeeper is lost, `own_runner` is not.

    `is_online(disk)`: its log-writer is connected and the disk works. `publish` writes the image.
    """

    def __init__(
        self,
        context: ControllerContext,
        box: Box,
        own_runner: OperationRunner,
        is_online: Callable[[str], bool],
        publish: Callable[[Callable[[None], None]], None],
        files: MoveProgressFiles,
    ) -> None:
        counters = context.counters
        self._cluster = context.cluster
        self._runner = context.runner
        self._own_runner = own_runner
        self._is_online = is_online
        self._publish = publish
        self._disks = box.disks
        self._files = files
        self._deadline_ms = box.integer("log.disk.deadline.ms")
        self._now_ns = context.clock.monotonic_ns
        self._log = context.log
        self._on_failure = context.on_failure
        self.orders = MoveOrders(context, is_online, self._on_ordered)
        self._moves: dict[MoveKey, Move] = {}
        self._handing_over: dict[MoveKey, HandOver] = {}
        self._to_write: dict[str, set[int]] = {}
        """Topics whose partitions moved and whose placement in ZooKeeper is old; for each, the
        partitions that need a larger leader epoch.
        """
        self._writing: set[str] = set()
        """Topics whose placement is being written."""
        self._next_poll_ns = 0
        self._next_full_poll_ns = 0
        self._next_thorough_poll_ns = 0
        self._target_ids: set[str] = set()
        self._copies: dict[str, int] = {}
        """Target directory → copies that were ordered from it and have not failed, at the last poll
        of all moves.
        """
        self._standing = counters.gauge("controller.moves")
        self._done = counters.counter("controller.moves_done")
        self._taken_back = counters.counter("controller.hand_overs_taken_back")
        self._pauses = counters.histogram("controller.hand_over_us")

    # --- what stands --------------------------------------------------------------------------------------------------------

    def on_arrived(self) -> None:
        """The tree was loaded: moves that memory had completed and ZooKeeper has not are found
        again from the disks' reports.
        """
        self.orders.on_arrived()
        self._to_write.clear()
        self._writing.clear()
        self._collect()
        self._next_poll_ns = self._next_full_poll_ns = self._next_thorough_poll_ns = 0

    def _on_ordered(self) -> None:
        self._collect()
        self._next_full_poll_ns = 0

    def on_disk_connected(self, report: DiskReport) -> None:
        """A log-writer has connected. Partitions that it still has frozen for an ended hand-over
        lead again at once, with or without ZooKeeper.
        """
        for move in self._moves.values():
            move.not_before_ns = 0
            topic = self._cluster.topics.get(move.key.topic)
            source = self._source(topic, move.key.partition) if topic is not None else None
            if report.disk in (source, self._cluster.disk_of(move.order.directory_id)):
                move.begun = None
        for name, number in report.frozen:
            payload = {"topic": name, "partition": number, "topic_id": report.frozen[(name, number)], "keeps_mark": True}
            self._own_runner.start(f"thaw:{name}-{number}", _disk_command(report.disk, DescriptorKind.MOVE_CANCEL, payload), self._ignore)
        report.frozen.clear()
        self._next_full_poll_ns = self._next_thorough_poll_ns = 0

    def _collect(self) -> None:
        """Set `_moves` from the topics."""
        found: dict[MoveKey, Move] = {}
        for name, topic in self._cluster.topics.items():
            if not topic.moves or name in self._cluster.deleting:
                continue
            for number, order in topic.moves.items():
                key = MoveKey(name, number)
                move = self._moves.get(key)
                if move is None or (move.topic_id, move.order) != (str(topic.topic_id), order):
                    move = Move(key, str(topic.topic_id), order)
                found[key] = move
        self._moves = found
        self._target_ids = {move.order.directory_id for move in found.values()}
        self._standing.set(len(found))

    def _drop_orphans(self) -> None:
        """Cancel copies without an order: the topic was deleted, or the order cancelled, while the
        target was away.
        """
        for report in self._cluster.reports.values():
            if not report.futures or not self._is_online(report.disk):
                continue
            for (name, number), future in list(report.futures.items()):
                topic = self._cluster.topics.get(name)
                order = topic.moves.get(number) if topic is not None and str(topic.topic_id) == future.topic_id else None
                if (order is not None and order.directory_id == report.directory_id) or name in self._cluster.handing_over:
                    continue
                del report.futures[(name, number)]
                payload = {"topic": name, "partition": number, "topic_id": future.topic_id}
                self._log.info(f"deleting the copy of {name}-{number} on disk {report.disk}: no order names it", topic=name, partition=number, disk=report.disk)
                self._own_runner.start(f"orphan:{report.disk}:{name}-{number}", _disk_command(report.disk, DescriptorKind.MOVE_CANCEL, payload), self._ignore)

    def _ignore(self, outcome: OperationOutcome) -> None:
        pass

    # --- the duty cycle -----------------------------------------------------------------------------------------------------

    def do_work(self, now_ns: int, has_arrived: bool) -> int:
        """Carry moves forward; bounded by their number."""
        if self._handing_over:
            self._end_overdue(now_ns)
        self.orders.start()
        if self._to_write:
            self._write_placements()
        if now_ns < self._next_poll_ns:
            return 0
        self._next_poll_ns = now_ns + POLL_NS
        if now_ns >= self._next_full_poll_ns:
            self._next_full_poll_ns = now_ns + FULL_POLL_NS
            if has_arrived:
                self._collect()
                self._drop_orphans()
            self._files.changed(self._targets())
            return self._consider_all(now_ns)
        work = 0
        for progress in self._files.changed(self._targets()):
            move = self._moves.get(MoveKey(progress.topic, progress.partition))
            if move is not None and progress.state == CAUGHT_UP:
                work += self._consider(move, now_ns)
        return work

    def _consider_all(self, now_ns: int) -> int:
        """Consider all moves. Those whose target has enough copies are skipped most of the time:
        there may be thousands.
        """
        is_thorough = now_ns >= self._next_thorough_poll_ns
        if is_thorough:
            self._next_thorough_poll_ns = now_ns + max(THOROUGH_POLL_NS, len(self._moves) * THOROUGH_POLL_NS // 1000)
        self._copies = self._count_copies()
        work = 0
        for move in list(self._moves.values()):
            if is_thorough or move.begun is not None or self._copies.get(move.order.directory_id, 0) < BEGUN_MAX:
                work += self._consider(move, now_ns)
        return work

    def is_busy(self) -> bool:
        """Whether the next poll should be soon."""
        return bool(self._moves or self._handing_over or self.orders.is_busy)

    def _targets(self) -> set[str]:
        return {disk for directory_id in self._target_ids if (disk := self._cluster.disk_of(directory_id)) is not None}

    def _consider(self, move: Move, now_ns: int) -> int:
        topic = self._cluster.topics.get(move.key.topic)
        if topic is None or now_ns < move.not_before_ns or self._own_runner.is_running(f"move:{move.key}") or move.key.partition not in topic.moves:
            return 0
        number = move.key.partition
        source, target = self._source(topic, number), self._cluster.disk_of(move.order.directory_id)
        step = next_step(self._facts(move, topic, source, target))
        if step is Step.WAIT:
            return 0
        if step is Step.LOST:
            self._report_lost(move, source, target)
        elif step is Step.DROP:
            self._log.warning(f"cancelled the move of {move.key}: its target is no longer a disk of this box", **move.key._asdict())
            self.orders.cancel(topic.name, number, lambda _result: None)
        elif step is Step.BEGIN:
            assert source is not None and target is not None
            move.begun = self._incarnations(source, target)
            self._copies[move.order.directory_id] = self._copies.get(move.order.directory_id, 0) + 1
            operation = begin_copy(self._cluster, topic, number, source, f"{self._path(source)}/{move.key}", target)
            self._own_runner.start(f"move:{move.key}", operation, partial(self._on_begun, move))
        elif target is not None and self._may_hand_over(topic):
            self._start_hand_over(move, topic, source, target, step, now_ns)
        return 1

    def _source(self, topic: TopicState, partition: int) -> str | None:
        return self._cluster.disk_of_partition(topic, partition)

    def _path(self, disk: str) -> str:
        return next((known.path for known in self._disks if known.name == disk), "")

    def _incarnations(self, source: str, target: str) -> tuple[int, int] | None:
        reports = self._cluster.reports
        return (reports[source].incarnation, reports[target].incarnation) if source in reports and target in reports else None

    def _facts(self, move: Move, topic: TopicState, source: str | None, target: str | None) -> MoveFacts:
        reports, number = self._cluster.reports, move.key.partition
        source_report, target_report = reports.get(source or ""), reports.get(target or "")
        was_given_up = any(topic.placement.get(number) in report.replaces for report in reports.values())
        progress = self._files.progress(target, move.key) if target is not None else None
        incarnations = self._incarnations(source, target) if source is not None and target is not None else None
        return MoveFacts(
            source_is_there=was_given_up or (source_report is not None and self._is_online(str(source))),
            source_holds=not was_given_up and source_report is not None and source_report.holds(topic, number),
            target_is_of_this_box=target is not None,
            target_is_there=target_report is not None and self._is_online(str(target)),
            target_holds=target_report is not None and target_report.holds(topic, number),
            target_is_complete=target_report is not None and target_report.has_complete(topic, number),
            has_begun=move.begun is not None and move.begun == incarnations,
            may_begin=self._copies.get(move.order.directory_id, 0) < BEGUN_MAX,
            has_caught_up=progress is not None and progress.state == CAUGHT_UP and progress.topic_id == move.topic_id,
            may_freeze=all(other.from_disk != source for other in self._handing_over.values()),
        )

    def _count_copies(self) -> dict[str, int]:
        copies: dict[str, int] = {}
        for move in self._moves.values():
            if move.begun is None:
                continue
            directory_id = move.order.directory_id
            target = self._cluster.disk_of(directory_id)
            progress = self._files.progress(target, move.key) if target is not None else None
            copies[directory_id] = copies.get(directory_id, 0) + (progress is None or progress.state != FAILED)
        return copies

    def _on_begun(self, move: Move, outcome: OperationOutcome) -> None:
        if outcome.value != ErrorCode.NONE:
            move.begun = None
            move.put_off(self._now_ns())
            self._log.warning(f"could not begin to move {move.key}: {ErrorCode(outcome.value).name}; retrying", **move.key._asdict())

    def _report_lost(self, move: Move, source: str | None, target: str | None) -> None:
        if not move.is_reported_lost:
            move.is_reported_lost = True
            self._log.error(
                f"cannot continue to move {move.key} from disk {source} to disk {target}: not exactly one of them has it"
                " complete; restore its directory, or delete the topic",
                **move.key._asdict(),
            )

    # --- handing over -------------------------------------------------------------------------------------------------------

    def _may_hand_over(self, topic: TopicState) -> bool:
        """Whether no other operation runs on the topic. Writing its placement is an exception: a
        hand-over does not disturb it.
        """
        name, cluster = topic.name, self._cluster
        busy = self._runner.is_running(f"topic:{name}") and name not in self._writing
        return not (busy or name in cluster.handing_over or name in cluster.deleting or name in cluster.to_delete or self.orders.waits_for(name))

    def _start_hand_over(self, move: Move, topic: TopicState, source: str | None, target: str, step: Step, now_ns: int) -> None:
        under_way = HandOver(move.key, source, target, now_ns)
        operations: dict[Step, Callable[[], Operation[HandedOver]]] = {
            Step.HAND_OVER: lambda: hand_over(self._cluster, topic, move.key.partition, under_way, self._deadline_ms),
            Step.PROMOTE: lambda: promote(self._cluster, topic, move.key.partition, under_way),
            Step.SETTLE: lambda: settle(self._cluster, topic, move.key.partition, under_way),
        }
        self._handing_over[move.key] = under_way
        self._cluster.handing_over.add(topic.name)
        self._own_runner.start(f"move:{move.key}", operations[step](), partial(self._on_handed_over, move, topic, under_way))

    def _on_handed_over(self, move: Move, topic: TopicState, under_way: HandOver, outcome: OperationOutcome) -> None:
        self._end_hand_over(move.key)
        now_ns = self._now_ns()
        settled = move.key.partition not in topic.moves and self._cluster.topics.get(topic.name) is topic
        if outcome.value is HandedOver.TAKEN_BACK:
            self._on_taken_back(move, "the rest could not be copied in time")
        elif not settled:
            move.put_off(now_ns)
        else:
            if under_way.from_disk is not None:
                self._pauses.record(now_ns - under_way.started_ns)
            self._done.add()
            pause_ms = (now_ns - under_way.started_ns) // 1_000_000
            self._log.info(f"moved {move.key} to disk {under_way.to_disk}; it had no leader for {pause_ms} ms", **move.key._asdict(), disk=under_way.to_disk)
            fenced = self._to_write.setdefault(move.key.topic, set())
            if outcome.value is not HandedOver.DONE:
                fenced.add(move.key.partition)
            self._moves.pop(move.key, None)
            self._publish(lambda _none: None)
            self._write_placements()
        self._next_poll_ns = self._next_full_poll_ns = 0

    def _end_hand_over(self, key: MoveKey) -> None:
        self._handing_over.pop(key, None)
        self._cluster.handing_over.discard(key.topic)

    def _on_taken_back(self, move: Move, why: str) -> None:
        self._taken_back.add()
        move.begun = None  # order the copy again: the target may believe that it is complete
        move.put_off(self._now_ns())
        self._log.warning(f"cancelled the hand-over of {move.key}, which its source leads again: {why}; retrying", **move.key._asdict())

    def _end_overdue(self, now_ns: int) -> None:
        """Cancel a hand-over that has not reached its commit in time."""
        for key, under_way in list(self._handing_over.items()):
            if under_way.phase not in (Phase.FREEZE, Phase.FINISH) or now_ns - under_way.started_ns < self._deadline_ms * 1_000_000:
                continue
            self._own_runner.drop(f"move:{key}")
            move, topic = self._moves.get(key), self._cluster.topics.get(key.topic)
            if under_way.from_disk is None or topic is None:
                self._end_hand_over(key)
                continue
            under_way.phase = Phase.PROMOTE  # once
            back = take_back(self._cluster, topic, key.partition, under_way.from_disk, under_way.to_disk)
            self._own_runner.start(f"move:{key}", back, partial(self._on_overdue_ended, key, move))

    def _on_overdue_ended(self, key: MoveKey, move: Move | None, outcome: OperationOutcome) -> None:
        self._end_hand_over(key)
        if move is not None:
            self._on_taken_back(move, f"its hand-over took longer than {self._deadline_ms} ms")

    def _write_placements(self) -> None:
        """Write the new placements to ZooKeeper."""
        if not self._cluster.has_arrived:
            return
        for name in list(self._to_write):
            if self._runner.is_running(f"topic:{name}"):
                continue
            fenced = self._to_write.pop(name)
            topic = self._cluster.topics.get(name)
            if topic is None or name in self._cluster.deleting:
                continue
            self._writing.add(name)
            self._runner.start(f"topic:{name}", write_down_moved(self._cluster, topic, fenced), partial(self._on_written, name))

    def _on_written(self, name: str, outcome: OperationOutcome) -> None:
        self._writing.discard(name)
        if outcome.failure is not None:
            self._on_failure(outcome.failure)


def _disk_command(disk: str, kind: DescriptorKind, payload: dict[str, object]) -> Operation[None]:
    yield DiskCommand(disk, kind, payload)
