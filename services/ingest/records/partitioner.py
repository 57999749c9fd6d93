"""Which partition a record goes to: by its key where any Kafka producer would put it, else by turns; and, while a disk is dead, past its partitions.

Values only. Weak: hashing is pure Python, hence the cache of keys seen, as far as they are short, and a key of more than a mebibyte goes where its first
mebibyte would; the partition that stands in for a dead one gets the lines of both.
"""

from __future__ import annotations

from appliance.base.invariants import check
from appliance.records.key_hash import partition_of_key

CACHED_KEYS_MAX = 65536
CACHED_KEY_BYTES_MAX = 256
"""A sender may call itself anything, of any length, and each time something else."""
HASHED_BYTES_MAX = 1 << 20
"""65 ms."""


def next_live_partition(partition: int, partition_count: int, dead: frozenset[int]) -> int:
    """The partition that takes the lines of `partition`: itself; while its disk is dead, the next one whose disk lives; itself if none does."""
    for step in range(partition_count):
        other = (partition + step) % partition_count
        if other not in dead:
            return other
    return partition


class Partitioner:
    """`choose` a partition. Records without a key stay with one partition until `turn` (a batch was closed), then go to the next."""

    def __init__(self, partition_count: int) -> None:
        check(partition_count > 0, f"a topic has at least one partition, not {partition_count}")
        self.partition_count = partition_count
        self.blocked: frozenset[int] = frozenset()
        """Partitions that cannot take more now: records without a key avoid them while there is another."""
        self._dead: frozenset[int] = frozenset()
        self._by_key: dict[bytes, int] = {}
        self._sticky_partition = 0

    def choose(self, key: bytes | None) -> int:
        if key is None:
            if self._sticky_partition in self.blocked or self._sticky_partition in self._dead:
                self.turn(self._sticky_partition)
            return self._sticky_partition
        partition = self._by_key.get(key)
        if partition is None:
            partition = next_live_partition(partition_of_key(key[:HASHED_BYTES_MAX], self.partition_count), self.partition_count, self._dead)
            if len(key) <= CACHED_KEY_BYTES_MAX:
                if len(self._by_key) >= CACHED_KEYS_MAX:
                    self._by_key.clear()
                self._by_key[key] = partition
        return partition

    def place(self, identity: bytes) -> int:
        """The partition of a record without a key that belongs to something with an identity: the same one when it comes again."""
        return next_live_partition(int.from_bytes(identity[:8], "big") % self.partition_count, self.partition_count, self._dead)

    def turn(self, closed_partition: int) -> None:
        """A batch of `closed_partition` was closed: records without a key move on if they were there."""
        if closed_partition != self._sticky_partition:
            return
        for step in range(1, self.partition_count + 1):
            self._sticky_partition = (closed_partition + step) % self.partition_count
            if self._sticky_partition not in self.blocked and self._sticky_partition not in self._dead:
                return
        self._sticky_partition = next_live_partition((closed_partition + 1) % self.partition_count, self.partition_count, self._dead)

    def avoid(self, dead: frozenset[int]) -> None:
        """The disks of these partitions are dead, of all others they live: keys move to the next living partition, and back."""
        if dead != self._dead:
            self._dead = dead
            self._by_key.clear()

    def resize(self, partition_count: int) -> None:
        """The topic has grown: keys move, as they do for every producer."""
        check(partition_count >= self.partition_count, "partitions are never taken away from a topic")
        self.partition_count = partition_count
        self._by_key.clear()
