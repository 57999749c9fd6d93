"""The state machine of one followed partition: what it needs next, and what a response means.

Pure: time is an argument (monotonic nanoseconds). The order is always: get log end offset and
leader epoch from the own log-writer (TELL), fetch from there, append the records, fetch again. If
the logs diverge, truncate by leader epoch (KIP-101, KIP-595); if the leader has nothing at our
offset, ask it for its log start and end. One step is in progress at a time, because the leader
takes the fetch offset as proof that everything below it is stored: it advances the high watermark
by it. So a fetch must never name an offset that the log-writer has not confirmed. Owned by the
replica-fetcher. Weak spot: a response that contradicts itself (a log start offset above the log
end) is believed.
"""

from __future__ import annotations

from enum import IntEnum

from appliance.base.errors import ErrorCode
from appliance.base.model import NO_LEADER_EPOCH, NO_OFFSET, LeaderEpoch, Offset
from appliance.ipc.descriptors import TruncateOrder, Truncation

UNKNOWN = -1
BACKOFF_FIRST_NS = 20_000_000
"""Short, because most errors come from a leader or log-writer that has not received the new image
yet."""
BACKOFF_LONG = 16
"""Failures after which the wait is the longest."""


class Need(IntEnum):
    """What a followed partition needs next."""

    NOTHING = 0
    """Nothing until a newer leader epoch arrives: the leader fenced this one."""
    TELL = 1
    """The log end offset, from the own log-writer."""
    FETCH = 2
    """A fetch from the leader, at `log_end_offset` with `last_fetched_epoch`."""
    APPEND = 3
    """An append by the own log-writer: the fetched records, or only `high_watermark` and
    `leader_log_start_offset`."""
    TRUNCATE = 4
    """A truncation by the own log-writer, as `truncation` says."""
    LATEST = 5
    """The leader's log end offset: ListOffsets with timestamp -1, as a replica."""
    EARLIEST = 6
    """The leader's log start offset: ListOffsets with timestamp -2."""


TELL_ONLY = TruncateOrder(Truncation.TELL, NO_LEADER_EPOCH, NO_OFFSET)


class FollowerFetch:
    """Offsets are those of the own log, as its log-writer last reported, unless the name says
    otherwise.
    """

    __slots__ = (
        "_backoff_max_ns",
        "_told_high_watermark",
        "_told_log_start_offset",
        "damaged_offset",
        "failures",
        "high_watermark",
        "is_waiting",
        "last_fetched_epoch",
        "leader_epoch",
        "leader_id",
        "leader_log_start_offset",
        "log_end_offset",
        "log_start_offset",
        "need",
        "problem",
        "retry_ns",
        "truncation",
        "turn",
    )

    def __init__(self, backoff_max_ns: int = 1_000_000_000) -> None:
        """`backoff_max_ns` is `replica.fetch.backoff.ms`."""
        self._backoff_max_ns = backoff_max_ns
        self.leader_id = UNKNOWN
        self.leader_epoch = NO_LEADER_EPOCH
        self.log_start_offset = NO_OFFSET
        self.log_end_offset = NO_OFFSET
        self.last_fetched_epoch = NO_LEADER_EPOCH
        """The leader epoch of the last batch of the own log."""
        self.high_watermark = NO_OFFSET
        """The leader's."""
        self.leader_log_start_offset = NO_OFFSET
        self.damaged_offset = NO_OFFSET
        """The offset of a damaged batch that the leader sent. The next fetch names it, so that the
        leader checks its log."""
        self.need = Need.NOTHING
        self.is_waiting = False
        """True while `need` is in progress. Not used for FETCH: its response is matched by the
        fetch offset."""
        self.turn = 0
        """The number of the last step; completions name it, so that late ones are recognised."""
        self.retry_ns = 0
        """No step starts before this time."""
        self.failures = 0
        """In a row."""
        self.truncation = TELL_ONLY
        self.problem = ""
        """Why replication stopped or waits, for operators."""
        self._told_high_watermark = NO_OFFSET
        self._told_log_start_offset = NO_OFFSET

    # --- the image

    def follow(self, leader_id: int, leader_epoch: LeaderEpoch, now_ns: int) -> bool:
        """Follow `leader_id` under `leader_epoch`; return False if this leader epoch is not newer."""
        if leader_epoch <= self.leader_epoch:
            return False
        self.leader_id, self.leader_epoch = leader_id, leader_epoch
        self.restart(now_ns)
        return True

    def restart(self, now_ns: int) -> None:
        """Restart under the same leader epoch: the log-writer has a new incarnation, or the log
        another row.
        """
        self.need, self.is_waiting = Need.TELL, False
        self.turn += 1
        self.truncation = TELL_ONLY
        self.retry_ns, self.failures, self.problem = now_ns, 0, ""
        self._told_high_watermark = self._told_log_start_offset = self.damaged_offset = NO_OFFSET

    def is_due(self, now_ns: int) -> bool:
        return self.need != Need.NOTHING and not self.is_waiting and now_ns >= self.retry_ns

    def may_fetch(self, now_ns: int) -> bool:
        """True if a fetch may name the partition, at `log_end_offset`."""
        return self.need == Need.FETCH and now_ns >= self.retry_ns

    def begin(self) -> int:
        """Start the needed step (not FETCH) and return its number.

        If a request to the leader is lost, the caller reports NETWORK_EXCEPTION.
        """
        self.is_waiting = True
        self.turn += 1
        return self.turn

    # --- responses of the leader

    def on_fetched(
        self,
        asked_epoch: LeaderEpoch,
        asked_offset: Offset,
        error: int,
        has_records: bool,
        high_watermark: Offset,
        log_start_offset: Offset,
        now_ns: int,
        diverging_epoch: LeaderEpoch = NO_LEADER_EPOCH,
        diverging_end_offset: Offset = NO_OFFSET,
    ) -> bool:
        """Apply the response to a fetch under `asked_epoch` at `asked_offset`; return False if it
        is outdated. If the need is APPEND afterwards, the caller appends the records.
        """
        if self.need != Need.FETCH or asked_epoch != self.leader_epoch or asked_offset != self.log_end_offset:
            return False
        if error == ErrorCode.NONE:
            self._on_agreement(has_records, high_watermark, log_start_offset, diverging_epoch, diverging_end_offset, now_ns)
        elif error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._next(Need.LATEST)
        elif error == ErrorCode.FENCED_LEADER_EPOCH:
            self._stop(f"its leader has a larger epoch than {self.leader_epoch}")
        else:
            self._back_off(Need.FETCH, f"the leader answered error {error}", now_ns)
        return True

    def _on_agreement(
        self, has_records: bool, high_watermark: Offset, log_start_offset: Offset, diverging_epoch: LeaderEpoch, diverging_end_offset: Offset, now_ns: int
    ) -> None:
        common_end = self.log_end_offset if diverging_end_offset == NO_OFFSET else diverging_end_offset
        if self.log_start_offset < log_start_offset and common_end <= log_start_offset:
            # The leader's log starts at or after the end of what both logs share. It has no epochs below that, so our records there may
            # differ from what it had. They must not come under a high watermark: the log restarts at the leader's log start offset.
            self._cut(TruncateOrder(Truncation.START_AT, NO_LEADER_EPOCH, log_start_offset))
            return
        if diverging_end_offset != NO_OFFSET:
            self.truncation = TruncateOrder(Truncation.DIVERGED, diverging_epoch, diverging_end_offset)
            self._next(Need.TRUNCATE)
            return
        self.failures, self.problem, self.damaged_offset = 0, "", NO_OFFSET
        self.high_watermark, self.leader_log_start_offset = high_watermark, log_start_offset
        if has_records or high_watermark != self._told_high_watermark or log_start_offset != self._told_log_start_offset:
            self._next(Need.APPEND)

    def on_corrupt(self, offset: Offset, now_ns: int) -> None:
        """A batch at `offset` has a wrong checksum: fetch again from the same offset."""
        self.damaged_offset = offset
        self._back_off(Need.FETCH, "its leader sent a batch with a wrong checksum", now_ns)

    def on_offset(self, turn: int, error: int, offset: Offset, now_ns: int) -> bool:
        """Apply the response to LATEST or EARLIEST, or the error that took its place."""
        if not self._takes(turn) or self.need not in (Need.LATEST, Need.EARLIEST):
            return False
        if error == ErrorCode.FENCED_LEADER_EPOCH:
            self._stop(f"its leader has a larger epoch than {self.leader_epoch}")
        elif error != ErrorCode.NONE or offset < 0:
            self._back_off(Need.FETCH, f"the leader did not return its log end offset (error {error})", now_ns)
        elif self.need == Need.LATEST and offset < self.log_end_offset:
            self._cut(TruncateOrder(Truncation.TO_OFFSET, NO_LEADER_EPOCH, offset))
        elif self.need == Need.LATEST:
            self._next(Need.EARLIEST)
        elif offset > self.log_end_offset:
            self._cut(TruncateOrder(Truncation.START_AT, NO_LEADER_EPOCH, offset))
        else:
            self._back_off(Need.FETCH, f"offset {self.log_end_offset} was out of its leader's range", now_ns)
        return True

    def _cut(self, truncation: TruncateOrder) -> None:
        self.truncation = truncation
        self._next(Need.TRUNCATE)

    # --- completions of the own log-writer

    def on_log(self, turn: int, error: int, log_start_offset: Offset, log_end_offset: Offset, last_epoch: LeaderEpoch, now_ns: int) -> bool:
        """Apply the completion of a TELL, an append or a truncation; return False if it is
        outdated.
        """
        if not self._takes(turn) or self.need not in (Need.TELL, Need.APPEND, Need.TRUNCATE):
            return False
        if error == ErrorCode.KAFKA_STORAGE_ERROR:  # the disk is full or offline, or the log moves to another disk
            self.failures = max(self.failures, BACKOFF_LONG)
            self._back_off(Need.TELL, "its log cannot be written", now_ns)
        elif error != ErrorCode.NONE:
            self.truncation = TELL_ONLY
            self._back_off(Need.TELL, f"the log-writer answered error {error}", now_ns)
        else:
            if self.need == Need.APPEND:
                self._told_high_watermark, self._told_log_start_offset = self.high_watermark, self.leader_log_start_offset
            self.log_start_offset, self.log_end_offset, self.last_fetched_epoch = log_start_offset, log_end_offset, last_epoch
            self._next(Need.FETCH)
        return True

    # ---

    def _takes(self, turn: int) -> bool:
        return self.is_waiting and turn == self.turn

    def _next(self, need: Need) -> None:
        self.need, self.is_waiting = need, False

    def _stop(self, problem: str) -> None:
        self.problem = problem
        self._next(Need.NOTHING)

    def _back_off(self, need: Need, problem: str, now_ns: int) -> None:
        self.problem = problem
        self.retry_ns = now_ns + min(self._backoff_max_ns, BACKOFF_FIRST_NS << min(self.failures, BACKOFF_LONG))
        self.failures += 1
        self._next(need)
