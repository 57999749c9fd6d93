"""One share partition on three boxes: leader and share coordinator move, boxes die, requests between boxes are lost, late or carried out unheard.

Whatever happens: a record with a confirmed acknowledgement is not delivered again by a leader that the share coordinator still lets write, and
at the end the log has all records as done, each of them accepted by a member. Each rule that this needs is left out once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId
from appliance.cluster.state_log import LoadedRecord, OnAppended, StateRecord
from appliance.protocol import share_state_apis as apis
from appliance.runtime.timers import Timers
from services.coordinator.share import share_states
from services.coordinator.share.share_leaders import LogBounds, ShareLeaders
from services.coordinator.share.share_partition import ACCEPT, RELEASE, Acknowledgement, ShareLimits
from services.coordinator.share.share_persister import SharePersister
from services.coordinator.share.share_states import ShareStates

PLACE = (TopicId(b"t" * 16), 0)
GROUP = "workers"
LIMITS = ShareLimits(100, 500, 100)
RULES: dict[str, Callable[[ShareStates, Any, Callable[[Any], None]], None]] = {
    "InitializeShareGroupState request": ShareStates.initialize,
    "ReadShareGroupState request": ShareStates.read,
    "WriteShareGroupState request": ShareStates.write,
}


class Box:
    """One incarnation of a coordinator process; what it believes may be old."""

    def __init__(self, world: World, broker_id: int) -> None:
        self.world = world
        self.broker_id = broker_id
        self.is_dead = False
        self.leader_epoch = -1
        """Under which it leads the partition, as far as it knows."""
        self.tenure = -1
        """Under which it leads `__share_group_state`, as far as it knows."""
        self.state_leader = 0
        self.timers = Timers()
        self.states = ShareStates(self, lambda: world.now_ms)
        self.states.partition_count = 1
        persister = SharePersister(self.states, self, self, self.timers, lambda: world.now_ms)
        self.persister = persister
        self.leaders = ShareLeaders(persister, self, self.timers, lambda: world.now_ms, lambda _event, _count: None)

    def state_leaders(self) -> tuple[int, ...]:
        return (self.state_leader,)

    def bounds(self, topic_id: TopicId, partition: int) -> LogBounds:
        if self.leader_epoch < 0:
            return LogBounds(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return LogBounds(ErrorCode.NONE, 0, self.world.high_watermark, self.leader_epoch)

    def first_offset(self, group_id: str, bounds: LogBounds) -> int:
        return 0

    def is_named(self, topic_id: TopicId, partition: int) -> bool:
        return self.leader_epoch >= 0

    def limits(self, group_id: str) -> ShareLimits:
        return LIMITS

    def append(self, partition: int, records: list[StateRecord], on_appended: OnAppended, **_options: Any) -> None:
        """Only the tenure that is in force gets a record into the log; an answer may be an error all the same."""

        tenure = self.tenure

        def arrive() -> None:
            is_in_force = tenure == self.tenure == self.world.tenure
            if is_in_force:
                self.world.log += [LoadedRecord(0, 0, key, value) for key, value in records]
            is_heard = is_in_force and self.world.random.random() > 0.1
            self.world.later(self, lambda: on_appended(ErrorCode.NONE if is_heard else ErrorCode.REQUEST_TIMED_OUT))

        self.world.later(self, arrive)

    def ask(self, broker_id: int, question: Any, _reply: Any, body: Any, on_answer: Callable[[Any], None], timeout_ms: int, *, channel: int) -> None:
        """A request of a box that has died meanwhile arrives all the same, perhaps late; request and answer may be lost."""
        world = self.world
        fate = world.random.random()
        answers: list[Any] = []

        def hear(response: Any) -> None:
            if not answers:
                answers.append(response)
                on_answer(response)

        def arrive() -> None:
            other = world.boxes[broker_id]
            RULES[question.name](other.states, body, lambda response: world.later(self, lambda: hear(response if fate > 0.1 else None)))

        if fate > 0.15:
            world.later(None, arrive)
        else:  # the connection breaks: the request is lost, or arrives when the next ones have been carried out
            world.late.append(arrive)
            world.later(self, lambda: hear(None))
        self.timers.schedule(world.now_ms + timeout_ms, lambda _now_ms: hear(None))

    def lead_state(self, tenure: int) -> None:
        if self.tenure >= 0:
            self.states.unload(0, self.world.now_ms)
        self.tenure = tenure
        if tenure >= 0:
            self.states.begin_load(0)
            self.states.load(0, self.world.log)
            self.states.finish_load(0, self.world.now_ms)

    # ---- a member at this box

    def deliver(self) -> None:
        bounds = self.bounds(*PLACE)
        if bounds.error_code is not ErrorCode.NONE:
            return
        self.leaders.open(GROUP, PLACE, bounds)
        hosted = self.leaders.find(GROUP, PLACE)
        offset = hosted.share.next_fetch_offset() if hosted is not None else None
        if hosted is None or offset is None or offset >= self.world.high_watermark:
            return
        end = min(self.world.high_watermark, offset + self.world.random.randrange(1, 6))
        acquired = hosted.share.acquire(f"m{self.broker_id}", (offset, end), [(each, each) for each in range(offset, end)], 5, True, self.world.now_ms)
        self.leaders.watch_locks(hosted)
        if self.leader_epoch >= self.world.read_epoch:  # else a later leader was let write: members learn of it
            delivered = {each for batch in acquired for each in range(batch.first_offset, batch.last_offset + 1)}
            assert not delivered & self.world.confirmed, f"{delivered & self.world.confirmed} delivered again"
        for batch in acquired:
            self.world.in_hand += [(self, hosted, each) for each in range(batch.first_offset, batch.last_offset + 1)]


class World:
    """The cluster, and what must be true of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 1_000_000
        self.high_watermark = 10
        self.log: list[LoadedRecord] = []
        self.tenure = 0
        self.leader_epoch = 0
        self.queue: list[tuple[Box | None, Callable[[], None]]] = []
        self.late: list[Callable[[], None]] = []
        self.in_hand: list[tuple[Box, Any, int]] = []
        self.confirmed: set[int] = set()
        self.unknown: set[int] = set()
        self.boxes = [Box(self, number) for number in range(3)]
        self.boxes[0].lead_state(0)
        self.boxes[0].leader_epoch = 0
        made: list[Any] = []
        self.boxes[0].persister.initialize(GROUP, [(PLACE, 0, apis.UNINITIALIZED)], made.append)
        while not made or made[0][PLACE].error_code:
            self.run_queue()
            self.tick(60)
            if made and made[0][PLACE].error_code:
                made.clear()
                self.boxes[0].persister.initialize(GROUP, [(PLACE, 0, apis.UNINITIALIZED)], made.append)

    @property
    def read_epoch(self) -> int:
        """The latest leader epoch in the log."""
        return max((share_states.SHARE_SNAPSHOT.decode_value(each.value).leader_epoch for each in self.log if each.value is not None), default=-1)

    def later(self, box: Box | None, call: Callable[[], None]) -> None:
        """Call it in any order with others, unless `box` has died."""
        self.queue.append((box, call))

    def run_queue(self, count: int = 1_000) -> None:
        while self.queue and count:
            count -= 1
            box, call = self.queue.pop(self.random.randrange(len(self.queue)))
            if box is None or not box.is_dead:
                call()

    def tick(self, ms: int) -> None:
        self.now_ms += ms
        for box in self.boxes:
            box.timers.fire_due(self.now_ms, 1_000)

    def acknowledge(self, releases: bool = True) -> None:
        if not self.in_hand:
            return
        box, hosted, offset = self.in_hand.pop(self.random.randrange(len(self.in_hand)))
        if box.is_dead or hosted.is_gone:
            return
        kind = RELEASE if releases and self.random.random() < 0.2 else ACCEPT
        batch = Acknowledgement(offset, offset, (kind,))
        code, must_write = hosted.share.acknowledge(f"m{box.broker_id}", [batch], hosted.next_write, self.now_ms)
        if code is ErrorCode.NONE and must_write:
            if kind is ACCEPT:
                self.unknown.add(offset)
            box.leaders.persist(hosted, lambda code: self.confirmed.add(offset) if code is ErrorCode.NONE and kind is ACCEPT else None)

    def move_leader(self) -> None:
        self.leader_epoch += 1
        self.random.choice(self.boxes).leader_epoch = self.leader_epoch  # the former one has not heard of it

    def hear_of_leader(self) -> None:
        for box in self.boxes:
            if box.leader_epoch < self.leader_epoch:
                box.leader_epoch = -1
            box.leaders.refresh()
            box.leaders.work()

    def move_state(self) -> None:
        self.tenure += 1
        self.random.choice(self.boxes).lead_state(self.tenure)

    def hear_of_state(self) -> None:
        leader = next(box.broker_id for box in self.boxes if box.tenure == self.tenure)
        for box in self.boxes:
            box.state_leader = leader
            if box.broker_id != leader and box.tenure >= 0:
                box.lead_state(-1)

    def die(self) -> None:
        """A coordinator process dies; the next one leads what this one led, in the same epochs."""
        dead = self.random.choice(self.boxes)
        dead.is_dead = True
        box = self.boxes[dead.broker_id] = Box(self, dead.broker_id)
        box.leader_epoch, box.state_leader = dead.leader_epoch, dead.state_leader
        if dead.tenure >= 0:
            box.lead_state(dead.tenure)

    def step(self) -> None:
        dice = self.random.random()
        if dice < 0.35:
            self.random.choice(self.boxes).deliver()
        elif dice < 0.6:
            self.acknowledge()
        elif dice < 0.85:
            if self.late and self.random.random() < 0.2:
                self.queue.append((None, self.late.pop(self.random.randrange(len(self.late)))))
            self.run_queue(self.random.randrange(1, 6))
        elif dice < 0.93:
            self.tick(self.random.choice((10, 60, 300)))
            self.high_watermark += self.random.randrange(2)
        else:
            self.random.choice((self.move_leader, self.hear_of_leader, self.move_state, self.hear_of_state, self.die))()

    def drain(self) -> None:
        """All is well again: everything is delivered and acknowledged."""
        self.hear_of_leader()
        self.hear_of_state()
        for _ in range(600):
            for box in self.boxes:
                box.deliver()
            for _ in range(5):
                self.acknowledge(releases=False)
            self.run_queue()
            self.tick(60)
            last = share_states.SHARE_SNAPSHOT.decode_value(self.log[-1].value or b"")
            if (last.start_offset, last.state_batches) == (self.high_watermark, ()):
                break
        assert (last.start_offset, last.state_batches) == (self.high_watermark, ()), "records never came to an end"
        left = set(range(self.high_watermark)) - self.confirmed - self.unknown
        assert not left, f"{left} were done, and no member had accepted them"


def run(seed: int) -> None:
    world = World(seed)
    for _ in range(400):
        world.step()
    world.drain()


@pytest.mark.parametrize("seed", range(8))
def test_no_record_is_delivered_again_or_lost_while_leaders_move(seed: int) -> None:
    run(seed)


@pytest.mark.deep
@pytest.mark.parametrize("begin", range(0, 2_000, 100))
def test_no_record_is_delivered_again_or_lost_in_many_histories(begin: int) -> None:
    for seed in range(begin, begin + 100):
        run(seed)


def _without_join(start_offset: int, _first: Any, second: Any) -> Any:
    return start_offset, second


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["join", "fence"])
def test_a_rule_that_is_left_out_shows(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if rule == "join":
        monkeypatch.setattr(share_states, "joined", _without_join)
    else:
        write = ShareStates.write

        def unfenced(states: ShareStates, request: Any, reply: Any) -> None:
            topics = tuple(topic._replace(partitions=tuple(part._replace(leader_epoch=1 << 30) for part in topic.partitions)) for topic in request.topics)
            write(states, request._replace(topics=topics), reply)

        monkeypatch.setitem(RULES, "WriteShareGroupState request", unfenced)
        monkeypatch.setattr(ShareStates, "read", _unfenced_read(ShareStates.read))
        monkeypatch.setitem(RULES, "ReadShareGroupState request", ShareStates.read)
    with pytest.raises(AssertionError):
        for seed in (111, *range(400)):  # the first one shows it as things are
            run(seed)


def _unfenced_read(read: Any) -> Any:
    def unfenced(states: ShareStates, request: Any, reply: Any) -> None:
        topics = tuple(topic._replace(partitions=tuple(part._replace(leader_epoch=1 << 30) for part in topic.partitions)) for topic in request.topics)
        read(states, request._replace(topics=topics), reply)

    return unfenced


def _random_batches(dice: random.Random) -> tuple[apis.KeptBatch, ...]:
    batches: list[apis.KeptBatch] = []
    position = dice.randrange(4)
    while position < 12 and dice.random() < 0.8:
        last_offset = position + dice.randrange(3)
        batches.append(apis.KeptBatch(position, last_offset, dice.choice((0, 2, 4)), dice.randrange(1, 4)))
        position = last_offset + 1 + dice.randrange(2)
    return tuple(batches)


def _known(batches: tuple[apis.KeptBatch, ...]) -> dict[int, tuple[bool, int, int]]:
    return {offset: (each.delivery_state > 0, each.delivery_count, each.delivery_state) for each in batches for offset in range(each[0], each[1] + 1)}


def test_a_join_says_of_each_offset_the_most_that_one_of_both_knows() -> None:
    dice = random.Random(25)
    for _ in range(500):
        first, second, start = _random_batches(dice), _random_batches(dice), dice.randrange(6)
        new_start, joined = share_states.joined(start, first, second)
        each = _known(first), _known(second)
        expected = {offset: max(found[offset] for found in each if offset in found) for offset in {*each[0], *each[1]} if offset >= start}
        while expected.get(start, (False,))[0]:
            del expected[start]
            start += 1
        assert (new_start, _known(joined)) == (start, expected)
        assert share_states.joined(start, second, first) == share_states.joined(start, joined, first) == (new_start, joined)


def test_what_two_states_know_is_joined() -> None:
    batch = apis.KeptBatch
    known = (batch(10, 14, 0, 2), batch(15, 15, 2, 1), batch(17, 20, 4, 1))
    assert share_states.joined(10, known, (batch(12, 16, 0, 3), batch(18, 18, 0, 9))) == (
        10, (batch(10, 11, 0, 2), batch(12, 14, 0, 3), batch(15, 15, 2, 1), batch(16, 16, 0, 3), batch(17, 20, 4, 1)),
    )  # fmt: skip
    assert share_states.joined(15, known, ()) == (16, (batch(17, 20, 4, 1),))
    assert share_states.joined(15, known, (batch(16, 16, 2, 1),)) == (21, ())
    assert share_states.joined(3, (), known) == (3, known)
    assert share_states.joined(2, (batch(2, 2, 0, 2),), (batch(0, 0, 0, 1), batch(2, 2, 2, 2), batch(3, 3, 0, 1))) == (3, (batch(3, 3, 0, 1),))
