"""The offsets of one group: committed, being appended, and pending until the end of a transaction.

Memory is what a replay of the log gives, as far as the log has answered: a commit counts when its append is answered, a
refused one never existed, a tombstone removes only what precedes it. Every entry has its position in the log, so a
transaction that ends late does not restore an older offset. Owned by the group coordinator. Weak spot: an append that timed
out may still be in the log; the next load shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from appliance.base.invariants import check
from appliance.base.model import ProducerId, TopicPartition
from services.coordinator.groups.group_membership import ExpiryRule
from services.coordinator.groups.group_records import NO_EXPIRY, OffsetCommitValue

Commits = Mapping[TopicPartition, OffsetCommitValue]


class TransactionalAppend:
    """Offsets of a transaction that are on their way into the log."""

    __slots__ = ("decision", "offsets", "producer_id")

    def __init__(self, producer_id: ProducerId, offsets: Commits) -> None:
        self.producer_id = producer_id
        self.offsets = offsets
        self.decision: bool | None = None
        """What the marker decided, if it was heard of before the answer to this append."""


class _Entry(NamedTuple):
    position: int
    value: OffsetCommitValue


class GroupOffsets:
    """The offsets of one group by partition."""

    def __init__(self) -> None:
        self._committed: dict[TopicPartition, _Entry] = {}
        self._unstable: dict[TopicPartition, int] = {}
        """How many undecided commits each partition has, in flight or in transactions."""
        self._transactions: dict[ProducerId, dict[TopicPartition, _Entry]] = {}
        self._transactional_appends: list[TransactionalAppend] = []

    def __len__(self) -> int:
        return len(self._committed)

    @property
    def is_empty(self) -> bool:
        """Nothing is committed and nothing is on its way."""
        return not self._committed and not self._unstable

    def find(self, partition: TopicPartition) -> OffsetCommitValue | None:
        entry = self._committed.get(partition)
        return entry.value if entry is not None else None

    def find_pending(self, producer_id: ProducerId, partition: TopicPartition) -> OffsetCommitValue | None:
        """Return what the producer's transaction says so far."""
        entry = self._transactions.get(producer_id, {}).get(partition)
        return entry.value if entry is not None else None

    def is_unstable(self, partition: TopicPartition) -> bool:
        """Whether a commit is undecided that may change what `find` says."""
        return partition in self._unstable

    def partitions(self) -> list[TopicPartition]:
        return list(self._committed)

    def known_partitions(self) -> set[TopicPartition]:
        """Also those that only have undecided commits."""
        return self._committed.keys() | self._unstable.keys()

    def producers(self) -> list[ProducerId]:
        """Whose transactions are undecided here."""
        return list({*self._transactions, *(append.producer_id for append in self._transactional_appends)})

    # ---- commits

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """A commit of these is on its way into the log."""
        for partition in partitions:
            self._hold(partition)

    def on_appended(self, position: int, offsets: Commits) -> None:
        for partition, value in offsets.items():
            self._release(partition)
            self._put(partition, _Entry(position, value))

    def on_refused(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._release(partition)

    # ---- commits that are part of a transaction

    def begin_transactional(self, producer_id: ProducerId, offsets: Commits) -> TransactionalAppend:
        append = TransactionalAppend(producer_id, offsets)
        self._transactional_appends.append(append)
        self.begin(offsets)
        return append

    def on_transactional_appended(self, append: TransactionalAppend, position: int) -> None:
        self._transactional_appends.remove(append)
        if append.decision is None:
            for partition, value in append.offsets.items():
                self.put_pending(append.producer_id, partition, position, value)
                self._release(partition)
        elif append.decision:
            self.on_appended(position, append.offsets)
        else:
            self.on_refused(append.offsets)

    def on_transactional_refused(self, append: TransactionalAppend) -> None:
        self._transactional_appends.remove(append)
        self.on_refused(append.offsets)

    def put_pending(self, producer_id: ProducerId, partition: TopicPartition, position: int, value: OffsetCommitValue) -> None:
        """This offset is in the log, and counts when the transaction of this producer is committed."""
        pending = self._transactions.setdefault(producer_id, {})
        if partition not in pending:
            self._hold(partition)
        pending[partition] = _Entry(position, value)

    def remove_pending(self, producer_id: ProducerId, partition: TopicPartition) -> None:
        """A transactional tombstone takes back what the transaction said before."""
        pending = self._transactions.get(producer_id, {})
        if pending.pop(partition, None) is not None:
            self._release(partition)

    def end_transaction(self, producer_id: ProducerId, is_commit: bool) -> None:
        """The marker of this producer is in the log."""
        for append in self._transactional_appends:
            if append.producer_id == producer_id and append.decision is None:
                append.decision = is_commit
        for partition, entry in self._transactions.pop(producer_id, {}).items():
            self._release(partition)
            if is_commit:
                self._put(partition, entry)

    # ---- the end of offsets

    def put_loaded(self, partition: TopicPartition, position: int, value: OffsetCommitValue) -> None:
        self._put(partition, _Entry(position, value))

    def remove(self, partitions: Iterable[TopicPartition], position: int) -> int:
        """A tombstone at `position` is in the log; returns how many offsets it took away. What a transaction said before it does not come back with the
        transaction's end: compaction keeps the tombstone alone."""
        removed = 0
        for partition in partitions:
            for pending in self._transactions.values():
                undecided = pending.get(partition)
                if undecided is not None and undecided.position < position:
                    del pending[partition]
                    self._release(partition)
            entry = self._committed.get(partition)
            if entry is not None and entry.position < position:
                del self._committed[partition]
                removed += 1
        return removed

    def expired(self, partitions: Iterable[TopicPartition], rule: ExpiryRule, retention_ms: int, now_ms: int) -> Iterator[TopicPartition]:
        """Return the partitions whose offsets have expired; an offset with an expiry time of its own follows only that."""
        for partition in partitions:
            entry = self._committed.get(partition)
            if entry is None or partition in self._unstable or partition.topic in rule.spared_topics:
                continue
            value = entry.value
            if value.expire_timestamp_ms != NO_EXPIRY:
                is_old = now_ms >= value.expire_timestamp_ms
            else:
                is_old = now_ms - (value.commit_timestamp_ms if rule.since_ms is None else rule.since_ms) >= retention_ms
            if is_old:
                yield partition

    # ---- entries

    def _put(self, partition: TopicPartition, entry: _Entry) -> None:
        current = self._committed.get(partition)
        if current is None or current.position <= entry.position:
            self._committed[partition] = entry

    def _hold(self, partition: TopicPartition) -> None:
        self._unstable[partition] = self._unstable.get(partition, 0) + 1

    def _release(self, partition: TopicPartition) -> None:
        count = self._unstable.get(partition, 0) - 1
        check(count >= 0, f"a commit of {partition} is decided that was never begun")
        if count:
            self._unstable[partition] = count
        else:
            del self._unstable[partition]
