"""A share partition against a model that knows each offset by itself; the model's rules are KIP-932's, one line each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from appliance.base.errors import ErrorCode
from services.coordinator.share.share_partition import (
    ACCEPT,
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    GAP,
    NO_WRITE,
    NOBODY,
    REJECT,
    RELEASE,
    RENEW,
    TERMINAL,
    Acknowledgement,
    RecordState,
    ShareLimits,
    SharePartition,
)

LIMITS = ShareLimits(delivery_count_limit=3, lock_ms=100, record_locks_max=12)
MEMBERS = ("a", "b")
LOG_END = 40


@dataclass(frozen=True)
class Offset:
    state: RecordState = AVAILABLE
    count: int = 0
    member: str = NOBODY
    deadline_ms: int = 0
    target: RecordState = AVAILABLE
    write: int = NO_WRITE


class Model:
    """Window of single offsets."""

    def __init__(self) -> None:
        self.start = 0
        self.offsets: list[Offset] = []

    @property
    def end(self) -> int:
        return self.start + len(self.offsets)

    def next_fetch_offset(self) -> int | None:
        free = [self.start + index for index, each in enumerate(self.offsets) if each.state is AVAILABLE]
        return free[0] if free else self.end if len(self.offsets) < LIMITS.record_locks_max else None

    def acquire(self, member: str, covered: tuple[int, int], batches: list[tuple[int, int]], records_max: int, strict: bool, now_ms: int) -> dict[int, int]:
        got: dict[int, int] = {}
        window_end = self.start + LIMITS.record_locks_max
        position = covered[0]
        if not self.offsets and batches and records_max > 0:
            self.start = position = max(position, batches[0][0])
            window_end = self.start + LIMITS.record_locks_max
        for first, last in batches:
            if len(got) >= records_max:
                break
            for offset in range(position, last + 1):
                if offset >= window_end or (strict and len(got) >= records_max):
                    break
                if offset >= self.end:
                    self.offsets.append(Offset())
                each = self.offsets[offset - self.start]
                if each.state is AVAILABLE and offset < first:
                    self.offsets[offset - self.start] = Offset(ARCHIVED, each.count)
                elif each.state is AVAILABLE:
                    self.offsets[offset - self.start] = Offset(ACQUIRED, each.count + 1, member, now_ms + LIMITS.lock_ms)
                    got[offset] = each.count + 1
            position = last + 1
        else:
            for offset in range(position, min(covered[1], window_end)):
                if offset >= self.end:
                    self.offsets.append(Offset())
                each = self.offsets[offset - self.start]
                if each.state is AVAILABLE:
                    self.offsets[offset - self.start] = Offset(ARCHIVED, each.count)
        self.advance()
        return got

    def acknowledge(self, member: str, kinds: dict[int, int], write: int, now_ms: int) -> ErrorCode:
        self.expire(now_ms)
        if any(offset >= self.end for offset in kinds):
            return ErrorCode.INVALID_RECORD_STATE
        mine = {offset: kind for offset, kind in kinds.items() if offset >= self.start}
        for offset in mine:
            each = self.offsets[offset - self.start]
            if each.state is not ACQUIRED or each.member != member or each.write != NO_WRITE:
                return ErrorCode.INVALID_RECORD_STATE
        for offset, kind in mine.items():
            each = self.offsets[offset - self.start]
            if kind == RENEW:
                self.offsets[offset - self.start] = replace(each, deadline_ms=now_ms + LIMITS.lock_ms)
            else:
                target = {ACCEPT: ACKNOWLEDGED, REJECT: ARCHIVED, GAP: ARCHIVED, RELEASE: self.released(each)}[kind]  # type: ignore[index]
                self.offsets[offset - self.start] = replace(each, target=target, write=write)
        return ErrorCode.NONE

    @staticmethod
    def released(each: Offset) -> RecordState:
        return ARCHIVED if each.count >= LIMITS.delivery_count_limit else AVAILABLE

    def end_write(self, write: int, is_written: bool) -> None:
        ended = (Offset(each.target, each.count) if is_written else replace(each, write=NO_WRITE, target=AVAILABLE) for each in self.offsets)
        self.offsets = [after if each.write == write else each for each, after in zip(self.offsets, ended, strict=True)]
        self.advance()

    def expire(self, now_ms: int) -> None:
        self.let_go(lambda each: each.deadline_ms <= now_ms)

    def let_go(self, is_over: Any) -> None:
        self.offsets = [
            Offset(self.released(each), each.count) if each.state is ACQUIRED and each.write == NO_WRITE and is_over(each) else each for each in self.offsets
        ]
        self.advance()

    def raise_start(self, offset: int) -> None:
        self.offsets, self.start = self.offsets[max(0, offset - self.start) :], max(self.start, offset)
        self.advance()

    def restart(self) -> None:
        """Only what was written is remembered."""
        self.offsets = [
            Offset(ACKNOWLEDGED if each.state is ACKNOWLEDGED else ARCHIVED, each.count)
            if each.state in TERMINAL
            else Offset(AVAILABLE, min(each.count, LIMITS.delivery_count_limit - 1))
            for each in self.offsets
        ]
        self.advance()

    def advance(self) -> None:
        while self.offsets and self.offsets[0].state in TERMINAL:
            del self.offsets[0]
            self.start += 1
        while self.offsets and self.offsets[-1] == Offset():
            del self.offsets[-1]


def offsets_of(share: SharePartition) -> list[Offset]:
    found = [Offset(*run[2:]) for run in share.runs for _ in range(run.first_offset, run.last_offset + 1)]
    positions = [offset for run in share.runs for offset in range(run.first_offset, run.last_offset + 1)]
    assert positions == list(range(share.start_offset, share.end_offset))
    return found


class Play:
    """The same steps for both, compared after each."""

    def __init__(self, make: Any = SharePartition) -> None:
        self.make = make
        self.share = make(0, LIMITS)
        self.model = Model()
        self.now_ms = 0
        self.writes = 0
        self.under_way: list[int] = []
        self.accepted: set[int] = set()

    def step(self, data: Any) -> None:
        getattr(
            self, data.draw(st.sampled_from(("acquire", "acquire", "acknowledge", "acknowledge", "end_write", "wait", "release", "raise_start", "restart")))
        )(data)
        assert (self.share.start_offset, offsets_of(self.share)) == (self.model.start, self.model.offsets)
        assert self.share.next_fetch_offset() == self.model.next_fetch_offset()
        assert len(self.model.offsets) <= LIMITS.record_locks_max

    def acquire(self, data: Any) -> None:
        begin = self.share.next_fetch_offset()
        if begin is None or begin >= LOG_END:
            return
        bounds = data.draw(st.lists(st.integers(max(0, begin - 2), min(LOG_END, begin + 9)), max_size=6, unique=True).map(sorted))
        batches = [(bounds[at], bounds[at + 1] - 1) for at in range(0, len(bounds) - 1, 2) if bounds[at + 1] - 1 >= begin]
        end = max([begin + data.draw(st.integers(0, 3)), *(last + 1 for _, last in batches)])
        arguments = (data.draw(st.sampled_from(MEMBERS)), (begin, end), batches, data.draw(st.integers(0, 6)), data.draw(st.booleans()), self.now_ms)
        got = {offset: each.delivery_count for each in self.share.acquire(*arguments) for offset in range(each.first_offset, each.last_offset + 1)}
        assert got == self.model.acquire(*arguments)
        assert not self.accepted & got.keys(), "an acknowledged record is delivered again"
        assert all(count <= LIMITS.delivery_count_limit for count in got.values())

    def acknowledge(self, data: Any) -> None:
        first = data.draw(st.integers(max(0, self.model.start - 2), self.model.end + 1))
        kinds = data.draw(st.lists(st.sampled_from((GAP, ACCEPT, RELEASE, REJECT, RENEW)), min_size=1, max_size=5))
        member = data.draw(st.sampled_from(MEMBERS))
        cut = data.draw(st.integers(1, len(kinds)))
        batches = [Acknowledgement(first, first + cut - 1, kinds[:cut])]
        if cut < len(kinds):
            batches.append(Acknowledgement(first + cut, first + len(kinds) - 1, kinds[cut:]))
        self.writes += 1
        code, needs_write = self.share.acknowledge(member, batches, self.writes, self.now_ms)
        assert code == self.model.acknowledge(member, dict(enumerate(kinds, first)), self.writes, self.now_ms)
        assert needs_write == any(each.write == self.writes for each in self.model.offsets)
        if needs_write:
            self.under_way.append(self.writes)

    def end_write(self, data: Any) -> None:
        if not self.under_way:
            return
        write, is_written = self.under_way.pop(0), data.draw(st.booleans())
        if is_written:
            self.accepted |= {offset for offset, each in enumerate(self.model.offsets, self.model.start) if each.write == write and each.target is ACKNOWLEDGED}
        self.share.end_write(write, is_written)
        self.model.end_write(write, is_written)

    def wait(self, data: Any) -> None:
        self.now_ms += data.draw(st.integers(1, 120))
        self.share.expire(self.now_ms)
        self.model.expire(self.now_ms)
        deadlines = [each.deadline_ms for each in self.model.offsets if each.state is ACQUIRED and each.write == NO_WRITE]
        assert self.share.next_deadline_ms() == min(deadlines, default=None)

    def release(self, data: Any) -> None:
        member = data.draw(st.sampled_from(MEMBERS))
        self.share.release(member)
        self.model.let_go(lambda each: each.member == member)

    def raise_start(self, data: Any) -> None:
        offset = self.model.start + data.draw(st.integers(0, 2))
        self.share.raise_start(offset)
        self.model.raise_start(offset)

    def restart(self, data: Any) -> None:
        """All writes have ended, and the next incarnation reads the last snapshot."""
        while self.under_way:
            self.end_write(data)
        start_offset, batches = self.share.snapshot()
        self.share = self.make(start_offset, LIMITS, batches)
        self.model.restart()


@settings(deadline=None)
@given(st.data())
def test_a_share_partition_is_what_a_model_of_single_offsets_is(data: Any) -> None:
    play = Play()
    for _ in range(data.draw(st.integers(1, 40))):
        play.step(data)


class ForgetsTheMember(SharePartition):
    def acknowledge(self, member_id: str, *rest: Any, **named: Any) -> Any:
        for holder in MEMBERS:
            code, needs_write = super().acknowledge(holder, *rest, **named)
            if code is ErrorCode.NONE:
                break
        return code, needs_write


class AcknowledgesBeforeTheLog(SharePartition):
    def acknowledge(self, member_id: str, batches: Any, write: int, *rest: Any, **named: Any) -> Any:
        result = super().acknowledge(member_id, batches, write, *rest, **named)
        self.end_write(write, True)
        return result


class DeliversForEver(SharePartition):
    def _released(self, _run: Any) -> RecordState:
        return AVAILABLE


class LosesARefusedWrite(SharePartition):
    def end_write(self, write: int, is_written: bool) -> None:
        super().end_write(write, True)


class KeepsLocksForEver(SharePartition):
    def expire(self, now_ms: int) -> int:
        return 0


class ForgetsCounts(SharePartition):
    def snapshot(self) -> Any:
        start_offset, batches = super().snapshot()
        return start_offset, [batch._replace(delivery_count=0) for batch in batches]


@pytest.mark.slow
@pytest.mark.parametrize("broken", [ForgetsTheMember, AcknowledgesBeforeTheLog, DeliversForEver, LosesARefusedWrite, KeepsLocksForEver, ForgetsCounts])
def test_the_model_notices_a_broken_rule(broken: Any) -> None:
    @settings(deadline=None, max_examples=500, database=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(st.data())
    def run(data: Any) -> None:
        play = Play(broken)
        for _ in range(data.draw(st.integers(1, 40))):
            play.step(data)

    with pytest.raises(Exception):  # noqa: B017 - whichever comparison notices it first
        run()
