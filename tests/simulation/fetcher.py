"""A box's replica-fetcher: carries out what the shipped `FollowerFetch` says it needs, by messages to the leader and orders to the own log-writer.

Owned by its box. A fetch that got no answer in a second is given up, and made again on another connection; the first may still reach the leader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from appliance.base.errors import ErrorCode
from appliance.base.model import LeaderEpoch, Offset
from services.replica_fetcher.follower_fetch import FollowerFetch, Need
from tests.simulation.acceptor import Acceptor, FetchAnswer, FetchRequest
from tests.simulation.records import Record
from tests.simulation.world import MS, SECOND, World
from tests.simulation.writer import Writer

GIVEN_UP_AFTER = 1 * SECOND
LOOK_EVERY = 250 * MS
RING = 200_000
"""One way through a ring, in nanoseconds, at most."""


class Reachable(Protocol):
    """A box, as others see it."""

    acceptor: Acceptor
    is_up: bool


class Fetcher:
    def __init__(self, world: World, broker_id: int, writer: Writer, box_at: Callable[[int], Reachable], broker_epoch: Callable[[], int]) -> None:
        self._world, self._broker_id, self._writer = world, broker_id, writer
        self._box_at, self._broker_epoch = box_at, broker_epoch
        self.rules = FollowerFetch(200 * MS)
        self.is_alive = True
        self._is_following = False
        self._under_way = 0
        """The number of the fetch whose answer is awaited, 0: none."""
        self._asked = 0
        self._records: tuple[Record, ...] = ()
        self._told_high_watermark = -1
        self._wakes_at = 0
        self._asked_at = 0
        world.after(LOOK_EVERY, self._look_for_lost)

    def die(self) -> None:
        self.is_alive = False

    def use(self, writer: Writer) -> None:
        self._writer = writer
        self.rules.restart(self._world.now)
        self._act()

    def follow(self, leader_id: int, leader_epoch: int) -> None:
        """What the image says; -1 or this box: no box is followed."""
        self._is_following = leader_id >= 0 and leader_id != self._broker_id
        if self.rules.follow(leader_id, LeaderEpoch(leader_epoch), self._world.now):
            self._under_way = 0
        self._act()

    def forget_session(self) -> None:
        """Our registration is another one: the leader is to hear of it at once."""
        self._under_way = 0
        self._told_high_watermark = -1
        self._act()

    def _act(self) -> None:
        rules, now = self.rules, self._world.now
        if not self.is_alive or not self._is_following or rules.is_waiting or rules.need == Need.NOTHING:
            return
        if now < rules.retry_ns:
            if self._wakes_at != rules.retry_ns:
                self._wakes_at = rules.retry_ns
                self._world.after(rules.retry_ns - now, self._act)
            return
        if rules.need == Need.FETCH:
            if not self._under_way:
                self._fetch()
        elif rules.need in (Need.LATEST, Need.EARLIEST):
            self._ask_ends(rules.begin(), rules.need)
        else:
            records, self._records = self._records, ()
            delay = int(self._world.chance.random() * RING)
            self._world.after(delay, self._order, self._writer, rules.begin(), rules.need, rules.leader_epoch, rules.log_end_offset, records)

    # --- the own log-writer

    def _order(self, writer: Writer, turn: int, need: Need, leader_epoch: int, base_offset: int, records: tuple[Record, ...]) -> None:
        if not self.is_alive or not writer.is_alive or turn != self.rules.turn:
            return
        rules = self.rules
        if need == Need.APPEND:
            error = writer.append_as_follower(leader_epoch, base_offset, list(records), rules.high_watermark, rules.leader_log_start_offset)
        else:
            error = writer.truncate(leader_epoch, rules.truncation)
        log = writer.log
        rules.on_log(turn, error, Offset(log.start_offset), Offset(log.end_offset), log.epochs.latest, self._world.now)
        self._act()

    # --- the leader

    def _fetch(self) -> None:
        rules = self.rules
        self._asked += 1
        number = self._under_way = self._asked
        told = self._told_high_watermark
        request = FetchRequest(
            self._broker_id, self._broker_epoch(), rules.leader_epoch, rules.log_end_offset, rules.last_fetched_epoch, rules.log_start_offset, told
        )
        leader_id = rules.leader_id

        def at_leader() -> None:
            box = self._box_at(leader_id)
            if box.is_up:
                box.acceptor.fetch(request, lambda answer: self._world.send(leader_id, self._broker_id, self._on_fetched, number, request, answer))

        self._asked_at = self._world.now
        self._world.send(self._broker_id, leader_id, at_leader)

    def _look_for_lost(self) -> None:
        if not self.is_alive:
            return
        if self._under_way and self._world.now - self._asked_at > GIVEN_UP_AFTER:
            self._under_way = 0
            self._act()
        self._world.after(LOOK_EVERY, self._look_for_lost)

    def _on_fetched(self, number: int, request: FetchRequest, answer: FetchAnswer) -> None:
        if not self.is_alive or number != self._under_way:
            return
        self._under_way = 0
        diverging_epoch, diverging_end = answer.diverging
        taken = self.rules.on_fetched(
            LeaderEpoch(request.leader_epoch),
            Offset(request.fetch_offset),
            answer.error,
            bool(answer.records),
            Offset(answer.high_watermark),
            Offset(answer.log_start_offset),
            self._world.now,
            LeaderEpoch(diverging_epoch),
            Offset(diverging_end),
        )
        if taken:
            self._told_high_watermark = answer.high_watermark
            self._records = answer.records
        self._act()

    def _ask_ends(self, turn: int, need: Need) -> None:
        leader_id, leader_epoch = self.rules.leader_id, self.rules.leader_epoch

        def at_leader() -> None:
            box = self._box_at(leader_id)
            if box.is_up:
                box.acceptor.end_offsets(leader_epoch, self._broker_id, lambda *ends: self._world.send(leader_id, self._broker_id, on_ends, *ends))

        def on_ends(error: int, start_offset: int, end_offset: int) -> None:
            if self.is_alive:
                self.rules.on_offset(turn, error, Offset(end_offset if need == Need.LATEST else start_offset), self._world.now)
                self._act()

        self._world.send(self._broker_id, leader_id, at_leader)
        self._world.after(GIVEN_UP_AFTER, on_ends, ErrorCode.NETWORK_EXCEPTION, -1, -1)
