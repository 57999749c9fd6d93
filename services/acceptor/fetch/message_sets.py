"""Message sets of magic 0 and 1 of old clients: converted up for a produce, converted down for a fetch.

Only Produce before 3 and Fetch before 4 need that. Turns must stay short, so it is limited. Up: at most
`max.message.bytes` when stored, 100,000 messages and a guarded decompression (`records/conversion.py`). Down:
at most `CONVERTED_BYTES_MAX` of a segment for a whole fetch (more only if the first batch alone is longer),
and for each partition at most as many bytes before compression and 10,000 records. Owned by one acceptor.
Weak spot: Python work for each record, 3 to 4 µs; many old clients at once delay all clients of the acceptor.
"""

from __future__ import annotations

import os

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.cluster.metadata_cache import LocalReplica, MetadataCache
from appliance.protocol.fetch import FetchPartition, FetchPartitionResult
from appliance.records.conversion import convert_down, convert_up
from appliance.records.legacy import MAGIC_AT
from appliance.shm.arena import Arena
from appliance.shm.counters import Counters
from services.acceptor.fetch.cold_reads import GatheredBatch
from services.acceptor.fetch.record_ranges import ArenaRange, FileRange
from services.acceptor.request_memory import ArenaSlot, allocate_slot

CONVERTED_BYTES_MAX = 1 << 20
MAGIC_1_FETCHED_SINCE = 2
_MAX_BYTES_SINCE = 3
"""From this version on consumers rotate the order of their partitions themselves (KIP-74)."""


def read_range(wanted: FileRange | ArenaRange | GatheredBatch) -> bytes | bytearray:
    """Read a range for conversion; it may end early. It is in the page cache, or a log-reader has read it."""
    if isinstance(wanted, GatheredBatch):
        return wanted.content
    if isinstance(wanted, ArenaRange):
        return wanted.to_bytes()
    return os.pread(wanted.file.descriptor, wanted.size_bytes, wanted.position)


class UpConversion:
    """Converts message sets in the arena to batches in the arena."""

    def __init__(self, view: MetadataCache, arena: Arena, counters: Counters) -> None:
        self._view = view
        self._arena = arena
        self._converted = counters.counter("produce.converted_sets")

    def convert(self, placement: LocalReplica, slot: ArenaSlot, position: int, size_bytes: int) -> tuple[ArenaSlot, int, int]:
        """Return slot, position and size of the batch; size 0: no whole message was sent.

        The batch replaces the set if it fits, otherwise it gets its own slot and `slot` is released. A batch
        of magic 2, which these versions may carry, is not changed. Raises `RequestRefused`; the caller keeps
        `slot` then.
        """
        memory = self._arena.memory
        if size_bytes > MAGIC_AT and memory[position + MAGIC_AT] > 1:
            return slot, position, size_bytes
        batch = convert_up(memory, position, position + size_bytes, placement.max_message_bytes, self._stamps(placement.topic))
        if len(batch) > placement.max_message_bytes:
            raise RequestRefused(ErrorCode.MESSAGE_TOO_LARGE, f"a converted batch of {len(batch)} bytes is larger than {placement.max_message_bytes}")
        if len(batch) > size_bytes:
            own = allocate_slot(self._arena, len(batch))
            if own is None:
                raise RequestRefused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the arena has no free slot for a converted batch; try again")
            slot.release()
            slot, position = own, own.position
        memory[position : position + len(batch)] = batch
        if batch:
            self._converted.add()
        return slot, position, len(batch)

    def _stamps(self, name: str) -> bool:
        topic = self._view.image.topics.get(name)
        return topic is not None and topic.config.get("message.timestamp.type") == "LogAppendTime"


class DownConversion:
    """Converts ranges of segments to message sets in the heap."""

    def __init__(self, view: MetadataCache, counters: Counters) -> None:
        self._view = view
        self._fetches = 0
        self._converted_bytes = counters.counter("fetch.converted_bytes")

    def is_allowed(self, topic: str, replica_id: int) -> bool:
        """`message.downconversion.enable`; followers are exempt."""
        image = self._view.image.topics.get(topic)
        return replica_id >= 0 or image is None or image.config.get("message.downconversion.enable", "true").lower() != "false"

    def reorder(self, version: int, partitions: list[FetchPartition]) -> None:
        """Begin each fetch with another partition: clients before Fetch 3 always use the same order.

        Otherwise the first partitions could fill each response.
        """
        if version < _MAX_BYTES_SINCE and len(partitions) > 1:
            self._fetches += 1
            start = self._fetches % len(partitions)
            partitions[:] = partitions[start:] + partitions[:start]

    def convert(self, version: int, wanted: list[FetchPartition], results: list[FetchPartitionResult]) -> list[FetchPartitionResult]:
        """Return `results`, one for each partition of `wanted`, with message sets instead of ranges.

        A partition whose records cannot be converted gets an error. A set may be empty: markers are left out.
        """
        magic = 1 if version >= MAGIC_1_FETCHED_SINCE else 0
        converted = []
        for partition, result in zip(wanted, results, strict=True):
            if isinstance(result.records, FileRange | ArenaRange | GatheredBatch):
                try:
                    sets = convert_down(read_range(result.records), magic, partition.fetch_offset, CONVERTED_BYTES_MAX)
                except RequestRefused as refusal:
                    result = FetchPartitionResult(result.topic, result.topic_id, result.partition, refusal.code)
                except OSError:  # the log-writer gets it too, and takes the disk offline
                    result = FetchPartitionResult(result.topic, result.topic_id, result.partition, ErrorCode.KAFKA_STORAGE_ERROR)
                else:
                    self._converted_bytes.add(len(sets))
                    result = result._replace(records=sets)
            converted.append(result)
        return converted
