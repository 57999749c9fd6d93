"""One source of a mirror: the copied partitions, where each is, and a long poll at each of their leaders.

Owned by the one thread of the mirror. Fetches are sent without waiting, and taken when they have arrived;
metadata and offsets are asked for with short time-outs. A source that fails is asked again after pauses
that double up to 30 s, while the other sources go on. Weak spots: each fetch names all partitions of its
leader (no fetch sessions); connecting to a host that does not answer delays the others by 2 s for each try.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from appliance.base.errors import ErrorCode, ProtocolViolation, RequestRefused
from appliance.base.model import NO_LEADER, NO_OFFSET, NO_TOPIC_ID, BrokerId, Offset, TopicId, TopicPartition
from appliance.client.admin import try_list_offsets
from appliance.client.cluster import ClusterClient
from appliance.client.connection import ClientConnection
from appliance.client.errors import METADATA_IS_STALE, ClientFailed, ReplyTimedOut, VersionUnsupported, error_code, refused
from appliance.client.groups import CommittedOffset
from appliance.client.messages import FETCH, FETCH_BY_ID, ClientFetchRequest, ClientFetchResponse, PartitionOfFetch, PartitionToFetch, TopicToFetch
from appliance.protocol.offset_apis import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from services.mirror.batch_copy import CopiedBatch, OffsetRuns, copy_fetched
from services.mirror.mirror_file import LATEST, STOP, MirroredSource
from services.mirror.topic_rules import LeftOut, PositionNote, Resumption, chain_of, plan_out_of_range, plan_resumption, read_note

FETCH_WAIT_MS: Final = 500
FETCH_BYTES: Final = 4 * 1024 * 1024
PARTITION_FETCH_BYTES: Final = 1024 * 1024
READ_COMMITTED: Final = 1
SILENCE_MS_MAX: Final = 15_000
FIRST_PAUSE_MS: Final = 500
LONGEST_PAUSE_MS: Final = 30_000
LONGEST_PARTITION_PAUSE_MS: Final = 60_000

COPYING, STOPPED, RETRYING, GONE = "copying", "stopped", "retrying", "gone"


class RetryPause:
    """Pauses after failures in a row, which double."""

    __slots__ = ("_longest_ms", "_next_ms", "until_ms")

    def __init__(self, longest_ms: int) -> None:
        self._longest_ms = longest_ms
        self._next_ms = FIRST_PAUSE_MS
        self.until_ms = 0

    def begin(self, now_ms: int) -> None:
        self.until_ms = now_ms + self._next_ms
        self._next_ms = min(2 * self._next_ms, self._longest_ms)

    def end(self) -> None:
        self._next_ms, self.until_ms = FIRST_PAUSE_MS, 0


class MirroredPartition:
    """A partition of a source, and its partition in the target."""

    def __init__(self, source: TopicPartition, target: TopicPartition, topic_id: TopicId | None) -> None:
        self.source = source
        self.target = target
        self.topic_id = topic_id
        self.leader = NO_LEADER
        self.next_offset = NO_OFFSET
        """to fetch from; -1: not yet known"""
        self.committed = NO_OFFSET
        """the position in the target"""
        self.end_offset = -1
        """The last stable offset of the source, as far as it is known."""
        self.state = COPYING
        self.is_refused = False
        """True from a refusal by the target until a round brings the partition's records there."""
        self.in_round = False
        self.joins = True
        """False once the target has called a batch too large: its limit may be below what joined batches have."""
        self.problem = ""
        self.pause = RetryPause(LONGEST_PARTITION_PAUSE_MS)
        self.batches: list[CopiedBatch] = []
        """fetched, not yet in the target"""
        self.runs = OffsetRuns()
        self.needs_commit = False
        """True if the position must be committed before anything is fetched from it."""
        self.records = self.bytes = self.rebuilt_batches = self.aborted_records = self.skipped_offsets = self.refusals = self.source_changes = 0

    @property
    def position(self) -> int:
        """Everything before it is in the target, or is no committed record."""
        return self.committed if self.batches or self.in_round else max(self.committed, self.next_offset)

    @property
    def lag(self) -> int:
        """Offsets between the position and the end; -1: unknown."""
        return -1 if self.end_offset < 0 or self.committed < 0 else max(0, self.end_offset - self.position)

    def is_wanted(self, now_ms: int) -> bool:
        """Return whether to fetch from it now."""
        return self.state in (COPYING, RETRYING) and self.next_offset >= 0 and not self.needs_commit and not self.batches and now_ms >= self.pause.until_ms

    def go_to(self, offset: Offset) -> None:
        self.next_offset = offset
        self.batches.clear()
        self.runs = OffsetRuns()
        self.needs_commit = True

    def fail(self, problem: str, now_ms: int) -> None:
        """Try again after a pause."""
        self.problem, self.state = problem, RETRYING
        self.pause.begin(now_ms)

    def succeed(self) -> None:
        self.problem, self.state, self.is_refused = "", COPYING, False
        self.pause.end()


class _LongPoll:
    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.asked: dict[TopicPartition, Offset] = {}
        self.sent_ms = 0


class MirrorSource:
    """`send_fetches`, `receive`, and what the mirror learns of the source."""

    def __init__(self, options: MirroredSource, cluster: ClusterClient, group_id: str) -> None:
        self.options = options
        self.cluster = cluster
        self.group_id = group_id
        self.cluster_id: str | None = None
        self.partitions: dict[TopicPartition, MirroredPartition] = {}
        self.positions: dict[TopicPartition, CommittedOffset] = {}
        """as the target has them, by target partition"""
        self.origins: dict[str, dict[str, str]] = {}
        """Of topics that are copies themselves: cluster ids they came from, and the group that says so."""
        self.left_out: list[LeftOut] = []
        self.problem = ""
        self.pause = RetryPause(LONGEST_PAUSE_MS)
        self.is_stale = True
        """True if metadata should be asked for before its time."""
        self.failures = 0
        self.translated_offsets = 0
        self.group_problem = ""
        self.notices: list[str] = []
        """Sentences for the log."""
        self.long_polls: dict[BrokerId, _LongPoll] = {}
        self._rotation = 0

    @property
    def name(self) -> str:
        return self.options.name

    def close(self) -> None:
        for long_poll in self.long_polls.values():
            long_poll.connection.close()
        self.long_polls.clear()
        self.cluster.close()

    def fail(self, error: Exception) -> None:
        """The source cannot be asked: a pause, then all anew."""
        if str(error) != self.problem:
            self.notices.append(f"source {self.name}: {error}; retrying")
        self.problem = str(error)
        self.failures += 1
        self.is_stale = True
        self.pause.begin(self.cluster.clock.monotonic_ms())
        self.close()

    def succeed(self) -> None:
        if self.problem:
            self.notices.append(f"source {self.name}: reading again")
        self.problem = ""
        self.pause.end()

    # --- fetching

    def send_fetches(self) -> None:
        """Send a fetch to each leader that has none under way and a partition that is wanted."""
        now_ms = self.cluster.clock.monotonic_ms()
        if now_ms < self.pause.until_ms:
            return
        by_leader: dict[BrokerId, list[MirroredPartition]] = {}
        for partition in self.partitions.values():
            if partition.leader != NO_LEADER and partition.is_wanted(now_ms):
                by_leader.setdefault(partition.leader, []).append(partition)
        for leader, wanted in by_leader.items():
            try:
                long_poll = self.long_polls.get(leader)
                if long_poll is None or not long_poll.connection.is_open:
                    long_poll = self.long_polls[leader] = _LongPoll(self.cluster.open_connection(leader))
                if not long_poll.asked:
                    self._send(long_poll, wanted, now_ms)
            except (ClientFailed, RequestRefused) as error:
                self.fail(error)
                return

    def _send(self, long_poll: _LongPoll, wanted: list[MirroredPartition], now_ms: int) -> None:
        self._rotation += 1
        first = self._rotation % len(wanted)
        wanted = wanted[first:] + wanted[:first]  # a broker fills its answer in this order
        by_topic: dict[tuple[str, TopicId | None], list[MirroredPartition]] = {}
        for partition in wanted:
            by_topic.setdefault((partition.source.topic, partition.topic_id), []).append(partition)
        topics = tuple(
            TopicToFetch(
                name,
                topic_id or NO_TOPIC_ID,
                tuple(PartitionToFetch(each.source.partition, fetch_offset=each.next_offset, max_bytes=PARTITION_FETCH_BYTES) for each in partitions),
            )
            for (name, topic_id), partitions in by_topic.items()
        )
        request = ClientFetchRequest(max_wait_ms=FETCH_WAIT_MS, max_bytes=FETCH_BYTES, isolation_level=READ_COMMITTED, topics=topics)
        api = FETCH_BY_ID if all(partition.topic_id is not None for partition in wanted) else FETCH
        try:
            long_poll.connection.send(api, request)
        except VersionUnsupported:
            long_poll.connection.send(FETCH, request)
        long_poll.asked = {partition.source: partition.next_offset for partition in wanted}
        long_poll.sent_ms = now_ms

    def waiting(self) -> dict[ClientConnection, BrokerId]:
        """Return the connections that will be readable when an answer arrives."""
        return {each.connection: leader for leader, each in self.long_polls.items() if each.asked and each.connection.is_open}

    def receive(self, leader: BrokerId) -> None:
        """Take the answer of a leader into its partitions."""
        long_poll = self.long_polls[leader]
        try:
            body: ClientFetchResponse = long_poll.connection.receive().body
            asked, long_poll.asked = long_poll.asked, {}
            if body.error_code != ErrorCode.NONE:
                raise refused(body.error_code, f"read from source {self.name}")
        except (ClientFailed, RequestRefused) as error:
            self.fail(error)
            return
        self.succeed()
        names = {each.topic_id: name.topic for name, each in self.partitions.items() if each.topic_id is not None}
        for topic in body.topics:
            for answer in topic.partitions:
                partition = self.partitions.get(TopicPartition(topic.topic or names.get(topic.topic_id, ""), answer.partition))
                # An answer for a position that was left meanwhile would bring records twice.
                if partition is not None and asked.get(partition.source) == partition.next_offset and not partition.batches:
                    self._take(partition, answer)

    def drop_silent(self) -> None:
        """Fail if a broker has not answered a long poll long after its time."""
        now_ms = self.cluster.clock.monotonic_ms()
        for long_poll in self.long_polls.values():
            if long_poll.asked and now_ms - long_poll.sent_ms > FETCH_WAIT_MS + SILENCE_MS_MAX:
                self.fail(ReplyTimedOut(f"the broker at {long_poll.connection.address} does not answer"))
                return

    def _take(self, partition: MirroredPartition, answer: PartitionOfFetch) -> None:
        now_ms = self.cluster.clock.monotonic_ms()
        code = error_code(answer.error_code)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._move_into_range(partition)
            return
        if code != ErrorCode.NONE:
            self.is_stale |= code in METADATA_IS_STALE
            self._report(partition, str(refused(answer.error_code, f"read {partition.source} of source {self.name}").message), now_ms)
            return
        try:
            copied = copy_fetched(answer.records or b"", partition.next_offset, answer.aborted_transactions or (), partition.joins)
        except ProtocolViolation as error:
            self._report(partition, f"{partition.source} of source {self.name}: {error}", now_ms)
            return
        if partition.state == RETRYING and not partition.is_refused:
            partition.succeed()
        partition.end_offset = answer.last_stable_offset if answer.last_stable_offset >= 0 else answer.high_watermark
        partition.next_offset = copied.next_offset
        partition.batches = copied.batches
        partition.aborted_records += copied.aborted_records

    def _report(self, partition: MirroredPartition, problem: str, now_ms: int) -> None:
        if problem != partition.problem:
            self.notices.append(f"{problem}; retrying")
        partition.fail(problem, now_ms)

    # --- positions

    def resume(self, partition: MirroredPartition) -> None:
        """Go on where the target says."""
        partition.batches, partition.in_round = [], False
        if partition.state == STOPPED:
            return
        position = self.positions.get(partition.target)
        note = PositionNote() if position is None else read_note(position.metadata)
        planned = plan_resumption(None if position is None else position.offset, note, partition.topic_id)
        if position is None:
            partition.next_offset = partition.committed = NO_OFFSET
            partition.runs = OffsetRuns()
            self.is_stale = True
            return
        partition.next_offset = partition.committed = position.offset
        partition.needs_commit = False
        if not list(partition.runs):
            partition.runs = OffsetRuns(note.runs)
        self.on_change(partition, planned)

    def note_of(self, partition: MirroredPartition, runs: OffsetRuns) -> PositionNote:
        """Return what is committed beside a position behind `runs`."""
        origins = self.origins.get(partition.source.topic, {})
        return PositionNote(partition.topic_id or NO_TOPIC_ID, chain_of(self.cluster_id, list(origins)), runs.sample())

    def find_starts(self, partitions: Iterable[MirroredPartition]) -> None:
        """Let partitions without a position begin where the options say."""
        wanted = {each.source: each for each in partitions}
        timestamp = LATEST_TIMESTAMP if self.options.start == LATEST else EARLIEST_TIMESTAMP
        found, error = try_list_offsets(self.cluster, wanted, timestamp, READ_COMMITTED)
        for name, place in found.items():
            wanted[name].go_to(place.offset)
        if error is not None:
            self.is_stale = True

    def _move_into_range(self, partition: MirroredPartition) -> None:
        try:
            starts, error = try_list_offsets(self.cluster, [partition.source], EARLIEST_TIMESTAMP)
            ends, _ = try_list_offsets(self.cluster, [partition.source], LATEST_TIMESTAMP)
        except (ClientFailed, RequestRefused) as failure:
            self._report(partition, f"{partition.source} of source {self.name}: {failure}", self.cluster.clock.monotonic_ms())
            return
        if error is not None or partition.source not in starts or partition.source not in ends:
            self.is_stale = True
            return
        start, end = starts[partition.source].offset, ends[partition.source].offset
        planned = plan_out_of_range(partition.next_offset, start, end)
        if planned.problem is None:  # the leader has changed meanwhile, or is about to
            partition.pause.begin(self.cluster.clock.monotonic_ms())
        self.on_change(partition, planned)

    def on_change(self, partition: MirroredPartition, planned: Resumption) -> None:
        """Records that should come next are gone: go on behind them, or stop, as the options say."""
        if planned.problem is None:
            return
        is_known = partition.problem == planned.problem  # the position behind it could not be committed
        partition.source_changes += not is_known
        partition.problem = planned.problem
        if self.options.on_source_change == STOP:
            partition.state = STOPPED
            partition.batches.clear()
            self.notices.append(f"{partition.source} of source {self.name} stopped: {planned.problem}; see docs/mirroring.md, on-source-change")
            return
        if not is_known:
            partition.skipped_offsets += max(0, planned.offset - partition.next_offset)
            self.notices.append(f"{partition.source} of source {self.name}: {planned.problem}; going on at offset {planned.offset}")
        partition.go_to(Offset(planned.offset))
