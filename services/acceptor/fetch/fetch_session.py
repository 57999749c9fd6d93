"""Fetch sessions (KIP-227): a client names its partitions once, then only changes, and gets only changes.

`FetchSessions` has the rules: which session a request belongs to, epochs, errors, eviction, and what a
response must contain. It owns no socket, clock or random source: times and new ids are arguments. Owned by
one acceptor. Another acceptor of the box does not have its sessions, answers FETCH_SESSION_ID_NOT_FOUND, and
the client creates a new one.

A partition of a session is awake (the next fetch reads it) or asleep (nothing to report until its row
changes), so a fetch costs what changed, not what the client subscribes to. A session that would exceed a
limit is closed, and its client continues without one.
Weak spot: the number of partitions is limited, in one session and in all together.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from appliance.base.errors import ErrorCode
from appliance.protocol.fetch import FetchPartition, FetchPartitionResult, ForgottenPartition

EVICTION_MS: Final = 120_000
"""A session that was unused this long may be evicted for any other; one this old for a larger one."""
PARTITIONS_MAX: Final = 100_000
"""In all sessions of an acceptor; about 600 bytes each."""
SESSION_PARTITIONS_MAX: Final = 10_000
"""In one session. A request of 40 bytes can read all of them (3 µs each), which delays all other clients."""
EPOCH_MAX: Final = 2**31 - 1
INITIAL_EPOCH: Final = 0
"""The epoch of a request for a new session."""
FINAL_EPOCH: Final = -1
"""The epoch of a request that ends its session and needs none."""
NO_SESSION: Final = 0

PartitionKey = tuple[str | bytes, int]
Rank = tuple[bool, int, int]
"""(privileged, number of partitions, id): the smallest is evicted first."""


def next_epoch(session_epoch: int) -> int:
    """Epochs wrap to 1: 0 and -1 have a meaning of their own."""
    return 1 if session_epoch >= EPOCH_MAX else session_epoch + 1


def key_of(wanted: FetchPartition | ForgottenPartition) -> PartitionKey:
    return (wanted.topic or wanted.topic_id, wanted.partition)


class SessionPartition:
    """One partition of a session: what the client requests of it, and what it received last."""

    __slots__ = ("high_watermark", "key", "log_start_offset", "order", "session", "wanted", "watched")

    def __init__(self, session: FetchSession, wanted: FetchPartition, key: PartitionKey, order: int) -> None:
        self.session = session
        self.wanted = wanted
        self.key = key
        self.order = order
        """Partitions are read in ascending order; one with records goes to the end, so each gets its turn."""
        self.high_watermark = -1
        self.log_start_offset = -1
        self.watched: tuple[str, int] | None = None
        """Disk and row that it waits for while asleep; set by `RowWatch`."""

    def must_report(self, result: FetchPartitionResult) -> bool:
        """True if a response has to contain `result`: it has records, an error or anything new."""
        return bool(
            result.records is not None
            or result.error_code
            or result.high_watermark != self.high_watermark
            or result.log_start_offset != self.log_start_offset
            or result.diverging_epoch is not None
            or result.preferred_read_replica >= 0
        )

    def on_reported(self, result: FetchPartitionResult) -> None:
        """Note that the client receives `result`. After an error the next result is reported in any case."""
        self.high_watermark = -1 if result.error_code else result.high_watermark
        self.log_start_offset = result.log_start_offset
        if result.records is not None:
            self.order = self.session.next_order()

    def on_row_moved(self) -> int:
        """Wake; return the ticket of the session's parked fetch, or 0."""
        self.session.awake[self] = None
        return self.session.parked_ticket


class FetchSession:
    """The partitions of one client, from fetch to fetch."""

    __slots__ = (
        "_order",
        "awake",
        "closed",
        "created_ms",
        "expected_epoch",
        "is_privileged",
        "isolation_level",
        "last_used_ms",
        "parked_ticket",
        "partitions",
        "ranked_for_all",
        "ranked_for_privileged",
        "replica_id",
        "session_id",
        "size",
        "uses_topic_ids",
    )

    def __init__(self, session_id: int, is_privileged: bool, uses_topic_ids: bool, isolation_level: int, now_ms: int) -> None:
        self.session_id = session_id
        self.is_privileged = is_privileged
        self.replica_id = -1
        """of its follower; −1: a consumer's"""
        self.uses_topic_ids = uses_topic_ids
        self.isolation_level = isolation_level
        self.created_ms = self.last_used_ms = now_ms
        self.expected_epoch = next_epoch(INITIAL_EPOCH)
        self.partitions: dict[PartitionKey, SessionPartition] = {}
        self.awake: dict[SessionPartition, None] = {}
        self.parked_ticket = 0
        """of the fetch that waits for a partition to wake; 0: none"""
        self.closed = False
        self.size = 0
        """partitions that `FetchSessions.partition_count` includes"""
        self.ranked_for_all: Rank | None = None
        self.ranked_for_privileged: Rank | None = None
        self._order = 0

    def next_order(self) -> int:
        self._order += 1
        return self._order

    def want(self, wanted: FetchPartition) -> SessionPartition:
        """Add a partition, or change what is requested of it; it is awake afterwards."""
        key = key_of(wanted)
        partition = self.partitions.get(key)
        if partition is None:
            partition = self.partitions[key] = SessionPartition(self, wanted, key, self.next_order())
        else:
            if wanted.current_leader_epoch != partition.wanted.current_leader_epoch:
                partition.high_watermark = partition.log_start_offset = -1  # a new follower may not have received them
            partition.wanted = wanted
        self.awake[partition] = None
        return partition

    def awake_in_order(self) -> list[SessionPartition]:
        if len(self.awake) == 1:
            return list(self.awake)
        return sorted(self.awake, key=_order_of)

    def wake_all(self) -> None:
        self.awake = dict.fromkeys(self.partitions.values())


def _order_of(partition: SessionPartition) -> int:
    return partition.order


class FetchSessions:
    """All sessions of one acceptor. `release` is called for each removed partition, `on_close` for each session that ends."""

    def __init__(
        self,
        slots: int,
        new_id: Callable[[], int],
        release: Callable[[SessionPartition], None],
        on_close: Callable[[FetchSession], None],
        partitions_max: int = PARTITIONS_MAX,
        session_partitions_max: int = SESSION_PARTITIONS_MAX,
    ) -> None:
        self._slots = slots
        self._new_id = new_id
        self._release = release
        self._on_close = on_close
        self._partitions_max = partitions_max
        self._session_partitions_max = session_partitions_max
        self.by_id: OrderedDict[int, FetchSession] = OrderedDict()
        """the least recently used first"""
        self.evictable_by_all: list[Rank] = []
        self.evictable_by_privileged: list[Rank] = []
        self.partition_count = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self.by_id)

    def continued(
        self,
        session_id: int,
        session_epoch: int,
        wanted: Iterable[FetchPartition],
        forgotten: Sequence[ForgottenPartition],
        uses_topic_ids: bool,
        isolation_level: int,
        now_ms: int,
    ) -> FetchSession | ErrorCode:
        """Return the session of an incremental request, after its changes, or an error code.

        A session that became empty is `closed`: the request is answered as without one.
        """
        session = self.by_id.get(session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session_epoch != session.expected_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if uses_topic_ids != session.uses_topic_ids:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        for partition in wanted:
            session.want(partition)
        for gone in forgotten:
            self._forget(session, gone)
        if isolation_level != session.isolation_level:
            session.isolation_level = isolation_level
            session.wake_all()  # the readable end is another one now
        if not session.partitions:
            self.close(session_id)
            return session
        size = len(session.partitions)
        if size > self._session_partitions_max or self.partition_count - session.size + size > self._partitions_max:
            self.close(session_id)
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        session.expected_epoch = next_epoch(session_epoch)
        self._touch(session, now_ms)
        return session

    def maybe_create(
        self,
        wanted: Sequence[FetchPartition],
        results: Sequence[FetchPartitionResult],
        is_privileged: bool,
        uses_topic_ids: bool,
        isolation_level: int,
        now_ms: int,
    ) -> FetchSession | None:
        """Create a session for a client that receives `results`, if there is a free slot or an evictable session."""
        size = len(wanted)
        if size > self._session_partitions_max:
            return None
        while self.partition_count + size > self._partitions_max and self._evict_stale(now_ms):
            pass
        if self.partition_count + size > self._partitions_max:
            return None
        if len(self.by_id) >= self._slots and not self._evict_for(is_privileged, size, now_ms):
            return None
        session_id = self._new_id()
        while session_id <= NO_SESSION or session_id in self.by_id:
            session_id = self._new_id()
        session = self.by_id[session_id] = FetchSession(session_id, is_privileged, uses_topic_ids, isolation_level, now_ms)
        for partition, result in zip(wanted, results, strict=True):
            cached = session.want(partition)
            cached.high_watermark = -1 if result.error_code else result.high_watermark
            cached.log_start_offset = result.log_start_offset
        self._touch(session, now_ms)
        return session

    def of_followers(self) -> list[FetchSession]:
        return [session for session in self.by_id.values() if session.is_privileged]

    def close(self, session_id: int) -> None:
        """End a session, if it exists."""
        session = self.by_id.pop(session_id, None)
        if session is None:
            return
        self._rank(session, None, None)
        self.partition_count -= session.size
        session.closed = True
        for partition in session.partitions.values():
            self._release(partition)
        session.partitions.clear()  # partitions refer to their session: break the cycle
        session.awake.clear()
        self._on_close(session)

    def _forget(self, session: FetchSession, gone: ForgottenPartition) -> None:
        partition = session.partitions.pop(key_of(gone), None)
        if partition is not None:
            session.awake.pop(partition, None)
            self._release(partition)

    def _touch(self, session: FetchSession, now_ms: int) -> None:
        """Note a use. Rank it for eviction, here only, as Kafka does: by age, size and privilege."""
        session.last_used_ms = now_ms
        self.by_id.move_to_end(session.session_id)
        size = len(session.partitions)
        self.partition_count += size - session.size
        session.size = size
        rank = (session.is_privileged, size, session.session_id)
        is_old = now_ms - session.created_ms > EVICTION_MS
        self._rank(session, rank if is_old else None, rank if is_old or not session.is_privileged else None)

    def _rank(self, session: FetchSession, for_all: Rank | None, for_privileged: Rank | None) -> None:
        if session.ranked_for_all != for_all:
            _replace(self.evictable_by_all, session.ranked_for_all, for_all)
            session.ranked_for_all = for_all
        if session.ranked_for_privileged != for_privileged:
            _replace(self.evictable_by_privileged, session.ranked_for_privileged, for_privileged)
            session.ranked_for_privileged = for_privileged

    def _evict_stale(self, now_ms: int) -> bool:
        """End the least recently used session, if it was unused for `EVICTION_MS`."""
        for session_id, session in self.by_id.items():
            if now_ms - session.last_used_ms <= EVICTION_MS:
                return False
            self.evictions += 1
            self.close(session_id)
            return True
        return False

    def _evict_for(self, is_privileged: bool, size: int, now_ms: int) -> bool:
        """End a session that ranks below the new one."""
        if self._evict_stale(now_ms):
            return True
        evictable = self.evictable_by_privileged if is_privileged else self.evictable_by_all
        if not evictable or (is_privileged, size, NO_SESSION) < evictable[0]:
            return False
        self.evictions += 1
        self.close(evictable[0][2])
        return True


def _replace(ranks: list[Rank], old: Rank | None, new: Rank | None) -> None:
    if old is not None:
        del ranks[bisect_left(ranks, old)]
    if new is not None:
        insort(ranks, new)
