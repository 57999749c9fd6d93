"""DeleteRecords that the leader has carried out, and that wait for the followers (KIP-107).

A follower's fetch has its log start offset (PROGRESS). A deletion is answered when the low
watermark, the smallest of these over all replicas on live boxes, has reached the requested offset,
or with REQUEST_TIMED_OUT at its deadline. The controller sends the live boxes (LIVE_BROKERS); until
then all count as live. Weak spot: a follower reports its new start before it is durable; after a
power cut in between it has the records again until its first fetch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.base.model import Offset
from appliance.ipc.channel import SinkChannel
from appliance.ipc.descriptors import GUARD, KIND, ROW, TOKEN
from appliance.shm.counters import Counters
from appliance.shm.partition_table import ROLE_LEADER
from services.log_writer.completions import Completions
from services.log_writer.replicas.replica import Replica
from services.log_writer.replicas.replicas_of_disk import Replicas


class Deletion(NamedTuple):
    """One partition of a DeleteRecords: everything below `offset` is to go."""

    channel: SinkChannel
    entry: tuple[Any, ...]
    offset: Offset

    @property
    def deadline_ns(self) -> int:
        guard: int = self.entry[GUARD]
        return guard


class AwaitedDeletions:
    """`turn` while `are_awaited`."""

    def __init__(self, partitions: Replicas, completions: Completions, clock: Clock, counters: Counters) -> None:
        self._partitions = partitions
        self._completions = completions
        self._clock = clock
        self._awaited: list[tuple[Deletion, Replica]] = []
        self._timed_out = counters.counter("log_writer.deletions_timed_out")

    @property
    def are_awaited(self) -> bool:
        return bool(self._awaited)

    def on_durable(self, deletion: Deletion, replica: Replica, code: int) -> None:
        """The leader's own log begins there for good (or will not)."""
        if code:
            self._completions.answer(deletion.channel, deletion.entry, code)
        elif not self._maybe_answer(deletion, replica, self._clock.monotonic_ns()):
            self._awaited.append((deletion, replica))

    def turn(self, now_ns: int) -> None:
        self._awaited = [each for each in self._awaited if not self._maybe_answer(*each, now_ns)]

    def _maybe_answer(self, deletion: Deletion, replica: Replica, now_ns: int) -> bool:
        if self._partitions.by_row.get(replica.row) is not replica:
            self._completions.answer(deletion.channel, deletion.entry, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return True
        if replica.role != ROLE_LEADER or replica.is_frozen:
            self._completions.answer(deletion.channel, deletion.entry, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return True
        low_watermark = self._low_watermark(replica)
        if low_watermark < deletion.offset and now_ns < deletion.deadline_ns:
            return False
        code = ErrorCode.NONE if low_watermark >= deletion.offset else ErrorCode.REQUEST_TIMED_OUT
        self._timed_out.add(int(code != ErrorCode.NONE))
        kind, row, token = deletion.entry[KIND], deletion.entry[ROW], deletion.entry[TOKEN]
        self._completions.add(deletion.channel, (kind, 0, int(code), row, token, -1, -1, low_watermark, replica.log.log_end_offset, replica.leader_epoch, 0, 0))
        return True

    def _low_watermark(self, replica: Replica) -> Offset:
        progress = replica.progress
        if progress is None:
            return replica.log.log_start_offset
        progress.log_start_offset = replica.log.log_start_offset
        return progress.low_watermark(self._partitions.live_brokers)

    def forget(self, channel: SinkChannel) -> None:
        """Drop the deletions of a source that is gone."""
        self._awaited = [each for each in self._awaited if each[0].channel is not channel]

    def fail(self) -> None:
        """The disk is let go of."""
        awaited, self._awaited = self._awaited, []
        for deletion, _ in awaited:
            self._completions.answer(deletion.channel, deletion.entry, ErrorCode.KAFKA_STORAGE_ERROR)
