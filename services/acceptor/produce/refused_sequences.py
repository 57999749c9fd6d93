"""Batches of idempotent producers that a connection was refused for now: what comes behind one is taken only when it is in the log.

A partition may begin to be led, or a log-writer come back, between two batches of a producer. Then the first is refused, to be tried again, and the second
reaches the log, which refuses it for its sequence, or takes it if it does not know the producer. librdkafka answers a wrong sequence by another producer epoch,
under which it sends again, as if they were new, batches that are in the log and waited for their replicas: duplicates. On one connection batches come in
order, so what is behind a refused one is known here. The refused one need not come again on this connection: while another box led, it went there. So what is
behind it is offered with a flag (BEHIND_REFUSED_FLAG), and the log-writer, who knows the producers of the log, decides. Owned by one acceptor, by connection.
"""

from __future__ import annotations

from struct import Struct

from appliance.base.errors import ErrorCode
from appliance.records.batch import BASE_SEQUENCE_AT, MAGIC_AT, PRODUCER_EPOCH_AT, PRODUCER_ID_AT, RECORDS_AT

FOR_NOW = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
    )
)
"""Refusals after which a client sends the same batch again."""
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
        """The batch at `position` was refused for now. One without a producer id, or that is none, is nobody's."""
        if size_bytes < RECORDS_AT or memory[position + MAGIC_AT] != 2:
            return
        producer_id, epoch, sequence = _SEQUENCE.unpack_from(memory, position + PRODUCER_ID_AT)
        if producer_id < 0:
            return
        key = (topic, partition, producer_id)
        known = self._oldest.get(key)
        if known is None or known[0] < epoch or (known[0] == epoch and _is_behind(known[1], sequence)):
            if known is None and len(self._oldest) >= REMEMBERED_MAX:
                self._oldest.clear()  # who comes out of order then hears of it from the log
            self._oldest[key] = (epoch, sequence)

    def is_behind(self, topic: str, partition: int, memory: memoryview, position: int) -> bool:
        """Whether the batch at `position` comes behind a refused one. One that is that batch again, or older, or of another epoch, ends its wait."""
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
        """The log has the batch at `position`, and so all before it."""
        self._oldest.pop((topic, partition, _SEQUENCE.unpack_from(memory, position + PRODUCER_ID_AT)[0]), None)


def _is_behind(sequence: int, other: int) -> bool:
    """Sequences wrap from 2^31-1 to 0."""
    return 0 < (sequence - other) % _SEQUENCES < _SEQUENCES // 2
