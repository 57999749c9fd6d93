"""Writing records to a topic: batches per partition, acks=all unless told otherwise, tried again until they are in.

Owned by one thread. One batch is under way per partition, so a retry never changes the order within a partition; batches
of different partitions travel together. Weak spot: there is no producer id yet, so a batch whose answer was lost is sent
again and may be there twice (at least once).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import NO_LEADER, BrokerId, TopicPartition
from appliance.client.cluster import ClusterClient
from appliance.client.connection import ClientConnection
from appliance.client.errors import ClientFailed, ReplyTimedOut, error_code, is_retriable, refused
from appliance.client.messages import PRODUCE
from appliance.client.readiness import await_readable
from appliance.records.builder import NO_HEADERS, BatchBuilder
from appliance.records.compression import Codec
from appliance.records.key_hash import partition_of_key

ACKS_ALL = -1
ACKS_NONE = 0
BATCH_BYTES = 256 * 1024
BATCHES_WAITING_MAX = 2
PRODUCE_TIMEOUT_MS = 30_000
SILENCE_MS_MAX = PRODUCE_TIMEOUT_MS + 5_000
DELIVERY_TIMEOUT_MS = 60_000
FIRST_PAUSE_MS = 20
LONGEST_PAUSE_MS = 1_000

Headers = bytes | Iterable[tuple[str, bytes | None]]


class _Batch(NamedTuple):
    encoded: bytes
    records_count: int
    made_ms: int


class _Lane:
    """One partition: the batch being filled, those that wait, the one under way."""

    def __init__(self, partition: TopicPartition, builder: BatchBuilder) -> None:
        self.partition = partition
        self.builder = builder
        self.waiting: deque[_Batch] = deque()
        self.under_way: _Batch | None = None
        self.sent_ms = 0
        self.pause_ms = FIRST_PAUSE_MS
        self.try_at_ms = 0

    @property
    def load(self) -> int:
        return len(self.waiting) + (self.under_way is not None)


class Producer:
    """`send` takes records, `flush` returns when all are acknowledged. Raises RequestRefused or ClientFailed for what could not be delivered."""

    def __init__(self, cluster: ClusterClient, topic: str, *, acks: int = ACKS_ALL, codec: Codec = Codec.NONE, batch_bytes: int = BATCH_BYTES,
                 delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS, allow_auto_topic_creation: bool = True,
                 on_notice: Callable[[str], None] | None = None) -> None:  # fmt: skip
        self.topic = topic
        self.sent = 0
        """Records taken by `send`."""
        self.acknowledged = 0
        """Records that the broker has confirmed (with acks=0: handed to the connection)."""
        self.retries = 0
        self._cluster = cluster
        self._acks = acks
        self._codec = codec
        self._batch_bytes = batch_bytes
        self._delivery_timeout_ms = delivery_timeout_ms
        self._on_notice = on_notice or (lambda notice: None)
        self._connections: dict[BrokerId, ClientConnection] = {}
        self._asked: dict[ClientConnection, deque[list[_Lane]]] = {}
        self._metadata_is_stale = False
        found = cluster.topic(topic, allow_auto_topic_creation=allow_auto_topic_creation, complete=False)
        self._leaders: dict[int, BrokerId] = {known.partition: known.leader for known in found.partitions}
        self._lanes = [_Lane(TopicPartition(topic, partition), BatchBuilder(codec)) for partition in sorted(self._leaders)]
        self._sticky = self._lanes[0]

    # --- what callers use

    def send(
        self, value: bytes | None, key: bytes | None = None, *, headers: Headers = NO_HEADERS, timestamp_ms: int | None = None, partition: int | None = None
    ) -> None:
        """Take one record; blocks while its partition has enough waiting. Without key and partition a batch's worth goes to one partition, then the next."""
        if partition is not None:
            lane = self._lanes[partition]
        elif key is not None:
            lane = self._lanes[partition_of_key(key, len(self._lanes))]
        else:
            lane = self._sticky
        builder = lane.builder
        builder.append(self._cluster.clock.wall_ms() if timestamp_ms is None else timestamp_ms, key, value, headers)
        self.sent += 1
        if builder.size_bytes >= self._batch_bytes:
            self._seal(lane)
            self._turn(0)
            while len(lane.waiting) > BATCHES_WAITING_MAX:
                self._turn(self._longest_wait_ms())

    def hand_over(self) -> None:
        """Send what has been taken, without waiting for the answers."""
        for lane in self._lanes:
            self._seal(lane)
        self._turn(0)

    def flush(self) -> None:
        """Return when every record is acknowledged."""
        self.hand_over()
        while any(lane.load for lane in self._lanes):
            self._turn(self._longest_wait_ms())

    def close(self) -> None:
        """Drop the connections; what was not flushed is not sent."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._asked.clear()

    # --- one turn: send what may go, take what has come

    def _seal(self, lane: _Lane) -> None:
        count = lane.builder.count
        if not count:
            return
        lane.waiting.append(_Batch(lane.builder.build(), count, self._cluster.clock.monotonic_ms()))
        lane.builder = BatchBuilder(self._codec)
        if lane is self._sticky:
            self._sticky = self._next_sticky(lane)

    def _next_sticky(self, lane: _Lane) -> _Lane:
        """The least loaded partition, the one after `lane` where several are."""
        after = self._lanes.index(lane) + 1
        return min(self._lanes[after:] + self._lanes[:after], key=lambda candidate: candidate.load)

    def _turn(self, wait_ms: int) -> None:
        self._maybe_look_at_leaders()
        self._dispatch()
        self._collect(wait_ms)

    def _dispatch(self) -> None:
        now_ms = self._cluster.clock.monotonic_ms()
        by_leader: dict[BrokerId, list[_Lane]] = {}
        for lane in self._lanes:
            if lane.waiting and lane.under_way is None and now_ms >= lane.try_at_ms:
                by_leader.setdefault(self._leaders[lane.partition.partition], []).append(lane)
        for leader, lanes in by_leader.items():
            if leader == NO_LEADER:
                self._put_back(lanes, refused(ErrorCode.LEADER_NOT_AVAILABLE, f"write to {lanes[0].partition}"))
                continue
            try:
                self._send_produce(leader, lanes)
            except (ClientFailed, RequestRefused) as error:
                self._on_connection_trouble(leader, lanes, error)

    def _send_produce(self, leader: BrokerId, lanes: list[_Lane]) -> None:
        connection = self._connections.get(leader)
        if connection is None or not connection.is_open:
            connection = self._connections[leader] = self._cluster.open_connection(leader)
            self._asked[connection] = deque()
        for lane in lanes:
            lane.under_way = lane.waiting.popleft()
            lane.sent_ms = self._cluster.clock.monotonic_ms()
        data = [{"index": lane.partition.partition, "records": lane.under_way.encoded} for lane in lanes if lane.under_way]
        values = {"transactional_id": None, "acks": self._acks, "timeout": PRODUCE_TIMEOUT_MS, "topic_data": [{"name": self.topic, "partition_data": data}]}
        connection.send(PRODUCE, values, expects_response=self._acks != ACKS_NONE)
        if self._acks == ACKS_NONE:
            for lane in lanes:
                self._on_acknowledged(lane)
        else:
            self._asked[connection].append(lanes)

    def _collect(self, wait_ms: int) -> None:
        waiting = {connection: leader for leader, connection in self._connections.items() if connection.is_open and connection.under_way}
        if not waiting:
            if wait_ms:
                self._cluster.sleep(min(wait_ms, LONGEST_PAUSE_MS) / 1000)
            return
        readable = await_readable(waiting, wait_ms)
        self._drop_silent(waiting.keys() - set(readable))
        for connection in readable:
            try:
                body = connection.receive().body
            except ClientFailed as error:
                self._on_connection_trouble(waiting[connection], [], error)
                continue
            self._on_response(self._asked[connection].popleft(), body)

    def _drop_silent(self, waiting: Iterable[ClientConnection]) -> None:
        """Connections whose oldest produce is not answered long after the broker should have refused it: the broker hangs."""
        now_ms = self._cluster.clock.monotonic_ms()
        for connection in waiting:
            if now_ms - self._asked[connection][0][0].sent_ms > SILENCE_MS_MAX:
                leader = next(leader for leader, known in self._connections.items() if known is connection)
                self._on_connection_trouble(leader, [], ReplyTimedOut(f"the broker at {connection.address} does not answer"))

    def _longest_wait_ms(self) -> int:
        """Until something is worth doing: a paused partition's next try, else an answer."""
        if any(lane.under_way for lane in self._lanes) and not any(lane.waiting and not lane.under_way for lane in self._lanes):
            return SILENCE_MS_MAX
        now_ms = self._cluster.clock.monotonic_ms()
        tries = [lane.try_at_ms - now_ms for lane in self._lanes if lane.waiting and not lane.under_way]
        return max(min(tries, default=0), 1)

    # --- answers

    def _on_response(self, lanes: list[_Lane], body: Any) -> None:
        answers = {int(answer.index): answer for topic in body.responses for answer in topic.partition_responses}
        for lane in lanes:
            answer = answers.get(lane.partition.partition)
            number = ErrorCode.UNKNOWN_SERVER_ERROR if answer is None else int(answer.error_code)
            if number == ErrorCode.NONE:
                self._on_acknowledged(lane)
                continue
            error = refused(number, f"write to {lane.partition}", getattr(answer, "error_message", None))
            if error_code(number) == ErrorCode.CORRUPT_MESSAGE or not is_retriable(error):
                raise error
            self._put_back([lane], error)

    def _on_acknowledged(self, lane: _Lane) -> None:
        if lane.under_way is not None:
            self.acknowledged += lane.under_way.records_count
        lane.under_way = None
        lane.pause_ms = FIRST_PAUSE_MS
        lane.try_at_ms = 0

    def _on_connection_trouble(self, leader: BrokerId, lanes: list[_Lane], error: Exception) -> None:
        """All that was under way to `leader` is sent again: whether it arrived is unknown."""
        connection = self._connections.pop(leader, None)
        unanswered = list(lanes)
        if connection is not None:
            for asked in self._asked.pop(connection, ()):
                unanswered += asked
            connection.close()
        if not is_retriable(error):
            raise error
        self._put_back(unanswered, error)

    def _put_back(self, lanes: list[_Lane], error: Exception) -> None:
        now_ms = self._cluster.clock.monotonic_ms()
        self._metadata_is_stale = True
        if all(lane.pause_ms == FIRST_PAUSE_MS for lane in self._lanes):
            self._on_notice(f"{error}; trying again")
        for lane in lanes:
            if lane.under_way is not None:
                lane.waiting.appendleft(lane.under_way)
                lane.under_way = None
            if lane.waiting and now_ms - lane.waiting[0].made_ms > self._delivery_timeout_ms:
                raise error
            lane.try_at_ms = now_ms + lane.pause_ms
            lane.pause_ms = min(lane.pause_ms * 2, LONGEST_PAUSE_MS)
            self.retries += 1

    def _maybe_look_at_leaders(self) -> None:
        if not self._metadata_is_stale:
            return
        try:
            found = self._cluster.metadata([self.topic]).topics.get(self.topic)
        except ClientFailed:
            return  # the batches' own time-outs decide when it is enough
        self._metadata_is_stale = False
        if found is not None and found.error == ErrorCode.NONE:
            self._leaders.update({known.partition: known.leader for known in found.partitions})
