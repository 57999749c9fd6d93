"""The records of one partition that a share group has in hand (KIP-932): which member has them, how often they were delivered, what became of them.

A pure state machine, as Kafka's `SharePartition`. The window [start_offset, end_offset) is covered by runs of offsets of equal
state, without holes; what lies before it is done, what lies behind it was never delivered. `acknowledge` and `expire` decide;
an acknowledgement takes effect with `end_write`, when the log has the `snapshot` that contains it. Until then the records can
neither be acknowledged again nor expire. A record becomes AVAILABLE again until it was delivered `delivery_count_limit` times.
Owned by the coordinator. Weak spot: a change copies the runs, at most as many as the window is long.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import islice
from typing import Final, NamedTuple

from appliance.base.errors import ErrorCode
from appliance.base.invariants import check


class RecordState(IntEnum):
    """Kafka's states, with the numbers of its records."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4


AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVED = RecordState
TERMINAL: Final = frozenset({ACKNOWLEDGED, ARCHIVED})


class AcknowledgeType(IntEnum):
    """What a member says of a record; GAP: there is no record at that offset."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


GAP, ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType
_TYPES: Final = frozenset(AcknowledgeType)
NOBODY: Final = ""
NO_WRITE: Final = -1


class ShareLimits(NamedTuple):
    """Kafka's `group.share.delivery.count.limit`, `….record.lock.duration.ms` and `….partition.max.record.locks`."""

    delivery_count_limit: int = 5
    lock_ms: int = 30_000
    record_locks_max: int = 2_000


class Run(NamedTuple):
    """Offsets of one state. `target` is the state after the write number `write`; NO_WRITE: none is under way."""

    first_offset: int
    last_offset: int
    state: RecordState
    delivery_count: int
    member_id: str = NOBODY
    deadline_ms: int = 0
    target: RecordState = AVAILABLE
    write: int = NO_WRITE

    def settled(self) -> Run:
        """Return the run after its write."""
        return Run(self.first_offset, self.last_offset, self.target, self.delivery_count)


class StateBatch(NamedTuple):
    """A run as a snapshot has it."""

    first_offset: int
    last_offset: int
    state: int
    delivery_count: int


class Acquired(NamedTuple):
    """Offsets that a member gets, and how often they were delivered with this time."""

    first_offset: int
    last_offset: int
    delivery_count: int


class Acknowledgement(NamedTuple):
    """One type for each offset, or one for all."""

    first_offset: int
    last_offset: int
    types: Sequence[int]


class _Refused(Exception):
    """An acknowledgement that changes nothing."""


Change = Callable[[Run], Run]
Edit = tuple[int, int, Change]
"""First and last offset, and what becomes of the runs between them."""


class SharePartition:
    """One share group's part of one partition."""

    def __init__(self, start_offset: int, limits: ShareLimits, batches: Iterable[StateBatch] = ()) -> None:
        """`batches`: those of a snapshot, ascending. What was acquired then is available again."""
        self.start_offset = start_offset
        self.limits = limits
        self._runs: list[Run] = []
        self._first_available: int | None = None
        self._first_deadline_ms: int | None = None
        for batch in batches:
            if batch.first_offset > self.end_offset:
                _push(self._runs, Run(self.end_offset, batch.first_offset - 1, AVAILABLE, 0))  # Kafka's snapshots leave out what was acquired
            state = RecordState(batch.state) if batch.state in TERMINAL else AVAILABLE
            # A death of the coordinator is not the consumer's failure: the record gets another delivery.
            count = batch.delivery_count if state in TERMINAL else min(batch.delivery_count, limits.delivery_count_limit - 1)
            first_offset = max(batch.first_offset, self.end_offset)
            if first_offset <= batch.last_offset:
                _push(self._runs, Run(first_offset, batch.last_offset, state, max(0, count)))
        self._advance()

    # ---- from outside

    @property
    def end_offset(self) -> int:
        """What was never delivered begins here."""
        return self._runs[-1].last_offset + 1 if self._runs else self.start_offset

    @property
    def runs(self) -> Sequence[Run]:
        return self._runs

    def next_fetch_offset(self) -> int | None:
        """Return the first offset that a member may get; None while the window is full and no member has released anything."""
        if self._first_available is not None:
            return self._first_available
        return self.end_offset if self.end_offset - self.start_offset < self.limits.record_locks_max else None

    def next_deadline_ms(self) -> int | None:
        """Return when the first lock ends."""
        return self._first_deadline_ms

    def done_count(self) -> int:
        """Return how many offsets of the window need no delivery any more."""
        return sum(run.last_offset - run.first_offset + 1 for run in self._runs if run.state in TERMINAL)

    def snapshot(self) -> tuple[int, list[StateBatch]]:
        """Return start offset and batches as they are once all writes under way have ended well; what is acquired is available there."""
        start_offset, batches = self.start_offset, list[StateBatch]()
        for run in self._runs:
            state = run.target if run.write != NO_WRITE else AVAILABLE if run.state is ACQUIRED else run.state
            if not batches and state in TERMINAL:
                start_offset = run.last_offset + 1
            elif batches and batches[-1][2:] == (state, run.delivery_count):
                batches[-1] = batches[-1]._replace(last_offset=run.last_offset)
            else:
                batches.append(StateBatch(run.first_offset, run.last_offset, state, run.delivery_count))
        return start_offset, batches

    # ---- deliveries

    def acquire(
        self, member_id: str, covered: tuple[int, int], batches: Sequence[tuple[int, int]], records_max: int, is_strict: bool, now_ms: int
    ) -> list[Acquired]:
        """Lock available records of `batches` (first and last offset, ascending) for a member; return what it gets.

        `covered`: the offsets [from, to) that were read, from the next fetch offset on. Where there is no batch in them there is
        no record, and nothing waits for one. A batch is delivered whole, even beyond `records_max`, unless `is_strict`.
        """
        edits: list[Edit] = []
        acquired: list[Acquired] = []
        position, end = covered
        deadline_ms, left = now_ms + self.limits.lock_ms, records_max

        def lock(run: Run) -> Run:
            return Run(run.first_offset, run.last_offset, ACQUIRED, run.delivery_count + 1, member_id, deadline_ms)

        if not self._runs and batches and left > 0:  # a long hole that compaction left
            self.start_offset = position = max(position, batches[0][0])
        for base_offset, last_offset in batches:
            if left <= 0:
                end = position
                break
            first_offset = max(base_offset, position)
            if first_offset > position:
                self._extend(first_offset, ARCHIVED)
                edits.append((position, first_offset - 1, _archived))
            self._extend(last_offset + 1, AVAILABLE)
            for run in self._available(first_offset, last_offset):
                if is_strict:
                    run = run._replace(last_offset=min(run.last_offset, run.first_offset + left - 1))
                left -= run.last_offset - run.first_offset + 1
                edits.append((run.first_offset, run.last_offset, lock))
                _add_acquired(acquired, run)
                if is_strict and left <= 0:
                    break
            position = last_offset + 1
        if end > position:
            self._extend(end, ARCHIVED)
            edits.append((position, end - 1, _archived))
        self._runs = _edited(self._runs, edits)
        self._trim()
        self._advance()
        return acquired

    def _available(self, first_offset: int, last_offset: int) -> list[Run]:
        """Return the available offsets between two, as runs."""
        begin = bisect_left(self._runs, first_offset, key=lambda run: run.last_offset)
        found: list[Run] = []
        for run in islice(self._runs, begin, None):
            if run.first_offset > last_offset:
                break
            if run.state is AVAILABLE:
                found.append(run._replace(first_offset=max(first_offset, run.first_offset), last_offset=min(last_offset, run.last_offset)))
        return found

    def _extend(self, end_offset: int, state: RecordState) -> None:
        """The window ends at `end_offset`, or where it is full, if it ended before."""
        first_offset = self.end_offset
        end_offset = min(end_offset, self.start_offset + self.limits.record_locks_max)
        if first_offset < end_offset:
            _push(self._runs, Run(first_offset, end_offset - 1, state, 0))

    def _trim(self) -> None:
        """What was extended and then not taken was never delivered."""
        while self._runs and self._runs[-1].state is AVAILABLE and self._runs[-1].delivery_count == 0:
            self._runs.pop()

    # ---- acknowledgements

    def acknowledge(self, member_id: str, batches: Sequence[Acknowledgement], write: int, now_ms: int, may_renew: bool = True) -> tuple[ErrorCode, bool]:
        """Take all of a member's acknowledgements, or none; return the error, and whether the write number `write` must follow.

        INVALID_REQUEST: batches that are no ascending offsets, or of unknown types. INVALID_RECORD_STATE: the member does not have one of
        the records, or has acknowledged it already. Offsets before the window are done; they are ignored, as in Kafka.
        """
        self.expire(now_ms)
        edits: list[Edit] = []
        previous = -1
        for batch in batches:
            first_offset, last_offset, types = batch
            count = last_offset - first_offset + 1
            if first_offset <= previous or count <= 0 or len(types) not in (1, count) or not _TYPES.issuperset(types) or (RENEW in types and not may_renew):
                return ErrorCode.INVALID_REQUEST, False
            if last_offset >= self.end_offset:
                return ErrorCode.INVALID_RECORD_STATE, False
            previous = last_offset
            edits += (
                (first, last, self._acknowledged(AcknowledgeType(each), member_id, write, now_ms + self.limits.lock_ms))
                for first, last, each in _equal_types(batch)
                if last >= self.start_offset
            )
        try:
            self._runs = _edited(self._runs, edits)
        except _Refused:
            return ErrorCode.INVALID_RECORD_STATE, False
        self._look()
        return ErrorCode.NONE, any(run.write == write for run in self._runs)

    def _acknowledged(self, kind: AcknowledgeType, member_id: str, write: int, deadline_ms: int) -> Change:
        def change(run: Run) -> Run:
            if run.state is not ACQUIRED or run.member_id != member_id or run.write != NO_WRITE:
                raise _Refused
            if kind is RENEW:
                return run._replace(deadline_ms=deadline_ms)
            target = self._released(run) if kind is RELEASE else ACKNOWLEDGED if kind is ACCEPT else ARCHIVED
            return run._replace(target=target, write=write)

        return change

    def _released(self, run: Run) -> RecordState:
        return ARCHIVED if run.delivery_count >= self.limits.delivery_count_limit else AVAILABLE

    def end_write(self, write: int, is_written: bool) -> None:
        """The write number `write` has ended. If the log may not have it, its records are the member's as before."""
        runs: list[Run] = []
        for run in self._runs:
            if run.write == write:
                run = run.settled() if is_written else run._replace(target=AVAILABLE, write=NO_WRITE)
            _push(runs, run)
        self._runs = runs
        self._advance()

    # ---- what was not acknowledged

    def expire(self, now_ms: int) -> int:
        """End the locks whose time is over; return of how many records."""
        return self._release(lambda run: run.deadline_ms <= now_ms)

    def release(self, member_id: str) -> int:
        """End all locks of a member that has gone; return of how many records."""
        return self._release(lambda run: run.member_id == member_id)

    def _release(self, is_over: Callable[[Run], bool]) -> int:
        over = [run for run in self._runs if run.state is ACQUIRED and run.write == NO_WRITE and is_over(run)]
        if not over:
            return 0
        runs: list[Run] = []
        for run in self._runs:
            if run.state is ACQUIRED and run.write == NO_WRITE and is_over(run):
                run = Run(run.first_offset, run.last_offset, self._released(run), run.delivery_count)
            _push(runs, run)
        self._runs = runs
        self._advance()
        return sum(run.last_offset - run.first_offset + 1 for run in over)

    def raise_start(self, log_start_offset: int) -> bool:
        """Records before the log start are gone; return whether there were any."""
        is_raised = log_start_offset > self.start_offset
        if is_raised:
            self._runs = [run._replace(first_offset=max(run.first_offset, log_start_offset)) for run in self._runs if run.last_offset >= log_start_offset]
            self.start_offset = log_start_offset
            self._advance()
        return is_raised

    @property
    def runs_max(self) -> int:
        """How many runs the window may come to have: each record in a member's hands may need one of its own."""
        return sum(run.last_offset - run.first_offset + 1 if run.state is ACQUIRED else 1 for run in self._runs)

    def _look(self) -> None:
        """Remember what is asked between changes, too, once for each change."""
        self._first_available = next((run.first_offset for run in self._runs if run.state is AVAILABLE), None)
        self._first_deadline_ms = min((run.deadline_ms for run in self._runs if run.state is ACQUIRED and run.write == NO_WRITE), default=None)

    def _advance(self) -> None:
        """What is done leaves the window at its start."""
        done = 0
        for run in self._runs:
            if run.state not in TERMINAL:
                break
            self.start_offset = run.last_offset + 1
            done += 1
        del self._runs[:done]
        self._look()
        check(not self._runs or self._runs[0].first_offset == self.start_offset, f"the window begins at {self.start_offset}, its first run elsewhere")


def _add_acquired(acquired: list[Acquired], run: Run) -> None:
    last = acquired[-1] if acquired else None
    if last is not None and last.last_offset + 1 == run.first_offset and last.delivery_count == run.delivery_count + 1:
        acquired[-1] = last._replace(last_offset=run.last_offset)
    else:
        acquired.append(Acquired(run.first_offset, run.last_offset, run.delivery_count + 1))


def _archived(run: Run) -> Run:
    return Run(run.first_offset, run.last_offset, ARCHIVED, run.delivery_count) if run.state is AVAILABLE else run


def _equal_types(batch: Acknowledgement) -> Iterator[tuple[int, int, int]]:
    """Runs of offsets of one type."""
    first_offset, last_offset, types = batch
    if len(types) == 1:
        yield first_offset, last_offset, types[0]
        return
    begin = 0
    for index in range(1, len(types) + 1):
        if index == len(types) or types[index] != types[begin]:
            yield first_offset + begin, first_offset + index - 1, types[begin]
            begin = index


def _push(runs: list[Run], run: Run) -> None:
    """Append a run, to its neighbour if they are alike."""
    if runs and runs[-1][2:] == run[2:]:
        runs[-1] = runs[-1]._replace(last_offset=run.last_offset)
    else:
        runs.append(run)


def _edited(runs: list[Run], edits: Sequence[Edit]) -> list[Run]:
    """Return the runs with ascending edits applied, cut where these begin and end."""
    out: list[Run] = []
    rest = iter(runs)
    run = next(rest, None)
    for first, last, change in edits:
        while run is not None and run.last_offset < first:
            _push(out, run)
            run = next(rest, None)
        while run is not None and run.first_offset <= last:
            if run.first_offset < first:
                _push(out, run._replace(last_offset=first - 1))
                run = run._replace(first_offset=first)
            end = min(run.last_offset, last)
            _push(out, change(run._replace(last_offset=end)))
            run = run._replace(first_offset=end + 1) if end < run.last_offset else next(rest, None)
    while run is not None:
        _push(out, run)
        run = next(rest, None)
    return out
