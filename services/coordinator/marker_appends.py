"""Transaction markers on their way: offered to the log-writers that lead the partitions, done when every in-sync replica has them.

Implements `transactions.ports.MarkerWriter`. Owned by the coordinator process. What another box leads goes there as a request (`marker_requests`); the group
coordinator there hears of it from its own acceptor. What cannot be offered now (no leader, a full ring) is refused with an error that the coordinator tries
again. Weak spot: in the moment in which leadership changes hands a marker is tried where the image says, and comes back once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.base.model import NO_LEADER, ProducerId, TopicPartition
from appliance.cluster.metadata_cache import LocalReplica, MetadataCache
from appliance.ipc.descriptors import ACKS_ALL_FLAG, COMMIT_FLAG, RAISED_EPOCH_FLAG, DescriptorKind
from appliance.shm.counters import Counters
from appliance.shm.partition_table import HIGH_WATERMARK, ISR_AND_CONFIG, PARTITION_AND_GENERATION, ROLE_AND_EPOCH, ROLE_LEADER, TornRow
from services.coordinator.marker_requests import MarkerRequests, leader_of
from services.coordinator.transactions.transaction import Marker

TIMEOUT_NS = 5_000_000_000
_HALF = (1 << 32) - 1

OnWritten = Callable[[ErrorCode], None]


class MarkerAppend:
    """One marker. `end_offset` is -1 until it is in the log."""

    __slots__ = ("deadline_ns", "end_offset", "is_answered", "leader_epoch", "marker", "on_written", "placement")

    def __init__(self, marker: Marker, on_written: OnWritten, deadline_ns: int) -> None:
        self.marker = marker
        self.on_written = on_written
        self.deadline_ns = deadline_ns
        self.placement: LocalReplica | None = None
        self.leader_epoch = -1
        self.end_offset = -1
        self.is_answered = False


class MarkerAppends:
    """All markers of one coordinator."""

    def __init__(
        self,
        view: MetadataCache,
        requests: MarkerRequests,
        clock: Clock,
        counters: Counters,
        on_ended: Callable[[TopicPartition, ProducerId, bool], None],
        must_wait: Callable[[TopicPartition], bool] = lambda _place: False,
    ) -> None:
        """`on_ended(partition, producer id, is commit)` is called for each marker written here; it updates a partition's open transactions in memory.
        `must_wait`: something that belongs before a marker there is still to be offered."""
        self._must_wait = must_wait
        self._view = view
        self._requests = requests
        self._clock = clock
        self._on_ended = on_ended
        self._refused: list[tuple[MarkerAppend, ErrorCode]] = []
        self._under_way: set[MarkerAppend] = set()
        self._written = counters.counter("coordinator.markers")
        self._failures = counters.counter("coordinator.failed_markers")

    def write(self, marker: Marker, on_written: OnWritten) -> None:
        leader = leader_of(self._view.image, marker.topic_partition)
        if leader not in (NO_LEADER, self._view.broker_id):
            self._requests.write(leader, marker, lambda code: self._on_answer(on_written, code))
            return
        append = MarkerAppend(marker, on_written, self._clock.monotonic_ns() + TIMEOUT_NS)
        code = self._offer(append)
        if code is not ErrorCode.NONE:
            self._refused.append((append, code))

    def _on_answer(self, on_written: OnWritten, code: ErrorCode) -> None:
        """Of another box."""
        (self._written if code is ErrorCode.NONE else self._failures).add()
        on_written(code)

    def refresh(self) -> None:
        """The image has changed."""
        self._requests.refresh(self._view.image)

    def _offer(self, append: MarkerAppend) -> ErrorCode:
        marker = append.marker
        placement = self._view.placement(*marker.topic_partition)
        if placement is None:
            return self._view.why_absent(*marker.topic_partition)
        try:
            words = placement.read_words()
        except TornRow:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if words[ROLE_AND_EPOCH] >> 32 != ROLE_LEADER or self._must_wait(marker.topic_partition):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        append.placement, append.leader_epoch = placement, words[ROLE_AND_EPOCH] & _HALF
        flags = ACKS_ALL_FLAG | (COMMIT_FLAG if marker.is_commit else 0) | (RAISED_EPOCH_FLAG if marker.raises_epoch else 0)
        descriptor = (
            DescriptorKind.TRANSACTION_MARKER, flags, 0, placement.row, placement.row_generation,
            append.leader_epoch, words[ISR_AND_CONFIG] & _HALF, 0, 0, 0, marker.producer_id, marker.coordinator_epoch, marker.producer_epoch, 0,
        )  # fmt: skip
        if not placement.proxy.offer_or_queue(descriptor, 0, append):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        self._under_way.add(append)
        return ErrorCode.NONE

    def on_completion(self, append: MarkerAppend, entry: tuple[Any, ...]) -> None:
        """Fields of `entry` as in `ipc.descriptors.Completion`."""
        if entry[2]:
            self._answer(append, ErrorCode(entry[2]))
            return
        append.end_offset = entry[8]
        self._maybe_answer(append)

    def on_lost(self, append: MarkerAppend) -> None:
        """Its log-writer died first: the marker is written again; a second one changes nothing."""
        self._answer(append, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _maybe_answer(self, append: MarkerAppend) -> bool:
        placement = append.placement
        if placement is None or append.end_offset < 0:
            return False
        if placement.proxy.table is not placement.table:  # its log-writer ended, and the table is unmapped: nothing of it may be read
            self._answer(append, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return True
        try:
            words = placement.read_words()
        except TornRow:
            return False
        if words[ROLE_AND_EPOCH] != ROLE_LEADER << 32 | append.leader_epoch or words[PARTITION_AND_GENERATION] & _HALF != placement.row_generation:
            self._answer(append, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif words[HIGH_WATERMARK] >= append.end_offset:
            self._written.add()
            marker = append.marker
            self._on_ended(marker.topic_partition, marker.producer_id, marker.is_commit)
            self._answer(append, ErrorCode.NONE)
        else:
            return False
        return True

    def _answer(self, append: MarkerAppend, code: ErrorCode) -> None:
        self._under_way.discard(append)
        if not append.is_answered:
            append.is_answered = True
            if code is not ErrorCode.NONE:
                self._failures.add()
            append.on_written(code)

    @property
    def waits_for_rows(self) -> bool:
        return any(append.end_offset >= 0 for append in self._under_way)

    def turn(self, now_ns: int) -> int:
        """Refusals, replicated ones, deadlines, requests to other boxes."""
        refused, self._refused = self._refused, []
        for append, code in refused:
            self._answer(append, code)
        done = sum(self._maybe_answer(append) for append in list(self._under_way))
        expired = [append for append in self._under_way if append.deadline_ns <= now_ns]
        for append in expired:
            self._answer(append, ErrorCode.REQUEST_TIMED_OUT)
        return len(refused) + done + len(expired) + self._requests.turn()
