"""What a leader's answer means for one partition: the rules hear it, what can be appended is put aside for the log-writer, what is wrong is counted and said.

Owned by a lane. Weak spot: of an error only its code is known; a leader says no more.
"""

from __future__ import annotations

from appliance.base.logging import Logger
from appliance.protocol.fetch import FetchPartition
from appliance.protocol.replica_fetch import FetchedPartition
from services.replica_fetcher.follower_fetch import Need
from services.replica_fetcher.replica_batches import find_good_batches
from services.replica_fetcher.replica_counters import ReplicaCounters
from services.replica_fetcher.replica_partition import FollowedPartition, ReceivedAnswer

_NOT_DIVERGED = (-1, -1)


class AnswerJudge:
    """For the answers of one leader."""

    def __init__(self, leader_id: int, counters: ReplicaCounters, log: Logger) -> None:
        self._leader_id = leader_id
        self._counters = counters
        self._log = log

    def judge(
        self, followed: FollowedPartition, asked: FetchPartition, fetched: FetchedPartition, memory: memoryview, answer: ReceivedAnswer, now_ns: int
    ) -> bool:
        """Whether the answer still means the partition; its rules' need tells what comes next."""
        rules = followed.rules
        if rules.need != Need.FETCH or asked.current_leader_epoch != rules.leader_epoch or asked.fetch_offset != rules.log_end_offset:
            return False  # something else happened while the leader was asked
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

    def _on_corrupt(self, followed: FollowedPartition, problem: str, offset: int) -> None:
        self._counters.corrupt_batches.add()
        topic, partition = followed.place.topic, followed.place.partition
        self._log.error(
            f"broker {self._leader_id} sent a damaged copy of {topic}-{partition} at offset {offset}: {problem}; that is told, and it is fetched again",
            topic=topic,
            partition=partition,
        )
