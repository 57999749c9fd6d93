"""One followed partition as its replica-fetcher sees it: what is to be done next, and what an answer means.

Owned by the replica-fetcher, one object for each partition that it follows. Pure: time is an argument (monotonic nanoseconds). The order is always: learn from
the own log-writer where the log ends and under which leader epoch (TELL), fetch from there, append what comes, fetch on; where the logs differ, cut
(by leader epoch), where the leader has nothing for our offset, ask it for its ends. One thing is under way at a time, so that a fetch never names an
offset that the log-writer has not confirmed: the leader takes it for a promise.
Weak spot: an answer that lies (a leader whose log starts above its end) is believed.
"""

from __future__ import annotations

from enum import IntEnum

from appliance.base.errors import ErrorCode
from appliance.ipc.descriptors import Truncation
from appliance.ipc.replication_descriptors import TruncateOrder

UNKNOWN = -1
BACKOFF_FIRST_NS = 20_000_000
"""Short, because most errors come from a leader, or a log-writer of our own, that has not heard yet what we have."""
BACKOFF_LONG = 16
"""Failures after which the wait is the longest."""


class Need(IntEnum):
    """What a followed partition needs next."""

    NOTHING = 0
    """Until it is told of a newer leader epoch: it was fenced."""
    TELL = 1
    """Of the own log-writer: where the log ends."""
    FETCH = 2
    """Of the leader, at `log_end_offset` with `last_fetched_epoch`."""
    APPEND = 3
    """By the own log-writer: the records that came, or without any the leader's `high_watermark` and `leader_log_start_offset` alone."""
    TRUNCATE = 4
    """By the own log-writer: `truncation`."""
    LATEST = 5
    """Of the leader: ListOffsets, timestamp -1, as a replica."""
    EARLIEST = 6
    """Of the leader: ListOffsets, timestamp -2."""


TELL_ONLY = TruncateOrder(Truncation.TELL, UNKNOWN, UNKNOWN)


class FollowerFetch:
    """Offsets are those of the own log, as its log-writer last said, unless a name says otherwise."""

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
        self.leader_epoch = UNKNOWN
        self.log_start_offset = UNKNOWN
        self.log_end_offset = UNKNOWN
        self.last_fetched_epoch = UNKNOWN
        """Under which the own log ends."""
        self.high_watermark = UNKNOWN
        """The leader's."""
        self.leader_log_start_offset = UNKNOWN
        self.damaged_offset = UNKNOWN
        """From where on the leader sent what is damaged; it is told so, until it sends something else."""
        self.need = Need.NOTHING
        self.is_waiting = False
        """What is needed was asked for. (Of a fetch nobody keeps this: it names the offset it was asked at.)"""
        self.turn = 0
        """Number of what was asked for last; answers name it, so that late ones are known."""
        self.retry_ns = 0
        """Not before this time."""
        self.failures = 0
        """In a row."""
        self.truncation = TELL_ONLY
        self.problem = ""
        """Why nothing, or nothing yet, for people."""
        self._told_high_watermark = UNKNOWN
        self._told_log_start_offset = UNKNOWN

    # --- what the box is told

    def follow(self, leader_id: int, leader_epoch: int, now_ns: int) -> bool:
        """Follow `leader_id` under `leader_epoch`; False if that, or something newer, is what we do."""
        if leader_epoch <= self.leader_epoch:
            return False
        self.leader_id, self.leader_epoch = leader_id, leader_epoch
        self.restart(now_ns)
        return True

    def restart(self, now_ns: int) -> None:
        """Begin anew under the same epoch: the log-writer has a new life, the log another row."""
        self.need, self.is_waiting = Need.TELL, False
        self.turn += 1
        self.truncation = TELL_ONLY
        self.retry_ns, self.failures, self.problem = now_ns, 0, ""
        self._told_high_watermark = self._told_log_start_offset = self.damaged_offset = UNKNOWN

    def is_due(self, now_ns: int) -> bool:
        return self.need != Need.NOTHING and not self.is_waiting and now_ns >= self.retry_ns

    def may_fetch(self, now_ns: int) -> bool:
        """Whether a fetch may name it, at `log_end_offset`."""
        return self.need == Need.FETCH and now_ns >= self.retry_ns

    def begin(self) -> int:
        """What is needed (anything but a fetch) was asked for; the number that its answer has to name. A question to the leader that is lost is answered
        with NETWORK_EXCEPTION by whoever lost it."""
        self.is_waiting = True
        self.turn += 1
        return self.turn

    # --- what the leader answers

    def on_fetched(
        self,
        asked_epoch: int,
        asked_offset: int,
        error: int,
        has_records: bool,
        high_watermark: int,
        log_start_offset: int,
        now_ns: int,
        diverging_epoch: int = UNKNOWN,
        diverging_end_offset: int = UNKNOWN,
    ) -> bool:
        """What the leader said to a fetch under `asked_epoch` at `asked_offset`; False: it means us no more and is to be thrown away. Records are to be
        appended if the need is APPEND afterwards."""
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
        self, has_records: bool, high_watermark: int, log_start_offset: int, diverging_epoch: int, diverging_end_offset: int, now_ns: int
    ) -> None:
        common_end = self.log_end_offset if diverging_end_offset == UNKNOWN else diverging_end_offset
        if self.log_start_offset < log_start_offset and common_end <= log_start_offset:
            # What the leader has begins where ours ends, or is to be cut: it knows no epochs of what is below, which may differ from what it had there,
            # and must not come under a high watermark.
            self._cut(TruncateOrder(Truncation.START_AT, UNKNOWN, log_start_offset))
            return
        if diverging_end_offset != UNKNOWN:
            self.truncation = TruncateOrder(Truncation.DIVERGED, diverging_epoch, diverging_end_offset)
            self._next(Need.TRUNCATE)
            return
        self.failures, self.problem, self.damaged_offset = 0, "", UNKNOWN
        self.high_watermark, self.leader_log_start_offset = high_watermark, log_start_offset
        if has_records or high_watermark != self._told_high_watermark or log_start_offset != self._told_log_start_offset:
            self._next(Need.APPEND)

    def on_corrupt(self, offset: int, now_ns: int) -> None:
        """What the leader sent does not have the checksum that it should have, from `offset` on: once more, from the same offset."""
        self.damaged_offset = offset
        self._back_off(Need.FETCH, "its leader sent a batch with a wrong checksum", now_ns)

    def on_offset(self, turn: int, error: int, offset: int, now_ns: int) -> bool:
        """The answer to LATEST or EARLIEST, or why there is none."""
        if not self._takes(turn) or self.need not in (Need.LATEST, Need.EARLIEST):
            return False
        if error == ErrorCode.FENCED_LEADER_EPOCH:
            self._stop(f"its leader has a larger epoch than {self.leader_epoch}")
        elif error != ErrorCode.NONE or offset < 0:
            self._back_off(Need.FETCH, f"the leader did not say where its log ends (error {error})", now_ns)
        elif self.need == Need.LATEST and offset < self.log_end_offset:
            self._cut(TruncateOrder(Truncation.TO_OFFSET, UNKNOWN, offset))
        elif self.need == Need.LATEST:
            self._next(Need.EARLIEST)
        elif offset > self.log_end_offset:
            self._cut(TruncateOrder(Truncation.START_AT, UNKNOWN, offset))
        else:
            self._back_off(Need.FETCH, f"offset {self.log_end_offset} was out of its leader's range", now_ns)
        return True

    def _cut(self, truncation: TruncateOrder) -> None:
        self.truncation = truncation
        self._next(Need.TRUNCATE)

    # --- what the own log-writer answers

    def on_log(self, turn: int, error: int, log_start_offset: int, log_end_offset: int, last_epoch: int, now_ns: int) -> bool:
        """The completion of a TELL, an append or a truncation; False: it means us no more."""
        if not self._takes(turn) or self.need not in (Need.TELL, Need.APPEND, Need.TRUNCATE):
            return False
        if error == ErrorCode.KAFKA_STORAGE_ERROR:  # the disk is full, or its log goes to another one, or it is offline until its log-writer has a new life
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
