"""Handle `millrace disk orphans`: remove or adopt logs on this box's disks that no topic owns.

The command lists them from directories and image; this decides by the tree, at the moment when it
acts. A directory without a readable `partition.metadata` has no topic id (NO_TOPIC_ID): it is decided
by its name, and the log-writer, which makes all directories, keeps one that it serves. Owned by the
controller process. Weak: only what an open log-writer reported is known.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import orjson

from appliance.base.errors import ErrorCode
from appliance.base.model import NO_TOPIC_ID, TopicId
from appliance.ipc.descriptors import DescriptorKind
from services.controller.admin.topic_administration import TopicAdministration
from services.controller.admin.waiting_requests import NOT_CONTROLLER, Key, Result, WaitingRequest, WaitingRequests
from services.controller.decisions.cluster import Cluster, ControllerContext
from services.controller.zookeeper.operation import DiskCommand, Operation, OperationOutcome

ORDER_TIMEOUT_MS = 30_000
_ADOPTION = "adopt"


class Orphan(NamedTuple):
    disk: str
    topic: str
    partition: int
    topic_id: str

    @property
    def has_id(self) -> bool:
        return self.topic_id != str(NO_TOPIC_ID)

    def __str__(self) -> str:
        return f"{self.disk}/{self.topic}-{self.partition}"


class OrphanOrders(NamedTuple):
    """The content of an ORPHAN_ORDERS frame (`ipc/request_frames.py`). `adopted`: name, topic id, configs
    and whether partitions without a log may begin empty in a cluster, or None."""

    removed: tuple[Orphan, ...] = ()
    adopted: tuple[str, TopicId, dict[str, str], bool] | None = None

    @classmethod
    def decode(cls, payload: bytes) -> OrphanOrders:
        try:
            document: dict[str, Any] = orjson.loads(payload)
            removed = tuple(
                Orphan(str(disk), str(topic), int(number), str(topic_id or NO_TOPIC_ID)) for disk, topic, number, topic_id in document.get("remove", ())
            )
            adopted = document.get("adopt")
            if adopted is None:
                return cls(removed)
            configs = {str(key): str(value) for key, value in adopted["config"].items()}
            return cls(removed, (str(adopted["topic"]), TopicId.from_text(adopted["topic_id"]), configs, adopted.get("allow_missing") is True))
        except (KeyError, TypeError, AttributeError) as problem:
            raise ValueError(f"not an order about orphans: {problem}") from problem


class OrphanRequests:
    """Orders of the command. `is_online(disk)`: its log-writer is connected and the disk works."""

    def __init__(self, context: ControllerContext, topics: TopicAdministration, requests: WaitingRequests, is_online: Callable[[str], bool]) -> None:
        self._cluster = context.cluster
        self._runner = context.runner
        self._log = context.log
        self._topics = topics
        self._requests = requests
        self._is_online = is_online

    def on_orders(self, payload: bytes, respond: Callable[[bytes], None]) -> None:
        """Handle a frame. Raises ValueError if it cannot be read."""
        orders = OrphanOrders.decode(payload)
        keys: list[Key] = [str(orphan) for orphan in orders.removed]
        self._requests.wait(
            [*keys, *([_ADOPTION] if orders.adopted is not None else [])],
            ORDER_TIMEOUT_MS,
            lambda waiting: self._begin(waiting, orders),
            lambda results: respond(_refused_document(results)),
        )

    def _begin(self, waiting: WaitingRequest, orders: OrphanOrders) -> None:
        if orders.adopted is not None:
            on_result = partial(waiting.record, _ADOPTION)
            if self._cluster.fence is None:
                on_result(NOT_CONTROLLER)
            else:
                self._topics.adopt(*orders.adopted, on_result)
        by_topic: dict[str, list[Orphan]] = {}
        for orphan in orders.removed:
            by_topic.setdefault(orphan.topic, []).append(orphan)
        for name, orphans in by_topic.items():
            if self._runner.is_running(f"topic:{name}") or name in self._topics.creating:
                for orphan in orphans:
                    waiting.record(str(orphan), Result(ErrorCode.INVALID_REQUEST, f"Topic '{name}' is being changed; try again."))
            else:
                self._runner.start(f"topic:{name}", _remove(self._cluster, orphans, self._is_online), partial(self._on_removed, waiting, orphans))

    def _on_removed(self, waiting: WaitingRequest, orphans: list[Orphan], outcome: OperationOutcome) -> None:
        for orphan in orphans:
            result = Result(ErrorCode.UNKNOWN_SERVER_ERROR, str(outcome.failure)) if outcome.failure is not None else outcome.value[orphan]
            if result.code is ErrorCode.NONE:
                self._log.notice(f"removed {orphan}, topic id {orphan.topic_id}, which no topic owned", topic=orphan.topic, partition=orphan.partition)
            waiting.record(str(orphan), result)


def _remove(cluster: Cluster, orphans: list[Orphan], is_online: Callable[[str], bool]) -> Operation[dict[Orphan, Result]]:
    results = {}
    for orphan in orphans:
        owned = ownership(cluster, orphan, is_online)
        if owned:
            results[orphan] = Result(ErrorCode.INVALID_REQUEST, owned)
            continue
        payload = {"topic": orphan.topic, "partition": orphan.partition, "topic_id": orphan.topic_id}
        code = yield DiskCommand(orphan.disk, DescriptorKind.DELETE, payload)
        if code == ErrorCode.NONE and orphan.has_id and orphan.disk in cluster.reports:
            cluster.reports[orphan.disk].forget((orphan.topic, orphan.partition))
        results[orphan] = Result(ErrorCode(code))
    return results


def ownership(cluster: Cluster, orphan: Orphan, is_online: Callable[[str], bool]) -> str:
    """Return why a log is no orphan that may be removed; '' if no topic owns it, and it is not the
    only copy on this box of one that a topic owns.
    """
    report = cluster.reports.get(orphan.disk)
    if report is None or report.is_offline:
        return f"Disk {orphan.disk} is not served."
    key = (orphan.topic, orphan.partition)
    known = report.partitions.get(key)
    if not orphan.has_id and known is not None:
        return f"Disk {orphan.disk} serves {orphan.topic}-{orphan.partition}, with topic id {known}."
    if orphan.has_id and known != orphan.topic_id:
        return f"Disk {orphan.disk} has no log {orphan.topic}-{orphan.partition} with topic id {orphan.topic_id}."
    if orphan.topic in cluster.deleting or orphan.topic in cluster.stale_placements:
        return f"Topic '{orphan.topic}' is being deleted."
    topic = cluster.topics.get(orphan.topic)
    if topic is None or (orphan.has_id and str(topic.topic_id) != orphan.topic_id):
        return ""
    placed = topic.placement.get(orphan.partition)
    is_waiting = placed is None and cluster.broker_id in topic.replicas.get(orphan.partition, ())
    if placed == report.directory_id or is_waiting or cluster.move_target(topic, orphan.partition) == orphan.disk:
        return f"The cluster places {orphan.topic}-{orphan.partition} on disk {orphan.disk}."
    if placed is not None:
        disk = cluster.disk_of(placed)
        other = cluster.reports.get(disk) if disk is not None else None
        if other is None or other.is_offline or not is_online(other.disk) or not other.holds(topic, orphan.partition):
            return f"The cluster places {orphan.topic}-{orphan.partition} on disk {disk or placed}, which does not serve it: this may be the only copy."
    return ""


def _refused_document(results: dict[Key, Result]) -> bytes:
    refused = [[str(key), int(result.code), result.message or ""] for key, result in results.items() if result.code is not ErrorCode.NONE]
    return orjson.dumps({"refused": refused})
