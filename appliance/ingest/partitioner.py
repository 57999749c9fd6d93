"""Which partition a record goes to: by its key where any Kafka producer would put it, else by turns.

Values only. `murmur2` is the hash of Kafka's Java client (org.apache.kafka.common.utils.Utils.murmur2), so that a key lands in the same
partition whether it came by syslog or by a producer. Weak: hashing is pure Python (1-3 µs), hence the cache of keys seen.
"""

from __future__ import annotations

from struct import Struct

from appliance.base.invariants import check

CACHED_KEYS_MAX = 65536
_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_UINT32 = 0xFFFFFFFF
_WORD = Struct("<I")


def murmur2(data: bytes) -> int:
    """The 32-bit hash, unsigned."""
    mixed = _SEED ^ len(data)
    tail_size = len(data) & 3
    for (word,) in _WORD.iter_unpack(data[: len(data) - tail_size]):
        word = word * _MULTIPLIER & _UINT32
        word = (word ^ word >> 24) * _MULTIPLIER & _UINT32
        mixed = mixed * _MULTIPLIER & _UINT32 ^ word
    if tail_size:
        mixed = (mixed ^ int.from_bytes(data[-tail_size:], "little")) * _MULTIPLIER & _UINT32
    mixed = (mixed ^ mixed >> 13) * _MULTIPLIER & _UINT32
    return mixed ^ mixed >> 15


def partition_of_key(key: bytes, partition_count: int) -> int:
    """Kafka's default partitioner: the hash without its sign, modulo the number of partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class Partitioner:
    """`choose` a partition. Records without a key stay with one partition until `turn` (a batch was closed), then go to the next."""

    def __init__(self, partition_count: int) -> None:
        check(partition_count > 0, f"a topic has at least one partition, not {partition_count}")
        self.partition_count = partition_count
        self.blocked: frozenset[int] = frozenset()
        """Partitions that cannot take more now: records without a key avoid them while there is another."""
        self._by_key: dict[bytes, int] = {}
        self._sticky_partition = 0

    def choose(self, key: bytes | None) -> int:
        if key is None:
            if self._sticky_partition in self.blocked:
                self.turn(self._sticky_partition)
            return self._sticky_partition
        partition = self._by_key.get(key)
        if partition is None:
            if len(self._by_key) >= CACHED_KEYS_MAX:
                self._by_key.clear()
            partition = self._by_key[key] = partition_of_key(key, self.partition_count)
        return partition

    def turn(self, closed_partition: int) -> None:
        """A batch of `closed_partition` was closed: records without a key move on if they were there."""
        if closed_partition != self._sticky_partition:
            return
        for step in range(1, self.partition_count + 1):
            self._sticky_partition = (closed_partition + step) % self.partition_count
            if self._sticky_partition not in self.blocked:
                return

    def resize(self, partition_count: int) -> None:
        """The topic has grown: keys move, as they do for every producer."""
        check(partition_count >= self.partition_count, "partitions are never taken away from a topic")
        self.partition_count = partition_count
        self._by_key.clear()
