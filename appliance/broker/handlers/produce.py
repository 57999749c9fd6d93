"""Produce: check each batch, put it into the arena, hand it to its disk's log-writer, answer when the log has it.

acks=1 is answered at append; acks=all when the high watermark has passed the batch under the same leader epoch: the log-writer says so, or the row does,
later. A row that says nothing of it any more (its partition was given to another disk) takes nothing back. acks=0 completes too, so
that its error can close the connection. A partition that cannot be served gets its own error at once and harms no other.
The first batch of a transaction in a partition waits until its coordinator was asked (`broker/transaction_gate.py`).
Message sets of magic 0 and 1, which come before Produce 3 only, are converted first (`broker/message_sets.py`). Owned by one acceptor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import INTERNAL_TOPICS
from appliance.broker.arena_slots import ArenaSlot, allocate_slot
from appliance.broker.box_view import BoxView, Placement
from appliance.broker.connection import Connection, Reply
from appliance.broker.delayed import Delayed
from appliance.broker.lease_gate import LeaseGate
from appliance.broker.message_sets import UpConversion
from appliance.broker.refused_sequences import FOR_NOW, RefusedSequences
from appliance.broker.transaction_gate import ADDS_PARTITIONS_SINCE, Producer, TransactionGate, TransactionVerifier
from appliance.ipc.descriptors import ACKS_ALL_FLAG, ADDS_PARTITION_FLAG, BEHIND_REFUSED_FLAG, COMMITTED_FLAG, NEEDS_VERIFICATION, DescriptorKind
from appliance.protocol.leader_hints import NodeEndpoint
from appliance.protocol.produce import (
    LEADER_HINTS_SINCE,
    MAGIC_2_SINCE,
    ProducePartition,
    ProduceRequest,
    ProduceResult,
    RecordError,
    decode_produce,
    encode_produce_response,
)
from appliance.protocol.request_header import RequestHeader
from appliance.records.batch import ATTRIBUTES_AT, BASE_SEQUENCE_AT, PRODUCER_ID_AT, RECORDS_AT, RECORDS_COUNT_AT, TRANSACTIONAL_FLAG, batch_problem
from appliance.records.keys import KeylessProblem, keyless_problem
from appliance.shm.arena import Arena
from appliance.shm.atomic import signed
from appliance.shm.counters import Counters
from appliance.shm.partition_table import (
    HIGH_WATERMARK,
    ISR_AND_CONFIG,
    ROLE_AND_EPOCH,
    ROLE_LEADER,
    ROLE_OFFLINE,
    TornRow,
)

OFFERS_MAX = 4
"""Times one batch is offered to its log-writer while the topic's configs change under it; then the client is asked to try again."""
_EPOCH_AT, _CONFIG_AT, _SIZE_AT, _POSITION_AT, _GUARD_AT = 5, 6, 7, 8, 13
"""Places in a PRODUCE descriptor."""
PARTITIONS_APART_MAX = 32
"""A small request of more partitions is copied whole, not partition by partition."""
PARTITION_CHARGE = 1024
_REPEATABLE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
_CODEC_MASK = 7
_ZSTD = 4
_PRODUCER = Struct(">qh")
assert PRODUCER_ID_AT + _PRODUCER.size == BASE_SEQUENCE_AT
_ZSTD_SINCE = 7
_HALF = (1 << 32) - 1
_ADMIN_CLIENT = "__admin_client"


NOBODY = Producer("", -1, -1, -1)


class PendingProduce:
    """One request whose partitions are under way."""

    __slots__ = (
        "acks", "correlation_id", "deadline_ns", "handler", "is_finished", "partitions", "received_ns", "remaining", "reply", "results", "ticket",
        "transactional_id", "unreplicated", "version",
    )  # fmt: skip

    def __init__(self, handler: ProduceHandler, reply: Reply, version: int, correlation_id: int, request: ProduceRequest, deadline_ns: int) -> None:
        partitions = request.partitions
        self.handler = handler
        self.reply = reply
        self.version = version
        self.correlation_id = correlation_id
        self.acks = request.acks
        self.transactional_id = request.transactional_id
        self.deadline_ns = deadline_ns
        self.partitions = partitions
        self.remaining = len(partitions)
        self.results: list[ProduceResult | None] = [None] * len(partitions)
        self.is_finished = False
        reply.awaited = self
        self.unreplicated: list[tuple[int, Placement, int, int]] = []
        """(index, placement, leader epoch, end offset) of partitions whose high watermark has to pass."""
        self.ticket = 0
        self.received_ns = reply.connection.last_active_ns
        """Its last byte came in; what runs behind it on the connection is not read before that is looked at."""

    def on_row_moved(self) -> None:
        self.handler.look_at_watermarks(self)

    def on_deadline(self) -> None:
        self.handler.give_up_waiting(self)

    def on_too_late(self) -> None:
        self.handler.give_up_log_writer(self)


class _Part:
    """One partition's batch in the hands of a log-writer, and the descriptor that it was given."""

    __slots__ = ("descriptor", "index", "is_answered", "offers", "pending", "placement", "producer", "repeats_seen", "slot")

    def __init__(self, pending: PendingProduce, index: int, placement: Placement, slot: ArenaSlot, descriptor: tuple[int, ...], repeats_seen: int) -> None:
        self.pending = pending
        self.index = index
        self.placement = placement
        self.slot = slot
        self.descriptor = descriptor
        self.offers = 1
        self.repeats_seen = repeats_seen
        """Offers that had been repeated when this one was made: a later repeat may be of a batch that this one has overtaken."""
        self.is_answered = False
        """The client was told that the disk hangs; the log-writer still has the batch."""
        self.producer: Producer = NOBODY
        """of a transactional batch"""

    @property
    def transactional_id(self) -> str:
        return self.pending.transactional_id or ""

    @property
    def version(self) -> int:
        return self.pending.version


class ProduceHandler:
    """All produces of one acceptor."""

    def __init__(
        self,
        view: BoxView,
        arena: Arena,
        delayed: Delayed,
        clock: Clock,
        counters: Counters,
        budget_bytes: int,
        on_reply: Callable[[Connection], None],
        verifier: TransactionVerifier | None = None,
        lease: LeaseGate | None = None,
    ) -> None:
        self._view = view
        self._arena = arena
        self._delayed = delayed
        self._clock = clock
        self._budget_bytes = budget_bytes
        self._on_reply = on_reply
        self._lease = lease
        self.transactions: TransactionGate[_Part] = TransactionGate(verifier, clock, self._on_verified, self._on_not_verified)
        self._message_sets = UpConversion(view, arena, counters)
        self._requests = counters.counter("produce.requests")
        self._batches = counters.counter("produce.batches")
        self._bytes = counters.counter("produce.bytes")
        self._refused = counters.counter("produce.refused_batches")
        self._over_budget = counters.counter("produce.over_budget")
        self._lost = counters.counter("produce.lost_to_log_writer_death")
        self._hung = counters.counter("produce.answered_for_hung_disk")
        self._too_late = counters.counter("produce.timed_out_in_log_writer")
        self._offered_again = counters.counter("produce.offered_again")
        self._verifications = counters.counter("produce.verifications")
        self._latency = counters.histogram("produce.latency_us")
        self._repeats = 0

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int, body_slot: ArenaSlot | None) -> bool:
        """Take one request whose fields lie in `buffer` (the arena itself if `body_slot` is given). False: no room in the arena now."""
        version = header.api_version
        request = decode_produce(buffer, header.body_position, limit, version)
        slots: list[ArenaSlot] | None = None
        shift = 0
        if body_slot is None and len(request.partitions) > PARTITIONS_APART_MAX:
            body_slot = self._copy_whole(buffer, header.body_position, limit)
            if body_slot is None:
                return False
            shift = body_slot.position - header.body_position
        elif body_slot is None:
            slots = self._copy_into_arena(request.partitions, buffer)
            if slots is None:
                return False
        self._requests.add()
        deadline_ns = self._clock.monotonic_ns() + max(0, request.timeout_ms) * 1_000_000
        pending = PendingProduce(self, connection.expect_reply(True), version, header.correlation_id, request, deadline_ns)
        if not request.partitions:
            self._finish(pending)
        if request.transactional_id is not None and len(request.partitions) > 1 and self._has_two_producers(request.partitions, buffer):
            self._refuse_all(pending, slots or [], body_slot, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            return True
        charged: set[str] = set()
        for index, partition in enumerate(request.partitions):
            if slots is not None:
                slot = slots[index]
                position = slot.position
            else:
                assert body_slot is not None
                slot = body_slot
                slot.references += 1
                position = partition.records_position + shift
            self._offer(pending, index, partition, position, slot, header.client_id, charged)
        if body_slot is not None:
            body_slot.release()
        return True

    def _copy_into_arena(self, partitions: list[ProducePartition], buffer: memoryview) -> list[ArenaSlot] | None:
        """A slot of its own for each partition of a small request; None (and nothing kept) when there is no room."""
        arena = self._arena
        memory = arena.memory
        slots: list[ArenaSlot] = []
        for _, _, position, size_bytes in partitions:
            slot = allocate_slot(arena, size_bytes or 1)
            if slot is None:
                for taken in slots:
                    taken.release()
                return None
            memory[slot.position : slot.position + size_bytes] = buffer[position : position + size_bytes]
            slots.append(slot)
        return slots

    def _copy_whole(self, buffer: memoryview, position: int, limit: int) -> ArenaSlot | None:
        """One slot for all partitions of a request: a slot for each would take a hundred times its size where they are many and tiny."""
        slot = allocate_slot(self._arena, limit - position)
        if slot is not None:
            self._arena.memory[slot.position : slot.position + limit - position] = buffer[position:limit]
        return slot

    def _offer(
        self, pending: PendingProduce, index: int, partition: ProducePartition, position: int, slot: ArenaSlot, client_id: str, charged: set[str]
    ) -> None:
        """`charged`: disks that hold a partition of this request already."""
        placement = self._view.placement(partition.topic, partition.partition)
        problem: tuple[ErrorCode, str] | KeylessProblem | None
        size_bytes = partition.records_size
        row_words: tuple[int, ...] = ()
        if placement is None:
            problem = (self._view.why_absent(partition.topic, partition.partition), "")
        else:
            problem, row_words = self._row_problem(placement, pending.acks)
            if pending.version < MAGIC_2_SINCE and problem is None:
                try:
                    slot, position, size_bytes = self._message_sets.convert(placement, slot, position, size_bytes)
                except RequestRefused as refusal:
                    problem = refusal.code, refusal.message
                if not size_bytes:
                    slot.release()
                    self._accept_nothing(pending, index, partition)
                    return
            problem = problem or self._batch_problem(placement, pending, position, size_bytes, client_id)
        if problem is not None or placement is None:
            if problem is not None and problem[0] in FOR_NOW:
                self._note_refused(pending, partition.topic, partition.partition, position, size_bytes)
            slot.release()
            code, message = problem[:2] if problem else (ErrorCode.UNKNOWN_SERVER_ERROR, "")
            self._refuse(pending, index, partition, code, message, problem.records if isinstance(problem, KeylessProblem) else ())
            return
        proxy = placement.proxy
        # A slot that partitions share is charged once to each disk; every further partition with what its bookkeeping takes of our heap.
        is_shared = slot.references > 1
        charge = PARTITION_CHARGE if is_shared and placement.disk in charged else slot.charge
        if proxy.outstanding_bytes + charge > self._budget_bytes and proxy.outstanding_bytes:
            self._note_refused(pending, partition.topic, partition.partition, position, size_bytes)
            slot.release()
            self._over_budget.add()
            self._refuse(pending, index, partition, ErrorCode.KAFKA_STORAGE_ERROR, f"disk {placement.disk} does not keep up; try again")
            return
        memory = self._arena.memory
        count = int.from_bytes(memory[position + RECORDS_COUNT_AT : position + RECORDS_COUNT_AT + 4], "big")
        flags = ACKS_ALL_FLAG if pending.acks == -1 else 0
        refused = pending.reply.connection.refused_sequences
        if refused and refused.is_behind(partition.topic, partition.partition, memory, position):
            flags |= BEHIND_REFUSED_FLAG
        is_transactional = memory[position + ATTRIBUTES_AT + 1] & TRANSACTIONAL_FLAG
        if is_transactional and pending.version >= ADDS_PARTITIONS_SINCE:
            flags |= ADDS_PARTITION_FLAG
        epoch = row_words[ROLE_AND_EPOCH] & _HALF
        descriptor = (
            DescriptorKind.PRODUCE, flags, 0, placement.row, placement.row_generation, epoch, row_words[ISR_AND_CONFIG] & _HALF,
            size_bytes, position, 0, count, 0, 0, 0,
        )  # fmt: skip
        self._batches.add()
        self._bytes.add(size_bytes)
        charged.add(placement.disk)
        part = _Part(pending, index, placement, slot, descriptor, self._repeats)
        if is_transactional:
            part.producer = Producer(placement.topic, placement.partition, *_PRODUCER.unpack_from(memory, position + PRODUCER_ID_AT))
            if self.transactions.maybe_hold(part):
                return
        if not proxy.offer_or_queue(descriptor, charge, part):
            self._note_refused(pending, partition.topic, partition.partition, position, size_bytes)
            slot.release()
            self._refuse(pending, index, partition, ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the log-writer of disk {placement.disk} is restarting; try again")

    def _row_problem(self, placement: Placement, acks: int) -> tuple[tuple[ErrorCode, str] | None, tuple[int, ...]]:
        if acks not in (-1, 0, 1):
            return (ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {acks}; it may be -1, 0 or 1"), ()
        try:
            words = placement.read_words()
        except TornRow:
            return (ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition is changing hands; try again"), ()
        role = words[ROLE_AND_EPOCH] >> 32
        if role != ROLE_LEADER:
            if role == ROLE_OFFLINE:
                return (ErrorCode.KAFKA_STORAGE_ERROR, f"disk {placement.disk} is offline"), words
            return (ErrorCode.NOT_LEADER_OR_FOLLOWER, ""), words
        isr = words[ISR_AND_CONFIG]
        if acks != -1 and self._lease is not None and self._lease.is_shut(placement):
            return (ErrorCode.NOT_LEADER_OR_FOLLOWER, "this box has not heard from ZooKeeper for too long to take what others would not have"), words
        if acks == -1 and isr >> 48 < isr >> 32 & 0xFFFF:
            return (ErrorCode.NOT_ENOUGH_REPLICAS, f"{isr >> 48} replicas are in sync, {isr >> 32 & 0xFFFF} are needed"), words
        return None, words

    def _batch_problem(
        self, placement: Placement, pending: PendingProduce, position: int, size_bytes: int, client_id: str
    ) -> tuple[ErrorCode, str] | KeylessProblem | None:
        memory = self._arena.memory
        problem = batch_problem(memory, position, position + size_bytes, placement.max_message_bytes)
        if problem is not None:
            return problem
        attributes = memory[position + ATTRIBUTES_AT + 1]
        if attributes & _CODEC_MASK == _ZSTD and pending.version < _ZSTD_SINCE:
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce {_ZSTD_SINCE} or later"
        if attributes & TRANSACTIONAL_FLAG and pending.transactional_id is None:
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch comes in a request without a transactional id"
        if placement.topic in INTERNAL_TOPICS and client_id != _ADMIN_CLIENT:
            return ErrorCode.INVALID_TOPIC_EXCEPTION, f"{placement.topic} is internal"
        return keyless_problem(memory[position : position + size_bytes]) if placement.is_compacted else None

    def _accept_nothing(self, pending: PendingProduce, index: int, partition: ProducePartition) -> None:
        """A message set of no whole message: Kafka takes it, and appends nothing."""
        pending.results[index] = ProduceResult(partition.topic, partition.partition)
        pending.remaining -= 1
        if not pending.remaining:
            self._finish(pending)

    def _refuse(self, pending: PendingProduce, index: int, partition: ProducePartition, code: ErrorCode, message: str, records: Sequence[int] = ()) -> None:
        """`records`: numbers of those in the batch that are to blame. Clients give the others another error, or send them again (KIP-467)."""
        self._refused.add()
        pending.results[index] = ProduceResult(
            partition.topic, partition.partition, code, error_message=message or None, record_errors=[RecordError(number) for number in records]
        )
        pending.remaining -= 1
        if not pending.remaining:
            self._finish(pending)

    # -- what comes back

    def on_completion(self, part: _Part, entry: tuple[Any, ...]) -> None:
        """The log-writer has appended, or refused. Fields of `entry` as in `ipc.descriptors.Completion`."""
        code = entry[2]
        pending, placement = part.pending, part.placement
        if code == NEEDS_VERIFICATION and not pending.is_finished and not part.is_answered:
            self._verifications.add()
            self.transactions.on_needed(part, entry[11])
            return
        if code in _REPEATABLE and not pending.is_finished and not part.is_answered and self._offer_again(part, code):
            return
        if code and not pending.is_finished and not part.is_answered:
            code = self._settled_refusal(part, code)
        elif not code and part.descriptor[1] & BEHIND_REFUSED_FLAG and pending.reply.connection.refused_sequences:
            pending.reply.connection.refused_sequences.on_taken(placement.topic, placement.partition, self._arena.memory, part.descriptor[_POSITION_AT])
        part.slot.release()
        if pending.is_finished or part.is_answered:
            return
        if code:
            self._refused.add()
            pending.results[part.index] = ProduceResult(placement.topic, placement.partition, code, entry[5])
        else:
            pending.results[part.index] = ProduceResult(placement.topic, placement.partition, 0, entry[5], entry[6], entry[7])
            if pending.acks == -1 and not entry[1] & COMMITTED_FLAG:
                pending.unreplicated.append((part.index, placement, entry[9], entry[8]))
        pending.remaining -= 1
        if not pending.remaining:
            if pending.unreplicated:
                self.look_at_watermarks(pending)
            else:
                self._finish(pending)

    def _offer_again(self, part: _Part, code: int) -> bool:
        """A batch that was refused only because the topic's configs have changed since it was checked: once more, checked against the new size.
        Without this a client that sends with acks=0, or never retries, would lose it. What was sent after it may overtake it, and is then refused for its
        sequence: once more, too, behind it. An idempotent client that was told of that, when all before it was acknowledged, would give up for good."""
        placement, descriptor = part.placement, part.descriptor
        is_overtaking = code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if is_overtaking and part.repeats_seen == self._repeats:
            return False
        if part.offers >= OFFERS_MAX or not placement.proxy.serving or placement.proxy.table is not placement.table:
            return False
        try:
            words = placement.read_words()
        except TornRow:
            return False
        config_generation = words[ISR_AND_CONFIG] & _HALF
        is_led_as_before = placement.leads_on(descriptor[_EPOCH_AT], words)
        too_large = descriptor[_SIZE_AT] > placement.max_message_bytes
        if not is_led_as_before or too_large or (config_generation == descriptor[_CONFIG_AT] and not is_overtaking):
            return False
        if placement.is_compacted and keyless_problem(self._arena.memory[descriptor[8] : descriptor[8] + descriptor[_SIZE_AT]]) is not None:
            return False
        part.offers += 1
        self._repeats += 1
        part.repeats_seen = self._repeats
        part.descriptor = (*descriptor[:_CONFIG_AT], config_generation, *descriptor[_CONFIG_AT + 1 :])
        if not placement.proxy.offer_or_queue(part.descriptor, part.slot.charge, part):
            return False
        self._offered_again.add()
        return True

    def _settled_refusal(self, part: _Part, code: int) -> int:
        """What the client is told of a batch that its log-writer refused: a wrong sequence behind a batch that was refused for now is no worse than that."""
        pending, placement, descriptor = part.pending, part.placement, part.descriptor
        refused = pending.reply.connection.refused_sequences
        is_behind = refused and refused.is_behind(placement.topic, placement.partition, self._arena.memory, descriptor[_POSITION_AT])
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and is_behind:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if code in FOR_NOW and not is_behind:
            self._note_refused(pending, placement.topic, placement.partition, descriptor[_POSITION_AT], descriptor[_SIZE_AT])
        return code

    def _note_refused(self, pending: PendingProduce, topic: str, partition: int, position: int, size_bytes: int) -> None:
        connection = pending.reply.connection
        if connection.refused_sequences is None:
            connection.refused_sequences = RefusedSequences()
        connection.refused_sequences.on_refused(topic, partition, self._arena.memory, position, size_bytes)

    def _on_verified(self, part: _Part, guard: int) -> None:
        """The coordinator agrees, or nobody asked it yet (guard 0): offer the batch again."""
        placement, pending = part.placement, part.pending
        if pending.is_finished or part.is_answered:
            part.slot.release()
            return
        part.descriptor = (*part.descriptor[:_GUARD_AT], guard)
        is_served = placement.proxy.serving and not placement.proxy.is_hung and placement.proxy.table is placement.table
        if not is_served or not placement.proxy.offer_or_queue(part.descriptor, part.slot.charge, part):
            part.slot.release()
            self._answer_without(part, ErrorCode.KAFKA_STORAGE_ERROR if placement.proxy.is_hung else ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _on_not_verified(self, part: _Part, code: ErrorCode) -> None:
        part.slot.release()
        self._refused.add()
        self._answer_without(part, code)

    def _has_two_producers(self, partitions: list[ProducePartition], buffer: memoryview) -> bool:
        """Whether transactional batches of one request come from more than one producer id or epoch."""
        producers = set()
        for _, _, position, size_bytes in partitions:
            if size_bytes >= RECORDS_AT and buffer[position + ATTRIBUTES_AT + 1] & TRANSACTIONAL_FLAG:
                producers.add(_PRODUCER.unpack_from(buffer, position + PRODUCER_ID_AT))
        return len(producers) > 1

    def _refuse_all(self, pending: PendingProduce, slots: list[ArenaSlot], body_slot: ArenaSlot | None, code: ErrorCode) -> None:
        for slot in slots if body_slot is None else [body_slot]:
            slot.release()
        for index, partition in enumerate(pending.partitions):
            self._refuse(pending, index, partition, code, "")

    def on_lost(self, part: _Part) -> None:
        """The log-writer died first; whether the batch is in the log is not known, the client tries again."""
        self._settled_refusal(part, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        part.slot.release()
        self._lost.add()
        self._answer_without(part, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def on_hung(self, part: _Part) -> None:
        """Its disk hangs: the client is told at once. The batch's memory stays in quarantine until its completion comes, or the log-writer is gone."""
        self._hung.add()
        self._settled_refusal(part, ErrorCode.KAFKA_STORAGE_ERROR)
        self._answer_without(part, ErrorCode.KAFKA_STORAGE_ERROR)

    def _answer_without(self, part: _Part, code: ErrorCode) -> None:
        """One partition's part of the answer, without its log-writer."""
        pending, placement = part.pending, part.placement
        if pending.is_finished or part.is_answered:
            return
        part.is_answered = True
        pending.results[part.index] = ProduceResult(placement.topic, placement.partition, code)
        pending.remaining -= 1
        if not pending.remaining:
            if pending.unreplicated:
                self.look_at_watermarks(pending)
            else:
                self._finish(pending)

    def look_at_watermarks(self, pending: PendingProduce) -> None:
        """Finish an acks=all request whose high watermarks have passed; park it otherwise."""
        waiting = []
        for index, placement, leader_epoch, end_offset in pending.unreplicated:
            if not placement.proxy.serving or placement.proxy.table is not placement.table:
                pending.results[index] = ProduceResult(placement.topic, placement.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                continue
            try:
                words = placement.read_words()
            except TornRow:
                waiting.append((index, placement, leader_epoch, end_offset))
                continue
            if not placement.leads_on(leader_epoch, words):
                pending.results[index] = ProduceResult(placement.topic, placement.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif signed(words[HIGH_WATERMARK]) < end_offset:
                waiting.append((index, placement, leader_epoch, end_offset))
            elif words[ISR_AND_CONFIG] >> 48 < words[ISR_AND_CONFIG] >> 32 & 0xFFFF:
                pending.results[index] = ProduceResult(placement.topic, placement.partition, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        pending.unreplicated = waiting
        if waiting:
            if not pending.ticket:
                pending.ticket = self._delayed.park(pending, [placement for _, placement, _, _ in waiting], pending.deadline_ns)
                self.look_at_watermarks(pending)  # a row may have moved before it was watched
            return
        if pending.ticket:
            self._delayed.leave(pending.ticket)
        self._finish(pending)

    def give_up_waiting(self, pending: PendingProduce) -> None:
        for index, placement, _, _ in pending.unreplicated:
            pending.results[index] = ProduceResult(placement.topic, placement.partition, ErrorCode.REQUEST_TIMED_OUT)
        pending.unreplicated = []
        self._finish(pending)

    def give_up_log_writer(self, pending: PendingProduce) -> None:
        """Its log-writer hangs. The client is answered, so that what stands behind it on the connection goes on; the batch's memory stays in
        quarantine until the completion comes or the process is proven dead."""
        self._too_late.add()
        for index, partition in enumerate(pending.partitions):
            if pending.results[index] is None:
                pending.results[index] = ProduceResult(partition.topic, partition.partition, ErrorCode.REQUEST_TIMED_OUT)
        pending.unreplicated = []
        if pending.ticket:
            self._delayed.leave(pending.ticket)
        self._finish(pending)

    def _finish(self, pending: PendingProduce) -> None:
        reply = pending.reply
        pending.is_finished = True
        reply.awaited = None
        reply.ready = True
        results = [result for result in pending.results if result is not None]
        if pending.acks == 0:
            reply.closes = any(result.error_code for result in results)
        else:
            endpoints: list[NodeEndpoint] = []
            if pending.version >= LEADER_HINTS_SINCE and any(result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER for result in results):
                endpoints = self._add_hints(results)
            reply.pieces = [encode_produce_response(pending.version, pending.correlation_id, results, 0, endpoints)]
        self._latency.record(self._clock.monotonic_ns() - pending.received_ns)
        self._on_reply(reply.connection)

    def _add_hints(self, results: list[ProduceResult]) -> list[NodeEndpoint]:
        """Who leads what we do not, for a client that came to the wrong box (KIP-951); and how those leaders are reached."""
        leaders = []
        for index, result in enumerate(results):
            if result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                leaders.append(leader := self._view.leader_hint(result.topic, result.partition))
                results[index] = result._replace(current_leader=leader)
        return self._view.endpoints(leaders)
