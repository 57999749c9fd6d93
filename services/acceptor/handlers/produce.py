"""Produce: check each batch, copy it to the arena, offer it to its disk's log-writer, answer when it is in the log.

A partition is refused at once by `produce/produce_checks.py`, or offered as one descriptor. Its completion, or
the death of the log-writer, settles it (`produce/produce_answers.py` makes the response). A partition that
cannot be served gets its own error and harms no other. acks=0 is completed too, because an error closes the
connection.

Three things can happen between the offer and the result:

* The topic's config changed after the check: the batch is checked and offered again (`_offer_again`).
* The log needs the first batch of a transaction to be verified by the coordinator (`client/transaction_gate.py`):
  it is offered again with the guard that the log-writer gave.
* The disk hangs: the client is answered, and the batch's slot stays taken until the log-writer is done or dead.

Message sets of magic 0 and 1, before Produce 3, are converted first (`fetch/message_sets.py`). Owned by one
acceptor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import NO_PRODUCER_ID
from appliance.client.transaction_gate import ADDS_PARTITIONS_SINCE, Producer, TransactionGate, TransactionVerifier
from appliance.cluster.lease_gate import LeaseGate
from appliance.cluster.metadata_cache import LocalReplica, MetadataCache
from appliance.ipc.descriptors import ACKS_ALL_FLAG, ADDS_PARTITION_FLAG, BEHIND_REFUSED_FLAG, COMMITTED_FLAG, NEEDS_VERIFICATION, DescriptorKind
from appliance.protocol.framing import RequestHeader
from appliance.protocol.produce import MAGIC_2_SINCE, ProducePartition, ProduceResult, RecordError, decode_produce
from appliance.records.batch import ATTRIBUTES_AT, PRODUCER_ID_AT, RECORDS_COUNT_AT, TRANSACTIONAL_FLAG
from appliance.records.keys import KeylessProblem, keyless_problem
from appliance.shm.arena import Arena
from appliance.shm.counters import Counters
from appliance.shm.partition_table import ISR_AND_CONFIG, ROLE_AND_EPOCH, TornRow
from services.acceptor.connection import Connection
from services.acceptor.delayed import DelayedRequests
from services.acceptor.fetch.message_sets import UpConversion
from services.acceptor.produce.produce_answers import PendingProduce, ProduceAnswers
from services.acceptor.produce.produce_checks import PRODUCER, ProduceChecks, Refusal, has_two_producers
from services.acceptor.produce.refused_sequences import RETRIABLE, RefusedSequences
from services.acceptor.request_memory import ArenaSlot, allocate_slot

OFFERS_MAX = 4
"""How often a batch is offered while the topic's config changes; then the client has to retry."""
_EPOCH_AT, _CONFIG_AT, _SIZE_AT, _POSITION_AT, _GUARD_AT = 5, 6, 7, 8, 13
"""Indexes of fields in a PRODUCE descriptor."""
PARTITIONS_APART_MAX = 32
"""A small request with more partitions is copied as a whole, not partition by partition."""
PARTITION_CHARGE = 1024
_REPEATABLE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
_HALF = (1 << 32) - 1

NO_PRODUCER = Producer("", -1, NO_PRODUCER_ID, -1)


class _Part:
    """One partition's batch, and the descriptor with which it was offered to a log-writer."""

    __slots__ = ("descriptor", "handler", "index", "is_answered", "offers", "pending", "placement", "producer", "repeats_seen", "slot")

    def __init__(
        self, handler: ProduceHandler, pending: PendingProduce, index: int, placement: LocalReplica, slot: ArenaSlot, descriptor: tuple[Any, ...]
    ) -> None:
        self.handler = handler
        self.pending = pending
        self.index = index
        self.placement = placement
        self.slot = slot
        self.descriptor = descriptor
        self.offers = 1
        self.repeats_seen = handler.repeats
        """`ProduceHandler.repeats` at the offer. If it has grown, this batch may have overtaken a repeated one."""
        self.is_answered = False
        """True after the client was answered that the disk hangs; the log-writer still has the batch."""
        self.producer: Producer = NO_PRODUCER
        """of a transactional batch"""

    def on_completion(self, entry: tuple[Any, ...]) -> None:
        self.handler.on_completion(self, entry)

    def on_lost(self) -> None:
        self.handler.on_lost(self)

    def on_hung(self) -> None:
        self.handler.on_hung(self)

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
        view: MetadataCache,
        arena: Arena,
        delayed: DelayedRequests,
        clock: Clock,
        counters: Counters,
        budget_bytes: int,
        on_reply: Callable[[Connection], None],
        verifier: TransactionVerifier | None = None,
        lease: LeaseGate | None = None,
    ) -> None:
        self._view = view
        self._arena = arena
        self._clock = clock
        self._budget_bytes = budget_bytes
        self._lease = lease
        self._checks = ProduceChecks(arena.memory)
        self._answers = ProduceAnswers(view, delayed, clock, counters, on_reply)
        self.transactions: TransactionGate[_Part] = TransactionGate(verifier, clock, self._on_verified, self._on_not_verified)
        self._message_sets = UpConversion(view, arena, counters)
        self._requests = counters.counter("produce.requests")
        self._batches = counters.counter("produce.batches")
        self._bytes = counters.counter("produce.bytes")
        self._refused = counters.counter("produce.refused_batches")
        self._over_budget = counters.counter("produce.over_budget")
        self._lost = counters.counter("produce.lost_to_log_writer_death")
        self._hung = counters.counter("produce.answered_for_hung_disk")
        self._offered_again = counters.counter("produce.offered_again")
        self._verifications = counters.counter("produce.verifications")
        self.repeats = 0

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int, body_slot: ArenaSlot | None) -> bool:
        """Take one request from `buffer` (the arena itself if `body_slot` is given). False: no free slot now."""
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
        pending = PendingProduce(self._answers, connection.expect_reply(True), version, header.correlation_id, request, deadline_ns)
        if pending.acks == 1 and self._lease is not None and self._lease.has_ended():
            pending.acks = -1  # a replaced leader would truncate what only it has, after it was acknowledged
        if not request.partitions:
            self._answers.finish(pending)
        if request.transactional_id is not None and len(request.partitions) > 1 and has_two_producers(request.partitions, buffer):
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
            self._offer(pending, index, partition, position, slot, charged)
        if body_slot is not None:
            body_slot.release()
        return True

    def _copy_into_arena(self, partitions: list[ProducePartition], buffer: memoryview) -> list[ArenaSlot] | None:
        """Copy each partition of a small request to its own slot. None: no free slot, and nothing is kept."""
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
        """Copy all partitions to one slot: slots for many tiny ones would take a hundred times their size."""
        slot = allocate_slot(self._arena, limit - position)
        if slot is not None:
            self._arena.memory[slot.position : slot.position + limit - position] = buffer[position:limit]
        return slot

    def _offer(self, pending: PendingProduce, index: int, partition: ProducePartition, position: int, slot: ArenaSlot, charged: set[str]) -> None:
        """Check one partition's batch and offer it to the log-writer, or settle it with an error.

        `charged` has the disks that got a partition of this request already.

        A refused idempotent batch is noted (`_note_refused`) if the client will send it again: its later
        batches on this connection must not reach the log before it (`produce/refused_sequences.py`).
        """
        placement = self._view.placement(partition.topic, partition.partition)
        problem: Refusal | KeylessProblem | None
        size_bytes = partition.records_size
        row_words: tuple[int, ...] = ()
        if placement is None:
            problem = (self._view.why_absent(partition.topic, partition.partition), "")
        else:
            problem, row_words = self._checks.row_problem(placement, pending.acks)
            if pending.version < MAGIC_2_SINCE and problem is None:
                try:
                    slot, position, size_bytes = self._message_sets.convert(placement, slot, position, size_bytes)
                except RequestRefused as refusal:
                    problem = refusal.code, refusal.message
                if not size_bytes:
                    slot.release()
                    self._answers.settle(pending, index, ProduceResult(partition.topic, partition.partition))  # no whole message: Kafka accepts that
                    return
            problem = problem or self._checks.batch_problem(placement, pending.version, pending.transactional_id is not None, position, size_bytes)
        if problem is not None or placement is None:
            if problem is not None and problem[0] in RETRIABLE:
                self._note_refused(pending, partition.topic, partition.partition, position, size_bytes)
            slot.release()
            code, message = problem[:2] if problem else (ErrorCode.UNKNOWN_SERVER_ERROR, "")
            self._refuse(pending, index, partition, code, message, problem.records if isinstance(problem, KeylessProblem) else ())
            return
        proxy = placement.proxy
        # A shared slot is charged once per disk; each further partition costs only heap for its bookkeeping.
        is_shared = slot.references > 1
        charge = PARTITION_CHARGE if is_shared and placement.disk in charged else slot.charge
        if proxy.outstanding_bytes + charge > self._budget_bytes and proxy.outstanding_bytes:
            self._note_refused(pending, partition.topic, partition.partition, position, size_bytes)
            slot.release()
            self._over_budget.add()
            self._refuse(pending, index, partition, ErrorCode.KAFKA_STORAGE_ERROR, f"disk {placement.disk} does not keep up; try again")
            return
        descriptor = self._descriptor(pending, placement, row_words, position, size_bytes)
        self._batches.add()
        self._bytes.add(size_bytes)
        charged.add(placement.disk)
        part = _Part(self, pending, index, placement, slot, descriptor)
        memory = self._arena.memory
        if memory[position + ATTRIBUTES_AT + 1] & TRANSACTIONAL_FLAG:
            part.producer = Producer(placement.topic, placement.partition, *PRODUCER.unpack_from(memory, position + PRODUCER_ID_AT))
            if self.transactions.maybe_hold(part):
                return
        if not proxy.offer_or_queue(descriptor, charge, part):
            self._note_refused(pending, partition.topic, partition.partition, position, size_bytes)
            slot.release()
            self._refuse(pending, index, partition, ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the log-writer of disk {placement.disk} is restarting; try again")

    def _descriptor(self, pending: PendingProduce, placement: LocalReplica, row_words: tuple[int, ...], position: int, size_bytes: int) -> tuple[int, ...]:
        """The descriptor of a checked batch, with the leader epoch and config generation of the row."""
        memory = self._arena.memory
        flags = ACKS_ALL_FLAG if pending.acks == -1 else 0
        refused = pending.reply.connection.refused_sequences
        if refused and refused.is_behind(placement.topic, placement.partition, memory, position):
            flags |= BEHIND_REFUSED_FLAG
        if pending.version >= ADDS_PARTITIONS_SINCE and memory[position + ATTRIBUTES_AT + 1] & TRANSACTIONAL_FLAG:
            flags |= ADDS_PARTITION_FLAG
        count = int.from_bytes(memory[position + RECORDS_COUNT_AT : position + RECORDS_COUNT_AT + 4], "big")
        leader_epoch, config_generation = row_words[ROLE_AND_EPOCH] & _HALF, row_words[ISR_AND_CONFIG] & _HALF
        return (
            DescriptorKind.PRODUCE, flags, 0, placement.row, placement.row_generation, leader_epoch, config_generation,
            size_bytes, position, 0, count, 0, 0, 0,
        )  # fmt: skip

    def _refuse(self, pending: PendingProduce, index: int, partition: ProducePartition, code: ErrorCode, message: str, records: Sequence[int] = ()) -> None:
        """`records` are the invalid ones. Clients give the others another error, or send them again (KIP-467)."""
        self._refused.add()
        errors = [RecordError(number) for number in records]
        self._answers.settle(pending, index, ProduceResult(partition.topic, partition.partition, code, error_message=message or None, record_errors=errors))

    # -- what comes back

    def on_completion(self, part: _Part, entry: tuple[Any, ...]) -> None:
        """The log-writer has appended the batch, or refused it. Fields of `entry` as in `Completion`."""
        code = entry[2]
        pending, placement = part.pending, part.placement
        if code == NEEDS_VERIFICATION and not pending.is_finished and not part.is_answered:
            self._verifications.add()
            self.transactions.on_needed(part, entry[11])
            return
        if code in _REPEATABLE and not pending.is_finished and not part.is_answered and self._offer_again(part, code):
            return
        if code and not pending.is_finished and not part.is_answered:
            code = self._client_error(part, code)
        elif not code and part.descriptor[1] & BEHIND_REFUSED_FLAG and pending.reply.connection.refused_sequences:
            pending.reply.connection.refused_sequences.on_taken(placement.topic, placement.partition, self._arena.memory, part.descriptor[_POSITION_AT])
        part.slot.release()
        if pending.is_finished or part.is_answered:
            return
        if code:
            self._refused.add()
            result = ProduceResult(placement.topic, placement.partition, code, entry[5])
        else:
            result = ProduceResult(placement.topic, placement.partition, 0, entry[5], entry[6], entry[7])
            if pending.acks == -1 and not entry[1] & COMMITTED_FLAG:
                pending.unreplicated.append((part.index, placement, entry[9], entry[8]))
        self._answers.settle(pending, part.index, result)

    def _offer_again(self, part: _Part, code: int) -> bool:
        """Offer a refused batch again if only the topic's config has changed since it was checked.

        Without this, a client with acks=0 or without retries would lose the batch. A batch that was sent
        after it may overtake it, and is then refused for its sequence: it is offered again too, behind it. An
        idempotent client that gets OUT_OF_ORDER_SEQUENCE_NUMBER while all earlier batches were acknowledged
        treats it as data loss and fails for good.
        """
        placement, descriptor = part.placement, part.descriptor
        is_overtaking = code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if is_overtaking and part.repeats_seen == self.repeats:
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
        self.repeats += 1
        part.repeats_seen = self.repeats
        part.descriptor = (*descriptor[:_CONFIG_AT], config_generation, *descriptor[_CONFIG_AT + 1 :])
        if not placement.proxy.offer_or_queue(part.descriptor, part.slot.charge, part):
            return False
        self._offered_again.add()
        return True

    def _client_error(self, part: _Part, code: int) -> int:
        """Return the error for a batch that the log-writer refused.

        A wrong sequence behind a batch with a retriable error is retriable too: the client sends both again.
        """
        pending, placement, descriptor = part.pending, part.placement, part.descriptor
        is_behind = self._is_behind_refused(part)
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and is_behind:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if code in RETRIABLE and not is_behind:
            self._note_refused(pending, placement.topic, placement.partition, descriptor[_POSITION_AT], descriptor[_SIZE_AT])
        return code

    def _is_behind_refused(self, part: _Part) -> bool:
        """True if an earlier batch on the same connection got a retriable error."""
        refused, placement = part.pending.reply.connection.refused_sequences, part.placement
        return refused is not None and refused.is_behind(placement.topic, placement.partition, self._arena.memory, part.descriptor[_POSITION_AT])

    def _note_refused(self, pending: PendingProduce, topic: str, partition: int, position: int, size_bytes: int) -> None:
        connection = pending.reply.connection
        if connection.refused_sequences is None:
            connection.refused_sequences = RefusedSequences()
        connection.refused_sequences.on_refused(topic, partition, self._arena.memory, position, size_bytes)

    def _on_verified(self, part: _Part, guard: int) -> None:
        """Offer the batch again: the coordinator has verified it, or was not asked yet (guard 0)."""
        placement, pending = part.placement, part.pending
        if pending.is_finished or part.is_answered:
            part.slot.release()
            return
        flags = part.descriptor[1] | (BEHIND_REFUSED_FLAG if self._is_behind_refused(part) else 0)  # an earlier one may have been refused while this one waited
        part.descriptor = (part.descriptor[0], flags, *part.descriptor[2:_GUARD_AT], guard)
        self.repeats += 1  # later batches of its producer may have overtaken it, and are then offered again
        part.repeats_seen = self.repeats
        is_served = placement.proxy.serving and not placement.proxy.is_hung and placement.proxy.table is placement.table
        if not is_served or not placement.proxy.offer_or_queue(part.descriptor, part.slot.charge, part):
            code = ErrorCode.KAFKA_STORAGE_ERROR if placement.proxy.is_hung else ErrorCode.NOT_LEADER_OR_FOLLOWER
            self._client_error(part, code)
            part.slot.release()
            self._answer_without(part, code)

    def _on_not_verified(self, part: _Part, code: ErrorCode) -> None:
        """The coordinator refused it, or is not available."""
        if not part.is_answered and not part.pending.is_finished:
            self._client_error(part, code)
        part.slot.release()
        self._refused.add()
        self._answer_without(part, code)

    def _refuse_all(self, pending: PendingProduce, slots: list[ArenaSlot], body_slot: ArenaSlot | None, code: ErrorCode) -> None:
        for slot in slots if body_slot is None else [body_slot]:
            slot.release()
        for index, partition in enumerate(pending.partitions):
            self._refuse(pending, index, partition, code, "")

    def on_lost(self, part: _Part) -> None:
        """The log-writer died: it is unknown whether the batch is in the log, so the client retries."""
        self._client_error(part, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        part.slot.release()
        self._lost.add()
        self._answer_without(part, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def on_hung(self, part: _Part) -> None:
        """The disk hangs: answer now. The slot stays taken until the completion, or the log-writer's death."""
        self._hung.add()
        self._client_error(part, ErrorCode.KAFKA_STORAGE_ERROR)
        self._answer_without(part, ErrorCode.KAFKA_STORAGE_ERROR)

    def _answer_without(self, part: _Part, code: ErrorCode) -> None:
        """Settle a part without its log-writer."""
        pending, placement = part.pending, part.placement
        if pending.is_finished or part.is_answered:
            return
        part.is_answered = True
        self._answers.settle(pending, part.index, ProduceResult(placement.topic, placement.partition, code))
