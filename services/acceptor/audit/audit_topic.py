"""Writes the audit's records to `__millrace_audit`: to a partition that this box leads, through the rings, as a produce.

The topic is created when the first record is there. Records wait in memory meanwhile, and while no partition is
led here; above `WAITING_BYTES_MAX` new ones are dropped and counted, and nothing waits for them. A record may be
there twice, if the log-writer died with it. Owned by one acceptor. Weak: what waits is lost when the acceptor
dies; a box that leads no partition of the topic writes none, which the counter shows.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import orjson

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.base.model import AUDIT_TOPIC
from appliance.cluster.metadata_cache import LocalReplica, MetadataCache
from appliance.ipc.descriptors import DescriptorKind
from appliance.ipc.request_frames import AUTO_CREATE
from appliance.ipc.request_link import ControllerLink
from appliance.records.builder import BatchBuilder
from appliance.shm.arena import Arena
from appliance.shm.counters import Counters
from appliance.shm.partition_table import ISR_AND_CONFIG, ROLE_AND_EPOCH
from services.acceptor.produce.produce_checks import ProduceChecks
from services.acceptor.request_memory import ArenaSlot, allocate_slot

WAITING_BYTES_MAX: Final = 4 << 20
BATCH_BYTES_MAX: Final = 128 << 10
RETRY_NS: Final = 1_000_000_000
CREATE_TIMEOUT_MS: Final = 10_000
_ACKS: Final = 1
_FINAL: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_RECORD})
_HALF: Final = (1 << 32) - 1

Waiting = tuple[int, bytes]
"""Timestamp in ms, and value of a record."""


class _Batch:
    """The records of a batch that a log-writer has."""

    __slots__ = ("records", "slot", "topic")

    def __init__(self, topic: AuditTopic, records: list[Waiting], slot: ArenaSlot) -> None:
        self.topic = topic
        self.records = records
        self.slot = slot

    def on_completion(self, entry: tuple[Any, ...]) -> None:
        self.slot.release()
        self.topic.on_result(self.records, entry[2])

    def on_lost(self) -> None:
        self.slot.release()
        self.topic.on_result(self.records, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def on_hung(self) -> None:
        """No client waits; the result follows."""


class AuditTopic:
    """`offer` records; `do_work` each turn."""

    def __init__(self, view: MetadataCache, arena: Arena, controller: ControllerLink, clock: Clock, counters: Counters) -> None:
        self._view = view
        self._arena = arena
        self._controller = controller
        self._clock = clock
        self._checks = ProduceChecks(arena.memory)
        self._waiting: deque[Waiting] = deque()
        self._waiting_bytes = 0
        self._is_under_way = False
        self._next_try_ns = 0
        self._written, self._dropped = counters.counter("acceptor.audit_written"), counters.counter("acceptor.audit_dropped")

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def offer(self, value: bytes) -> None:
        """Write a record soon."""
        if self._waiting_bytes + len(value) > WAITING_BYTES_MAX:
            self._dropped.add()
            return
        self._waiting.append((self._clock.wall_ms(), value))
        self._waiting_bytes += len(value)

    def do_work(self, now_ns: int) -> int:
        """Offer one batch, if it is time."""
        if not self._waiting or self._is_under_way or now_ns < self._next_try_ns:
            return 0
        self._next_try_ns = now_ns + RETRY_NS
        topic = self._view.image.topics.get(AUDIT_TOPIC)
        if topic is None:
            if self._view.image.generation:
                self._is_under_way = True
                self._controller.request(AUTO_CREATE, orjson.dumps({"topics": [AUDIT_TOPIC]}), CREATE_TIMEOUT_MS, self._on_created)
            return 1
        for number, partition in enumerate(topic.partitions):
            if partition.leader == self._view.broker_id:
                placement = self._view.placement(AUDIT_TOPIC, number)
                if placement is not None and self._offer_batch(placement):
                    return 1
        return 0

    def _on_created(self, _payload: bytes | None) -> None:
        self._is_under_way = False

    def _offer_batch(self, placement: LocalReplica) -> bool:
        problem, words = self._checks.row_problem(placement, _ACKS)
        if problem is not None:
            return False
        records: list[Waiting] = []
        builder = BatchBuilder()
        size_bytes_max = min(BATCH_BYTES_MAX, placement.max_message_bytes // 2)
        while self._waiting and (not records or builder.size_bytes + len(self._waiting[0][1]) < size_bytes_max):
            records.append(self._waiting.popleft())
            builder.append(records[-1][0], None, records[-1][1])
        self._waiting_bytes -= sum(len(value) for _, value in records)
        count, batch = builder.count, builder.build()
        slot = allocate_slot(self._arena, len(batch))
        if slot is not None:
            self._arena.memory[slot.position : slot.position + len(batch)] = batch
            descriptor = (
                DescriptorKind.PRODUCE, 0, 0, placement.row, placement.row_generation, words[ROLE_AND_EPOCH] & _HALF, words[ISR_AND_CONFIG] & _HALF,
                len(batch), slot.position, 0, count, 0, 0, 0,
            )  # fmt: skip
            if placement.proxy.offer_or_queue(descriptor, slot.charge, _Batch(self, records, slot)):
                self._is_under_way = True
                return True
            slot.release()
        self._put_back(records)
        return False

    def on_result(self, records: list[Waiting], error_code: int) -> None:
        """The log-writer has written the batch, or has not: then it is tried again."""
        self._is_under_way = False
        if error_code in _FINAL:
            self._dropped.add(len(records))  # an administrator changed the topic; what comes later may fit
        elif error_code:
            self._put_back(records)
        else:
            self._written.add(len(records))
            self._next_try_ns = 0

    def _put_back(self, records: list[Waiting]) -> None:
        self._waiting.extendleft(reversed(records))
        self._waiting_bytes += sum(len(value) for _, value in records)
