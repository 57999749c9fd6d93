"""What the transaction coordinator needs of others: producer ids, and markers in the partitions of a transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicPartition


class Marker(NamedTuple):
    """The end of a transaction in one partition. `coordinator_epoch` is the leader epoch of the state topic's partition. `raises_epoch`: the producer epoch is
    larger than that of the transaction's batches (KIP-890), and the next transaction's batches will have it."""

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    raises_epoch: bool = False


class MarkerWriter(Protocol):
    """Writes markers, wherever the partition is led."""

    def write(self, marker: Marker, on_written: Callable[[ErrorCode], None]) -> None:
        """`on_written` once, never from within `write`: NONE when every in-sync replica has the marker."""


class ProducerIds(Protocol):
    """The one allocator of producer ids."""

    def next(self) -> int | None:
        """Return an id that no producer had before; None: none is leased yet, retry soon."""


class TransactionSettings(NamedTuple):
    """Under Kafka's names and with its defaults; ms and counts."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    append_timeout_ms: int = 5_000
    """What a write of state may take."""
