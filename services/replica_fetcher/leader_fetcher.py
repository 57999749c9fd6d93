"""Fetches from one leader box: one connection, one fetch session, one fetch after the other.

A turn checks a bounded part of the last response, advances the partitions for which something
changed, then fetches again. The next fetch waits for the appends of the last response, so that it
names their new offsets; it does not wait for a slow disk (`slow_disks.py`). If a partition becomes
fetchable while a fetch is parked at the leader, a second fetch of the session is sent at once and
ends the first one (`_may_fetch`). Owned by the replica-fetcher. Weak spot: a leader that gives no
session gets full fetches, and new partitions wait for the one in flight.
"""

from __future__ import annotations

import heapq
from collections import deque
from functools import partial
from typing import Any

from appliance.base.errors import ErrorCode
from appliance.base.model import NO_OFFSET
from appliance.client.address import Address
from appliance.client.peer_connection import PeerAnswer, PeerConnection
from appliance.cluster.metadata_image import BrokerImage
from appliance.cluster.replication_throttle import ReplicationThrottle
from appliance.ipc.descriptors import Completion, Truncation
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
from services.replica_fetcher.follower_fetch import Need
from services.replica_fetcher.replica_answers import AnswerJudge
from services.replica_fetcher.replica_counters import FetcherResources
from services.replica_fetcher.replica_partition import FollowedPartition, LogOrder, ReceivedAnswer
from services.replica_fetcher.replica_session import Key, ReplicaSession
from services.replica_fetcher.slow_disks import SlowDisks

BYTES_A_TURN = 2 << 20
"""Records that one turn checks, at most."""
SHORT_WAIT_MS = 50
"""How long a fetch without a session may be parked at the leader while partitions wait for the next
one."""
SETTLING_NS = 2_000_000_000
"""After a partition was added, more may follow: so long, fetches without a session are short."""
REFUSED_PAUSE_MS = 20
REFUSALS_LOGGED = 8
"""Refusals in a row after which the leader is not just behind with its image."""
_SESSION_ERRORS = frozenset({ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR})
_REFUSED_AS_REPLICA = {
    int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED): "no registered box has the address from which it connects (add it to inter.broker.allowed.networks there), "
    "or, with TLS, the names of its certificate",
    int(ErrorCode.STALE_BROKER_EPOCH): "it does not know the broker epoch under which this box is registered",
}
HASTEN_AFTER_NS = 5_000_000
"""Partitions often become fetchable in groups: those of this time go into one fetch."""
SLOW_SHARE = 16
"""A disk that is not waited for may hold this fraction (1/16) of the arena."""


class LeaderFetcher:
    """Fetches from one leader. They name this box's broker id and broker epoch (KIP-903)."""

    def __init__(self, leader_id: int, resources: FetcherResources, throttle: ReplicationThrottle) -> None:
        self.leader_id = leader_id
        self.partitions: dict[Key, FollowedPartition] = {}
        self.session = ReplicaSession()
        self.own_id, self._settings, self._arena, self._registry, self._clock, self._counters, self._log, self._tls = resources
        self._own_epoch = -1
        self._throttle = throttle
        self._is_throttled = False
        """True while fetches leave out the throttled partitions."""
        self._throttled: frozenset[Key] = frozenset()
        """The throttled partitions as of the last turn."""
        self._judge = AnswerJudge(leader_id, self._counters, self._log)
        self._broker: BrokerImage | None = None
        self.connection: PeerConnection | None = None
        self.due: set[Key] = set()
        """Partitions to advance in the next turn."""
        self._touched: set[Key] = set()
        """Partitions that the next fetch may have to name, or to forget."""
        self.fetchable: set[Key] = set()
        """Every partition that can be fetched, and some that no longer can, which
        `_is_any_fetchable` removes. A back-off ends with an alarm, which adds its partition."""
        self._newcomers: set[Key] = set()
        """The part of `fetchable` that the session did not have when it was added."""
        self._unapplied: set[Key] = set()
        """Partitions whose last response was not applied. The leader reports a high watermark once
        per session, so they are removed from the session and named again."""
        self._alarms: list[tuple[int, Key]] = []
        self.under_way = 0
        """Fetches in flight: one, or two if a new partition did not wait for the parked one."""
        self._overtaken: set[Key] = set()
        """Partitions that the second of two fetches names again: the first response is outdated for
        them."""
        self._is_over = False
        """True if the session of the fetches in flight has ended: their responses are ignored."""
        self._turn_ns = 0
        self._fetched_ns = 0
        self._slot: ReceivedAnswer | None = None
        self._parts: deque[tuple[FetchedPartition, FetchPartition]] = deque()
        self._parts_memory: memoryview | None = None
        self._slow = SlowDisks(self._arena.size_bytes // SLOW_SHARE)
        self._settles_ns = 0
        self._was_unreachable = False
        self._refusals = 0
        """Responses in a row with an error for the whole fetch."""
        self._resumes_ns = 0

    # --- changes of the image

    def set_brokers(self, leader: BrokerImage | None, own_epoch: int) -> None:
        """Set the leader's registration (None: not registered) and our broker epoch; a new
        registration of either box starts a new session.
        """
        if own_epoch != self._own_epoch or (leader is not None and self._broker is not None and leader.epoch != self._broker.epoch):
            self._own_epoch = own_epoch
            if self.connection is not None:
                self.connection.disconnect("a box has a new registration")
            self._restart_session()
        self._broker = leader
        if leader is None:
            self._disconnect()
        elif self.connection is None:
            address = Address(leader.host, leader.port)
            self.connection = PeerConnection(address, f"broker-{self.own_id}-fetcher", self._registry, self._clock, self._tls, self._arena.size_bytes)
        else:
            self.connection.set_address(Address(leader.host, leader.port))

    def follow(self, followed: FollowedPartition, now_ns: int) -> None:
        self.partitions[followed.key] = followed
        self.due.add(followed.key)
        self._settles_ns = now_ns + SETTLING_NS

    def unfollow(self, followed: FollowedPartition) -> None:
        if self.partitions.get(followed.key) is followed:
            del self.partitions[followed.key]
            self._touched.add(followed.key)
        followed.close()

    def on_disk_changed(self, disk: str) -> None:
        """The disk hangs or recovered, or its log-writer started or stopped."""
        for key, followed in self.partitions.items():
            if followed.disk == disk:
                self._touch(key)

    def _touch(self, key: Key) -> None:
        """Note that `key` changed.

        Every event that makes a partition fetchable calls this, so that no turn has to scan all
        partitions for one.
        """
        self._touched.add(key)
        followed = self.partitions.get(key)
        if followed is not None and self.is_fetchable(followed):
            self.fetchable.add(key)
            if key not in self.session.asked:
                self._newcomers.add(key)

    # --- a turn

    def do_work(self, now_ns: int) -> int:
        self._turn_ns = now_ns
        work = self._judge_parts(now_ns) if self._parts else 0
        self._apply_throttle(now_ns)
        while self._alarms and self._alarms[0][0] <= now_ns:
            self.due.add(heapq.heappop(self._alarms)[1])
        if self.due:
            due, self.due = self.due, set()
            work += len(due)
            for key in due:
                self._advance(key, now_ns)
        connection = self.connection
        if connection is not None:
            work += connection.do_work(now_ns)  # first, so that a fetch that timed out has ended before the next one is sent
            if self._may_fetch(connection, now_ns):
                self._fetch(connection, now_ns)
                work += 1
            self._log_reachability(connection)
        return work

    def _apply_throttle(self, now_ns: int) -> None:
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
        """Return when the next turn is due without an event; 0: never.

        What a turn could not do when it was due waits for an event.
        """
        times = [self._resumes_ns, self._slow.patience_ends_ns()]
        if self._alarms:
            times.append(self._alarms[0][0])
        if self._is_throttled:
            times.append(self._throttle.opens_ns)
        if self.under_way == 1 and self._has_newcomer():
            times.append(self._fetched_ns + HASTEN_AFTER_NS)
        return min((time_ns for time_ns in times if time_ns > self._turn_ns), default=0)

    def _advance(self, key: Key, now_ns: int) -> None:
        """Start the step that one partition needs, or schedule it."""
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
                self._unapplied.add(followed.key)  # it restarts, so earlier responses may not be applied
        elif need == Need.TRUNCATE:
            self._log_truncation(followed)
        elif need == Need.APPEND:
            self._counters.appends.add()
        order = followed.offer_order(now_ns)
        if order is None:
            self.due.add(followed.key)
        elif order.is_append:
            self._slow.on_offered(followed.disk, order.slot, now_ns)

    def on_order_done(self, order: LogOrder, completion: Completion | None) -> None:
        """Apply the completion of an order; None: the log-writer died."""
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
        self.due.add(followed.key)

    def retry_stopped(self, now_ns: int) -> None:
        """Restart partitions that stopped because their log could not be written or the leader has
        a larger epoch; called every second.
        """
        for key, followed in self.partitions.items():
            if followed.rules.need == Need.NOTHING:
                followed.rules.restart(now_ns)
                self.due.add(key)

    @property
    def stalled(self) -> int:
        return sum(bool(followed.rules.problem) for followed in self.partitions.values())

    # --- fetching

    def is_fetchable(self, followed: FollowedPartition) -> bool:
        if self._is_throttled and followed.key in self._throttle.replicas:
            return False
        proxy = followed.place.proxy
        if not proxy.serving or proxy.is_hung or proxy.is_full:  # a full disk's replica would be added to the in-sync set, and leave it at the next record
            return False
        return followed.rules.may_fetch(self._clock.monotonic_ns()) and not self._slow.is_left_out(proxy.disk)

    def _may_fetch(self, connection: PeerConnection, now_ns: int) -> bool:
        """Decide whether to send the next fetch now, or a second one behind a parked one (a new
        partition must not wait until the leader has records for the others). Neither is sent before
        the last response is checked and appended: partitions with an append in progress would leave
        the session and be named again.
        """
        if self._parts or self._slot is not None or now_ns < self._resumes_ns or (self.under_way and not self._may_hasten(connection, now_ns)):
            return False
        for disk in self._slow.leave_out(now_ns):
            self.on_disk_changed(disk)
        if self._slow.is_waiting:
            return False
        return self._has_newcomer() if self.under_way else self._is_any_fetchable()

    def _is_any_fetchable(self) -> bool:
        """Look at partitions until one can be fetched. Those that cannot are not looked at again
        before they change."""
        fetchable = self.fetchable
        while fetchable:
            key = next(iter(fetchable))
            followed = self.partitions.get(key)
            if followed is not None and self.is_fetchable(followed):
                return True
            fetchable.discard(key)
        return False

    def _may_hasten(self, connection: PeerConnection, now_ns: int) -> bool:
        """Decide about a second fetch.

        While the connection is not ready, the first one is not encoded yet and will name the new
        partitions. A session without partitions ends, and the leader answers at once.
        """
        if self.under_way > 1 or now_ns < self._fetched_ns + HASTEN_AFTER_NS or not connection.is_ready or connection.hears_answer:
            return False
        return bool(self.session.asked) and self._has_newcomer()

    def _has_newcomer(self) -> bool:
        """True if a partition can be fetched that the session does not have."""
        session, newcomers = self.session, self._newcomers
        while newcomers and not session.is_new:
            key = next(iter(newcomers))
            followed = self.partitions.get(key)
            if key not in session.asked and followed is not None and self.is_fetchable(followed):
                return True
            newcomers.discard(key)
        return False

    def _fetch(self, connection: PeerConnection, now_ns: int) -> None:
        self.under_way += 1
        self._fetched_ns = now_ns
        timeout_ms = self._settings.socket_timeout_ms
        connection.request(ApiKey.FETCH, VERSION_MIN, VERSION_MAX, self._encode_fetch, self._on_answer, timeout_ms, self._take_memory)

    def _encode_fetch(self, _version: int) -> bytes:
        """Encode the next fetch when it is sent; without a connection that is later than `_fetch`."""
        session, settings = self.session, self._settings
        now_ns = self._clock.monotonic_ns()
        if session.is_new:
            session.asked.clear()
            self._counters.sessions.add()
        self._unapplied.intersection_update(session.asked)
        keys = self.partitions.keys() if session.is_new else self._touched
        named, forgotten = session.plan(keys, self._wanted)
        removed, self._unapplied = self._unapplied, set()
        self._touched.clear()
        self._newcomers.clear()
        for key in removed:
            self._touch(key)
        if self.under_way > 1:
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
            ReplicaFetch(self.own_id, self._own_epoch, wait_ms, settings.bytes_min, settings.answer_bytes_max, *place, named, forgotten)
        )

    def _wanted(self, key: Key) -> FetchPartition | None:
        followed = self.partitions.get(key)
        if followed is None or key in self._unapplied or not self.is_fetchable(followed):
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
        self.under_way -= 1
        overtaken, self._overtaken = self._overtaken, set()
        is_over, self._is_over = self._is_over, self._is_over and self.under_way > 0
        slot = self._slot
        if answer is None or slot is None or is_over:
            self._counters.lost_fetches.add()
            self._drop_slot()
            self.session.reset()  # a second fetch in flight is lost with it
            return
        try:
            fetched = decode_replica_fetch_response(answer.memory, answer.position, answer.limit, answer.version)
        except BaseException:
            self._drop_slot()
            self.session.reset()  # the connection ends with this exception, which makes it pause before it reconnects
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
                continue  # not in the session
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
        """Start a new session.

        After an evicted session the next fetch is sent at once, after any other error it waits.
        """
        self._counters.on_error(error)
        self._drop_slot()
        self._restart_session()
        if self._refusals or error not in _SESSION_ERRORS:
            pause_ms = min(self._settings.backoff_ms, REFUSED_PAUSE_MS << min(self._refusals, 16))
            self._resumes_ns = self._clock.monotonic_ns() + pause_ms * 1_000_000
        self._refusals += 1
        if self._refusals == REFUSALS_LOGGED and error in _REFUSED_AS_REPLICA:
            self._log.warning(
                f"broker {self.leader_id} refuses the fetches of this box ({_REFUSED_AS_REPLICA[error]}); {len(self.partitions)} partitions wait",
                peer=f"broker {self.leader_id}",
            )

    def _judge_parts(self, now_ns: int) -> int:
        """Check a bounded part of the response."""
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
                self.due.add(followed.key)
                self._unapplied.discard(followed.key)
            else:
                self._on_unfitting(followed, asked, part)
        if not self._parts:
            self._drop_slot()
        return judged

    def _on_unfitting(self, followed: FollowedPartition, asked: FetchPartition, part: FetchedPartition) -> None:
        """The response is outdated for the partition.

        The next fetch returns its records again, but the leader repeats log start offset and high
        watermark only if they change: so the partition has to leave the session and be named again.
        """
        rules = followed.rules
        if part.error_code or asked.current_leader_epoch != rules.leader_epoch:
            return
        if (part.high_watermark, part.log_start_offset) != (rules.high_watermark, rules.leader_log_start_offset):
            self._unapplied.add(followed.key)
            self._touched.add(followed.key)

    def _drop_slot(self) -> None:
        slot, self._slot = self._slot, None
        self._parts_memory = None
        self._parts.clear()
        if slot is not None:
            slot.release()

    def _restart_session(self) -> None:
        """End the session: the next fetch names all partitions."""
        self.session.reset()
        self._give_up_later_one()

    def _give_up_later_one(self) -> None:
        """Drop a second fetch in flight: its session has ended."""
        if self.under_way and self.connection is not None:
            self._is_over = self.connection.is_ready  # else it was not sent yet
            self.connection.disconnect("its fetch session is over")

    # --- offsets of the leader

    def _ask_offset(self, followed: FollowedPartition) -> None:
        connection, rules = self.connection, followed.rules
        turn = rules.begin()
        if connection is None:
            self._on_offset(followed, turn, None)
            return
        timestamp = LATEST_TIMESTAMP if rules.need == Need.LATEST else EARLIEST_TIMESTAMP
        wanted = ListOffsetsPartition(followed.place.partition, rules.leader_epoch, timestamp)
        question = ListOffsetsRequest(self.own_id, 0, (ListOffsetsTopic(followed.place.topic, (wanted,)),))
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
        error, offset = (results[0].error_code, results[0].offset) if len(results) == 1 else (int(ErrorCode.NETWORK_EXCEPTION), NO_OFFSET)
        if error:
            self._counters.on_error(error)
        if not followed.is_closed:
            followed.rules.on_offset(turn, error, offset, self._clock.monotonic_ns())
            self.due.add(followed.key)

    # --- log lines

    def _log_truncation(self, followed: FollowedPartition) -> None:
        rules, place = followed.rules, followed.place
        kind, leader_epoch, offset = rules.truncation
        if kind == Truncation.START_AT:
            self._counters.restarts.add()
            text = f"restarts at offset {offset}: broker {self.leader_id} has nothing older, and the replica here ends at {rules.log_end_offset}"
        elif kind == Truncation.DIVERGED:
            if offset >= rules.log_end_offset:
                return  # a leader epoch without records is removed: usual when a former leader follows again
            self._counters.truncations.add()
            text = f"diverges from broker {self.leader_id}: truncating leader epoch {leader_epoch} at offset {offset}"
        else:
            self._counters.truncations.add()
            text = f"is truncated at offset {offset}, where the log of broker {self.leader_id} ends"
        self._log.warning(f"{place.topic}-{place.partition} on disk {followed.disk} {text}", topic=place.topic, partition=place.partition, disk=followed.disk)

    def _log_reachability(self, connection: PeerConnection) -> None:
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
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()
            self.under_way = 0
            self._is_over = False
            self._overtaken.clear()
            self._drop_slot()
            self._restart_session()
            for followed in self.partitions.values():
                if followed.rules.need in (Need.LATEST, Need.EARLIEST) and followed.rules.is_waiting:
                    self._on_offset(followed, followed.rules.turn, None)

    def close(self) -> None:
        self._disconnect()
        for followed in list(self.partitions.values()):
            self.unfollow(followed)
