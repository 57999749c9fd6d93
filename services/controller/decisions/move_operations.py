"""Moving a partition to another disk of this box: the decision on its next step, orders in
ZooKeeper, copying, the hand-over.

The commit point is the rename of the source's directory: before it the source is the partition,
after it the target is. A restarted controller knows only the log-writers' reports. So `next_step`
(pure) chooses each step from those, never from what an earlier incarnation intended. Operations
that write to ZooKeeper are dropped with all others when ZooKeeper is lost. A hand-over
(`begin_copy`, `hand_over`, `promote`) needs only log-writers and continues without ZooKeeper,
because its partition has no leader meanwhile. Both can be dropped after any step; in brackets what
the next controller does then. The steps on the disks are in `appliance/storage/log_move.py`.

1. The order in the placement (finds it and continues); image with `moving_to`; answer.
2. MOVE_MARK to the source, MOVE_BEGIN to the target (sends them again).
3. MOVE_FREEZE to the source (lets the source lead again by MOVE_CANCEL, and restarts here).
4. MOVE_FINISH to the target (the same; the target continues to copy).
5. MOVE_COMMIT to the source, the commit point (asks the source, and promotes if the target has all
   and the source has none).
6. MOVE_PROMOTE and BECOME_LEADER, with the same leader epoch, to the target (sends them again).
7. Placement with the new directory and without the order; image.

If the target is no longer a disk of the box, the order ends. A cancelled order, or one whose topic
is deleted, is removed first; then MOVE_CANCEL gives up the copy. If the source was given up
(`disk replace`), a complete copy is promoted under a larger leader epoch.

Weak: a source that is away delays its moves, because no other process can know whether the commit
took place. The new location reaches ZooKeeper only while that is connected; a controller that
starts before finds the order, and settles it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from appliance.base.errors import ErrorCode
from appliance.cluster.broker_configs import MOVE_RATE, replication_rate
from appliance.cluster.znodes import BoxRecord, MoveOrder
from appliance.ipc.descriptors import Completion, DescriptorKind
from services.controller.decisions.cluster import Cluster, FutureReplica
from services.controller.decisions.hosting_operations import write_placement
from services.controller.decisions.leader_operations import raise_leader_epochs
from services.controller.decisions.role_operations import role_of, role_payload, send_roles
from services.controller.zookeeper.broker_registry import change_record
from services.controller.zookeeper.operation import DiskCommand, Operation, Publish, all_of
from services.controller.zookeeper.topic_registry import TopicState


class Step(Enum):
    """The next step of a move."""

    WAIT = "wait"
    BEGIN = "begin"
    """Tell the source to keep its segments, and the target to copy."""
    HAND_OVER = "hand over"
    """Freeze, finish, commit, promote, lead."""
    PROMOTE = "promote"
    """The source does not have it and the target has a complete copy: an earlier incarnation
    reached the commit.
    """
    SETTLE = "settle"
    """The target has it in its final directory: let it lead, and record the location."""
    DROP = "drop"
    """The target is no longer a disk of this box: the order is void."""
    LOST = "lost"
    """Neither disk has it complete, or both have it: an operator must decide."""


class MoveFacts(NamedTuple):
    """What is known of one move. A disk `is_there` while its log-writer is connected and the disk
    works.
    """

    source_is_there: bool
    source_holds: bool
    target_is_of_this_box: bool
    target_is_there: bool
    target_holds: bool
    target_is_complete: bool
    """A complete copy waits for its promotion."""
    has_begun: bool
    """The current incarnations of both log-writers know of the move."""
    may_begin: bool
    has_caught_up: bool
    may_freeze: bool
    """No other partition of the source is frozen."""


def next_step(facts: MoveFacts) -> Step:
    """Return the next step; WAIT if nothing can be done, or if the facts are not known."""
    if facts.target_holds and not facts.source_holds:
        return Step.SETTLE if facts.target_is_there else Step.WAIT
    if not facts.source_is_there:
        return Step.WAIT
    if not facts.target_is_of_this_box:
        return Step.DROP if facts.source_holds else Step.LOST
    if not facts.target_is_there:
        return Step.WAIT
    if facts.source_holds:
        return Step.LOST if facts.target_holds else _copying(facts)
    return Step.PROMOTE if facts.target_is_complete else Step.LOST


def _copying(facts: MoveFacts) -> Step:
    if not facts.has_begun:
        return Step.BEGIN if facts.may_begin else Step.WAIT
    return Step.HAND_OVER if facts.has_caught_up and facts.may_freeze else Step.WAIT


class MoveKey(NamedTuple):
    """The partition that is moved."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Phase(Enum):
    """The progress of a hand-over. Before COMMIT it can be cancelled."""

    FREEZE = "freeze"
    FINISH = "finish"
    COMMIT = "commit"
    PROMOTE = "promote"


class HandOver:
    """One hand-over under way: its disks and its phase."""

    __slots__ = ("from_disk", "key", "phase", "started_ns", "to_disk")

    def __init__(self, key: MoveKey, from_disk: str | None, to_disk: str, started_ns: int) -> None:
        self.key = key
        self.from_disk = from_disk
        self.to_disk = to_disk
        self.started_ns = started_ns
        self.phase = Phase.FREEZE


class HandedOver(Enum):
    """The end of a hand-over."""

    DONE = "done"
    """The target leads."""
    FENCED = "fenced"
    """The target has the partition, and leads only under a larger leader epoch."""
    TAKEN_BACK = "taken back"
    """The source leads again; the copy continues."""
    UNKNOWN = "unknown"
    """A disk did not answer; its next report shows the result."""


# --- orders in ZooKeeper -----------------------------------------------------------------------------------------------


def order_moves(cluster: Cluster, topic: TopicState, orders: Mapping[int, MoveOrder | None]) -> Operation[None]:
    """Write the target directories of a topic's partitions (None: no move), publish, and cancel
    copies without an order.
    """
    former = {partition: order for partition, order in topic.moves.items() if partition in orders}
    kept = {partition: order for partition, order in topic.moves.items() if partition not in orders}
    topic.moves = {**kept, **{partition: order for partition, order in orders.items() if order is not None}}
    yield from write_placement(cluster, topic)
    yield Publish()
    dropped = [partition for partition, order in former.items() if (wanted := orders[partition]) is None or wanted.directory_id != order.directory_id]
    yield from cancel_copies(cluster, topic, {partition: former[partition] for partition in dropped}, [p for p in dropped if orders[p] is None])


def cancel_copies(cluster: Cluster, topic: TopicState, former: Mapping[int, MoveOrder], unmarked: Iterable[int]) -> Operation[None]:
    """Send MOVE_CANCEL to the targets of `former`, and to the sources of `unmarked`.

    A disk that is away reports its copies when it connects, and gets the command then.
    """
    commands: list[Any] = []
    for partition, order in sorted(former.items()):
        target = cluster.disk_of(order.directory_id)
        if target in cluster.reports:
            cluster.reports[target].futures.pop((topic.name, partition), None)
            commands.append(DiskCommand(target, DescriptorKind.MOVE_CANCEL, identity(topic, partition)))
    for partition in sorted(unmarked):
        source = cluster.disk_of_partition(topic, partition)
        if source in cluster.reports:
            commands.append(DiskCommand(source, DescriptorKind.MOVE_CANCEL, identity(topic, partition)))
    yield from all_of(commands)


def write_down_moved(cluster: Cluster, topic: TopicState, fenced: Iterable[int]) -> Operation[None]:
    """Write where a topic's partitions lie now; raise the leader epoch of those in `fenced`."""
    yield from write_placement(cluster, topic)
    raised = sorted(fenced)
    if raised:
        yield from raise_leader_epochs(cluster, topic, raised)
        yield from send_roles(cluster, [(topic, partition) for partition in raised])
    yield Publish()


def mark_draining(cluster: Cluster, directory_ids: Iterable[str], is_draining: bool) -> Operation[None]:
    """Record which directories are being drained; nothing new is placed on them."""
    changed = set(directory_ids)

    def decide(record: BoxRecord) -> BoxRecord:
        draining = set(record.draining) | changed if is_draining else set(record.draining) - changed
        return record._replace(draining=tuple(sorted(draining)))

    cluster.use_own_record(*(yield from change_record(cluster.broker_id, decide)))


# --- copying and handing over: log-writers alone -----------------------------------------------------------------------


def identity(topic: TopicState, partition: int) -> dict[str, Any]:
    return {"topic": topic.name, "partition": partition, "topic_id": str(topic.topic_id)}


def begin_copy(cluster: Cluster, topic: TopicState, partition: int, source_disk: str, source_path: str, target_disk: str) -> Operation[ErrorCode]:
    """Tell the source to keep its segments, then the target to copy `source_path`. Repeated for
    each incarnation of either.
    """
    named = identity(topic, partition)
    order, directory_id = topic.moves[partition], topic.placement[partition]
    code = yield DiskCommand(source_disk, DescriptorKind.MOVE_MARK, {**named, "target_disk": target_disk})
    if code != ErrorCode.NONE:
        return ErrorCode(code)
    if topic.moves.get(partition) != order:
        return ErrorCode.NONE  # the order was cancelled, and its canceller has unmarked the source
    begin = {
        **named,
        "source_disk": source_disk,
        "source_path": source_path,
        "source_directory_id": directory_id,
        "throttle": order.throttle or replication_rate(cluster.box_config(), MOVE_RATE),
        "config": cluster.config_of(topic),
    }
    code = yield DiskCommand(target_disk, DescriptorKind.MOVE_BEGIN, begin)
    report = cluster.reports.get(target_disk)
    if code == ErrorCode.NONE and report is not None:
        report.futures[(topic.name, partition)] = FutureReplica(str(topic.topic_id))
    return ErrorCode(code)


def hand_over(cluster: Cluster, topic: TopicState, partition: int, under_way: HandOver, deadline_ms: int) -> Operation[HandedOver]:
    """Freeze, finish, commit, promote, lead. While the partition is frozen it has no leader, and
    clients retry.

    The commit is the rename of the source's directory. Before it, the source is the partition and
    the hand-over can be cancelled; after it, the target is.
    """
    source_disk, target_disk = under_way.from_disk, under_way.to_disk
    assert source_disk is not None
    named, key = identity(topic, partition), (topic.name, partition)
    frozen: Completion = yield DiskCommand(source_disk, DescriptorKind.MOVE_FREEZE, named, wants_completion=True)
    if frozen.error_code != ErrorCode.NONE:
        _forget_if_absent(cluster, source_disk, key, frozen.error_code)
        return HandedOver.UNKNOWN
    under_way.phase = Phase.FINISH
    finish = {
        **named,
        "log_end_offset": frozen.log_end_offset,
        "high_watermark": frozen.base_offset,
        "log_start_offset": frozen.log_start_offset,
        "deadline_ms": deadline_ms,
    }
    code = yield DiskCommand(target_disk, DescriptorKind.MOVE_FINISH, finish)
    if code != ErrorCode.NONE:
        yield from take_back(cluster, topic, partition, source_disk, target_disk)
        return HandedOver.TAKEN_BACK
    target = cluster.reports.get(target_disk)
    if target is not None:
        target.futures[key] = FutureReplica(str(topic.topic_id), frozen.log_end_offset)
    under_way.phase = Phase.COMMIT
    code = yield DiskCommand(source_disk, DescriptorKind.MOVE_COMMIT, {**named, "log_end_offset": frozen.log_end_offset})
    if code == ErrorCode.FENCED_LEADER_EPOCH:
        yield from take_back(cluster, topic, partition, source_disk, target_disk)
        return HandedOver.TAKEN_BACK
    if code != ErrorCode.NONE:
        _forget_if_absent(cluster, source_disk, key, code)
        return HandedOver.UNKNOWN
    _forget_if_absent(cluster, source_disk, key, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    result = yield from _promote(cluster, topic, partition, under_way)
    return result


def _forget_if_absent(cluster: Cluster, disk: str, key: tuple[str, int], code: int) -> None:
    """The log-writer answered that its disk does not have the partition."""
    report = cluster.reports.get(disk)
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and report is not None:
        report.forget(key)


def take_back(cluster: Cluster, topic: TopicState, partition: int, source_disk: str, target_disk: str) -> Operation[None]:
    """Let the source lead again, still marked as being copied.

    The mark must not lapse for a moment: compaction would remove segments that the copy has not
    read.
    """
    named = identity(topic, partition)
    yield DiskCommand(source_disk, DescriptorKind.MOVE_CANCEL, {**named, "keeps_mark": True})
    report = cluster.reports.get(source_disk)
    if report is not None:  # roles that were sent while it was frozen are sent again
        report.forget_role((topic.name, partition))
        cluster.roles_to_send.add((topic.name, partition))
    yield DiskCommand(source_disk, DescriptorKind.MOVE_MARK, {**named, "target_disk": target_disk})


def promote(cluster: Cluster, topic: TopicState, partition: int, under_way: HandOver) -> Operation[HandedOver]:
    """Promote a complete copy whose source has not reported the partition.

    First ask the source whether its directory is really gone: it may exist without being served,
    and then the source is the partition. A source that was given up is not asked (`from_disk` is
    None).
    """
    if under_way.from_disk is not None:
        asked: Completion = yield DiskCommand(under_way.from_disk, DescriptorKind.MOVE_FREEZE, identity(topic, partition), wants_completion=True)
        if asked.error_code == ErrorCode.NONE:  # the source serves it again
            report = cluster.reports.get(under_way.from_disk)
            if report is not None:
                report.partitions[(topic.name, partition)] = str(topic.topic_id)
            yield from take_back(cluster, topic, partition, under_way.from_disk, under_way.to_disk)
            return HandedOver.TAKEN_BACK
        if asked.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return HandedOver.UNKNOWN
    result = yield from _promote(cluster, topic, partition, under_way)
    return result


def _promote(cluster: Cluster, topic: TopicState, partition: int, under_way: HandOver) -> Operation[HandedOver]:
    under_way.phase = Phase.PROMOTE
    command = {**identity(topic, partition), "config": cluster.config_of(topic)}
    code = yield DiskCommand(under_way.to_disk, DescriptorKind.MOVE_PROMOTE, command)
    if code != ErrorCode.NONE:
        return HandedOver.UNKNOWN
    report = cluster.reports.get(under_way.to_disk)
    if report is not None:
        report.futures.pop((topic.name, partition), None)
        report.partitions[(topic.name, partition)] = str(topic.topic_id)
    result = yield from settle(cluster, topic, partition, under_way)
    return result


def settle(cluster: Cluster, topic: TopicState, partition: int, under_way: HandOver) -> Operation[HandedOver]:
    """Record that the target has the partition, in memory first, so that every later command goes
    there, and let it lead.
    """
    under_way.phase = Phase.PROMOTE
    order = topic.moves.get(partition)
    if order is not None:
        topic.placement = {**topic.placement, partition: order.directory_id}
        topic.moves = {moved: kept for moved, kept in topic.moves.items() if moved != partition}
    state = topic.states[partition]
    if under_way.from_disk is None:  # offsets that only the lost source had must not return under the same epoch
        return HandedOver.FENCED
    role, report, key = role_of(cluster, topic, partition), cluster.reports.get(under_way.to_disk), (topic.name, partition)
    if role is None or report is None:
        return HandedOver.DONE if role is None else HandedOver.UNKNOWN
    report.sent[key] = role
    code = yield DiskCommand(under_way.to_disk, role.kind, role_payload(cluster, topic, partition, state))
    report.on_answered(key, role, code == ErrorCode.NONE)
    return {ErrorCode.NONE: HandedOver.DONE, ErrorCode.FENCED_LEADER_EPOCH: HandedOver.FENCED}.get(ErrorCode(code), HandedOver.UNKNOWN)
