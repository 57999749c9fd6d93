"""Serve the coordinator's requests that need ZooKeeper: blocks of producer ids, and offsets of the
oldest consumers.

Owned by the controller process. Each request is an operation of its own and is answered at its end;
while ZooKeeper is away it waits up to its deadline. Weak: a request whose operation was dropped
with the session is answered only at its deadline, or after the next arrival.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import orjson

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.ipc.frames import Frame
from appliance.ipc.request_frames import COMMIT_LEGACY_OFFSETS, COORDINATOR_ANSWER, FETCH_LEGACY_OFFSETS, LEASE_PRODUCER_IDS
from appliance.runtime.request_server import RequestClient
from services.controller.admin.waiting_requests import Respond
from services.controller.decisions.cluster import ControllerContext
from services.controller.zookeeper.operation import Operation, OperationOutcome, all_of
from services.controller.zookeeper.requests import BadVersion, Create, Get, Node, NodeExists, NoNode, SetData, ZooKeeperFailed

PRODUCER_ID_BLOCK: Final = "/latest_producer_id_block"
"""The last block of producer ids; a conditional write takes the next one.

`{"version": 1, "broker": 1, "block_start": "0", "block_end": "999"}`: numbers as texts, the end
inclusive, as Kafka's `ZkProducerIdManager` writes it. Ids that a broker had not used when it died
are lost. Id 0 is never issued: a later API uses it for "off".
"""
ATTEMPTS_MAX = 10
LARGEST_PRODUCER_ID: Final = 2**63 - 1


def encode_block(broker_id: int, start: int, end: int) -> bytes:
    return orjson.dumps({"version": 1, "broker": broker_id, "block_start": str(start), "block_end": str(end)})


def decode_block(data: bytes) -> tuple[int, int]:
    """Return (first, last) of the newest block, (0, -1) before the first one. Raises ValueError."""
    if not data:
        return 0, -1
    try:
        document: Any = orjson.loads(data)
        return int(document["block_start"]), int(document["block_end"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{PRODUCER_ID_BLOCK} holds {data[:200]!r}, not a block of producer ids") from error


def lease_block(broker_id: int, size: int) -> Operation[tuple[int, int]]:
    """Return (first, last) of a block for this broker alone.

    Raises RequestRefused if other brokers wrote first too often, or if no ids are left.
    """
    for _attempt in range(ATTEMPTS_MAX):
        node = yield Get(PRODUCER_ID_BLOCK)
        start = decode_block(node.data)[1] + 1
        end = start + size - 1
        if end > LARGEST_PRODUCER_ID:
            raise RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR, f"there are no producer ids behind {start}")
        try:
            yield SetData(PRODUCER_ID_BLOCK, encode_block(broker_id, start, end), node.version)
        except (BadVersion, NoNode):
            continue
        return max(start, 1), end
    raise RequestRefused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "other brokers took producer ids at the same time; try again")


TIMEOUT_MS = 5_000
KINDS = frozenset({LEASE_PRODUCER_IDS, COMMIT_LEGACY_OFFSETS, FETCH_LEGACY_OFFSETS})


class _PendingRequest(NamedTuple):
    client: RequestClient
    frame: Frame
    deadline_ms: int
    name: str


class CoordinatorServices:
    """Requests of coordinators."""

    def __init__(self, context: ControllerContext, block_size: int, respond: Respond) -> None:
        self._broker_id = context.cluster.broker_id
        self._block_size = block_size
        self._runner = context.runner
        self._can_begin = context.can_begin
        self._respond = respond
        self._now_ms = context.clock.monotonic_ms
        self._pending: dict[str, _PendingRequest] = {}
        self._count = 0
        self._leased = context.counters.counter("controller.producer_id_blocks")
        self._refused = context.counters.counter("controller.coordinator_requests_refused")

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
        if group_problem(group_id) is not None:
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


OffsetKey = tuple[str, int]
"""Topic and partition."""


def offset_path(group_id: str, topic: str, partition: int) -> str:
    """Return the node of an offset of the oldest consumers (Kafka 0.8.1): a decimal text, written
    by OffsetCommit 0.
    """
    return f"/consumers/{group_id}/offsets/{topic}/{partition}"


def group_problem(group_id: str) -> str | None:
    """Return why a group id cannot be a node's name, or None."""
    if not group_id or group_id in (".", "..") or any(character == "/" or ord(character) < 32 for character in group_id):
        return f"group {group_id!r} cannot be the name of a node in ZooKeeper"
    return None


def _commit(group_id: str, offsets: Mapping[OffsetKey, int]) -> Operation[dict[str, Any]]:
    """Write all offsets in one round trip; create the znodes that are missing, level by level."""
    data = {offset_path(group_id, *key): b"%d" % offset for key, offset in offsets.items()}
    missing = yield from _write(NoNode, {path: SetData(path, data[path], -1) for path in data})
    for depth in range(2, 6):  # /consumers, the group, `offsets`, the topics
        parents = {"/".join(path.split("/")[:depth]) for path in missing}
        yield from _write(NodeExists, {parent: Create(parent) for parent in parents})
    concurrent = yield from _write(NodeExists, {path: Create(path, data[path]) for path in missing})
    yield from _write(None, {path: SetData(path, data[path], -1) for path in concurrent})
    return {"errors": [[*key, ErrorCode.NONE] for key in offsets]}


def _write(expected: type[ZooKeeperFailed] | None, writes: Mapping[str, SetData | Create]) -> Operation[list[str]]:
    """Send all writes (by path) at once. Return the paths that failed with `expected`; raise any other failure."""
    results = yield from all_of([*writes.values()])
    failed = []
    for path, result in zip(writes, results, strict=True):
        if expected is not None and isinstance(result, expected):
            failed.append(path)
        elif isinstance(result, ZooKeeperFailed):
            raise result
    return failed


def _fetch(group_id: str, partitions: Iterable[OffsetKey]) -> Operation[dict[str, Any]]:
    """Return the offsets of those partitions that have one."""
    wanted = list(partitions)
    nodes = yield from all_of([Get(offset_path(group_id, *key)) for key in wanted])
    found: dict[OffsetKey, int] = {}
    for key, node in zip(wanted, nodes, strict=True):
        if isinstance(node, Node):
            try:
                found[key] = int(node.data)
            except ValueError:
                continue  # not an offset: another program wrote this znode
        elif not isinstance(node, NoNode):
            raise node
    return {"offsets": [[*key, offset] for key, offset in found.items()]}
