"""The deadlines of one consumer or streams group: sessions, revocations, and classic members that have to rejoin.

A session ends when no heartbeat arrives for its time-out. A member that has to revoke partitions has its
rebalance time-out for that; a classic member has as long to rejoin, and to send SyncGroup. A member that
misses a deadline is removed. Owned by its group. Weak spot: after a restart of the coordinator sessions
and revocations start again, and there is no deadline to rejoin or to sync.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any, Final, Protocol

from appliance.base.errors import ErrorCode
from appliance.runtime.timers import Timer, Timers
from services.coordinator.groups.group_turns import Operation, Refusal

RETRY_MS: Final = 1_000


class Wait(Enum):
    """What a member is waited for."""

    SESSION = "to be heard of"
    REVOCATION = "to give up partitions"
    JOIN = "to join again"
    SYNC = "to ask for its assignment"


class TimedMember(Protocol):
    """A member of either kind of group."""

    @property
    def member_id(self) -> str: ...

    @property
    def is_classic(self) -> bool: ...

    @property
    def has_to_revoke(self) -> bool: ...

    @property
    def rebalance_timeout_ms(self) -> int: ...

    @property
    def session_timeout_ms(self) -> int | None:
        """None: that of its group."""

    @property
    def current(self) -> tuple[Any, ...]:
        """How far it has come."""


class TimedGroup(Protocol):
    """A group of either kind."""

    group_epoch: int

    @property
    def members(self) -> Mapping[str, TimedMember]: ...

    def remove(self, member_id: str, /) -> object: ...


class MemberDeadlines:
    """`submit` hands an operation to the group."""

    def __init__(self, timers: Timers, timing: Callable[[], tuple[int, int]], submit: Callable[[Operation[Any], int], None]) -> None:
        """`timing` returns session timeout and heartbeat interval in ms."""
        self._timers = timers
        self._timing = timing
        self._submit = submit
        self._live: dict[tuple[Wait, str], Timer] = {}
        self._told: dict[str, tuple[Any, ...]] = {}
        """What each member has to get out of by giving partitions up."""

    @property
    def heartbeat_interval_ms(self) -> int:
        return self._timing()[1]

    def renew_session(self, member: TimedMember, now_ms: int) -> None:
        """It is alive."""
        own_ms = member.session_timeout_ms
        self._expect(Wait.SESSION, member.member_id, now_ms + (self._timing()[0] if own_ms is None else own_ms))

    def has(self, wait: Wait, member_id: str) -> bool:
        return (wait, member_id) in self._live

    def expect_join(self, member: TimedMember, now_ms: int) -> None:
        """Start the deadline of a classic member that has to rejoin; an earlier one stays."""
        if not self.has(Wait.JOIN, member.member_id):
            self._expect(Wait.JOIN, member.member_id, now_ms + member.rebalance_timeout_ms)

    def expect_sync(self, member: TimedMember, now_ms: int) -> None:
        self.forget(Wait.JOIN, member.member_id)
        self._expect(Wait.SYNC, member.member_id, now_ms + member.rebalance_timeout_ms)

    def forget(self, wait: Wait, member_id: str) -> None:
        if wait is Wait.REVOCATION:
            self._told.pop(member_id, None)
        self._timers.cancel(self._live.pop((wait, member_id), None))

    def forget_all(self) -> None:
        for timer in self._live.values():
            self._timers.cancel(timer)
        self._live.clear()

    def on_committed(self, before: TimedGroup, after: TimedGroup, now_ms: int) -> None:
        """Members joined, left, or have partitions to revoke: set their deadlines."""
        for member_id in before.members.keys() - after.members.keys():
            for wait in Wait:
                self.forget(wait, member_id)
        for member_id, member in after.members.items():
            known = before.members.get(member_id)
            if known is not member:
                self._on_changed(known, member, now_ms)

    def _on_changed(self, known: TimedMember | None, member: TimedMember, now_ms: int) -> None:
        if not self.has(Wait.SESSION, member.member_id):
            self.renew_session(member, now_ms)
        if member.is_classic or not member.has_to_revoke:
            self.forget(Wait.REVOCATION, member.member_id)
        elif known is None or known.current != member.current:
            self._told[member.member_id] = member.current
            self._expect(Wait.REVOCATION, member.member_id, now_ms + member.rebalance_timeout_ms)
        if not member.is_classic:
            self.forget(Wait.JOIN, member.member_id)
            self.forget(Wait.SYNC, member.member_id)

    def _expect(self, wait: Wait, member_id: str, deadline_ms: int) -> None:
        timer = self._live.get((wait, member_id))
        if timer is not None and timer.is_live:
            self._timers.move(timer, deadline_ms)
        else:
            self._live[wait, member_id] = self._timers.schedule(deadline_ms, partial(self._on_due, wait, member_id))

    def _on_due(self, wait: Wait, member_id: str, now_ms: int) -> None:
        timer = self._live[wait, member_id]
        self._submit(_Fence(self, wait, member_id, timer), now_ms)

    def is_over(self, wait: Wait, member: TimedMember, timer: Timer) -> bool:
        """Nothing was heard since `timer` fired, not even by a request that is not in the log yet."""
        if wait is Wait.REVOCATION and self._told.get(member.member_id) != member.current:
            return False
        return self._live.get((wait, member.member_id)) is timer

    def again(self, wait: Wait, member_id: str, timer: Timer, now_ms: int) -> None:
        """The log refused to have it out."""
        if self._live.get((wait, member_id)) is timer:
            self._expect(wait, member_id, now_ms + RETRY_MS)


class _Fence:
    """A member is out."""

    def __init__(self, deadlines: MemberDeadlines, wait: Wait, member_id: str, timer: Timer) -> None:
        self._deadlines = deadlines
        self._wait = wait
        self._member_id = member_id
        self._timer = timer

    def change(self, group: TimedGroup, now_ms: int) -> None:
        member = group.members.get(self._member_id)
        if member is None or not self._deadlines.is_over(self._wait, member, self._timer):
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID)
        group.remove(self._member_id)
        group.group_epoch += 1

    def conclude(self, group: TimedGroup, now_ms: int) -> None:
        """No request waits: the operation has no reply."""

    def answer(self, error: ErrorCode, now_ms: int) -> None:
        if error is not ErrorCode.NONE:
            self._deadlines.again(self._wait, self._member_id, self._timer, now_ms)

    def refuse(self, refusal: Refusal) -> None:
        """It was heard of meanwhile, or is gone."""

    def again(self, now_ms: int) -> None:
        """The group that it is in now has deadlines of its own."""
