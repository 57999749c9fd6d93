"""Fetch: read each partition, send what is readable by sendfile, park long polls until there is enough.

`evaluate` reads all partitions of a fetch (`fetch/partition_read.py`) and then does one of three things: it
answers; it waits for log-readers, whose last answer evaluates the fetch again; or it parks the fetch, which
is evaluated again when a row changes or its deadline passes (`delayed.py`). A fetch is answered when one of
these holds: there are `min_bytes`, there is an error or another urgent result, `max_wait_ms` has passed, or
more records cannot be returned in this response.

A fetch of a session (`fetch/fetch_session.py`) reads only the partitions that are awake; the others sleep
until their row changes. Before version 4 records are converted (`fetch/message_sets.py`).

Owned by one acceptor. Weak spots: a consumer's fetch with one cold partition is answered when that is read,
although its other partitions are in the page cache; one response has records of at most `TARGETS_MAX`
partitions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.cluster.lease_gate import LeaseGate
from appliance.cluster.metadata_cache import LocalReplica, MetadataCache
from appliance.ipc.log_reader_proxy import LogReaderProxy
from appliance.protocol.fetch import (
    CONSUMER_REPLICA_ID,
    MAGIC_2_SINCE,
    NODE_ENDPOINTS_SINCE,
    READ_COMMITTED,
    TOPIC_IDS_SINCE,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    decode_fetch,
    encode_fetch_response,
)
from appliance.protocol.framing import RequestHeader
from appliance.protocol.leader_hints import NodeEndpoint
from appliance.shm.counters import Counter, Counters
from appliance.shm.mapping import signed
from appliance.shm.partition_table import LOG_END_OFFSET
from services.acceptor.connection import Connection
from services.acceptor.delayed import DelayedRequests
from services.acceptor.fetch.cold_reads import ColdReads
from services.acceptor.fetch.fetch_session import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION, FetchSession, FetchSessions, SessionPartition, key_of
from services.acceptor.fetch.follower_fetches import FollowerFetches
from services.acceptor.fetch.follower_reads import FollowerReads
from services.acceptor.fetch.message_sets import CONVERTED_BYTES_MAX, DownConversion
from services.acceptor.fetch.parked_growth import FEW_PARTITIONS, ParkedGrowth
from services.acceptor.fetch.partition_read import TARGETS_MAX, PartitionRead, PartitionReading
from services.acceptor.fetch.pending_fetch import PendingFetch
from services.acceptor.fetch.record_ranges import Residency, SegmentFiles
from services.acceptor.inter_broker import InterBrokerGate

TOPICS_MAX = 200
LABEL = 'fetch.topic_bytes{{topic="{topic}"}}'
_PREFIX = LABEL.partition("{")[0]


class TopicTraffic:
    """Bytes sent to consumers, by topic. (Received bytes are in the partition tables.)

    Weak spot: a process has a limited number of counters. After `TOPICS_MAX` topics the others share
    `…{topic=""}`, and a deleted topic keeps its counter.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._by_topic: dict[str, Counter] = {}
        self._counters_left = TOPICS_MAX - sum(label.startswith(_PREFIX) for label in counters.labels())

    def add(self, topic: str, size_bytes: int) -> None:
        counter = self._by_topic.get(topic)
        if counter is None:
            counter = self._by_topic[topic] = self._counter_of(topic)
        counter.add(size_bytes)

    def _counter_of(self, topic: str) -> Counter:
        """A counter of a previous incarnation is used again, even if no other is free."""
        label = LABEL.format(topic=topic)
        if label not in self._counters.labels():
            if self._counters_left <= 0:
                return self._counters.counter(LABEL.format(topic=""))
            self._counters_left -= 1
        return self._counters.counter(label)


class FetchHandler:
    """All fetches of one acceptor."""

    read_class: type[PartitionRead] = PartitionRead

    def __init__(
        self,
        view: MetadataCache,
        readers: dict[str, LogReaderProxy],
        delayed: DelayedRequests,
        clock: Clock,
        counters: Counters,
        fetch_max_bytes: int,
        segment_files_max: int,
        residency: Residency,
        cold_reads: ColdReads,
        session_slots: int,
        new_session_id: Callable[[], int],
        gate: InterBrokerGate,
        on_reply: Callable[[Connection], None],
        prefers_racks: bool = False,
        lease: LeaseGate | None = None,
    ) -> None:
        """`prefers_racks`: consumers are sent to a replica in their rack (`replica.selector.class`)."""
        self._view = view
        self._delayed = delayed
        self.sessions = FetchSessions(session_slots, new_session_id, delayed.rows.remove_sleeper, self._on_session_closed)
        self._clock = clock
        self._fetch_max_bytes = fetch_max_bytes
        self._gate = gate
        self._on_reply = on_reply
        self.files = SegmentFiles(segment_files_max, residency)
        self._targets_max = min(TARGETS_MAX, segment_files_max)
        self._wide_fetches = 0
        self._is_evaluating = False
        self._to_evaluate: deque[tuple[PendingFetch, bool]] = deque()
        self._message_sets = DownConversion(view, counters)
        self._prefers_racks = prefers_racks
        self.follower_reads = FollowerReads(cold_reads, clock, self._wake_session)
        self._followers = FollowerFetches(counters)
        self.reading = PartitionReading(
            view,
            readers,
            self.files,
            residency,
            cold_reads,
            self._message_sets,
            self._targets_max,
            self._followers,
            self.follower_reads,
            lease,
            prefers_racks,
            clock,
            self.evaluate,
        )
        self._requests = counters.counter("fetch.requests")
        self._parked = counters.counter("fetch.parked")
        self._hastened = counters.counter("fetch.hastened")
        self._range_bytes = counters.counter("fetch.range_bytes")
        self._follower_bytes = counters.counter("fetch.follower_bytes")
        self._errors = counters.counter("fetch.errors")
        self._topic_traffic = TopicTraffic(counters)
        self._sessions_open = counters.gauge("fetch.sessions")
        self._session_partitions = counters.gauge("fetch.session_partitions")
        self._session_evictions = counters.counter("fetch.session_evictions")
        self._session_errors = counters.counter("fetch.session_errors")
        self._incremental = counters.counter("fetch.incremental")
        self._latency = counters.histogram("fetch.latency_us")
        self._latency_with_wait = counters.histogram("fetch.latency_with_wait_us")

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        request = decode_fetch(buffer, header.body_position, limit, header.api_version)
        self._requests.add()
        if request.replica_id != CONSUMER_REPLICA_ID:
            problem = self._gate.fetch_problem(connection, request.replica_id, request.replica_epoch)
            if problem is not None:
                self._refuse_replica(connection, header, request, problem)
                return
            if request.replica_id >= 0:
                connection.limits = None  # a follower; what only claims to be a replica has been refused
        if len(request.partitions) > 1:
            self._tidy(request.partitions)
        if header.api_version < MAGIC_2_SINCE:
            self._message_sets.reorder(header.api_version, request.partitions)
        reply = connection.expect_reply(False)
        deadline_ns = self._clock.monotonic_ns() + max(0, request.max_wait_ms) * 1_000_000
        pending = PendingFetch(self, reply, request, header.api_version, header.correlation_id, deadline_ns)
        if (request.session_id or request.session_epoch > INITIAL_EPOCH) and not self._join_session(pending):
            return
        self.evaluate(pending, request.max_wait_ms <= 0)

    def _refuse_replica(self, connection: Connection, header: RequestHeader, request: FetchRequest, problem: ErrorCode) -> None:
        """Refuse a Fetch as a replica that no box sent; versions without an error for the whole have one per partition."""
        self._errors.add()
        results = [FetchPartitionResult(wanted.topic, wanted.topic_id, wanted.partition, problem) for wanted in request.partitions]
        reply = connection.expect_reply(False)
        reply.pieces = list(encode_fetch_response(header.api_version, header.correlation_id, problem, NO_SESSION, results))
        reply.ready = True
        self._on_reply(connection)

    def _tidy(self, partitions: list[FetchPartition]) -> None:
        """Keep the last entry of each partition, as Kafka does, and rotate the partitions of a wide fetch.

        A response has records of at most `_targets_max` partitions. A client may always use the same order,
        so each wide fetch starts with other partitions; otherwise the last ones would never be read.
        """
        unique = {key_of(wanted): wanted for wanted in partitions}
        if len(unique) < len(partitions):
            partitions[:] = unique.values()
        if len(partitions) > self._targets_max:
            self._wide_fetches += 1
            start = self._wide_fetches * self._targets_max % len(partitions)
            partitions[:] = partitions[start:] + partitions[:start]

    def has_grown(self, pending: PendingFetch, growth: ParkedGrowth) -> bool:
        """True if a parked fetch of many partitions is worth evaluating: reading all of them is expensive."""
        return growth.is_enough(self._delayed.rows.take_changes(pending.ticket), self._view)

    def woken(self, pending: PendingFetch) -> None:
        """A wait ended: from now on only this process delays the response (for the latency histogram)."""
        if not pending.ready_ns:
            pending.ready_ns = self._clock.monotonic_ns()

    def evaluate(self, pending: PendingFetch, is_due: bool) -> None:
        """Read all partitions; then answer, wait for log-readers, or park. `is_due`: answer with what there is.

        The death of a log-reader may be detected while a question is sent. Then all fetches that wait for it
        are evaluated from inside this evaluation, this one included. They are queued instead: an evaluation
        that began must not see its own state change.
        """
        if is_due:
            pending.reply.gives_way = False  # it will be answered, at the latest when its log-readers have
        if self._is_evaluating:
            self._to_evaluate.append((pending, is_due))
            return
        self._is_evaluating = True
        try:
            self._evaluate(pending, is_due)
            while self._to_evaluate:
                self._evaluate(*self._to_evaluate.popleft())
        finally:
            self._is_evaluating = False

    def _evaluate(self, pending: PendingFetch, is_due: bool) -> None:
        if pending.finished or pending.questions > 0:
            return
        pending.unknown = pending.targets = 0
        pending.is_held_back = pending.is_partial = False
        if pending.reply.connection.closed:
            self._leave(pending)
            return
        if pending.session is not None:
            self._evaluate_session(pending, pending.session, is_due)
            return
        request = pending.request
        results: list[FetchPartitionResult] = []
        room = min(request.max_bytes, self._fetch_max_bytes)
        limits = pending.reply.connection.limits
        if limits is not None:
            room = limits.fetch_bytes(room)
        is_converted = pending.version < MAGIC_2_SINCE
        if is_converted:
            room = min(room, CONVERTED_BYTES_MAX)
        total = 0
        failed = urgent = False
        watched: list[LocalReplica] = []
        reads, reading = pending.reads, self.reading
        for index, wanted in enumerate(request.partitions):
            read = reads.get(index)
            if read is None:
                read = reads[index] = self.read_class(reading, pending, index, wanted)
            result = read.step(room - total, total == 0)
            if result is None:
                continue
            if result.error_code:
                failed = True
            else:
                urgent = urgent or result.diverging_epoch is not None or pending.cold is not None or result.preferred_read_replica >= 0
                watched.append(read.replica)
                if result.records is not None:
                    total += result.records.size_bytes  # type: ignore[union-attr]
            results.append(result)
        if pending.unknown:
            pending.rounds += not pending.is_held_back
            return
        needed_bytes = min(request.min_bytes, room)
        is_ready = failed or urgent or is_due or total >= needed_bytes or not request.partitions or (pending.is_partial and total > 0)
        is_ready = is_ready or self._clock.monotonic_ns() >= pending.deadline_ns
        if is_ready and is_converted and total:
            results = self._message_sets.convert(pending.version, request.partitions, results)
            total = sum(len(result.records) for result in results if isinstance(result.records, bytes))
            failed = any(result.error_code for result in results)
            # If only markers were read, nothing is left after the conversion: keep waiting.
            is_ready = failed or is_due or total > 0 or self._clock.monotonic_ns() >= pending.deadline_ns
        if is_ready and limits is not None and limits.holds_back(pending.reply, pending.version, total):
            self._answer(pending, NO_SESSION, [], 0, False)
        elif is_ready:
            session_id = self._create_session(pending, results) if request.session_epoch == INITIAL_EPOCH else NO_SESSION
            self._answer(pending, session_id, results, total, failed)
        elif not pending.ticket:
            self._parked.add()
            pending.on_parked()
            pending.ticket = self._delayed.park(pending, watched, pending.deadline_ns)
            if len(watched) > FEW_PARTITIONS:
                self._delayed.rows.record_changes(pending.ticket)
                pending.growth = ParkedGrowth(pending.reads_to_end, pending.only_leader)
                pending.growth.begin(watched, request.partitions, results, needed_bytes)
                self.evaluate(pending, False)  # a row may have changed before it was watched
            else:
                pending.ready_ns = 0  # if a row has changed already, `RowWatch.watch` wakes the fetch in this turn
        else:
            pending.ready_ns = 0
            if pending.growth is not None:
                pending.growth.begin(watched, request.partitions, results, needed_bytes)

    def _answer(self, pending: PendingFetch, session_id: int, results: list[FetchPartitionResult], total: int, failed: bool) -> None:
        self._leave(pending)
        if failed:
            self._errors.add()
        self._range_bytes.add(total)
        if pending.request.replica_id >= 0:
            self._follower_bytes.add(total)
            self._followers.count_sent(self._view.image, pending.request.replica_id, results, self._clock.monotonic_ns())
        for result in results if pending.request.replica_id < 0 else ():
            records = result.records
            if records is not None:
                self._topic_traffic.add(result.topic, len(records) if isinstance(records, bytes) else records.size_bytes)  # type: ignore[union-attr]
        endpoints: list[NodeEndpoint] = []
        if failed and pending.version >= NODE_ENDPOINTS_SINCE:
            endpoints = self._add_hints(results, pending.reply.connection.listener)
        reply = pending.reply
        reply.pieces = list(encode_fetch_response(pending.version, pending.correlation_id, 0, session_id, results, 0, endpoints))
        reply.ready = True
        now_ns = self._clock.monotonic_ns()
        self._latency.record(now_ns - (pending.ready_ns or now_ns))
        self._latency_with_wait.record(now_ns - pending.received_ns)
        self._on_reply(reply.connection)

    def _add_hints(self, results: list[FetchPartitionResult], listener: str) -> list[NodeEndpoint]:
        """Add the current leader to results that another broker leads (KIP-951); return the leaders' endpoints."""
        leaders = []
        for index, result in enumerate(results):
            if result.error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
                leaders.append(leader := self._view.leader_hint(result.topic, result.partition))
                results[index] = result._replace(current_leader=leader)
        return self._view.endpoints(leaders, listener)

    def _leave(self, pending: PendingFetch) -> None:
        pending.finished = True
        pending.reads.clear()  # they refer to it: a cycle would hold memory of a log-reader until the next collection
        pending.cold = None
        session = pending.session
        if session is not None and session.parked_ticket == pending.ticket:
            session.parked_ticket = 0
        if pending.ticket:
            self._delayed.leave(pending.ticket)
            pending.ticket = 0

    # -- sessions

    def _join_session(self, pending: PendingFetch) -> bool:
        """Find the session that a request names. False: the request was answered with an error."""
        request = pending.request
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self.sessions.close(request.session_id)
            self._count_sessions()
            return True
        found = self.sessions.continued(
            request.session_id,
            request.session_epoch,
            request.partitions,
            request.forgotten,
            pending.version >= TOPIC_IDS_SINCE,
            request.isolation_level,
            self._clock.monotonic_ms(),
        )
        self._count_sessions()
        if isinstance(found, ErrorCode):
            self._refuse(pending, found)
            return False
        if found.parked_ticket:
            self._end_older(found, request.replica_id >= 0)
        if not found.closed:
            self._incremental.add()
            pending.session = found
            pending.expected_epoch = found.expected_epoch
        return True

    def _end_older(self, session: FetchSession, is_followers: bool) -> None:
        """End the parked fetch of a session whose client has sent another one.

        A follower does that when it has more partitions to name. It reads both responses, so the older one is
        answered, empty and at once. Any other client has given the older one up: its next evaluation finds an
        old epoch and refuses it.
        """
        older = self._delayed.waiter_of(session.parked_ticket)
        if is_followers and not session.closed and isinstance(older, PendingFetch):
            self._hastened.add()
            self._answer(older, session.session_id, [], 0, False)
        else:
            self._delayed.rows.due[session.parked_ticket] = None

    def _evaluate_session(self, pending: PendingFetch, session: FetchSession, is_due: bool) -> None:
        """As `_evaluate`, for a session: read the awake partitions, answer with what changed.

        A partition without anything to report falls asleep if its reader is at the end of what it may read.
        `RowWatch.sleep` refuses if the row changed since it was read here; then the partition stays awake.
        """
        if session.closed or session.expected_epoch != pending.expected_epoch:
            # It was evicted, or the client sent its next request without waiting for this response.
            self._refuse(pending, ErrorCode.FETCH_SESSION_ID_NOT_FOUND if session.closed else ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            return
        rows = self._delayed.rows
        rows.collect()
        request = pending.request
        room = min(request.max_bytes, self._fetch_max_bytes)
        limits = pending.reply.connection.limits
        if limits is not None:
            room = limits.fetch_bytes(room)
        total = 0
        failed = urgent = False
        reports_high_watermark = self._prefers_racks and request.replica_id >= 0
        news: list[tuple[SessionPartition, FetchPartitionResult]] = []
        awake: list[tuple[SessionPartition, LocalReplica]] = []
        reads, reading = pending.reads, self.reading
        for partition in session.awake_in_order():
            wanted = partition.wanted
            read = reads.get(partition)
            if read is None or read.wanted is not wanted:
                read = reads[partition] = self.read_class(reading, pending, partition, wanted)
            result = read.step(room - total, total == 0)
            if result is None:
                continue
            has_replica = not result.error_code
            if has_replica:
                awake.append((partition, read.replica))
            if partition.must_report(result):
                news.append((partition, result))
                failed = failed or result.error_code != 0
                urgent = urgent or result.diverging_epoch is not None or pending.cold is not None or result.preferred_read_replica >= 0
                # If consumers read from followers, those need a new high watermark before the next record arrives.
                urgent = urgent or (reports_high_watermark and result.high_watermark > partition.high_watermark)
                if result.records is not None:
                    total += result.records.size_bytes  # type: ignore[union-attr]
            elif has_replica and _may_sleep(pending, wanted, read.replica, result) and rows.sleep(read.replica, partition):
                session.awake.pop(partition, None)
                awake.pop()
        if pending.unknown:
            pending.rounds += not pending.is_held_back
            return
        urgent = urgent or (pending.is_partial and total > 0)
        if failed or urgent or is_due or total >= min(request.min_bytes, room) or self._clock.monotonic_ns() >= pending.deadline_ns:
            if limits is not None and limits.holds_back(pending.reply, pending.version, total):
                self._answer(pending, session.session_id, [], 0, False)
                return
            for partition, result in news:
                partition.on_reported(result)
            self._answer(pending, session.session_id, [result for _, result in news], total, failed)
        elif not pending.ticket:
            self._parked.add()
            pending.on_parked()
            pending.ticket = session.parked_ticket = self._delayed.park(pending, [], pending.deadline_ns)
            pending.reply.gives_way = request.replica_id >= 0
            if pending.reply.gives_way and pending.reply.connection.read_paused:
                self._on_reply(pending.reply.connection)  # the next one arrived while a log-reader was asked for this one
            pending.ready_ns = 0
            self._watch_awake(awake, pending.ticket)
        else:
            pending.ready_ns = 0
            self._watch_awake(awake, pending.ticket)

    def _watch_awake(self, awake: list[tuple[SessionPartition, LocalReplica]], ticket: int) -> None:
        """Let partitions with something to report, but not enough yet, wake the parked fetch when they change."""
        rows = self._delayed.rows
        for partition, placement in awake:
            if not rows.sleep(placement, partition):
                rows.due[ticket] = None  # it changed since it was read

    def _create_session(self, pending: PendingFetch, results: list[FetchPartitionResult]) -> int:
        request = pending.request
        by_id = pending.version >= TOPIC_IDS_SINCE
        session = self.sessions.maybe_create(request.partitions, results, request.replica_id >= 0, by_id, request.isolation_level, self._clock.monotonic_ms())
        self._count_sessions()
        if session is None:
            return NO_SESSION
        session.replica_id = request.replica_id
        return session.session_id

    def on_view_changed(self) -> None:
        """The image or the tables changed: wake the partitions of followers that are not in sync.

        The log-writer learns from each fetch that a follower has caught up, so such a partition must be read
        with each fetch.
        """
        self._followers.set_image(self._view.image, self._view.broker_id)
        for session in self.sessions.of_followers():
            for partition in session.partitions.values():
                if partition not in session.awake and not self._is_in_sync(session.replica_id, partition.wanted):
                    session.awake[partition] = None

    def on_rights_changed(self) -> None:
        """The access control lists changed: read all partitions of all sessions again, so that a revocation reaches those that sleep."""
        for session in self.sessions.by_id.values():
            session.wake_all()
            self._wake_session(session)

    def _is_in_sync(self, replica_id: int, wanted: FetchPartition) -> bool:
        topic = self._view.image.topics_by_id.get(wanted.topic_id) if not wanted.topic else self._view.image.topics.get(wanted.topic)
        if topic is None or not 0 <= wanted.partition < len(topic.partitions):
            return True
        return replica_id in topic.partitions[wanted.partition].isr

    def _refuse(self, pending: PendingFetch, error_code: ErrorCode) -> None:
        """Answer the whole request with a session error."""
        self._leave(pending)
        self._session_errors.add()
        reply = pending.reply
        reply.pieces = list(encode_fetch_response(pending.version, pending.correlation_id, error_code, NO_SESSION, []))
        reply.ready = True
        self._on_reply(reply.connection)

    def _on_session_closed(self, session: FetchSession) -> None:
        self.follower_reads.forget(session)
        self._wake_session(session)

    def _wake_session(self, session: FetchSession) -> None:
        if session.parked_ticket:
            self._delayed.rows.due[session.parked_ticket] = None

    def sweep(self, now_ns: int) -> None:
        """Once a second."""
        self.follower_reads.sweep(now_ns)

    def _count_sessions(self) -> None:
        sessions = self.sessions
        self._sessions_open.set(len(sessions))
        self._session_partitions.set(sessions.partition_count)
        self._session_evictions.set(sessions.evictions)


def _may_sleep(pending: PendingFetch, wanted: FetchPartition, placement: LocalReplica, result: FetchPartitionResult) -> bool:
    """True if the next fetch need not read a partition unless its row changes: its reader is at the end.

    A follower that is not in sync is reported to the log-writer with each fetch, or it would never get in sync.
    """
    if pending.reads_to_end:
        replica_id = pending.request.replica_id
        return wanted.fetch_offset >= signed(placement.seen[LOG_END_OFFSET]) and (replica_id < 0 or replica_id in placement.isr)
    return wanted.fetch_offset >= (result.last_stable_offset if pending.request.isolation_level == READ_COMMITTED else result.high_watermark)
