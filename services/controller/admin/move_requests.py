"""Handle AlterReplicaLogDirs, and the orders of `millrace disk drain`.

Owned by the controller process. Weak: as of `waiting_requests`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import orjson

from appliance.base.errors import ErrorCode
from appliance.base.layout import Disk
from appliance.protocol.log_dir_apis import (
    ALTER_REPLICA_LOG_DIRS_REQUEST,
    ALTER_REPLICA_LOG_DIRS_RESPONSE,
    AlterReplicaLogDirsResponse,
    MovedPartition,
    MovedTopic,
)
from services.controller.admin.move_orders import MoveOrders
from services.controller.admin.pending_orders import PendingOrders
from services.controller.admin.waiting_requests import ControllerRequest, Key, OnResult, Result, WaitingRequest, WaitingRequests
from services.controller.decisions.cluster import ControllerContext
from services.controller.decisions.move_operations import mark_draining
from services.controller.zookeeper.operation import Operation

_DRAINING = "draining"


class _Mark(NamedTuple):
    directory_ids: tuple[str, ...]
    is_draining: bool
    on_result: OnResult

    def answer(self, result: Result) -> None:
        self.on_result(result)


class DiskDraining:
    """Marks to be written, one after the other."""

    def __init__(self, context: ControllerContext) -> None:
        self._cluster = cluster = context.cluster
        self._counters = context.counters
        self._log = context.log
        self._pending = PendingOrders(context, str, self._write_mark, self._on_marked, lambda: cluster.has_arrived)

    def mark(self, disk: str, is_draining: bool, on_result: OnResult) -> None:
        """Mark a disk, or remove its mark."""
        ids = tuple(directory_id for directory_id, name in self._cluster.directory_disks.items() if name == disk)
        if not ids:
            on_result(Result(ErrorCode.LOG_DIR_NOT_FOUND, f"There is no disk {disk}, or its log-writer has not reported yet."))
            return
        self._pending.add(_DRAINING, _Mark(ids, is_draining, on_result))

    def reconsider(self) -> None:
        """Start what is due, and remove marks of directories that are no longer on this box."""
        cluster = self._cluster
        for disk in cluster.disks:
            self._counters.gauge(f'controller.disk_draining{{disk="{disk}"}}').set(int(self.is_draining(disk)))
        stale = tuple(directory_id for directory_id in cluster.box.draining if cluster.disk_of(directory_id) is None)
        if cluster.has_arrived and not self._pending and stale:
            self._pending.add(_DRAINING, _Mark(stale, False, lambda _result: None))
        self._pending.reconsider()

    def is_draining(self, disk: str) -> bool:
        return any(self._cluster.is_draining(directory_id) for directory_id, name in self._cluster.directory_disks.items() if name == disk)

    def _write_mark(self, _key: str, mark: _Mark) -> Operation[None]:
        return mark_draining(self._cluster, mark.directory_ids, mark.is_draining)

    def _on_marked(self, _key: str, mark: _Mark, _none: None) -> bool:
        disks = sorted({disk for directory_id in mark.directory_ids if (disk := self._cluster.disk_of(directory_id)) is not None})
        for disk in disks:
            self._log.info(f"disk {disk} {'takes no new partitions' if mark.is_draining else 'takes new partitions again'}", disk=disk)
        mark.answer(Result(ErrorCode.NONE))
        return True


ORDER_TIMEOUT_MS = 30_000
"""These requests have no time-out of their own."""


class MoveRequests:
    """Requests to move partitions between disks."""

    def __init__(
        self,
        orders: MoveOrders,
        draining: DiskDraining,
        disks: list[Disk],
        requests: WaitingRequests,
    ) -> None:
        self._orders = orders
        self._draining = draining
        self._disks = disks
        self._requests = requests

    # --- AlterReplicaLogDirs ------------------------------------------------------------------------------------------------

    def on_alter(self, request: ControllerRequest) -> None:
        decoded = ALTER_REPLICA_LOG_DIRS_REQUEST.decode(request.body, 0, len(request.body), request.version)
        wanted = [(topic.name, partition, each.path) for each in decoded.dirs for topic in each.topics for partition in topic.partitions]
        self._requests.wait(
            range(len(wanted)),
            ORDER_TIMEOUT_MS,
            lambda waiting: self._begin_alter(waiting, wanted),
            lambda results: self._requests.answer(request, _altered_body(request.version, wanted, results)),
        )

    def _begin_alter(self, waiting: WaitingRequest, wanted: list[tuple[str, int, str]]) -> None:
        for index, (topic, partition, path) in enumerate(wanted):
            on_result = partial(waiting.record, index)
            self._orders.order(topic, partition, self._disk_at(path), None, on_result)

    def _disk_at(self, path: str) -> str | None:
        normal = os.path.normpath(path)
        return next((disk.name for disk in self._disks if os.path.normpath(disk.path) == normal), None)

    # --- a drain ------------------------------------------------------------------------------------------------------------

    def on_orders(self, payload: bytes, respond: Callable[[bytes], None]) -> None:
        """Handle a frame of `millrace disk drain`. Raises ValueError if it cannot be read."""
        orders = DrainOrders.decode(payload)
        keys: list[Key] = ["draining"] if orders.draining is not None else []
        self._requests.wait(
            [*keys, *range(len(orders.moves))],
            ORDER_TIMEOUT_MS,
            lambda waiting: self._begin_orders(waiting, orders),
            lambda results: respond(_refused_document(orders, results)),
        )

    def _begin_orders(self, waiting: WaitingRequest, orders: DrainOrders) -> None:
        cancelled = self._orders.moves_from(orders.disk) if orders.cancel else []
        waiting.keys += [str(key) for key in cancelled]
        if orders.draining is not None:
            self._draining.mark(orders.disk, orders.draining, partial(waiting.record, "draining"))
        for moved in cancelled:
            self._orders.cancel(moved.topic, moved.partition, partial(waiting.record, str(moved)))
        for index, (topic, partition, disk) in enumerate(orders.moves):
            self._orders.order(topic, partition, disk, orders.throttle, partial(waiting.record, index))


class DrainOrders(NamedTuple):
    """The content of a MOVE_ORDERS frame (`ipc/request_frames.py`)."""

    disk: str
    draining: bool | None = None
    cancel: bool = False
    throttle: int | None = None
    moves: tuple[tuple[str, int, str], ...] = ()

    @classmethod
    def decode(cls, payload: bytes) -> DrainOrders:
        try:
            document: dict[str, Any] = orjson.loads(payload)
            draining, throttle = document.get("draining"), document.get("throttle")
            return cls(
                str(document["disk"]),
                None if draining is None else bool(draining),
                bool(document.get("cancel")),
                None if throttle is None else int(throttle),
                tuple((str(topic), int(partition), str(disk)) for topic, partition, disk in document.get("moves", ())),
            )
        except (KeyError, TypeError, AttributeError) as problem:
            raise ValueError(f"not an order for moves: {problem}") from problem


def _altered_body(version: int, wanted: list[tuple[str, int, str]], results: dict[Key, Result]) -> bytes:
    topics: dict[str, list[MovedPartition]] = {}
    for index, (topic, partition, _) in enumerate(wanted):
        topics.setdefault(topic, []).append(MovedPartition(partition, results[index].code))
    return ALTER_REPLICA_LOG_DIRS_RESPONSE.encode(
        version, AlterReplicaLogDirsResponse(0, tuple(MovedTopic(name, tuple(moved)) for name, moved in topics.items()))
    )


def _refused_document(orders: DrainOrders, results: dict[Key, Result]) -> bytes:
    refused = []
    for key, result in results.items():
        if result.code is not ErrorCode.NONE:
            what = f"{orders.moves[key][0]}-{orders.moves[key][1]}" if isinstance(key, int) else key
            refused.append([what, int(result.code), result.message or ""])
    return orjson.dumps({"refused": refused})
