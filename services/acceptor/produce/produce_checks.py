"""Reasons to refuse a produced batch before its log-writer sees it: the partition's row, and the batch itself.

Reads one row and the batch's header; records only if the topic is compacted. Owned by one acceptor. Weak spot:
the row may change right after it was read, so the log-writer checks role and leader epoch again.
"""

from __future__ import annotations

from struct import Struct

from appliance.base.errors import ErrorCode
from appliance.base.model import INTERNAL_TOPICS
from appliance.cluster.metadata_cache import LocalReplica
from appliance.protocol.produce import ProducePartition
from appliance.records.batch import ATTRIBUTES_AT, BASE_SEQUENCE_AT, PRODUCER_ID_AT, RECORDS_AT, TRANSACTIONAL_FLAG, batch_problem
from appliance.records.keys import KeylessProblem, keyless_problem
from appliance.shm.partition_table import ISR_AND_CONFIG, ROLE_AND_EPOCH, ROLE_LEADER, ROLE_OFFLINE, TornRow

PRODUCER = Struct(">qh")
"""Producer id and epoch, in a batch's header."""
assert PRODUCER_ID_AT + PRODUCER.size == BASE_SEQUENCE_AT

_CODEC_MASK = 7
_ZSTD = 4
_ZSTD_SINCE = 7

Refusal = tuple[ErrorCode, str]


class ProduceChecks:
    """`memory` is the arena with the batches."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory

    def row_problem(self, placement: LocalReplica, acks: int) -> tuple[Refusal | None, tuple[int, ...]]:
        """Return why the row refuses a produce, or None, and the row's words."""
        if acks not in (-1, 0, 1):
            return (ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {acks}; it may be -1, 0 or 1"), ()
        try:
            words = placement.read_words()
        except TornRow:
            return (ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader is changing; try again"), ()
        role = words[ROLE_AND_EPOCH] >> 32
        if role != ROLE_LEADER:
            if role == ROLE_OFFLINE:
                return (ErrorCode.KAFKA_STORAGE_ERROR, f"disk {placement.disk} is offline"), words
            return (ErrorCode.NOT_LEADER_OR_FOLLOWER, ""), words
        isr = words[ISR_AND_CONFIG]
        if acks == -1 and isr >> 48 < isr >> 32 & 0xFFFF:
            return (ErrorCode.NOT_ENOUGH_REPLICAS, f"{isr >> 48} replicas are in sync, {isr >> 32 & 0xFFFF} are needed"), words
        return None, words

    def batch_problem(self, placement: LocalReplica, version: int, is_transactional: bool, position: int, size_bytes: int) -> Refusal | KeylessProblem | None:
        """Return why the batch of `size_bytes` at `position` is refused, or None."""
        memory = self._memory
        problem = batch_problem(memory, position, position + size_bytes, placement.max_message_bytes)
        if problem is not None:
            return problem
        attributes = memory[position + ATTRIBUTES_AT + 1]
        if attributes & _CODEC_MASK == _ZSTD and version < _ZSTD_SINCE:
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce {_ZSTD_SINCE} or later"
        if attributes & TRANSACTIONAL_FLAG and not is_transactional:
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch comes in a request without a transactional id"
        if placement.topic in INTERNAL_TOPICS:
            return ErrorCode.INVALID_TOPIC_EXCEPTION, f"{placement.topic} is internal"
        return keyless_problem(memory[position : position + size_bytes]) if placement.is_compacted else None


def has_two_producers(partitions: list[ProducePartition], buffer: memoryview) -> bool:
    """True if transactional batches of one request have more than one producer id or epoch."""
    producers = set()
    for _, _, position, size_bytes in partitions:
        if size_bytes >= RECORDS_AT and buffer[position + ATTRIBUTES_AT + 1] & TRANSACTIONAL_FLAG:
            producers.add(PRODUCER.unpack_from(buffer, position + PRODUCER_ID_AT))
    return len(producers) > 1
