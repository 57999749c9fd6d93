"""Share sessions: ShareFetch and ShareAcknowledge of members (KIP-932).

A session keeps the partitions that a member fetches from this box, as a fetch session does. A ShareFetch first waits until its acknowledgements are in the
log, then reads one partition after the other and locks what it delivers, and waits if there is nothing. Records are answered in whole
batches, as they are in the log. Owned by the coordinator. Weak spots: records are copied through the coordinator (a fetch
reads at most `READ_BYTES_MAX` of a partition); what was locked for a client that has gone waits for the end of its lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId
from appliance.protocol import share_apis as apis
from services.coordinator.share.share_groups import NAME_CHARACTERS_MAX, ShareSettings
from services.coordinator.share.share_leaders import HostedShare, LogBounds, ShareEvent, ShareLeaders
from services.coordinator.share.share_partition import Acknowledgement, ShareLimits
from services.coordinator.share.share_states import Place

FINAL_EPOCH: Final = -1
READ_BYTES_MAX: Final = 1 << 20
FETCH_BYTES_MAX: Final = 2 << 20
"""A response beyond it has one batch more; it must fit into a frame of `coordinator.sock`."""
BATCH_BYTES_MAX: Final = 32 << 20
COLLECTED_BYTES_MAX: Final = 64 << 20
"""Of all fetches under way; beyond it they are answered with what they have."""
PLACES_MAX: Final = 2_000
LOOKS_A_TURN: Final = 4_000
"""Partitions of fetches that wait."""
WAIT_MS_MAX: Final = 5_000
"""The acceptor gives up after `ANSWER_TIMEOUT_MS`."""
LATE_MS: Final = 1_000
FETCHES_A_TURN: Final = 64
RENEWAL_SINCE: Final = 2
RECORD_LIMIT: Final = 1
"""The acquire mode in which no more records than asked for are delivered."""
IDLE_MS: Final = 90_000
IDLE_LOOK_MS: Final = 10_000
LEAVE_MS: Final = 5_000
"""A member that leaves its group sends its last acknowledgements at the same time, by another connection."""
_ACKNOWLEDGE_ERRORS: Final = {
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_STATE_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
"""What a client hears of a write that failed; of others COORDINATOR_NOT_AVAILABLE."""
NO_PRODUCER: Final = -1


class ReadBatch(NamedTuple):
    """A batch of records in what was read; control batches have no records."""

    base_offset: int
    last_offset: int
    position: int
    end_position: int
    is_control: bool
    producer_id: int = NO_PRODUCER
    """Of a transaction."""


class SharedRead(NamedTuple):
    """What was read from an offset on: whole batches below the high watermark, and the offset behind them."""

    data: bytes
    batches: Sequence[ReadBatch]
    next_offset: int


OnRead = Callable[[SharedRead | None], None]
"""None: it failed, and may be tried again."""
READ_AGAIN_MS: Final = 100


class ShareRange(NamedTuple):
    """What is to be read. With `is_committed` nothing beyond the last stable offset, and no records of aborted transactions."""

    topic_id: TopicId
    partition: int
    offset: int
    size_bytes: int
    is_committed: bool


class SharedLogs(Protocol):
    """The logs of this box."""

    def bounds(self, topic_id: TopicId, partition: int) -> LogBounds: ...

    def limits(self, group_id: str) -> ShareLimits: ...

    def is_committed(self, group_id: str) -> bool:
        """Whether the group gets records of committed transactions only."""

    def is_certain(self, topic_id: TopicId) -> bool:
        """Whether no other box can lead partitions of the topic that this one leads by its rows."""

    def read(self, wanted: ShareRange, on_read: OnRead) -> bool:
        """False: it could not begin, and `on_read` is not called."""


class ShareSession:
    """One member's; `session_epoch` is that of the next request."""

    def __init__(self, group_id: str, member_id: str) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.session_epoch = 1
        self.places: dict[Place, HostedShare | None] = {}
        """With the share partition as it was last seen here; None: it is to be opened."""
        self.used_ms = 0
        self.is_over = False
        self.has_left = False
        """the member has left the group: it may still acknowledge"""


class ShareAsker(NamedTuple):
    """The client of a ShareFetch: whether it may read a topic, which the session may have from another time, and whether it is still connected."""

    may_read: Callable[[TopicId], bool] = lambda _topic_id: True
    is_connected: Callable[[], bool] = lambda: True


class _Fetch:
    """A ShareFetch under way."""

    def __init__(self, session: ShareSession, request: apis.ShareFetchRequest, deadline_ms: int, reply: Callable[[Any], None], asker: ShareAsker) -> None:
        self.asker = asker
        self.session = session
        self.is_strict = request.acquire_mode == RECORD_LIMIT  # the request itself may be long, and does not wait with the fetch
        self.deadline_ms = deadline_ms
        self.reply = reply
        self.results: dict[Place, apis.SharePartitionResponse] = {}
        self.to_read: deque[Place] = deque()
        self.records_left = request.max_records
        self.bytes_left = min(request.max_bytes, FETCH_BYTES_MAX)
        self.size_bytes = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing may be acquired for it any more."""
        return self.session.is_over or self.session.has_left or not self.asker.is_connected()


class ShareSessions:
    """All sessions of this box."""

    def __init__(self, settings: ShareSettings, leaders: ShareLeaders, logs: SharedLogs, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._settings = settings
        self._leaders = leaders
        self._logs = logs
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._parked: deque[_Fetch] = deque()
        self._collected_bytes = 0
        self._leaving: deque[tuple[int, ShareSession]] = deque()
        """sessions of members that have left, and when they end at the latest"""
        self._idle_looked_ms = now_ms()

    @property
    def is_waiting(self) -> bool:
        return bool(self._parked)

    def next_deadline_ms(self) -> int | None:
        deadlines = [fetch.deadline_ms for fetch in self._parked]
        return min([*deadlines, self._leaving[0][0]] if self._leaving else deadlines, default=None)

    # ---- requests

    def fetch(
        self,
        request: apis.ShareFetchRequest,
        version: int,
        now_ms: int,
        reply: Callable[[apis.ShareFetchResponse], None],
        asker: ShareAsker | None = None,
    ) -> None:
        code, session = self._session(request, now_ms, may_open=True)
        if session is None:
            reply(apis.ShareFetchResponse(error_code=code))
            return
        wait_ms = min(max(0, request.max_wait_ms), WAIT_MS_MAX)
        fetch = _Fetch(session, request, now_ms + wait_ms, reply, asker or ShareAsker())
        for topic_id, partitions in request.topics:
            for each in partitions:
                self._add_place(fetch, (topic_id, each.partition))
        for topic_id, numbers in request.forgotten:
            for number in numbers:
                session.places.pop((topic_id, number), None)

        def on_acknowledged(results: dict[Place, ErrorCode]) -> None:
            for place, error in results.items():
                self._put(fetch, place, acknowledge_error_code=error)
            if request.session_epoch == FINAL_EPOCH:
                self._end(session)
            if session.is_over or request.max_records <= 0 or request.max_bytes <= 0:
                self._answer(fetch)
            else:
                self._begin_round(fetch, self._now_ms())

        self._acknowledge(session, request, version, now_ms, on_acknowledged)

    def _add_place(self, fetch: _Fetch, place: Place) -> None:
        """Only partitions that this box leads join the session, so that a client cannot make it as long as it likes."""
        places = fetch.session.places
        code = self._logs.bounds(*place).error_code
        if code is not ErrorCode.NONE:
            self._put(fetch, place, error_code=code)
        elif place not in places and len(places) >= PLACES_MAX:
            self._put(fetch, place, error_code=ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        else:
            places.setdefault(place, None)

    def acknowledge(self, request: apis.ShareAcknowledgeRequest, version: int, now_ms: int, reply: Callable[[apis.ShareAcknowledgeResponse], None]) -> None:
        code, session = self._session(request, now_ms, may_open=False)
        if session is None:
            reply(apis.ShareAcknowledgeResponse(error_code=code))
            return
        found = session

        def on_acknowledged(results: dict[Place, ErrorCode]) -> None:
            if request.session_epoch == FINAL_EPOCH:
                self._end(found)
            topics = tuple(
                apis.AcknowledgedTopic(
                    topic_id, tuple(apis.AcknowledgedPartition(each.partition, results.get((topic_id, each.partition), ErrorCode.NONE)) for each in partitions)
                )
                for topic_id, partitions in request.topics
            )
            reply(apis.ShareAcknowledgeResponse(acquisition_lock_timeout_ms=self._logs.limits(found.group_id).lock_ms, topics=topics))

        self._acknowledge(session, request, version, now_ms, on_acknowledged)

    def _session(self, request: Any, now_ms: int, may_open: bool) -> tuple[ErrorCode, ShareSession | None]:
        if not request.group_id or not request.member_id or max(len(request.group_id), len(request.member_id)) > NAME_CHARACTERS_MAX:
            return ErrorCode.INVALID_REQUEST, None
        key = request.group_id, request.member_id
        session = self._sessions.get(key)
        if request.session_epoch == 0 and may_open:
            self._leaders.forget_idle(request.group_id)
            if session is not None:
                session.is_over = True
            elif not self._make_room(now_ms):
                return ErrorCode.SHARE_SESSION_LIMIT_REACHED, None
            session = self._sessions[key] = ShareSession(*key)
        elif session is None:
            return ErrorCode.SHARE_SESSION_NOT_FOUND, None
        elif request.session_epoch != FINAL_EPOCH:
            if request.session_epoch != session.session_epoch:
                return ErrorCode.INVALID_SHARE_SESSION_EPOCH, None
            session.session_epoch = session.session_epoch + 1 if session.session_epoch < apis.INT32_MAX else 1
        session.used_ms = now_ms
        return ErrorCode.NONE, session

    def _make_room(self, now_ms: int) -> bool:
        if len(self._sessions) < self._settings.group_share_max_share_sessions:
            return True
        self._end_idle(now_ms)
        return len(self._sessions) < self._settings.group_share_max_share_sessions

    def _end_idle(self, now_ms: int) -> None:
        self._idle_looked_ms = now_ms
        for session in [session for session in self._sessions.values() if session.used_ms + IDLE_MS < now_ms]:
            self._end(session)

    def _end(self, session: ShareSession) -> None:
        session.is_over = True
        if self._sessions.get((session.group_id, session.member_id)) is session:
            del self._sessions[session.group_id, session.member_id]
        self._leaders.release(session.group_id, session.member_id)

    def on_member_gone(self, group_id: str, member_id: str, has_left: bool = False) -> None:
        """What the member has in hand is for others; if it `has_left`, when its session ends, which it does itself. Leaders on other boxes do not hear of it:
        there its locks or its idle session end in their time."""
        session = self._sessions.get((group_id, member_id))
        if session is None:
            self._leaders.release(group_id, member_id)
        elif has_left:
            session.has_left = True
            self._leaving.append((self._now_ms() + LEAVE_MS, session))
        else:
            self._end(session)

    # ---- acknowledgements

    def _acknowledge(self, session: ShareSession, request: Any, version: int, now_ms: int, then: Callable[[dict[Place, ErrorCode]], None]) -> None:
        """Take the acknowledgements and call `then` when all are in the log."""
        results: dict[Place, ErrorCode] = {}
        waiting = 1
        may_renew = version >= RENEWAL_SINCE and request.is_renew_ack

        def on_written(place: Place, code: ErrorCode) -> None:
            nonlocal waiting
            if code is not ErrorCode.NONE:
                results[place] = _ACKNOWLEDGE_ERRORS.get(code, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            finish()

        def finish() -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                then(results)

        for topic_id, partitions in request.topics:
            for number, batches in partitions:
                if not batches:
                    continue
                place = (topic_id, number)
                if place in results:  # each costs a pass over the window: a request may have one for each partition
                    results[place] = ErrorCode.INVALID_REQUEST
                    continue
                hosted = self._leaders.find(session.group_id, place)
                code = self._logs.bounds(*place).error_code
                if hosted is None or code is not ErrorCode.NONE:
                    results[place] = code or ErrorCode.INVALID_RECORD_STATE
                    continue
                acknowledgements = [Acknowledgement(*batch) for batch in batches]
                results[place], needs_write = hosted.share.acknowledge(session.member_id, acknowledgements, hosted.next_write, now_ms, may_renew)
                if results[place] is not ErrorCode.NONE:
                    self._leaders.count_event(ShareEvent.REFUSED, 1)
                if needs_write:
                    self._leaders.count_event(ShareEvent.ACKNOWLEDGED, sum(batch.last_offset - batch.first_offset + 1 for batch in batches))
                    waiting += 1
                    self._leaders.persist(hosted, lambda code, place=place: on_written(place, code))  # type: ignore[misc]
                self._leaders.watch_locks(hosted)
        finish()

    # ---- fetches

    def work(self, now_ms: int) -> int:
        """Look at fetches that wait; return how many were answered or read."""
        done = 0
        while self._leaving and self._leaving[0][0] <= now_ms:
            _, session = self._leaving.popleft()
            if self._sessions.get((session.group_id, session.member_id)) is session:
                self._end(session)
                done += 1
        if now_ms >= self._idle_looked_ms + IDLE_LOOK_MS:
            self._end_idle(now_ms)
        looks_left = LOOKS_A_TURN
        for _ in range(min(len(self._parked), FETCHES_A_TURN)):
            if looks_left <= 0:
                break
            fetch = self._parked.popleft()
            looks_left -= len(fetch.session.places)
            if fetch.is_over or now_ms >= fetch.deadline_ms or any(self._has_news(fetch, place) for place in fetch.session.places):
                done += 1
                self._begin_round(fetch, now_ms)
            else:
                self._parked.append(fetch)
        return done

    def _has_news(self, fetch: _Fetch, place: Place) -> bool:
        bounds = self._logs.bounds(*place)
        if bounds.error_code is not ErrorCode.NONE:
            return True
        hosted = self._hosted(fetch.session, place, bounds)
        if hosted is None or not hosted.is_ready:
            return hosted is not None and bool(hosted.error_code)
        if hosted.is_reading or self._now_ms() < hosted.read_again_ms:
            return False
        offset = self._next_offset(hosted)
        return offset is not None and max(offset, bounds.log_start_offset) < bounds.end(self._logs.is_committed(fetch.session.group_id))

    def _hosted(self, session: ShareSession, place: Place, bounds: LogBounds) -> HostedShare | None:
        """Return the share partition, whose state is perhaps being read, or could not be read; None: there are too many."""
        hosted = session.places.get(place)
        if hosted is None or hosted.leader_epoch != bounds.leader_epoch or (hosted.is_gone and not hosted.error_code):
            hosted = session.places[place] = self._leaders.open(session.group_id, place, bounds)
        return hosted

    def _put_away(self, session: ShareSession, place: Place, code: ErrorCode) -> None:
        """The next look reads the state again, unless there is none. A session without states ends, so that only groups that exist have sessions."""
        if code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            session.places[place] = None
            return
        del session.places[place]
        if not session.places:
            self._end(session)

    def _next_offset(self, hosted: HostedShare) -> int | None:
        """Return where the next read begins; None while nothing may be delivered."""
        offset = hosted.share.next_fetch_offset()
        return offset if self._leaders.has_room or offset is None or offset < hosted.share.end_offset else None

    def _begin_round(self, fetch: _Fetch, now_ms: int) -> None:
        places = list(fetch.session.places)
        fetch.to_read.extend(places)
        if places:  # the next fetch begins with another partition
            fetch.session.places[places[0]] = fetch.session.places.pop(places[0])
        self._continue(fetch, now_ms)

    def _continue(self, fetch: _Fetch, now_ms: int) -> None:
        while fetch.to_read and fetch.records_left > 0 and fetch.bytes_left > 0 and not fetch.is_over:
            if self._collected_bytes >= COLLECTED_BYTES_MAX:
                break
            place = fetch.to_read.popleft()
            if place not in fetch.session.places:
                continue
            if not fetch.asker.may_read(place[0]):
                self._put(fetch, place, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                continue
            bounds = self._logs.bounds(*place)
            if bounds.error_code is not ErrorCode.NONE:
                self._put(fetch, place, error_code=bounds.error_code)
                continue
            hosted = self._hosted(fetch.session, place, bounds)
            if hosted is None or not hosted.is_ready:
                if hosted is not None and hosted.error_code:
                    self._put_away(fetch.session, place, hosted.error_code)
                    if hosted.error_code is not ErrorCode.COORDINATOR_NOT_AVAILABLE:
                        self._put(fetch, place, error_code=hosted.error_code)
                continue
            if hosted.share.raise_start(bounds.log_start_offset):
                self._leaders.watch_locks(hosted)
            offset = self._next_offset(hosted)
            if hosted.is_reading or offset is None or offset >= bounds.end(self._logs.is_committed(fetch.session.group_id)) or now_ms < hosted.read_again_ms:
                continue
            if self._read(fetch, hosted, offset):
                return
        fetch.to_read.clear()
        if fetch.size_bytes or fetch.is_over or now_ms >= fetch.deadline_ms or any(result.error_code for result in fetch.results.values()):
            self._answer(fetch)
        else:
            self._parked.append(fetch)

    def _read(self, fetch: _Fetch, hosted: HostedShare, offset: int) -> bool:
        def on_read(read: SharedRead | None) -> None:
            if read is None or self._logs.is_certain(hosted.key.topic_id):
                on_confirmed(read)
            elif self._now_ms() > fetch.deadline_ms + LATE_MS:  # it would not be answered in time
                on_confirmed(None)
            else:
                self._leaders.confirm(hosted, lambda is_confirmed: on_confirmed(read if is_confirmed else None))

        def on_confirmed(read: SharedRead | None) -> None:
            hosted.is_reading = False
            if read is None:
                hosted.read_again_ms = self._now_ms() + READ_AGAIN_MS
            elif not fetch.is_over and not hosted.is_gone:
                self._deliver(fetch, hosted, offset, read)
            self._continue(fetch, self._now_ms())

        hosted.is_reading = True
        has_begun = self._logs.read(
            ShareRange(*hosted.key[1:], offset, min(READ_BYTES_MAX, fetch.bytes_left), self._logs.is_committed(hosted.key.group_id)), on_read
        )
        if not has_begun:
            hosted.is_reading = False
            hosted.read_again_ms = self._now_ms() + READ_AGAIN_MS
        return has_begun

    def _deliver(self, fetch: _Fetch, hosted: HostedShare, offset: int, read: SharedRead) -> None:
        if hosted.share.next_fetch_offset() != offset:
            return  # an acknowledgement or an administrator came between
        if read.batches and read.batches[0].end_position - read.batches[0].position > BATCH_BYTES_MAX:
            self._put(fetch, hosted.key[1:], error_code=ErrorCode.RECORD_LIST_TOO_LARGE, error_message=f"The batch at offset {offset} is too long.")
            return
        records = [batch for batch in read.batches if not batch.is_control]
        acquired = hosted.share.acquire(
            fetch.session.member_id,
            (offset, read.next_offset),
            [(batch.base_offset, batch.last_offset) for batch in records],
            fetch.records_left,
            fetch.is_strict,
            self._now_ms(),
        )
        self._leaders.watch_locks(hosted)
        if not acquired:
            return
        first, last = acquired[0].first_offset, acquired[-1].last_offset
        sent = [batch for batch in records if batch.last_offset >= first and batch.base_offset <= last]
        data = read.data[sent[0].position : sent[-1].end_position]
        fetch.records_left -= sum(each.last_offset - each.first_offset + 1 for each in acquired)
        fetch.bytes_left -= len(data)
        self._leaders.count_event(ShareEvent.ACQUIRED, sum(each.last_offset - each.first_offset + 1 for each in acquired))
        self._leaders.count_event(ShareEvent.AGAIN, sum(each.last_offset - each.first_offset + 1 for each in acquired if each.delivery_count > 1))
        fetch.size_bytes += len(data)
        self._collected_bytes += len(data)
        self._put(fetch, hosted.key[1:], records=data, acquired=tuple(apis.AcquiredRecords(*each) for each in acquired))

    def _put(self, fetch: _Fetch, place: Place, **fields: Any) -> None:
        result = fetch.results.get(place) or apis.SharePartitionResponse(place[1])
        fetch.results[place] = result._replace(**fields)

    def _answer(self, fetch: _Fetch) -> None:
        self._collected_bytes -= fetch.size_bytes
        topics: dict[TopicId, list[apis.SharePartitionResponse]] = {}
        for (topic_id, _), result in fetch.results.items():
            topics.setdefault(topic_id, []).append(result)
        rows = tuple(apis.ShareTopicResponse(topic_id, tuple(results)) for topic_id, results in topics.items())
        fetch.reply(apis.ShareFetchResponse(acquisition_lock_timeout_ms=self._logs.limits(fetch.session.group_id).lock_ms, topics=rows))
