"""Choose the partition of a record: by key or sticky; dead disks are skipped.

Values only. Weak: hashing is pure Python, therefore short keys are cached. Only the first mebibyte
of a key is hashed. The partition that stands in for a dead one gets the lines of both.
"""

from __future__ import annotations

from appliance.base.invariants import check
from appliance.records.keys import partition_of_key

CACHED_KEYS_MAX = 65536
CACHED_KEY_BYTES_MAX = 256
"""Longer keys are not cached: a sender chooses its own name, of any length."""
HASHED_BYTES_MAX = 1 << 20
"""Takes 65 ms."""


def next_live_partition(partition: int, partition_count: int, dead: frozenset[int]) -> int:
    """Return `partition`, or the next one on a live disk if its disk is dead; itself if all are
    dead."""
    for step in range(partition_count):
        other = (partition + step) % partition_count
        if other not in dead:
            return other
    return partition


class Partitioner:
    """Records without a key stay with one partition until its batch is closed, then go to the next."""

    def __init__(self, partition_count: int) -> None:
        check(partition_count > 0, f"a topic has at least one partition, not {partition_count}")
        self.partition_count = partition_count
        self.blocked: frozenset[int] = frozenset()
        """Partitions above their budget: records without a key avoid them if there is another."""
        self._dead: frozenset[int] = frozenset()
        self._by_key: dict[bytes, int] = {}
        self._sticky_partition = 0

    @property
    def cached_key_count(self) -> int:
        return len(self._by_key)

    def choose(self, key: bytes | None) -> int:
        if key is None:
            if self._sticky_partition in self.blocked or self._sticky_partition in self._dead:
                self.on_batch_closed(self._sticky_partition)
            return self._sticky_partition
        partition = self._by_key.get(key)
        if partition is None:
            partition = next_live_partition(partition_of_key(key[:HASHED_BYTES_MAX], self.partition_count), self.partition_count, self._dead)
            if len(key) <= CACHED_KEY_BYTES_MAX:
                if len(self._by_key) >= CACHED_KEYS_MAX:
                    self._by_key.clear()
                self._by_key[key] = partition
        return partition

    def partition_of_identity(self, identity: bytes) -> int:
        """Return the partition of a record without a key but with an identity: the same for its
        repeat."""
        return next_live_partition(int.from_bytes(identity[:8], "big") % self.partition_count, self.partition_count, self._dead)

    def on_batch_closed(self, closed_partition: int) -> None:
        """A batch was closed: records without a key move on if they were in this partition."""
        if closed_partition != self._sticky_partition:
            return
        for step in range(1, self.partition_count + 1):
            self._sticky_partition = (closed_partition + step) % self.partition_count
            if self._sticky_partition not in self.blocked and self._sticky_partition not in self._dead:
                return
        self._sticky_partition = next_live_partition((closed_partition + 1) % self.partition_count, self.partition_count, self._dead)

    def set_dead(self, dead: frozenset[int]) -> None:
        """Set the partitions on dead disks: keys move to the next live partition, and back."""
        if dead != self._dead:
            self._dead = dead
            self._by_key.clear()

    def resize(self, partition_count: int) -> None:
        """The topic has more partitions: keys move, as for every producer."""
        check(partition_count >= self.partition_count, "partitions are never taken away from a topic")
        self.partition_count = partition_count
        self._by_key.clear()
