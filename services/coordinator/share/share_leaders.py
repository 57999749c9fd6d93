"""The share partitions that this box leads: what members have in hand, and the writes to the share coordinator (KIP-932).

The state of a share partition is read when a member first fetches it here. A write says all of it; one write is under way at a time,
and acknowledgements that come meanwhile wait for the next one together. A write of an unknown outcome leaves the records with their
member. When this box no longer leads the partition in the same leader epoch, when the share coordinator has seen a later leader, or
when an administrator has begun anew, the share partition is forgotten: what was in hand is delivered by what the share coordinator
knows. Owned by the coordinator. Weak spot: what a member has in hand ends with the leader epoch, not with its lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final, NamedTuple, Protocol

from appliance.base.errors import ErrorCode, known_error
from appliance.base.model import TopicId
from appliance.protocol.share_state_apis import UNINITIALIZED, KeptBatch, ReadStateResult, WrittenState
from appliance.runtime.timers import Timer, Timers
from services.coordinator.share.share_partition import ShareLimits, SharePartition, StateBatch
from services.coordinator.share.share_persister import TIMEOUT_MS
from services.coordinator.share.share_states import Place, ShareKey

OnWritten = Callable[[ErrorCode], None]
WINDOW_RUNS_MAX: Final = 1_000_000
"""Of all share partitions of a box, before nothing more is delivered for the first time: at most 300 MB. What a member that has died had in
hand counts once its lock has ended as one run, so that abandoned groups do not use up what others need."""
SHARES_MAX: Final = 100_000
"""Share partitions of one box, led or coordinated: some 200 MB of the coordinator each."""
LOOKS_A_TURN: Final = 1_000
CONFIRM_MS: Final = 2_000
"""A fetch that has waited before must still be answered in time."""
FRESH_MS: Final = 1_000
"""A state that was read less than this ago is not read again: each read is an append."""
_OVER: Final = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


class ShareEvent(Enum):
    """What is counted, in records; the value is the label of the counter. REFUSED: acknowledgements, one for each partition of a request."""

    ACQUIRED = "acquired"
    AGAIN = "delivered_again"
    ACKNOWLEDGED = "acknowledged"
    EXPIRED = "expired"
    REFUSED = "refused"


OnEvent = Callable[[ShareEvent, int], None]


class LogBounds(NamedTuple):
    """Of a partition that this box leads: offsets, or why there are none."""

    error_code: ErrorCode
    log_start_offset: int = -1
    high_watermark: int = -1
    leader_epoch: int = -1
    last_stable_offset: int = -1

    def end(self, is_committed: bool) -> int:
        """Return the offset up to which records may be delivered."""
        return self.last_stable_offset if is_committed else self.high_watermark


class LedLogs(Protocol):
    """What a leader must know of its partitions."""

    def bounds(self, topic_id: TopicId, partition: int) -> LogBounds: ...

    def first_offset(self, group_id: str, bounds: LogBounds) -> int:
        """Where delivery begins in a partition that a group reads for the first time."""

    def is_named(self, topic_id: TopicId, partition: int) -> bool:
        """Whether the image names this box as the leader, also while its log-writer is away."""

    def limits(self, group_id: str) -> ShareLimits: ...


class LeaderStates(Protocol):
    """`SharePersister`, as far as leaders need it."""

    def read(self, key: ShareKey, leader_epoch: int, on_done: Callable[[ReadStateResult], None], timeout_ms: int = TIMEOUT_MS) -> None: ...

    def write(self, key: ShareKey, part: WrittenState, on_done: Callable[[ErrorCode], None]) -> None: ...


class HostedShare:
    """One share partition and its writes; `error_code` says why its state could not be read."""

    def __init__(self, key: ShareKey, leader_epoch: int, limits: ShareLimits) -> None:
        self.key = key
        self.leader_epoch = leader_epoch
        self.state_epoch = 0
        self.share = SharePartition(0, limits)
        self.is_ready = False
        self.read_ms = 0
        self.error_code = ErrorCode.NONE
        self.window_runs = 0
        """As far as `ShareLeaders` has counted it."""
        self.is_reading = False
        """A fetch reads records for it; others wait, or they would get the same ones."""
        self.read_again_ms = 0
        self.is_gone = False
        self.is_writing = False
        self.last_write = 0
        self.waiting: list[OnWritten] = []
        self.timer: Timer | None = None

    @property
    def next_write(self) -> int:
        """The number of the write that begins next."""
        return self.last_write + 1


class ShareLeaders:
    """All of one box."""

    def __init__(self, states: LeaderStates, logs: LedLogs, timers: Timers, now_ms: Callable[[], int], count_event: OnEvent) -> None:
        """`count_event` is called with what is counted, and how much of it."""
        self._states = states
        self._logs = logs
        self._timers = timers
        self._now_ms = now_ms
        self.count_event = count_event
        self._by_group: dict[str, dict[Place, HostedShare]] = {}
        self._window_runs = 0
        self._unseen: deque[HostedShare] = deque()
        self._is_due = False
        self.count = 0

    def __iter__(self) -> Iterator[HostedShare]:
        for shares in self._by_group.values():
            yield from shares.values()

    def find(self, group_id: str, place: Place) -> HostedShare | None:
        """Return a share partition whose state was read."""
        found = self._by_group.get(group_id, {}).get(place)
        return found if found is not None and found.is_ready else None

    def open(self, group_id: str, place: Place, bounds: LogBounds) -> HostedShare | None:
        """Return the share partition, whose state may still be read; None: there are too many. `bounds`: of a partition that this box leads."""
        found = self._by_group.get(group_id, {}).get(place)
        if found is not None and found.leader_epoch != bounds.leader_epoch:
            self.forget(found)
            found = None
        if found is None and self.count < SHARES_MAX:
            found = HostedShare(ShareKey(group_id, *place), bounds.leader_epoch, self._logs.limits(group_id))
            self._by_group.setdefault(group_id, {})[place] = found
            self.count += 1
            self._read(found)
        return found

    # ---- the state as it is read

    def _read(self, hosted: HostedShare) -> None:
        def on_read(result: ReadStateResult) -> None:
            if hosted.is_gone:
                return
            if result.error_code:
                self._fail(hosted, known_error(result.error_code))
                return
            hosted.state_epoch = result.state_epoch
            if result.start_offset == UNINITIALIZED:
                self._choose_start(hosted)
            else:
                batches = (StateBatch(*batch) for batch in result.state_batches)
                self._serve(hosted, SharePartition(result.start_offset, hosted.share.limits, batches))

        self._states.read(hosted.key, hosted.leader_epoch, on_read)

    def _choose_start(self, hosted: HostedShare) -> None:
        """Delivery begins once the start offset is in the log, so that a death cannot move it."""
        bounds = self._logs.bounds(*hosted.key[1:])
        if bounds.error_code is not ErrorCode.NONE:
            self._fail(hosted, bounds.error_code)
            return
        start_offset = self._logs.first_offset(hosted.key.group_id, bounds)

        def on_written(code: ErrorCode) -> None:
            if hosted.is_gone:
                return
            if code is ErrorCode.NONE:
                self._serve(hosted, SharePartition(start_offset, hosted.share.limits))
            else:
                self._fail(hosted, code)

        self._states.write(hosted.key, WrittenState(hosted.key.partition, hosted.state_epoch, hosted.leader_epoch, start_offset, 0), on_written)

    def _serve(self, hosted: HostedShare, share: SharePartition) -> None:
        hosted.share, hosted.is_ready, hosted.read_ms = share, True, self._now_ms()
        self._count_window(hosted)

    def _fail(self, hosted: HostedShare, code: ErrorCode) -> None:
        """Fetches that wait for the share partition are answered; the next one reads it again."""
        is_fenced = code in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH)
        hosted.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER if is_fenced else code
        self.forget(hosted)

    def confirm(self, hosted: HostedShare, on_confirmed: Callable[[bool], None]) -> None:
        """Ask the share coordinator whether there has been no later leader, before records are delivered without a lease.

        That is true when it is written; a leader may come between that and the delivery.
        """

        def on_read(result: ReadStateResult) -> None:
            if result.error_code in _OVER or (not result.error_code and result.state_epoch != hosted.state_epoch):
                self.forget(hosted)
            on_confirmed(not result.error_code and not hosted.is_gone)

        self._states.read(hosted.key, hosted.leader_epoch, on_read, CONFIRM_MS)

    # ---- changes

    def persist(self, hosted: HostedShare, on_written: OnWritten | None = None) -> None:
        """Write the state after the write under way, if there is one."""
        if hosted.is_gone:
            if on_written is not None:
                on_written(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        if on_written is not None:
            hosted.waiting.append(on_written)
        if not hosted.is_writing:
            self._begin_write(hosted)
        elif on_written is None:
            hosted.waiting.append(_ignore)

    def _begin_write(self, hosted: HostedShare) -> None:
        hosted.is_writing = True
        hosted.last_write += 1
        number, share, waiting, hosted.waiting = hosted.last_write, hosted.share, hosted.waiting, []
        start_offset, batches = share.snapshot()
        written = tuple([KeptBatch(*batch) for batch in batches])

        def on_written(code: ErrorCode) -> None:
            hosted.is_writing = False
            share.end_write(number, code is ErrorCode.NONE)
            if code in _OVER:
                self.forget(hosted)
            for each in waiting:
                each(code)
            if hosted.waiting and not hosted.is_writing and not hosted.is_gone:
                self._begin_write(hosted)
            self.watch_locks(hosted)

        part = WrittenState(hosted.key.partition, hosted.state_epoch, hosted.leader_epoch, start_offset, share.done_count(), written)
        self._states.write(hosted.key, part, on_written)

    def watch_locks(self, hosted: HostedShare) -> None:
        """After a change: count the window, and end the first lock in time."""
        self._count_window(hosted)
        deadline_ms = hosted.share.next_deadline_ms()
        timer = hosted.timer
        if deadline_ms is None or hosted.is_gone or (timer is not None and timer.is_live and timer.deadline_ms <= deadline_ms):
            return
        if timer is not None and timer.is_live:
            self._timers.cancel(timer)
        hosted.timer = self._timers.schedule(deadline_ms, lambda now_ms: self._on_deadline(hosted, now_ms))

    @property
    def has_room(self) -> bool:
        """Whether windows may grow: each run takes memory, and a part of the snapshot."""
        return self._window_runs < WINDOW_RUNS_MAX

    def _count_window(self, hosted: HostedShare) -> None:
        runs = 0 if hosted.is_gone else hosted.share.runs_max
        self._window_runs += runs - hosted.window_runs
        hosted.window_runs = runs

    def _on_deadline(self, hosted: HostedShare, now_ms: int) -> None:
        if hosted.is_gone:
            return
        expired = hosted.share.expire(now_ms)
        if expired:
            self.count_event(ShareEvent.EXPIRED, expired)
            self.persist(hosted)
        self.watch_locks(hosted)

    def release(self, group_id: str, member_id: str) -> None:
        """A member has gone, and its locks end."""
        for hosted in list(self._by_group.get(group_id, {}).values()):
            if hosted.share.release(member_id):
                self.persist(hosted)

    # ---- ends

    def forget(self, hosted: HostedShare) -> None:
        """Let go of a share partition; acknowledgements that wait fail."""
        if hosted.is_gone:
            return
        hosted.is_gone, hosted.is_ready = True, False
        self._count_window(hosted)
        self._timers.cancel(hosted.timer)
        shares = self._by_group[hosted.key.group_id]
        del shares[hosted.key[1:]]
        self.count -= 1
        if not shares:
            del self._by_group[hosted.key.group_id]
        waiting, hosted.waiting = hosted.waiting, []
        for on_written in waiting:
            on_written(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def forget_idle(self, group_id: str) -> None:
        """A member opens a session: what no member has in hand is read again, for an administrator may have changed it."""
        before_ms = self._now_ms() - FRESH_MS
        for hosted in list(self._by_group.get(group_id, {}).values()):
            if hosted.is_ready and hosted.read_ms <= before_ms and not hosted.is_writing and hosted.share.next_deadline_ms() is None:
                self.forget(hosted)

    def forget_group(self, group_id: str) -> None:
        """An administrator has begun anew."""
        for hosted in list(self._by_group.get(group_id, {}).values()):
            self.forget(hosted)

    def refresh(self) -> None:
        """Image or rows have changed: `work` checks all share partitions, after those that it has not checked yet."""
        self._is_due = True

    def work(self) -> int:
        """Forget what this box does not lead any more, and follow limits of groups; a bounded number a turn."""
        if self._is_due and not self._unseen:
            self._unseen, self._is_due = deque(self), False
        seen = min(len(self._unseen), LOOKS_A_TURN)
        for _ in range(seen):
            hosted = self._unseen.popleft()
            if hosted.is_gone:
                continue
            hosted.share.limits = self._logs.limits(hosted.key.group_id)
            bounds = self._logs.bounds(*hosted.key[1:])
            is_away = bounds.error_code and self._logs.is_named(*hosted.key[1:])  # its log-writer restarts; what members have in hand stays theirs
            if bounds.leader_epoch != hosted.leader_epoch and not is_away:
                self.forget(hosted)
        return seen


def _ignore(_code: ErrorCode) -> None:
    """No request waits for this write."""
