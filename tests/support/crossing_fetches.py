"""A follower's fetcher and its leader, both real, with all that lies between and behind them in the test's hands: requests and answers on their way, the
follower's disks, the leader's log-reader, time.

The leader is `SteppedFetches` behind a real receiver; every partition of it has the same segment, and grows by showing more of it. The follower's log-writers
are played: they hold what they are given until the test has them go on, and know what a log has to hold. Weak spot: neither log is ever cut.
"""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from pathlib import Path
from typing import Any, cast
from unittest import mock

from appliance.base.errors import ErrorCode
from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.client import peer_connection
from appliance.cluster.metadata_image import BrokerImage
from appliance.cluster.replication_throttle import ReplicationThrottle
from appliance.ipc.descriptors import Completion, DescriptorKind, Truncation, replica_append_of, truncate_of
from appliance.protocol.api_versions import encode_api_versions_response
from appliance.protocol.apis import ApiKey
from appliance.protocol.fetch import FetchPartition
from appliance.protocol.framing import SIZE_PREFIX, SIZE_PREFIX_BYTES, parse_request_header
from appliance.security.transport import PlainTransport
from appliance.shm.arena import Arena
from appliance.shm.counters import Counters
from services.acceptor.connection import Connection
from services.acceptor.receiver import Receiver
from services.replica_fetcher.follower_fetch import Need
from services.replica_fetcher.leader_fetcher import LeaderFetcher
from services.replica_fetcher.replica_counters import FetcherResources, ReplicaCounters, ReplicaSettings
from services.replica_fetcher.replica_partition import FollowedPartition, FollowedRow, LogOrder
from tests.support.scripted_leader import made_batch
from tests.support.stepped_fetches import BOX_ADDRESS, BROKER_EPOCH, TOPIC, TOPIC_ID, SteppedFetches

LEADER_ID, OWN_ID = 1, 2
RECORDS = 10
"""In each batch."""
WAIT_MS = 500
PARK_MS = 100
ARENA_BYTES = 64 << 10


class PlayedStream:
    """In place of a `PeerStream`: what is sent lies in `to_leader`, what is answered in `to_follower`, until the test delivers it."""

    is_handshaking = False

    def __init__(self, world: CrossingFetches, owner: Any) -> None:
        self.failure = ""
        self.to_leader: deque[bytes] = deque()
        self.to_follower: deque[bytes] = deque()
        self.rest = b""
        """The first bytes of an answer that has not arrived completely."""
        self.is_closed = False
        self.hears_frame = False
        self._world = world
        self._owner = owner
        self._wants_memory = False
        ours, self.theirs = socket.socketpair()
        for sock in (ours, self.theirs):
            sock.setblocking(False)
        self.connection = Connection(PlainTransport(ours), BOX_ADDRESS, world.clock.monotonic_ns())
        self._ours = ours
        self.is_connected = False

    def connect(self) -> None:
        self.is_connected = True
        self._owner.on_connected()

    def send(self, data: bytes) -> None:
        header = parse_request_header(data[SIZE_PREFIX_BYTES:], 0, len(data) - SIZE_PREFIX_BYTES)
        if header.api_key == ApiKey.API_VERSIONS:
            self.to_follower.append(encode_api_versions_response(header.api_version, header.correlation_id))
        else:
            assert header.api_key == ApiKey.FETCH, "no log is cut here"
            self.to_leader.append(data)

    def begin_frame(self) -> None:
        """Its first bytes come."""
        self.hears_frame = self.hears_frame or bool(self.to_follower)

    def deliver_frame(self) -> bool:
        """The whole of it; False when there is none, or no memory for it."""
        if self.is_closed or not self.to_follower:
            return False
        self.hears_frame = True
        frame = self.to_follower[0][SIZE_PREFIX_BYTES:]
        memory = self._owner.take_memory(len(frame))
        self._wants_memory = memory is None
        if memory is None:
            return False
        self.to_follower.popleft()
        memory[: len(frame)] = frame
        self.hears_frame = False
        self._owner.on_frame(memory, len(frame))
        return True

    def resume(self) -> bool:
        return self._wants_memory and self.deliver_frame()

    def end(self) -> None:
        """The network, or the leader, ends it."""
        if not self.is_closed:
            self._owner.on_end("it closed the connection", False)

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.connection.closed = True
            self.connection.replies.clear()
            self._ours.close()
            self.theirs.close()


class PlayedLog:
    """One partition's log on the follower's disk."""

    def __init__(self) -> None:
        self.leader_epoch = 0
        self.log_end_offset = self.high_watermark = 0


class PlayedDisk:
    """In place of a log-writer's proxy."""

    def __init__(self, world: CrossingFetches, disk: str) -> None:
        self.disk = disk
        self.serving, self.is_hung, self.is_full = True, False, False
        self.orders: deque[tuple[tuple[int, ...], LogOrder]] = deque()
        self._world = world

    def offer_or_queue(self, entry: tuple[int, ...], _charge: int, order: LogOrder) -> bool:
        self.orders.append((entry, order))
        return True

    def go_on(self, count: int) -> int:
        """Carry out up to `count` orders; returns how many it were."""
        done = 0
        while self.orders and done < count:
            entry, order = self.orders.popleft()
            completion = self._carry_out(entry)
            order.release()
            order.end(completion)
            done += 1
        return done

    def lose_all(self) -> None:
        """The log-writer dies before it carries out anything, and restarts at once."""
        orders, self.orders = self.orders, deque()
        for _, order in orders:
            order.release()
            order.end(None)

    def _carry_out(self, entry: tuple[int, ...]) -> Completion:
        log = self._world.logs[entry[3]]
        error = 0
        if entry[5] != log.leader_epoch:
            error = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif entry[0] == DescriptorKind.REPLICA_APPEND:
            length, position = entry[7], entry[8]
            self._world.check_records(entry[3], bytes(self._world.arena.memory[position : position + length]))
            log.log_end_offset += length // self._world.batch_bytes * RECORDS
            log.high_watermark = max(log.high_watermark, min(replica_append_of(entry).high_watermark, log.log_end_offset))
        else:
            assert truncate_of(entry).kind == Truncation.TELL, "both logs are one"
        last_epoch = 0 if log.log_end_offset else -1
        return Completion._make((entry[0], 0, error, entry[3], 0, -1, -1, 0, log.log_end_offset, last_epoch, 0, 0))


class CrossingFetches:
    """`partitions` of them, of which a batch may come `batches` times; on the follower they lie on `disks` disks in turn."""

    def __init__(self, layout: BoxLayout, path: Path, partitions: int = 5, batches: int = 400, disks: int = 2, arena_bytes: int = ARENA_BYTES) -> None:
        made = [made_batch(number * RECORDS, 0, RECORDS) for number in range(batches)]
        self.segment = b"".join(made)
        self.batch_bytes = len(made[0])
        assert len(self.segment) == batches * self.batch_bytes
        path.write_bytes(self.segment)
        self.side = side = SteppedFetches(layout, path, self.batch_bytes, partitions)
        self.clock = side.clock
        side.epoch_ends[0] = (0, 1 << 40)
        side.assign((LEADER_ID, OWN_ID))
        for partition in range(partitions):
            side.change_row(partition, log_end_offset=0, high_watermark=0, last_stable_offset=0, active_position=0, watermark_position=0, isr_size=2)
        self.arena = Arena.create(layout.shared_memory_name("arena", "crossing", 1), arena_bytes, 1)
        self._counters = Counters.create_or_adopt(layout, "replica-fetcher", 1)
        self._silence = os.open(os.devnull, os.O_WRONLY)
        self.throttle = ReplicationThrottle(is_follower=True)
        settings = ReplicaSettings(1 << 20, arena_bytes // 4, WAIT_MS, 1, 1_000, 30_000)
        self.streams: list[PlayedStream] = []
        self._patched = mock.patch.object(peer_connection, "PeerStream", self._make_stream)
        self._patched.start()
        log = Logger("replica-fetcher", descriptor=self._silence)
        resources = FetcherResources(OWN_ID, settings, self.arena, cast(Any, None), self.clock, ReplicaCounters(self._counters), log)
        self.lane = LeaderFetcher(LEADER_ID, resources, self.throttle)
        self.lane.set_brokers(BrokerImage(LEADER_ID, "127.0.0.1", 1, None, 5), BROKER_EPOCH)
        self._receiver = Receiver(self.arena, self.clock, self._counters, 1 << 20, self._on_request, lambda _: None)
        self.logs = [PlayedLog() for _ in range(partitions)]
        self.disks = [PlayedDisk(self, f"d{number}") for number in range(disks)]
        self.followed: dict[int, FollowedPartition] = {}
        self._generation = 0
        self.ended_sessions: set[int] = set()
        """that the leader gave up by itself"""
        self.turns = 0
        self._wake_ns = 0

    # --- the world goes on

    def _make_stream(self, _target: Any, _registry: Any, owner: Any, _encrypt: Any) -> PlayedStream:
        self.streams.append(PlayedStream(self, owner))
        return self.streams[-1]

    @property
    def stream(self) -> PlayedStream | None:
        return self.streams[-1] if self.streams and not self.streams[-1].is_closed else None

    def counted(self, name: str) -> int:
        return self._counters.counter(f"replica_fetcher.{name}").value

    def turn(self) -> int:
        """Of the replica-fetcher. What it could not do in this turn it must not be woken for at once."""
        self.turns += 1
        now_ns = self.clock.monotonic_ns()
        work = self.lane.do_work(now_ns)
        self.check_fetchable()
        if not work:
            wake_ns = self.lane.wake_ns()
            assert not wake_ns or wake_ns > now_ns, "it would spin"
        return work

    def connect(self) -> bool:
        stream = self.stream
        if stream is None or stream.is_connected:
            return False
        stream.connect()
        return stream.deliver_frame()

    def deliver_request(self) -> bool:
        """The oldest request that is on its way reaches the leader."""
        stream = self.stream
        if stream is None or not stream.to_leader:
            return False
        stream.theirs.sendall(stream.to_leader.popleft())
        if not stream.connection.read_paused:  # else nothing is read from it
            self._receiver.receive(stream.connection)
        self._send_answers()
        return True

    def deliver_answer(self) -> bool:
        return self.stream is not None and self.stream.deliver_frame()

    def _on_request(self, connection: Connection, buffer: memoryview, position: int, limit: int, _slot: object) -> bool:
        header = parse_request_header(buffer, position, limit)
        self.side.fetches.handle(connection, header, buffer[:limit], limit)
        return True

    def leader_turn(self, serves: bool = True) -> None:
        """`serves`: its log-reader answers."""
        side = self.side
        if serves:
            side.serve()
        side.delayed.wake_moved()
        side.delayed.expire(self.clock.monotonic_ns())
        if serves:
            side.serve()
        self._send_answers()

    def _send_answers(self) -> None:
        answered = self.side.answered
        while answered:
            connection = answered.popleft()
            stream = next(each for each in self.streams if each.connection is connection)
            if connection.closed:
                continue
            while True:
                assert connection.collect_ready()
                is_sent = connection.send_outgoing()
                self._take_answers(stream)
                if is_sent:
                    break
            was_paused = connection.read_paused
            if was_paused:
                self._receiver.resume(connection)
                if not connection.read_paused and select.select([connection.transport.fileno()], [], [], 0)[0]:
                    self._receiver.receive(connection)

    def _take_answers(self, stream: PlayedStream) -> None:
        received = stream.rest
        while True:
            try:
                received += stream.theirs.recv(1 << 20)
            except BlockingIOError:
                break
        while len(received) >= SIZE_PREFIX_BYTES and len(received) >= (end := SIZE_PREFIX_BYTES + SIZE_PREFIX.unpack_from(received)[0]):
            stream.to_follower.append(received[:end])
            received = received[end:]
        stream.rest = received

    # --- what happens to partitions

    def grow(self, partition: int, batches: int) -> None:
        row = self.side.placements[TOPIC, partition].read_row()
        end = min(row.log_end_offset + batches * RECORDS, len(self.segment) // self.batch_bytes * RECORDS)
        self.side.change_row(partition, log_end_offset=end, active_position=end // RECORDS * self.batch_bytes)

    def commit(self, partition: int) -> None:
        """All that the leader has comes under its high watermark."""
        end = self.side.placements[TOPIC, partition].read_row().log_end_offset
        position = end // RECORDS * self.batch_bytes
        self.side.change_row(partition, high_watermark=end, last_stable_offset=end, watermark_position=position)

    def follow(self, partition: int) -> None:
        """Under the epoch that the leader has now."""
        log = self.logs[partition]
        log.leader_epoch = self.side.placements[TOPIC, partition].read_row().leader_epoch
        self._generation += 1
        proxy: Any = self.disks[partition % len(self.disks)]
        place = FollowedRow(TOPIC, partition, proxy, "table", partition, self._generation, LEADER_ID, log.leader_epoch)
        now_ns = self.clock.monotonic_ns()
        self.followed[partition] = followed = FollowedPartition((TOPIC_ID, partition), place, self.lane, 1_000, now_ns)
        self.lane.follow(followed, now_ns)

    def unfollow(self, partition: int) -> None:
        self.lane.unfollow(self.followed.pop(partition))

    def raise_epoch(self, partition: int) -> None:
        """At the leader; the follower hears of it when it follows again."""
        self.side.change_row(partition, leader_epoch=self.side.placements[TOPIC, partition].read_row().leader_epoch + 1)

    def end_session(self) -> None:
        """The leader has no free session for it any more."""
        session_id = self.lane.session.session_id
        if session_id:
            self.ended_sessions.add(session_id)
            self.side.fetches.sessions.close(session_id)

    # --- what has to be so

    def check_records(self, partition: int, records: bytes) -> None:
        """They go on where the log ends, batch by batch."""
        position = self.logs[partition].log_end_offset // RECORDS * self.batch_bytes
        end = self.side.placements[TOPIC, partition].read_row().log_end_offset
        assert records == self.segment[position : position + len(records)] and len(records) % self.batch_bytes == 0
        assert position + len(records) <= end // RECORDS * self.batch_bytes

    def check_progress(self) -> None:
        """The leader receives nothing that the follower's log does not have."""
        offered, self.side.offered = self.side.offered, []
        for entry in offered:
            assert entry[10] <= self.logs[entry[3]].log_end_offset, f"partition {entry[3]}"

    def check_fetchable(self) -> None:
        """After a turn, no partition that can be fetched is missing in the set that later turns look at."""
        lane = self.lane
        found = {key for key, followed in lane.partitions.items() if LeaderFetcher.is_fetchable(lane, followed)}
        assert found <= lane.fetchable | lane.due

    def check_session(self) -> None:
        """When no request is on its way, the leader's session has what the follower believes that it has."""
        session, stream = self.lane.session, self.stream
        connection = self.lane.connection
        assert connection is not None
        if session.is_new or stream is None or stream.to_leader or connection.given_up or session.session_id in self.ended_sessions:
            return
        if stream.connection.read_paused or stream.connection.pending:
            return
        kept = self.side.fetches.sessions.by_id.get(session.session_id)
        believed: dict[Any, FetchPartition] = dict(session.asked)
        if not believed:
            assert kept is None or not kept.partitions
            return
        assert kept is not None and kept.expected_epoch == session.epoch
        assert {(each.wanted.topic_id, each.wanted.partition): each.wanted for each in kept.partitions.values()} == believed

    @property
    def is_quiet(self) -> bool:
        """Nothing is fetched at this moment."""
        return not self.lane.under_way

    def is_even(self) -> bool:
        for partition in self.followed:
            row, log = self.side.placements[TOPIC, partition].read_row(), self.logs[partition]
            if (log.log_end_offset, log.high_watermark) != (row.log_end_offset, min(row.high_watermark, row.log_end_offset)):
                return False
        return True

    def until_even(self, most_ms: int = 3_000) -> int:
        """Deliver everything and let each side act; the replica-fetcher has its turns on an event
        or when its time has come. Returns the duration.
        """
        began_ms = self.clock.monotonic_ms()
        for partition in list(self.followed):
            if self.logs[partition].leader_epoch != self.side.placements[TOPIC, partition].read_row().leader_epoch:
                self.unfollow(partition)
                self.follow(partition)
        self._turns_until_idle()
        while not (self.is_even() and all(followed.rules.need == Need.FETCH for followed in self.followed.values())):
            self.leader_turn()
            has_news = self.connect()
            while self.deliver_request():
                pass
            has_news = self.deliver_answer() or has_news
            for disk in self.disks:
                has_news = bool(disk.go_on(1 << 20)) or has_news
            now_ns = self.clock.monotonic_ns()
            if not has_news and now_ns < self._wake_ns:
                wait_ms = -(-(self._wake_ns - now_ns) // 1_000_000)
                self.clock.advance_ms(max(1, self.side.delayed.ms_to_next_deadline(now_ns, wait_ms)))
                has_news = self.clock.monotonic_ns() >= self._wake_ns
            if has_news:
                self._turns_until_idle()
            self.check_progress()
            self.check_session()
            spent_ms = self.clock.monotonic_ms() - began_ms
            assert spent_ms <= most_ms, {partition: (vars(self.logs[partition]), followed.rules.need) for partition, followed in self.followed.items()}
        return self.clock.monotonic_ms() - began_ms

    def _turns_until_idle(self) -> None:
        while self.turn():
            pass
        now_ns = self.clock.monotonic_ns()
        self._wake_ns = min(self.lane.wake_ns() or 1 << 62, now_ns + PARK_MS * 1_000_000)

    def close(self) -> None:
        self._patched.stop()
        self.lane.close()
        for disk in self.disks:
            disk.go_on(1 << 20)
        in_use = self.arena.slots_in_use()
        for stream in self.streams:
            stream.close()
        self.side.close()
        self.arena.close()
        self._counters.close()
        os.close(self._silence)
        assert not in_use, "what was received is freed"
