"""Batches of idempotent producers that got a retriable error on a connection: later ones wait for them.

A partition may get its leader, or its log-writer may come back, between two batches of a producer. Then the
first one gets a retriable error, and the second one reaches the log. The log refuses its sequence, or appends
it if it does not know the producer. librdkafka answers a wrong sequence with a new producer epoch, and then
sends batches again, as new ones, that are in the log and waited for replicas: duplicates.

On one connection batches arrive in order, so the acceptor knows which ones are behind a refused one. The
refused one may be repeated elsewhere (while another box led), so a batch behind it is not refused here: it is
offered with `BEHIND_REFUSED_FLAG`, and the log-writer, which knows the producers of the log, decides. Owned by
one acceptor, one object for each connection that needs it.
"""

from __future__ import annotations

from struct import Struct

from appliance.base.errors import ErrorCode
from appliance.records.batch import BASE_SEQUENCE_AT, MAGIC_AT, PRODUCER_EPOCH_AT, PRODUCER_ID_AT, RECORDS_AT

RETRIABLE = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
    )
)
"""Retriable errors: the client sends the same batch again."""
REMEMBERED_MAX = 1000
_SEQUENCE = Struct(">qhi")
_SEQUENCES = 1 << 31
assert (PRODUCER_EPOCH_AT, BASE_SEQUENCE_AT) == (PRODUCER_ID_AT + 8, PRODUCER_ID_AT + 10)


class RefusedSequences:
    """Of one connection: the oldest refused batch of each producer and partition."""

    __slots__ = ("_oldest",)

    def __init__(self) -> None:
        self._oldest: dict[tuple[str, int, int], tuple[int, int]] = {}
        """(topic, partition, producer id) → (producer epoch, base sequence)"""

    def __len__(self) -> int:
        return len(self._oldest)

    def on_refused(self, topic: str, partition: int, memory: memoryview, position: int, size_bytes: int) -> None:
        """The batch at `position` got a retriable error. Ignore what is no batch of an idempotent producer."""
        if size_bytes < RECORDS_AT or memory[position + MAGIC_AT] != 2:
            return
        producer_id, epoch, sequence = _SEQUENCE.unpack_from(memory, position + PRODUCER_ID_AT)
        if producer_id < 0:
            return
        key = (topic, partition, producer_id)
        known = self._oldest.get(key)
        if known is None or known[0] < epoch or (known[0] == epoch and _is_behind(known[1], sequence)):
            if known is None and len(self._oldest) >= REMEMBERED_MAX:
                self._oldest.clear()  # bounded: then the log decides about later ones
            self._oldest[key] = (epoch, sequence)

    def is_behind(self, topic: str, partition: int, memory: memoryview, position: int) -> bool:
        """True if the batch at `position` is behind a refused one.

        The refused batch itself, an older one, or another producer epoch ends that state.
        """
        producer_id, epoch, sequence = _SEQUENCE.unpack_from(memory, position + PRODUCER_ID_AT)
        key = (topic, partition, producer_id)
        known = self._oldest.get(key)
        if known is None:
            return False
        if known[0] == epoch and _is_behind(sequence, known[1]):
            return True
        del self._oldest[key]
        return False

    def on_taken(self, topic: str, partition: int, memory: memoryview, position: int) -> None:
        """The log has the batch at `position`, and therefore all before it."""
        self._oldest.pop((topic, partition, _SEQUENCE.unpack_from(memory, position + PRODUCER_ID_AT)[0]), None)


def _is_behind(sequence: int, other: int) -> bool:
    """Sequences wrap from 2^31-1 to 0."""
    return 0 < (sequence - other) % _SEQUENCES < _SEQUENCES // 2
