"""Requests that wait until it is certain that this box still leads the partitions of their state.

Without a lease another box may have been elected, and what this one remembers may be old. An append
shows which is true: the high watermark passes it only if every member of the in-sync set has fetched
it under this leader epoch, which none of them does after an election. So a request that comes while
there is no lease waits for a record that is appended after its arrival (Raft's ReadIndex, with an
append in place of the heartbeats). One record serves all requests that wait for it. It is a tombstone
of a key that no group and no transaction has; compaction removes it.

Owned by the coordinator, one for each state topic. Weak: requests wait for the slowest in-sync
replica, and for a dead one until their time-out, because without ZooKeeper no in-sync set shrinks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from appliance.base.errors import ErrorCode
from appliance.cluster.state_log import StateLog, StateRecord, partition_of

TIMEOUT_MS = 2_000

OnConfirmed = Callable[[bool], None]


class _Request:
    """A request that waits for `pending` partitions. Without `needs_record` it waits only for its turn."""

    __slots__ = ("is_confirmed", "needs_record", "on_confirmed", "pending")

    def __init__(self, pending: int, needs_record: bool, on_confirmed: OnConfirmed) -> None:
        self.pending = pending
        self.needs_record = needs_record
        self.is_confirmed = True
        self.on_confirmed = on_confirmed

    def on_partition(self, is_confirmed: bool) -> None:
        self.pending -= 1
        self.is_confirmed = self.is_confirmed and (is_confirmed or not self.needs_record)
        if not self.pending:
            self.on_confirmed(self.is_confirmed)


class ConfirmedLog(StateLog, Protocol):
    """The log of one state topic (`StateTopic`)."""

    partition_count: int

    def led_partitions(self) -> Iterable[int]: ...


class LeadershipConfirmations:
    """`key`: the record key of a group or transaction that cannot exist."""

    def __init__(self, log: ConfirmedLog, key: bytes) -> None:
        self._log = log
        self._record = StateRecord(key, None)
        self._rounds: dict[int, list[_Request]] = {}
        """Partition → the requests that its record under way confirms."""
        self._next: dict[int, list[_Request]] = {}
        """Partition → those that came after that record was offered."""

    @property
    def are_awaited(self) -> bool:
        """Whether requests wait; later ones of the same partitions must not overtake them."""
        return bool(self._rounds)

    def confirm(self, ids: Iterable[str] | None, on_confirmed: OnConfirmed, has_lease: bool = False) -> None:
        """Call `on_confirmed(True)` when it is certain that this box leads the partitions of these
        groups or transactional ids (None: of all that it coordinates); False if it is not, in time.

        Partitions that it does not lead by its own rows need no confirmation: the coordinator's rules
        refuse what concerns them. With a lease a request waits only behind the earlier ones of its
        partitions, and appends no record, so that the waiting ends.
        """
        count, led = self._log.partition_count, set(self._log.led_partitions())
        partitions = led if ids is None else led & {partition_of(name, count) for name in ids if count}
        if has_lease:
            partitions &= self._rounds.keys()
        request = _Request(len(partitions), not has_lease, on_confirmed)
        if not partitions:
            on_confirmed(True)
            return
        for partition in partitions:
            if partition in self._rounds:
                self._next.setdefault(partition, []).append(request)
            else:
                self._begin(partition, [request])

    def _begin(self, partition: int, requests: list[_Request]) -> None:
        self._rounds[partition] = requests
        self._log.append(partition, (self._record,), lambda code: self._end(partition, code), timeout_ms=TIMEOUT_MS)

    def _end(self, partition: int, code: ErrorCode) -> None:
        requests, later = self._rounds.pop(partition), self._next.pop(partition, None)
        if later and any(request.needs_record for request in later):
            self._begin(partition, later)
            later = None
        for request in (*requests, *(later or ())):
            request.on_partition(code == ErrorCode.NONE)
