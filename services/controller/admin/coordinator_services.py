"""Serve the coordinator's requests that need ZooKeeper: blocks of producer ids, and offsets of the
oldest consumers.

Owned by the controller process. Each request is an operation of its own and is answered at its end;
while ZooKeeper is away it waits up to its deadline. Weak: a request whose operation was dropped
with the session is answered only at its deadline, or after the next arrival.
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


class _PendingRequest(NamedTuple):
    client: RequestClient
    frame: Frame
    deadline_ms: int
    name: str


class CoordinatorServices:
    """Requests of coordinators. `can_begin()`: the tree is loaded."""

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
        self._pending: dict[str, _PendingRequest] = {}
        self._count = 0
        self._leased = counters.counter("controller.producer_id_blocks")
        self._refused = counters.counter("controller.coordinator_requests_refused")

    def on_frame(self, client: RequestClient, frame: Frame) -> None:
        self._count += 1
        name = f"coordinator:{self._count}"
        self._pending[name] = _PendingRequest(client, frame, self._now_ms() + TIMEOUT_MS, name)
        self.do_work()

    def do_work(self) -> int:
        """Begin requests, end those that have timed out."""
        work = 0
        for pending in list(self._pending.values()):
            if self._now_ms() >= pending.deadline_ms:
                self._runner.drop(pending.name)
                self._answer(pending, {"error": ErrorCode.COORDINATOR_NOT_AVAILABLE})
                work += 1
            elif self._can_begin() and not self._runner.is_running(pending.name):
                self._begin(pending)
                work += 1
        return work

    def _begin(self, pending: _PendingRequest) -> None:
        try:
            operation = self._operation(pending.frame)
        except (ValueError, KeyError, TypeError):
            self._answer(pending, {"error": ErrorCode.INVALID_REQUEST})
            return
        self._runner.start(pending.name, operation, lambda outcome: self._on_end(pending, outcome))

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

    def _on_end(self, pending: _PendingRequest, outcome: OperationOutcome) -> None:
        if outcome.failure is None:
            self._answer(pending, {"error": 0, **outcome.value})
        elif isinstance(outcome.failure, RequestRefused):
            self._answer(pending, {"error": outcome.failure.code})
        # After a failure of ZooKeeper the request is retried until its deadline.

    def _answer(self, pending: _PendingRequest, document: dict[str, Any]) -> None:
        if self._pending.pop(pending.name, None) is None:
            return
        if document["error"]:
            self._refused.add()
        self._respond(pending.client, COORDINATOR_ANSWER, pending.frame.token, orjson.dumps(document))


def _commit(group_id: str, offsets: dict[legacy_offsets.Key, int]) -> Operation[dict[str, Any]]:
    outcome = yield from legacy_offsets.commit(group_id, offsets)
    return {"errors": [[*key, code] for key, code in outcome.items()]}


def _fetch(group_id: str, partitions: list[legacy_offsets.Key]) -> Operation[dict[str, Any]]:
    found = yield from legacy_offsets.fetch(group_id, partitions)
    return {"offsets": [[*key, offset] for key, offset in found.items()]}
