"""Check a leader's response for one partition: apply it to the state machine, keep valid batches
for the log-writer, count and log errors.

Owned by a `LeaderFetcher`. Weak spot: of an error only the code is known.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from appliance.base.logging import Logger
from appliance.base.model import NO_LEADER_EPOCH, NO_OFFSET, LeaderEpoch, Offset
from appliance.protocol.fetch import FetchPartition
from appliance.protocol.replica_fetch import FetchedPartition
from appliance.records.batch import LAST_OFFSET_DELTA_AT, LOG_OVERHEAD, RECORDS_AT, stored_batch_problem
from services.replica_fetcher.follower_fetch import Need
from services.replica_fetcher.replica_counters import ReplicaCounters
from services.replica_fetcher.replica_partition import FollowedPartition, ReceivedAnswer

# ---- batches as a leader sent them


_OFFSET_LENGTH_EPOCH = Struct(">qii")
_LAST_OFFSET_DELTA = Struct(">i")
OFFSET_MAX = 2**63 - 1


class GoodBatches(NamedTuple):
    """`memory[position:end]` can be appended, empty if nothing can; `problem` says why not all,
    `problem_offset` where.
    """

    position: int
    end: int
    batch_count: int
    next_offset: Offset
    problem: str
    problem_offset: Offset


def find_good_batches(memory: memoryview, position: int, limit: int, fetch_offset: Offset, leader_epoch: LeaderEpoch) -> GoodBatches:
    """Find the whole, valid batches in `memory[position:limit]`, fetched at `fetch_offset` under
    `leader_epoch`.

    A response ends where the byte limit fell, so its last batch may be incomplete, and the first
    may begin before `fetch_offset`.
    """
    unpack, unpack_delta = _OFFSET_LENGTH_EPOCH.unpack_from, _LAST_OFFSET_DELTA.unpack_from
    start, next_offset, count = position, fetch_offset, 0
    problem = ""
    while position + RECORDS_AT <= limit:
        base_offset, batch_length, batch_epoch = unpack(memory, position)
        size_bytes = batch_length + LOG_OVERHEAD
        if size_bytes > limit - position:
            break  # incomplete: the next fetch returns it
        problem = stored_batch_problem(memory, position, limit) or ""
        if problem:
            break
        last_offset = base_offset + unpack_delta(memory, position + LAST_OFFSET_DELTA_AT)[0]
        if last_offset < fetch_offset and not count:
            position = start = position + size_bytes
            continue
        if base_offset < next_offset or last_offset >= OFFSET_MAX:
            problem = f"a batch with offsets {base_offset} to {last_offset} where {next_offset} is due"
            break
        if not 0 <= batch_epoch <= leader_epoch:
            problem = f"a batch of leader epoch {batch_epoch} from a leader of epoch {leader_epoch}"
            break
        position += size_bytes
        next_offset = last_offset + 1
        count += 1
    if not count and not problem and limit > start:
        problem = f"{limit - start} bytes without a whole batch"
    return GoodBatches(start, position, count, next_offset, problem, next_offset)


_NOT_DIVERGED = (NO_LEADER_EPOCH, NO_OFFSET)


class AnswerJudge:
    """Checks the responses of one leader."""

    def __init__(self, leader_id: int, counters: ReplicaCounters, log: Logger) -> None:
        self._leader_id = leader_id
        self._counters = counters
        self._log = log

    def judge(
        self, followed: FollowedPartition, asked: FetchPartition, fetched: FetchedPartition, memory: memoryview, answer: ReceivedAnswer, now_ns: int
    ) -> bool:
        """Apply the response; return False if it is outdated.

        The need of the partition's rules says what comes next.
        """
        rules = followed.rules
        if rules.need != Need.FETCH or asked.current_leader_epoch != rules.leader_epoch or asked.fetch_offset != rules.log_end_offset:
            return False  # the partition restarted while the fetch was in flight
        good = None
        diverging = fetched.diverging_epoch or _NOT_DIVERGED
        if fetched.records_size and not fetched.error_code and diverging == _NOT_DIVERGED:
            limit = fetched.records_position + fetched.records_size
            good = find_good_batches(memory, fetched.records_position, limit, asked.fetch_offset, rules.leader_epoch)
            if good.problem:
                self._on_corrupt(followed, good.problem, good.problem_offset)
                if not good.batch_count:
                    rules.on_corrupt(good.problem_offset, now_ns)
                    return True
        if fetched.error_code:
            self._counters.on_error(fetched.error_code)
        has_records = good is not None and good.batch_count > 0
        rules.on_fetched(
            asked.current_leader_epoch,
            asked.fetch_offset,
            fetched.error_code,
            has_records,
            fetched.high_watermark,
            fetched.log_start_offset,
            now_ns,
            *diverging,
        )
        if good is not None and has_records and followed.wants_append:
            followed.take_records(answer, good.position, good.end - good.position)
            self._counters.fetched_bytes.add(good.end - good.position)
        return True

    def _on_corrupt(self, followed: FollowedPartition, problem: str, offset: Offset) -> None:
        self._counters.corrupt_batches.add()
        topic, partition = followed.place.topic, followed.place.partition
        self._log.error(
            f"broker {self._leader_id} sent a damaged copy of {topic}-{partition} at offset {offset}: {problem}; fetching it again, the leader checks its log",
            topic=topic,
            partition=partition,
        )
