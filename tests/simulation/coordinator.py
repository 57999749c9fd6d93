"""What a coordinator remembers of a state partition, read while its box may have been replaced, and a client that reads it.

`LeadershipConfirmations` is the shipped rule. What is remembered is the high watermark: it shows how old a memory is. No box has a lease here, so each request
is confirmed. Weak spot: a coordinator that loads is not here, because a confirmation passes only when the high watermark has passed all that was loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from appliance.base.errors import ErrorCode
from appliance.cluster.state_log import OnAppended, ProducerIdentity, StateRecord
from services.coordinator.state.confirmations import LeadershipConfirmations
from tests.simulation.box import Box
from tests.simulation.invariants import Invariants
from tests.simulation.world import CLIENTS, MS, World
from tests.simulation.writer import LEADER, Writer

PAUSE = 60 * MS
PATIENCE = 500 * MS
CONFIRMATION = 90_000
"""The value of its records, which no producer has."""


class _WriterLog:
    """The state topic: one partition, led by the log-writer of the box."""

    partition_count = 1

    def __init__(self, world: World, writer: Writer) -> None:
        self._world, self._writer = world, writer

    def led_partitions(self) -> Iterable[int]:
        return (0,) if self._writer.is_alive and self._writer.role == LEADER else ()

    def append(
        self, partition: int, records: Sequence[StateRecord], on_appended: OnAppended, *, producer: ProducerIdentity | None = None, timeout_ms: int = 0
    ) -> None:
        def later(error: int, _offset: int = -1) -> None:
            """The completion ring is between the two: nothing is appended in the middle of a role change."""
            self._world.after(0, on_appended, ErrorCode(error))

        if self._writer.is_alive:
            self._writer.produce(-1, -1, CONFIRMATION, True, later)
        else:
            later(ErrorCode.NOT_LEADER_OR_FOLLOWER)


class StateReader:
    """Asks the box that some box says leads, again and again."""

    def __init__(self, world: World, boxes: Sequence[Box], watched: Invariants) -> None:
        self._world, self._boxes, self._watched = world, boxes, watched
        self._confirmations: dict[Writer, LeadershipConfirmations] = {}
        self.answered = 0
        self.is_stopped = False
        world.after(PAUSE, self._ask)

    def _ask(self) -> None:
        if self.is_stopped:
            return
        world = self._world
        box = world.chance.choice(self._boxes)
        leader, _ = box.known_leader
        if box.is_up and leader > 0:
            needed = self._watched.acknowledged.end_offset

            def at_box() -> None:
                asked = self._boxes[leader - 1]
                if asked.is_up:
                    self._answer(asked.writer, lambda offset: world.send(leader, CLIENTS, self._on_answer, leader, needed, offset))

            world.send(CLIENTS, leader, at_box)
        world.after(int(world.chance.random() * 3 * PAUSE), self._ask)

    def _answer(self, writer: Writer, answer: Callable[[int], None]) -> None:
        confirmations = self._confirmations.setdefault(writer, LeadershipConfirmations(_WriterLog(self._world, writer), b""))

        def on_confirmed(is_confirmed: bool) -> None:
            if is_confirmed and writer.is_alive and writer.role == LEADER:
                answer(writer.high_watermark)

        confirmations.confirm(("group",), on_confirmed)

    def _on_answer(self, leader: int, needed: int, offset: int) -> None:
        self.answered += 1
        self._watched.on_state_read(leader, needed, offset)
