"""One followed partition: its row, its state machine (`rules`), and its orders to the log-writer.

Owned by the `LeaderFetcher` of its leader. A new row, row generation or leader epoch is a new
object; responses and completions for an old one find it closed, and only free their memory. Weak
spot: an order that a hung disk never completes keeps its part of the arena.
"""

from __future__ import annotations

from typing import Protocol

from appliance.base.errors import ErrorCode
from appliance.base.model import FIRST_OFFSET, NO_LEADER_EPOCH, NO_OFFSET, LeaderEpoch
from appliance.ipc.descriptors import Completion, ReplicaAppend, TruncateOrder, replica_append_descriptor, truncate_descriptor
from appliance.ipc.log_writer_proxy import LogWriterProxy
from appliance.protocol.fetch import FetchPartition
from appliance.shm.arena import Arena
from services.replica_fetcher.follower_fetch import FollowerFetch, Need
from services.replica_fetcher.replica_session import Key

_LOST = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)


class OrderQueue(Protocol):
    """Receives the completions of its partitions' orders."""

    def on_order_done(self, order: LogOrder, completion: Completion | None) -> None:
        """`completion` is None if the log-writer died or was detached. Called once per order."""


class ReceivedAnswer:
    """A response's slot of the arena, freed with its last user."""

    __slots__ = ("_arena", "position", "size_bytes", "users")

    def __init__(self, arena: Arena, position: int, size_bytes: int) -> None:
        """`size_bytes`: the space that the slot takes in the arena."""
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
    """Where a partition is on this box, and its leader; `identity` distinguishes one
    `FollowedPartition` from the next.
    """

    __slots__ = ("identity", "leader_epoch", "leader_id", "partition", "proxy", "row", "row_generation", "topic")

    def __init__(
        self, topic: str, partition: int, proxy: LogWriterProxy, table: str, row: int, row_generation: int, leader_id: int, leader_epoch: LeaderEpoch
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.proxy = proxy
        self.row = row
        self.row_generation = row_generation
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.identity = (table, row, row_generation, leader_id, leader_epoch)


class LogOrder:
    """A REPLICA_APPEND or TRUNCATE in progress; `answer` is the response that holds its records."""

    __slots__ = ("answer", "followed", "is_append", "is_reported", "slot", "turn")

    def __init__(self, followed: FollowedPartition, turn: int, is_append: bool, answer: ReceivedAnswer | None) -> None:
        self.followed = followed
        self.turn = turn
        self.is_append = is_append
        self.answer = self.slot = answer
        """`slot` stays set after `answer` is released, for the accounting of `SlowDisks`."""
        self.is_reported = False

    def end(self, completion: Completion | None) -> None:
        """Report the completion to the fetcher, once."""
        if not self.is_reported:
            self.is_reported = True
            self.followed.fetcher.on_order_done(self, completion)

    def release(self) -> None:
        """Free the memory: the log-writer has finished with it, or is dead."""
        if self.answer is not None:
            self.answer.release()
            self.answer = None


class FollowedPartition:
    """`rules` decide what comes next, this class does it."""

    __slots__ = ("answer", "fetcher", "is_closed", "key", "place", "records_bytes", "records_position", "rules")

    def __init__(self, key: Key, place: FollowedRow, fetcher: OrderQueue, backoff_ms: int, now_ns: int) -> None:
        self.key = key
        self.place = place
        self.fetcher = fetcher
        self.rules = FollowerFetch(backoff_ms * 1_000_000)
        self.rules.follow(place.leader_id, place.leader_epoch, now_ns)
        self.is_closed = False
        self.answer: ReceivedAnswer | None = None
        """The response that holds the next append's records, until it is offered."""
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
        """Keep records for the next append."""
        answer.hold()
        self.answer, self.records_position, self.records_bytes = answer, answer.position + position, size_bytes

    def offer_order(self, now_ns: int) -> LogOrder | None:
        """Send the needed order to the log-writer.

        None: it is not running, which `rules` has learned.
        """
        rules, place = self.rules, self.place
        need = rules.need
        answer, self.answer = self.answer, None
        if need == Need.APPEND:
            position, length = (self.records_position, self.records_bytes) if answer is not None else (0, 0)
            told = ReplicaAppend(max(FIRST_OFFSET, rules.high_watermark), max(FIRST_OFFSET, rules.leader_log_start_offset))
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
        """The log-writer died. Whether it carried the order out, TELL will show."""
        self.rules.on_log(turn, _LOST, NO_OFFSET, NO_OFFSET, NO_LEADER_EPOCH, now_ns)

    def close(self) -> None:
        """End this object: the partition is no longer followed, or under another identity."""
        self.is_closed = True
        if self.answer is not None:
            self.answer.release()
            self.answer = None
