"""Handle AlterReplicaLogDirs, and the orders of `millrace disk drain`.

Owned by the controller process. Weak: as of `waiting_request`.
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
from services.controller.admin.disk_draining import DiskDraining
from services.controller.admin.move_orders import MoveOrders
from services.controller.admin.topic_administration import Result
from services.controller.admin.waiting_request import Answer, ControllerRequest, Key, Wait, WaitingRequest

ORDER_TIMEOUT_MS = 30_000
"""These requests have no time-out of their own."""


class MoveRequests:
    """Requests to move partitions between disks."""

    def __init__(
        self,
        orders: MoveOrders,
        draining: DiskDraining,
        disks: list[Disk],
        wait: Wait,
        answer: Answer,
        now_ms: Callable[[], int],
    ) -> None:
        self._orders = orders
        self._draining = draining
        self._disks = disks
        self._wait = wait
        self._answer = answer
        self._now_ms = now_ms

    # --- AlterReplicaLogDirs ------------------------------------------------------------------------------------------------

    def on_alter(self, request: ControllerRequest) -> None:
        decoded = ALTER_REPLICA_LOG_DIRS_REQUEST.decode(request.body, 0, len(request.body), request.version)
        wanted = [(topic.name, partition, each.path) for each in decoded.dirs for topic in each.topics for partition in topic.partitions]
        self._wait(
            WaitingRequest(
                range(len(wanted)),
                self._now_ms() + ORDER_TIMEOUT_MS,
                lambda waiting: self._begin_alter(waiting, wanted),
                lambda results: self._answer(request, _altered_body(request.version, wanted, results)),
            )
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
        self._wait(
            WaitingRequest(
                [*keys, *range(len(orders.moves))],
                self._now_ms() + ORDER_TIMEOUT_MS,
                lambda waiting: self._begin_orders(waiting, orders),
                lambda results: respond(_refused_document(orders, results)),
            )
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
    """The content of a MOVE_ORDERS frame (`ipc/controller_frames.py`)."""

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
