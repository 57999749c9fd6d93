"""Everything that this box follows of one leader box: one connection, one fetch session, one fetch after the other.

A turn: judge what came (a bounded bite), see to the partitions for which something has changed, then fetch again. The next fetch waits for the appends of the
last answer, so that it names their new offsets; a disk that takes long is not waited for, or left out of it (`slow_disks.py`). A partition that comes while a
fetch is parked at the leader does not wait for it: a second fetch of the session follows at once and ends the first (`_may_fetch`). Owned by the
replica-fetcher. Weak spot: a leader that gives no session has to be asked for everything each time, and new partitions wait for that.
"""

from __future__ import annotations

import heapq
from collections import deque
from functools import partial
from typing import Any

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.base.logging import Logger
from appliance.client.address import Address
from appliance.client.peer_connection import PeerAnswer, PeerConnection
from appliance.cluster.metadata_image import BrokerImage
from appliance.cluster.replication_throttle import ReplicationThrottle
from appliance.ipc.descriptors import Completion, Truncation
from appliance.ipc.registry import Registry
from appliance.protocol import offset_apis
from appliance.protocol.apis import ApiKey
from appliance.protocol.fetch import FetchPartition
from appliance.protocol.offset_apis import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from appliance.protocol.replica_fetch import (
    VERSION_MAX,
    VERSION_MIN,
    FetchedPartition,
    ReplicaFetch,
    decode_replica_fetch_response,
    encode_replica_fetch,
)
from appliance.shm.arena import Arena
from services.replica_fetcher.follower_fetch import Need
from services.replica_fetcher.replica_answers import AnswerJudge
from services.replica_fetcher.replica_counters import ReplicaCounters, ReplicaSettings
from services.replica_fetcher.replica_partition import FollowedPartition, LogOrder, ReceivedAnswer
from services.replica_fetcher.replica_session import Key, ReplicaSession
from services.replica_fetcher.slow_disks import SlowDisks

BYTES_A_TURN = 2 << 20
"""Of records that are judged before others have their turn."""
SHORT_WAIT_MS = 50
"""How long a fetch without a session may be parked at the leader while a partition waits to be in the next one."""
SETTLING_NS = 2_000_000_000
"""After partitions came, more may: fetches without a session are short."""
REFUSED_PAUSE_MS = 20
REFUSALS_LOGGED = 8
"""So many refusals in a row, over some seconds, are more than a leader whose image is behind."""
_SESSION_ERRORS = frozenset({ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR})
_NOT_A_BOX = {
    int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED): "it connects from an address that no registered box has; add it to inter.broker.allowed.networks there",
    int(ErrorCode.STALE_BROKER_EPOCH): "it does not know the broker epoch under which this box is registered",
}
HASTEN_AFTER_NS = 5_000_000
"""Partitions often come in crowds: those of so long go into one fetch."""
SLOW_SHARE = 16
"""One part in so many of the arena may be held by appends of a disk that is not waited for."""


class LeaderFetcher:
    """One leader box. `own_id`, `own_epoch`: this box's registration, which its fetches name."""

    def __init__(
        self,
        leader_id: int,
        own_id: int,
        settings: ReplicaSettings,
        arena: Arena,
        registry: Registry,
        clock: Clock,
        counters: ReplicaCounters,
        log: Logger,
        throttle: ReplicationThrottle,
    ) -> None:
        self.leader_id = leader_id
        self.partitions: dict[Key, FollowedPartition] = {}
        self.session = ReplicaSession()
        self._own_id, self._own_epoch = own_id, -1
        self._settings = settings
        self._arena = arena
        self._registry = registry
        self._clock = clock
        self._counters = counters
        self._log = log
        self._throttle = throttle
        self._is_throttled = False
        """What is throttled is left out of fetches at this moment."""
        self._throttled: frozenset[Key] = frozenset()
        """What was throttled at the last turn."""
        self._judge = AnswerJudge(leader_id, counters, log)
        self._broker: BrokerImage | None = None
        self._connection: PeerConnection | None = None
        self._due: set[Key] = set()
        """To be seen to in the next turn."""
        self._touched: set[Key] = set()
        """May have to be named in the next fetch, or taken back."""
        self._fetchable: set[Key] = set()
        """Partitions that could be fetched when they changed last; `_is_any_fetchable` removes those that no longer can."""
        self._newcomers: set[Key] = set()
        """The part of `_fetchable` that the session did not have at that time."""
        self._unheard: set[Key] = set()
        """What the leader said of them, once under a leader epoch, was not taken: they are taken back, and named anew."""
        self._alarms: list[tuple[int, Key]] = []
        self._under_way = 0
        """Fetches without an answer: one, or two where a partition does not wait for what the leader has parked."""
        self._overtaken: set[Key] = set()
        """What the later of two names anew: the earlier one's answer says nothing of it."""
        self._is_over = False
        """The session of what is under way has ended: its answers say nothing."""
        self._turn_ns = 0
        self._fetched_ns = 0
        self._slot: ReceivedAnswer | None = None
        self._parts: deque[tuple[FetchedPartition, FetchPartition]] = deque()
        self._parts_memory: memoryview | None = None
        self._slow = SlowDisks(arena.size_bytes // SLOW_SHARE)
        self._settles_ns = 0
        self._was_unreachable = False
        self._refusals = 0
        """Answers in a row that refused the fetch as a whole."""
        self._resumes_ns = 0

    # --- what the owner tells

    def set_brokers(self, leader: BrokerImage | None, own_epoch: int) -> None:
        """The leader as the image has it, None when it is not registered; another registration of either box begins a new session."""
        if own_epoch != self._own_epoch or (leader is not None and self._broker is not None and leader.epoch != self._broker.epoch):
            self._own_epoch = own_epoch
            if self._connection is not None:
                self._connection.disconnect("a box was registered anew")
            self._begin_anew()
        self._broker = leader
        if leader is None:
            self._disconnect()
        elif self._connection is None:
            address = Address(leader.host, leader.port)
            self._connection = PeerConnection(address, f"broker-{self._own_id}-fetcher", self._registry, self._clock, self._arena.size_bytes)
        else:
            self._connection.set_address(Address(leader.host, leader.port))

    def follow(self, followed: FollowedPartition, now_ns: int) -> None:
        self.partitions[followed.key] = followed
        self._due.add(followed.key)
        self._settles_ns = now_ns + SETTLING_NS

    def unfollow(self, followed: FollowedPartition) -> None:
        if self.partitions.get(followed.key) is followed:
            del self.partitions[followed.key]
            self._touched.add(followed.key)
        followed.close()

    def on_disk_changed(self, disk: str) -> None:
        """It hangs, is well again, or its log-writer came or went."""
        for key, followed in self.partitions.items():
            if followed.disk == disk:
                self._touch(key)

    def _touch(self, key: Key) -> None:
        """Note that `key` changed. Every event that makes a partition fetchable calls this, so that no turn has to scan all partitions for one."""
        self._touched.add(key)
        followed = self.partitions.get(key)
        if followed is not None and self._is_fetchable(followed):
            self._fetchable.add(key)
            if key not in self.session.asked:
                self._newcomers.add(key)

    # --- a turn

    def do_work(self, now_ns: int) -> int:
        self._turn_ns = now_ns
        work = self._judge_parts(now_ns) if self._parts else 0
        self._look_at_throttle(now_ns)
        while self._alarms and self._alarms[0][0] <= now_ns:
            self._due.add(heapq.heappop(self._alarms)[1])
        if self._due:
            due, self._due = self._due, set()
            work += len(due)
            for key in due:
                self._see_to(key, now_ns)
        connection = self._connection
        if connection is not None:
            work += connection.do_work(now_ns)  # first: what is given up is over before another fetch goes
            if self._may_fetch(connection, now_ns):
                self._fetch(connection, now_ns)
                work += 1
            self._tell_reachability(connection)
        return work

    def _look_at_throttle(self, now_ns: int) -> None:
        replicas, throttled = self._throttle.replicas, self._throttled
        if self._is_throttled == self._throttle.is_open(now_ns):
            self._is_throttled = not self._is_throttled
            changed = replicas | throttled
        elif replicas is not throttled:
            changed = replicas ^ throttled
        else:
            return
        self._throttled = replicas
        for key in changed:
            self._touch(key)

    def wake_ns(self) -> int:
        """When the next turn is due without any event; 0: no time is. What the last turn could not do when its time had come waits for an event."""
        times = [self._resumes_ns, self._slow.patience_ends_ns()]
        if self._alarms:
            times.append(self._alarms[0][0])
        if self._is_throttled:
            times.append(self._throttle.opens_ns)
        if self._under_way == 1 and self._has_newcomer():
            times.append(self._fetched_ns + HASTEN_AFTER_NS)
        return min((time_ns for time_ns in times if time_ns > self._turn_ns), default=0)

    def _see_to(self, key: Key, now_ns: int) -> None:
        """Do what one partition needs, or wait until its time has come."""
        followed = self.partitions.get(key)
        self._touch(key)
        if followed is None:
            return
        rules = followed.rules
        if rules.need == Need.NOTHING or rules.is_waiting:
            return
        if now_ns < rules.retry_ns:
            heapq.heappush(self._alarms, (rules.retry_ns, key))
        elif rules.need in (Need.LATEST, Need.EARLIEST):
            self._ask_offset(followed)
        elif rules.need != Need.FETCH:
            self._order(followed, now_ns)

    def _order(self, followed: FollowedPartition, now_ns: int) -> None:
        need = followed.rules.need
        if need == Need.TELL:
            known = self.session.asked.get(followed.key)
            if known is not None and known.current_leader_epoch == followed.rules.leader_epoch:
                self._unheard.add(followed.key)  # it begins anew, and may not have what was said of it so far
        elif need == Need.TRUNCATE:
            self._tell_truncation(followed)
        elif need == Need.APPEND:
            self._counters.appends.add()
        order = followed.offer_order(now_ns)
        if order is None:
            self._due.add(followed.key)
        elif order.is_append:
            self._slow.on_offered(followed.disk, order.slot, now_ns)

    def on_order_done(self, order: LogOrder, completion: Completion | None) -> None:
        """Its log-writer answered, or (None) died."""
        followed = order.followed
        now_ns = self._clock.monotonic_ns()
        if order.is_append and self._slow.on_done(followed.disk, order.slot, now_ns):
            self.on_disk_changed(followed.disk)
        if followed.is_closed:
            return
        if completion is None:
            followed.on_order_lost(order.turn, now_ns)
        else:
            if completion.error_code:
                self._counters.on_error(completion.error_code)
            log_start_offset, log_end_offset = completion.log_start_offset, completion.log_end_offset
            followed.rules.on_log(order.turn, completion.error_code, log_start_offset, log_end_offset, completion.leader_epoch, now_ns)
        self._due.add(followed.key)

    def retry_stopped(self, now_ns: int) -> None:
        """Those whose log could not be written, or whose leader is ahead of us: once in a while it is tried whether that has passed."""
        for key, followed in self.partitions.items():
            if followed.rules.need == Need.NOTHING:
                followed.rules.restart(now_ns)
                self._due.add(key)

    @property
    def stalled(self) -> int:
        return sum(bool(followed.rules.problem) for followed in self.partitions.values())

    # --- fetching

    def _is_fetchable(self, followed: FollowedPartition) -> bool:
        if self._is_throttled and followed.key in self._throttle.replicas:
            return False
        proxy = followed.place.proxy
        return followed.rules.may_fetch(self._clock.monotonic_ns()) and proxy.serving and not proxy.is_hung and not self._slow.is_left_out(proxy.disk)

    def _may_fetch(self, connection: PeerConnection, now_ns: int) -> bool:
        """Now: the next one, or a second one behind one that is parked, because a new partition does not wait until the leader has something to say about the
        others. Neither goes before what came is judged and appended: what is not appended yet would be taken back, and named anew."""
        if self._parts or self._slot is not None or now_ns < self._resumes_ns or (self._under_way and not self._may_hasten(connection, now_ns)):
            return False
        for disk in self._slow.leave_out(now_ns):
            self.on_disk_changed(disk)
        if self._slow.is_waiting:
            return False
        return self._has_newcomer() if self._under_way else self._is_any_fetchable()

    def _is_any_fetchable(self) -> bool:
        fetchable = self._fetchable
        while fetchable:
            key = next(iter(fetchable))
            followed = self.partitions.get(key)
            if followed is not None and self._is_fetchable(followed):
                return True
            fetchable.discard(key)
        return False

    def _may_hasten(self, connection: PeerConnection, now_ns: int) -> bool:
        """What waits for a connection has not gone yet, and will name what is new by itself. A session without partitions ends, and is answered at once."""
        if self._under_way > 1 or now_ns < self._fetched_ns + HASTEN_AFTER_NS or not connection.is_ready or connection.hears_answer:
            return False
        return bool(self.session.asked) and self._has_newcomer()

    def _has_newcomer(self) -> bool:
        """Whether something can be fetched that the session does not have."""
        session, newcomers = self.session, self._newcomers
        while newcomers and not session.is_new:
            key = next(iter(newcomers))
            followed = self.partitions.get(key)
            if key not in session.asked and followed is not None and self._is_fetchable(followed):
                return True
            newcomers.discard(key)
        return False

    def _fetch(self, connection: PeerConnection, now_ns: int) -> None:
        self._under_way += 1
        self._fetched_ns = now_ns
        timeout_ms = self._settings.socket_timeout_ms
        connection.request(ApiKey.FETCH, VERSION_MIN, VERSION_MAX, self._encode_fetch, self._on_answer, timeout_ms, self._take_memory)

    def _encode_fetch(self, _version: int) -> bytes:
        """Planned when it is sent, which is later where there was no connection."""
        session, settings = self.session, self._settings
        now_ns = self._clock.monotonic_ns()
        if session.is_new:
            session.asked.clear()
            self._counters.sessions.add()
        self._unheard.intersection_update(session.asked)
        keys = self.partitions.keys() if session.is_new else self._touched
        named, forgotten = session.plan(keys, self._wanted)
        taken_back, self._unheard = self._unheard, set()
        self._touched.clear()
        self._newcomers.clear()
        for key in taken_back:
            self._touch(key)
        if self._under_way > 1:
            self._counters.hastened.add()
            self._overtaken.update((part.topic_id, part.partition) for parts in (named, forgotten) for part in parts)
        is_settling = now_ns < self._settles_ns or len(session.asked) < len(self.partitions)
        is_short = session.is_new and (not session.is_denied or is_settling)
        wait_ms = min(SHORT_WAIT_MS, settings.wait_ms_max) if is_short else settings.wait_ms_max
        self._fetched_ns = now_ns
        self._counters.fetches.add()
        place = session.session_id, session.epoch
        session.on_sent()
        return encode_replica_fetch(
            ReplicaFetch(self._own_id, self._own_epoch, wait_ms, settings.bytes_min, settings.answer_bytes_max, *place, named, forgotten)
        )

    def _wanted(self, key: Key) -> FetchPartition | None:
        followed = self.partitions.get(key)
        if followed is None or key in self._unheard or not self._is_fetchable(followed):
            return None
        most = self._settings.partition_bytes_max
        return followed.wanted(self._throttle.piece_bytes(most) if key in self._throttle.replicas else most)

    # --- answers

    def _take_memory(self, size_bytes: int) -> memoryview | None:
        position = self._arena.allocate(size_bytes) if self._slot is None else -1
        if position < 0:
            return None
        self._slot = ReceivedAnswer(self._arena, position, self._arena.rounded_size(size_bytes))
        return self._arena.memory[position : position + size_bytes]

    def _on_answer(self, answer: PeerAnswer | None) -> None:
        self._under_way -= 1
        overtaken, self._overtaken = self._overtaken, set()
        is_over, self._is_over = self._is_over, self._is_over and self._under_way > 0
        slot = self._slot
        if answer is None or slot is None or is_over:
            self._counters.lost_fetches.add()
            self._drop_slot()
            self.session.reset()  # what else was under way is lost with it
            return
        try:
            fetched = decode_replica_fetch_response(answer.memory, answer.position, answer.limit, answer.version)
        except BaseException:
            self._drop_slot()
            self.session.reset()  # the connection ends with this, and is not to be begun anew without a pause
            raise
        if fetched.error_code:
            self._on_refusal(fetched.error_code)
            return
        self._refusals = 0
        asked = self.session.asked
        for part in fetched.partitions:
            key = part.topic_id, part.partition
            known = asked.get(key)
            if known is None:
                continue  # it was not asked for
            if key not in overtaken:
                self._parts.append((part, known))
            elif (followed := self.partitions.get(key)) is not None:
                self._on_unfitting(followed, known, part)
        self.session.on_answer(fetched.session_id)
        if self.session.is_new:
            self._give_up_later_one()
        self._parts_memory = answer.memory
        if not self._parts:
            self._drop_slot()

    def _on_refusal(self, error: int) -> None:
        """A session that the leader has forgotten is no trouble; anything else is not tried again at once."""
        self._counters.on_error(error)
        self._drop_slot()
        self._begin_anew()
        if self._refusals or error not in _SESSION_ERRORS:
            pause_ms = min(self._settings.backoff_ms, REFUSED_PAUSE_MS << min(self._refusals, 16))
            self._resumes_ns = self._clock.monotonic_ns() + pause_ms * 1_000_000
        self._refusals += 1
        if self._refusals == REFUSALS_LOGGED and error in _NOT_A_BOX:
            self._log.warning(
                f"broker {self.leader_id} refuses the fetches of this box ({_NOT_A_BOX[error]}); {len(self.partitions)} partitions wait",
                peer=f"broker {self.leader_id}",
            )

    def _judge_parts(self, now_ns: int) -> int:
        """A bounded bite of the answer."""
        slot, memory = self._slot, self._parts_memory
        assert slot is not None and memory is not None
        budget = BYTES_A_TURN
        judged = 0
        while self._parts and budget > 0:
            part, asked = self._parts.popleft()
            judged += 1
            budget -= part.records_size + 64
            if (part.topic_id, part.partition) in self._throttle.replicas:
                self._throttle.record(part.records_size, now_ns)
            followed = self.partitions.get((part.topic_id, part.partition))
            if followed is None:
                continue
            if self._judge.judge(followed, asked, part, memory, slot, now_ns):
                self._due.add(followed.key)
                self._unheard.discard(followed.key)
            else:
                self._on_unfitting(followed, asked, part)
        if not self._parts:
            self._drop_slot()
        return judged

    def _on_unfitting(self, followed: FollowedPartition, asked: FetchPartition, part: FetchedPartition) -> None:
        """It means the partition no more. Records come again; where the leader's log begins and what is committed does not, as long as it stays the same."""
        rules = followed.rules
        if part.error_code or asked.current_leader_epoch != rules.leader_epoch:
            return
        if (part.high_watermark, part.log_start_offset) != (rules.high_watermark, rules.leader_log_start_offset):
            self._unheard.add(followed.key)
            self._touched.add(followed.key)

    def _drop_slot(self) -> None:
        slot, self._slot = self._slot, None
        self._parts_memory = None
        self._parts.clear()
        if slot is not None:
            slot.release()

    def _begin_anew(self) -> None:
        """The session is over: the next fetch names everything."""
        self.session.reset()
        self._give_up_later_one()

    def _give_up_later_one(self) -> None:
        """A second fetch under way is of a session that is over."""
        if self._under_way and self._connection is not None:
            self._is_over = self._connection.is_ready  # else nothing was sent yet
            self._connection.disconnect("its fetch session is over")

    # --- offsets of the leader

    def _ask_offset(self, followed: FollowedPartition) -> None:
        connection, rules = self._connection, followed.rules
        turn = rules.begin()
        if connection is None:
            self._on_offset(followed, turn, None)
            return
        timestamp = LATEST_TIMESTAMP if rules.need == Need.LATEST else EARLIEST_TIMESTAMP
        wanted = ListOffsetsPartition(followed.place.partition, rules.leader_epoch, timestamp)
        question = ListOffsetsRequest(self._own_id, 0, (ListOffsetsTopic(followed.place.topic, (wanted,)),))
        connection.ask(
            offset_apis.LIST_OFFSETS_REQUEST,
            offset_apis.LIST_OFFSETS_RESPONSE,
            question,
            partial(self._on_offset, followed, turn),
            self._settings.socket_timeout_ms,
            version_min=4,
        )

    def _on_offset(self, followed: FollowedPartition, turn: int, answer: Any) -> None:
        results = [result for topic in answer.topics for result in topic.partitions] if answer is not None else []
        error, offset = (results[0].error_code, results[0].offset) if len(results) == 1 else (int(ErrorCode.NETWORK_EXCEPTION), -1)
        if error:
            self._counters.on_error(error)
        if not followed.is_closed:
            followed.rules.on_offset(turn, error, offset, self._clock.monotonic_ns())
            self._due.add(followed.key)

    # --- for people

    def _tell_truncation(self, followed: FollowedPartition) -> None:
        rules, place = followed.rules, followed.place
        kind, leader_epoch, offset = rules.truncation
        if kind == Truncation.START_AT:
            self._counters.restarts.add()
            text = f"begins anew at offset {offset}: broker {self.leader_id} has nothing older, and the copy here ends at {rules.log_end_offset}"
        elif kind == Truncation.DIVERGED:
            if offset >= rules.log_end_offset:
                return  # an epoch that brought no record is forgotten: every box that led is told so when it follows again
            self._counters.truncations.add()
            text = f"has what broker {self.leader_id} does not have: of leader epoch {leader_epoch} nothing from offset {offset} on is kept"
        else:
            self._counters.truncations.add()
            text = f"is cut at offset {offset}, where the log of broker {self.leader_id} ends"
        self._log.warning(f"{place.topic}-{place.partition} on disk {followed.disk} {text}", topic=place.topic, partition=place.partition, disk=followed.disk)

    def _tell_reachability(self, connection: PeerConnection) -> None:
        is_unreachable = connection.failures > 0
        if is_unreachable != self._was_unreachable:
            self._was_unreachable = is_unreachable
            peer = f"broker {self.leader_id} at {connection.address}"
            if is_unreachable:
                self._log.warning(f"cannot fetch from {peer}: {connection.problem}; {len(self.partitions)} partitions wait", peer=peer)
            else:
                self._log.info(f"fetches from {peer} again", peer=peer)

    # --- ends

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            self._under_way = 0
            self._is_over = False
            self._overtaken.clear()
            self._drop_slot()
            self._begin_anew()
            for followed in self.partitions.values():
                if followed.rules.need in (Need.LATEST, Need.EARLIEST) and followed.rules.is_waiting:
                    self._on_offset(followed, followed.rules.turn, None)

    def close(self) -> None:
        self._disconnect()
        for followed in list(self.partitions.values()):
            self.unfollow(followed)
