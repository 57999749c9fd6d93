"""What a box answers to those who come by the network: followers, consumers, producers.

The leader's side of a fetch is `support/diverging_answers.py`, whose rule (`is_diverging`) is the shipped one. Owned by its box. A fetch that finds nothing
waits until the log or its high watermark moves, half a second at most. Weak spot: one partition, no sessions; sizes are numbers of records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from appliance.base.errors import ErrorCode
from tests.simulation.records import Record
from tests.simulation.world import MS, World
from tests.simulation.writer import LEADER, NONE, Writer
from tests.support.diverging_answers import diverging_answer

MAX_WAIT = 500 * MS
RECORDS_MAX = 8


class FetchRequest(NamedTuple):
    replica_id: int
    broker_epoch: int
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    high_watermark: int
    """What the follower received last (a session of the leader's remembers it)."""


class FetchAnswer(NamedTuple):
    error: int
    high_watermark: int = -1
    log_start_offset: int = -1
    records: tuple[Record, ...] = ()
    diverging: tuple[int, int] = (-1, -1)


class _Parked(NamedTuple):
    request: FetchRequest
    answer: Callable[[FetchAnswer], None]


class Acceptor:
    def __init__(self, world: World, writer: Writer, replicas: tuple[int, ...]) -> None:
        self._world = world
        self._replicas = replicas
        self._parked: dict[int, _Parked] = {}
        self._numbered = 0
        self.use(writer)

    def use(self, writer: Writer) -> None:
        """The log-writer has a new incarnation."""
        self._writer = writer
        writer.on_change = self._wake
        self._wake()

    # --- followers

    def fetch(self, request: FetchRequest, answer: Callable[[FetchAnswer], None]) -> None:
        writer = self._writer
        error = self._epoch_error(request.leader_epoch, request.replica_id)
        if error:
            answer(FetchAnswer(error))
            return
        log = writer.log
        diverging = diverging_answer(request.last_fetched_epoch, request.fetch_offset, log.epochs.end_offset_for, log.end_offset)
        if diverging == (-1, -1) or request.fetch_offset < log.start_offset or (diverging is None and request.fetch_offset > log.end_offset):
            answer(FetchAnswer(ErrorCode.OFFSET_OUT_OF_RANGE))
            return
        if diverging is not None:
            answer(FetchAnswer(0, writer.high_watermark, log.start_offset, (), diverging))
            return
        chance = self._world.chance
        delay = int(chance.random() * (MS if chance.random() < 0.95 else 150 * MS))
        arguments = request.leader_epoch, request.replica_id, request.fetch_offset, self._world.now, request.broker_epoch, request.log_start_offset
        self._world.after(delay, self._tell_progress, writer, arguments)
        if not self._maybe_answer(request, answer):
            self._numbered += 1
            self._parked[self._numbered] = _Parked(request, answer)
            self._world.after(MAX_WAIT, self._time_over, self._numbered)

    def _tell_progress(self, writer: Writer, arguments: tuple[int, int, int, int, int, int]) -> None:
        writer.apply_progress(*arguments)

    def _epoch_error(self, leader_epoch: int, replica_id: int) -> int:
        writer = self._writer
        if not writer.is_alive or writer.role != LEADER:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if leader_epoch != writer.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH if leader_epoch < writer.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
        return 0 if replica_id in self._replicas else ErrorCode.UNKNOWN_LEADER_EPOCH

    def _maybe_answer(self, request: FetchRequest, answer: Callable[[FetchAnswer], None], is_due: bool = False) -> bool:
        writer, log = self._writer, self._writer.log
        error = self._epoch_error(request.leader_epoch, request.replica_id)
        if error or request.fetch_offset < log.start_offset or request.fetch_offset > log.end_offset:
            answer(FetchAnswer(error or ErrorCode.OFFSET_OUT_OF_RANGE))
            return True
        records = log.between(request.fetch_offset, min(log.end_offset, request.fetch_offset + RECORDS_MAX))
        if records or writer.high_watermark != request.high_watermark or is_due:
            answer(FetchAnswer(0, writer.high_watermark, log.start_offset, tuple(records)))
            return True
        return False

    def _time_over(self, number: int) -> None:
        parked = self._parked.pop(number, None)
        if parked is not None:
            self._maybe_answer(parked.request, parked.answer, is_due=True)

    def _wake(self) -> None:
        for number, parked in list(self._parked.items()):
            if self._maybe_answer(parked.request, parked.answer):
                del self._parked[number]

    def end_offsets(self, leader_epoch: int, replica_id: int, answer: Callable[[int, int, int], None]) -> None:
        """ListOffsets of a follower: (error, log start offset, log end offset)."""
        log = self._writer.log
        answer(self._epoch_error(leader_epoch, replica_id), log.start_offset, log.end_offset)

    # --- clients

    def consume(self, offset: int, answer: Callable[[int, tuple[Record, ...], int, int], None]) -> None:
        """(error, records, log start offset, high watermark); any replica with a role may be asked."""
        writer = self._writer
        if not writer.is_alive or writer.role == NONE:
            answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, (), -1, -1)
        elif not writer.log.start_offset <= offset <= writer.log.end_offset:
            answer(ErrorCode.OFFSET_OUT_OF_RANGE, (), writer.log.start_offset, writer.high_watermark)
        else:
            records = writer.log.between(offset, min(writer.high_watermark, offset + RECORDS_MAX)) if offset < writer.high_watermark else []
            answer(0, tuple(records), writer.log.start_offset, writer.high_watermark)

    def produce(self, producer: int, sequence: int, value: int, acks_all: bool, answer: Callable[[int, int], None]) -> None:
        if self._writer.is_alive:
            self._writer.produce(producer, sequence, value, acks_all, answer)
        else:
            answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
