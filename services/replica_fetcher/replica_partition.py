"""One partition that this box follows: its row, the rules that say what comes next, and what was ordered of its log-writer.

Owned by the lane of its leader. A new row, row generation or leader epoch is a new object; answers and completions of an old one find it closed and free
their memory, nothing else. Weak spot: an order that its log-writer never completes (a hung disk) keeps its part of the arena for as long.
"""

from __future__ import annotations

from typing import Protocol

from appliance.base.errors import ErrorCode
from appliance.ipc.descriptors import Completion
from appliance.ipc.log_writer_proxy import LogWriterProxy
from appliance.ipc.replication_descriptors import ReplicaAppend, TruncateOrder, replica_append_descriptor, truncate_descriptor
from appliance.protocol.fetch import FetchPartition
from appliance.shm.arena import Arena
from services.replica_fetcher.follower_fetch import FollowerFetch, Need
from services.replica_fetcher.replica_session import Key

_LOST = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)


class OrderQueue(Protocol):
    """Who is told how an order of one of its partitions ended."""

    def on_order_done(self, order: LogOrder, completion: Completion | None) -> None:
        """`completion` is None when the log-writer died, or is set aside. Called once for each order."""


class ReceivedAnswer:
    """An answer's slot of the arena, free when nobody uses it any more."""

    __slots__ = ("_arena", "position", "size_bytes", "users")

    def __init__(self, arena: Arena, position: int, size_bytes: int) -> None:
        """`size_bytes`: what the arena has less for it."""
        self._arena = arena
        self.position = position
        self.size_bytes = size_bytes
        self.users = 1

    def hold(self) -> None:
        self.users += 1

    def release(self) -> None:
        self.users -= 1
        if not self.users:
            self._arena.free(self.position)


class FollowedRow:
    """Where a partition is on this box and whom it follows; what tells one `FollowedPartition` from another."""

    __slots__ = ("identity", "leader_epoch", "leader_id", "partition", "proxy", "row", "row_generation", "topic")

    def __init__(self, topic: str, partition: int, proxy: LogWriterProxy, table: str, row: int, row_generation: int, leader_id: int, leader_epoch: int) -> None:
        self.topic = topic
        self.partition = partition
        self.proxy = proxy
        self.row = row
        self.row_generation = row_generation
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.identity = (table, row, row_generation, leader_id, leader_epoch)


class LogOrder:
    """A REPLICA_APPEND or TRUNCATE under way; `answer` is what its records lie in."""

    __slots__ = ("answer", "followed", "is_append", "is_told", "slot", "turn")

    def __init__(self, followed: FollowedPartition, turn: int, is_append: bool, answer: ReceivedAnswer | None) -> None:
        self.followed = followed
        self.turn = turn
        self.is_append = is_append
        self.answer = self.slot = answer
        """`slot` is it still when `answer` was released."""
        self.is_told = False

    def end(self, completion: Completion | None) -> None:
        """Tell the lane, once."""
        if not self.is_told:
            self.is_told = True
            self.followed.lane.on_order_done(self, completion)

    def release(self) -> None:
        """The log-writer has done with the memory, or is dead."""
        if self.answer is not None:
            self.answer.release()
            self.answer = None


class FollowedPartition:
    """`rules` decide; here it is done."""

    __slots__ = ("answer", "is_closed", "key", "lane", "place", "records_bytes", "records_position", "rules")

    def __init__(self, key: Key, place: FollowedRow, lane: OrderQueue, backoff_ms: int, now_ns: int) -> None:
        self.key = key
        self.place = place
        self.lane = lane
        self.rules = FollowerFetch(backoff_ms * 1_000_000)
        self.rules.follow(place.leader_id, place.leader_epoch, now_ns)
        self.is_closed = False
        self.answer: ReceivedAnswer | None = None
        """What the next append's records lie in, until it is offered."""
        self.records_position = 0
        self.records_bytes = 0

    @property
    def disk(self) -> str:
        return self.place.proxy.disk

    @property
    def wants_append(self) -> bool:
        return self.rules.need == Need.APPEND

    def wanted(self, max_bytes: int) -> FetchPartition:
        rules = self.rules
        topic_id, partition = self.key
        place = rules.leader_epoch, rules.log_end_offset, rules.last_fetched_epoch, rules.log_start_offset
        return FetchPartition("", topic_id, partition, *place, max_bytes, rules.damaged_offset)

    def take_records(self, answer: ReceivedAnswer, position: int, size_bytes: int) -> None:
        """Records for the append that the rules want next."""
        answer.hold()
        self.answer, self.records_position, self.records_bytes = answer, answer.position + position, size_bytes

    def offer_order(self, now_ns: int) -> LogOrder | None:
        """Ask the log-writer for what the rules want of it. None: it is not there; they hear of that."""
        rules, place = self.rules, self.place
        need = rules.need
        answer, self.answer = self.answer, None
        if need == Need.APPEND:
            position, length = (self.records_position, self.records_bytes) if answer is not None else (0, 0)
            told = ReplicaAppend(max(0, rules.high_watermark), max(0, rules.leader_log_start_offset))
            entry = replica_append_descriptor(place.row, place.row_generation, place.leader_epoch, position, length, told)
        else:
            length = 0
            planned = rules.truncation
            entry = truncate_descriptor(place.row, place.row_generation, place.leader_epoch, TruncateOrder(*planned))
        order = LogOrder(self, rules.begin(), need == Need.APPEND, answer)
        if place.proxy.offer_or_queue(entry, length, order):
            return order
        order.release()
        self.on_order_lost(order.turn, now_ns)
        return None

    def on_order_lost(self, turn: int, now_ns: int) -> None:
        """Its log-writer died: whether it was carried out is asked later."""
        self.rules.on_log(turn, _LOST, -1, -1, -1, now_ns)

    def close(self) -> None:
        """Followed no longer, or otherwise."""
        self.is_closed = True
        if self.answer is not None:
            self.answer.release()
            self.answer = None
