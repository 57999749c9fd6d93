"""Those who write and read: producers of acks=all (plain and idempotent) and acks=1, and consumers that go round and round.

They ask boxes for the leader and believe any of them, old news included. A producer sends one record at a time, again and again until it is taken or its
patience ends; what it gave up may be in the log or not. Weak spot: the network between clients and boxes loses no more than the others'.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.base.errors import ErrorCode
from tests.simulation.box import Box
from tests.simulation.invariants import Broken, Invariants
from tests.simulation.records import Record
from tests.simulation.world import CLIENTS, MS, World

TIMEOUT = 500 * MS
PAUSE = 80 * MS
LOOK_EVERY = 200 * MS


class Producer:
    """`producer_id` -1: a plain one, which gives up after one attempt. Values are `number` * 10,000 and up."""

    def __init__(self, world: World, boxes: Sequence[Box], number: int, acks_all: bool, producer_id: int, watched: Invariants) -> None:
        self._world, self._boxes, self._watched = world, boxes, watched
        self._acks_all, self._producer_id = acks_all, producer_id
        self._value = number * 10_000
        self._sequence = 0
        self._attempt = 0
        self.is_stopped = False
        self.acknowledged = 0
        self._leader = 0
        self._awaits_until = 0
        self._leader_epoch = -1
        """The largest one heard of: what is older is not believed (KIP-320)."""
        world.after(int(world.chance.random() * PAUSE), self._send)
        world.after(LOOK_EVERY, self._look_for_lost)

    def _look_for_lost(self) -> None:
        if self._awaits_until and self._world.now > self._awaits_until:
            self._on_answer(self._attempt, self._value, ErrorCode.REQUEST_TIMED_OUT, -1)
        self._world.after(LOOK_EVERY, self._look_for_lost)

    def _send(self) -> None:
        if self.is_stopped:
            return
        world = self._world
        self._attempt += 1
        attempt, value, sequence = self._attempt, self._value, self._sequence
        if not self._leader or world.chance.random() < 0.05:
            self._leader = self._ask_for_leader()
        if not self._leader:
            world.after(PAUSE, self._send)
            return
        target = self._leader

        def at_box() -> None:
            box = self._boxes[target - 1]
            if box.is_up:
                box.acceptor.produce(self._producer_id, sequence, value, self._acks_all, answer)

        def answer(error: int, offset: int) -> None:
            world.send(target, CLIENTS, self._on_answer, attempt, value, error, offset)

        world.send(CLIENTS, target, at_box)
        self._awaits_until = world.now + TIMEOUT

    def _ask_for_leader(self) -> int:
        """The leader that some box reports; 0: no leader that is newer than the known one."""
        box = self._world.chance.choice(self._boxes)
        leader, leader_epoch = box.known_leader
        if not box.is_up or leader < 0 or leader_epoch < self._leader_epoch:
            return 0
        self._leader_epoch = leader_epoch
        return leader

    def _on_answer(self, attempt: int, value: int, error: int, offset: int) -> None:
        if attempt != self._attempt:
            if error == ErrorCode.NONE and self._acks_all:
                self._watched.on_acknowledged(value, offset)
            return
        self._attempt += 1
        self._awaits_until = 0
        if error == ErrorCode.NONE:
            self.acknowledged += 1
            if self._acks_all:
                self._watched.on_acknowledged(value, offset)
            self._next()
        else:
            self._leader = 0
            if self._producer_id < 0:
                self._next()
            if error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._acks_all:
                raise Broken(f"Sequences: {value} (sequence {self._sequence}) came after a gap")
            if error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                self.is_stopped = True  # with acks=1 what was acknowledged may be gone
        self._world.after(int(self._world.chance.random() * PAUSE), self._send)

    def _next(self) -> None:
        self._value += 1
        self._sequence += 1


class Consumer:
    """Reads on and on, from whichever box is said to lead, sometimes from any other; at the end of what there is it waits, and sometimes begins again."""

    def __init__(self, world: World, boxes: Sequence[Box], watched: Invariants) -> None:
        self._world, self._boxes, self._watched = world, boxes, watched
        self._offset = 0
        self._attempt = 0
        self.consumed = 0
        world.after(PAUSE, self._read)

    def _read(self) -> None:
        world = self._world
        self._attempt += 1
        attempt, offset = self._attempt, self._offset
        box = world.chance.choice(self._boxes)
        leader, _ = box.known_leader
        target = leader if box.is_up and leader > 0 and world.chance.random() < 0.8 else box.broker_id

        def at_box() -> None:
            served = self._boxes[target - 1]
            if served.is_up:
                served.acceptor.consume(offset, lambda *answer: world.send(target, CLIENTS, self._on_answer, attempt, offset, *answer))

        world.send(CLIENTS, target, at_box)
        world.after(TIMEOUT, self._on_answer, attempt, offset, ErrorCode.REQUEST_TIMED_OUT, (), -1, -1)

    def _on_answer(self, attempt: int, offset: int, error: int, records: tuple[Record, ...], log_start_offset: int, high_watermark: int) -> None:
        if attempt != self._attempt:
            return
        self._attempt += 1
        for at, record in enumerate(records, offset):
            self._watched.on_consumed(at, record)
        self.consumed += len(records)
        self._offset = offset + len(records)
        if error == ErrorCode.OFFSET_OUT_OF_RANGE and log_start_offset > self._offset:
            self._offset = log_start_offset
        elif not records and not error and self._world.chance.random() < 0.1:
            self._offset = log_start_offset
        self._world.after(int(self._world.chance.random() * 3 * PAUSE), self._read)
