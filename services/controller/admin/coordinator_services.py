"""What the coordinator asks of the controller, because it alone speaks to ZooKeeper: blocks of producer ids, offsets of the oldest consumers.

Owned by the controller process. Each request is an operation of its own and is answered when that ends; while ZooKeeper is away it waits, up to its
deadline. Weak spot: an operation that is dropped with the session leaves its request to the deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import orjson

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.ipc.controller_frames import COMMIT_LEGACY_OFFSETS, COORDINATOR_ANSWER, FETCH_LEGACY_OFFSETS, LEASE_PRODUCER_IDS
from appliance.ipc.frames import Frame
from appliance.runtime.request_server import RequestClient
from appliance.shm.counters import Counters
from services.controller.zookeeper import legacy_offsets
from services.controller.zookeeper.operation import Operation, OperationOutcome, OperationRunner
from services.controller.zookeeper.producer_id_blocks import lease_block

TIMEOUT_MS = 5_000
KINDS = frozenset({LEASE_PRODUCER_IDS, COMMIT_LEGACY_OFFSETS, FETCH_LEGACY_OFFSETS})

Respond = Callable[[RequestClient, int, int, bytes], None]


class _Asked(NamedTuple):
    client: RequestClient
    frame: Frame
    deadline_ms: int
    name: str


class CoordinatorServices:
    """Requests of coordinators. `can_begin()`: ZooKeeper has been loaded."""

    def __init__(
        self,
        broker_id: int,
        block_size: int,
        runner: OperationRunner,
        can_begin: Callable[[], bool],
        respond: Respond,
        counters: Counters,
        now_ms: Callable[[], int],
    ) -> None:
        self._broker_id = broker_id
        self._block_size = block_size
        self._runner = runner
        self._can_begin = can_begin
        self._respond = respond
        self._now_ms = now_ms
        self._asked: dict[str, _Asked] = {}
        self._count = 0
        self._leased = counters.counter("controller.producer_id_blocks")
        self._refused = counters.counter("controller.coordinator_requests_refused")

    def on_frame(self, client: RequestClient, frame: Frame) -> None:
        self._count += 1
        name = f"coordinator:{self._count}"
        self._asked[name] = _Asked(client, frame, self._now_ms() + TIMEOUT_MS, name)
        self.do_work()

    def do_work(self) -> int:
        """Begin what can begin, end what has waited too long."""
        work = 0
        for asked in list(self._asked.values()):
            if self._now_ms() >= asked.deadline_ms:
                self._runner.drop(asked.name)
                self._answer(asked, {"error": ErrorCode.COORDINATOR_NOT_AVAILABLE})
                work += 1
            elif self._can_begin() and not self._runner.is_running(asked.name):
                self._begin(asked)
                work += 1
        return work

    def _begin(self, asked: _Asked) -> None:
        try:
            operation = self._operation(asked.frame)
        except (ValueError, KeyError, TypeError):
            self._answer(asked, {"error": ErrorCode.INVALID_REQUEST})
            return
        self._runner.start(asked.name, operation, lambda outcome: self._on_end(asked, outcome))

    def _operation(self, frame: Frame) -> Operation[dict[str, Any]]:
        if frame.kind == LEASE_PRODUCER_IDS:
            return self._lease()
        document: Any = orjson.loads(frame.payload)
        group_id = str(document["group"])
        if legacy_offsets.group_problem(group_id) is not None:
            raise ValueError(group_id)
        if frame.kind == COMMIT_LEGACY_OFFSETS:
            return _commit(group_id, {(str(topic), int(partition)): int(offset) for topic, partition, offset in document["offsets"]})
        return _fetch(group_id, [(str(topic), int(partition)) for topic, partition in document["partitions"]])

    def _lease(self) -> Operation[dict[str, Any]]:
        first, last = yield from lease_block(self._broker_id, self._block_size)
        self._leased.add()
        return {"first": first, "last": last}

    def _on_end(self, asked: _Asked, outcome: OperationOutcome) -> None:
        if outcome.failure is None:
            self._answer(asked, {"error": 0, **outcome.value})
        elif isinstance(outcome.failure, RequestRefused):
            self._answer(asked, {"error": outcome.failure.code})
        # What ZooKeeper refused or lost is tried again until the deadline.

    def _answer(self, asked: _Asked, document: dict[str, Any]) -> None:
        if self._asked.pop(asked.name, None) is None:
            return
        if document["error"]:
            self._refused.add()
        self._respond(asked.client, COORDINATOR_ANSWER, asked.frame.token, orjson.dumps(document))


def _commit(group_id: str, offsets: dict[legacy_offsets.Key, int]) -> Operation[dict[str, Any]]:
    outcome = yield from legacy_offsets.commit(group_id, offsets)
    return {"errors": [[*key, code] for key, code in outcome.items()]}


def _fetch(group_id: str, partitions: list[legacy_offsets.Key]) -> Operation[dict[str, Any]]:
    found = yield from legacy_offsets.fetch(group_id, partitions)
    return {"offsets": [[*key, offset] for key, offset in found.items()]}
