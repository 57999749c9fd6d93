"""One run: three boxes, a ZooKeeper, clients and faults out of one seed; then everything heals, and the replicas must agree.

`run(seed)` returns what happened, or raises `Broken` with the seed and the last lines of the trace.
"""

from __future__ import annotations

from typing import NamedTuple

from appliance.base.invariants import InvariantViolation
from appliance.base.model import LeaderEpoch
from appliance.cluster.znodes import (
    CONTROLLER_EPOCH,
    PERSISTENT_PATHS,
    DirectoryAssignment,
    PartitionState,
    TopicAssignment,
    parents_first,
    partition_state_path,
    placement_path,
    placements_path,
    topic_config_path,
    topic_path,
)
from services.controller.zookeeper import change_log
from services.controller.zookeeper.requests import Create, Write
from tests.simulation.box import Box
from tests.simulation.clients import Consumer, Producer
from tests.simulation.controller_process import PARTITION, TOPIC, TOPIC_ID, directory_of
from tests.simulation.coordinator import StateReader
from tests.simulation.faults import KINDS, Faults
from tests.simulation.invariants import Broken, Invariants, hold
from tests.simulation.world import MS, SECOND, World
from tests.simulation.zookeeper import ZooKeeper

REPLICAS = (1, 2, 3)
STATE_PATH = partition_state_path(TOPIC, PARTITION)
SETTLED_WITHIN = 20 * SECOND


class Outcome(NamedTuple):
    """Of one run."""

    seed: int
    steps: int
    faults: int
    leader_epochs: int
    acknowledged: int
    consumed: int


class Simulation:
    def __init__(self, seed: int) -> None:
        self.world = world = World(seed)
        chance = world.chance
        self.watched = Invariants()
        self.zookeeper = ZooKeeper(world, self._on_write)
        _plant(self.zookeeper)
        self.boxes: list[Box] = []
        min_insync = chance.choice((1, 2, 2))
        for broker_id in REPLICAS:
            self.boxes.append(Box(world, self.zookeeper, broker_id, REPLICAS, min_insync, self.watched, lambda number: self.boxes[number - 1]))
        self.producers = [
            Producer(world, self.boxes, 1, True, -1, self.watched),
            Producer(world, self.boxes, 2, True, 77, self.watched),
            Producer(world, self.boxes, 3, False, chance.choice((-1, 78)), self.watched),
        ]
        self.consumers = [Consumer(world, self.boxes, self.watched), Consumer(world, self.boxes, self.watched)]
        self.state_reader = StateReader(world, self.boxes, self.watched)
        kinds = KINDS if chance.random() < 0.4 else chance.sample(KINDS, 3)
        every, aim = chance.choice((150, 300, 600)) * MS, chance.choice((0.3, 0.6, 0.9))
        self.faults = Faults(world, self.zookeeper, self.boxes, self.watched, self.state, kinds, every, aim)
        self._duration = SECOND + chance.randint(15, 50) * SECOND // 10

    def state(self) -> PartitionState:
        return PartitionState.decode(STATE_PATH, self.zookeeper.data(STATE_PATH))

    def _on_write(self, path: str, old: bytes, new: bytes, write: Write) -> None:
        if path == STATE_PATH:
            state = PartitionState.decode(path, new)
            self.world.note(f"zookeeper: {state}")
            self.watched.on_state(PartitionState.decode(path, old), state, write)

    def run(self) -> Outcome:
        try:
            self.world.run_until(self._duration)
            self._settle()
        except (Broken, InvariantViolation) as broken:
            raise Broken(f"{broken}\nMILLRACE_SEED={self.world.seed}\n" + "\n".join([*self.world.trace][-60:])) from broken
        acknowledged, consumed = len(self.watched.acknowledged.acknowledged), sum(consumer.consumed for consumer in self.consumers)
        return Outcome(self.world.seed, self.world.steps, self.faults.count, self.state().leader_epoch, acknowledged, consumed)

    def _settle(self) -> None:
        """No more faults: soon all replicas are in sync, producers are served, and the replicas are
        equal.
        """
        self.faults.end()
        end = self.world.now + SETTLED_WITHIN
        before = [producer.acknowledged for producer in self.producers[:2]]
        while not self._is_whole(before):
            hold(self.world.now < end, "Settles", f"{self.state()}, logs end at {[box.log.end_offset for box in self.boxes]}, {self._problems()}")
            self.world.run_until(self.world.now + 250 * MS)
        for producer in self.producers:
            producer.is_stopped = True
        self.state_reader.is_stopped = True
        logs = [box.log for box in self.boxes]
        end = self.world.now + SETTLED_WITHIN
        while len({offset for box in self.boxes for offset in (box.log.end_offset, box.writer.high_watermark)}) > 1 and self.world.now < end:
            self.world.run_until(self.world.now + 100 * MS)
        hold(len({log.end_offset for log in logs}) == 1, "Settles", f"logs end at {[log.end_offset for log in logs]}")
        start = max(log.start_offset for log in logs)
        contents = [log.between(start, log.end_offset) for log in logs]
        hold(contents[0] == contents[1] == contents[2], "Settles", "the replicas differ")
        sequences = [(record.producer, record.sequence) for record in contents[0] if record.producer >= 0]
        hold(len(sequences) == len(set(sequences)), "Sequences", "a record of an idempotent producer is there twice")
        for box in self.boxes:
            self.watched.acknowledged.on_lead(box.broker_id, self.state().leader_epoch + 1, box.log)
            hold(box.writer.high_watermark == box.log.end_offset, "Settles", f"the high watermark of box {box.broker_id} is {box.writer.high_watermark}")

    def _is_whole(self, acknowledged_before: list[int]) -> bool:
        state = self.state()
        served = all(producer.acknowledged > before for producer, before in zip(self.producers, acknowledged_before, strict=False))
        return state.leader > 0 and set(state.isr) == set(REPLICAS) and served

    def _problems(self) -> str:
        return "; ".join(f"{box.broker_id}: {box.fetcher.rules.need.name} {box.fetcher.rules.problem}" for box in self.boxes)


def _plant(zookeeper: ZooKeeper) -> None:
    """The tree of a cluster with one topic, as the boxes left it."""
    own = [path for broker_id in REPLICAS for path in (placements_path(broker_id),)]
    for path in parents_first((*PERSISTENT_PATHS, *own, change_log.CHANGES, f"/brokers/topics/{TOPIC}/partitions/{PARTITION}")):
        data = b""
        if path == topic_path(TOPIC):
            data = TopicAssignment.new(TOPIC_ID, {PARTITION: REPLICAS}).encode()
        zookeeper.handle(0, Create(path, data))
    zookeeper.handle(0, Create(topic_config_path(TOPIC), b'{"version":1,"config":{}}'))
    zookeeper.handle(0, Create(CONTROLLER_EPOCH, b"1"))
    zookeeper.handle(0, Create(STATE_PATH, PartitionState(1, LeaderEpoch(0), 1, REPLICAS).encode()))
    for broker_id in REPLICAS:
        directory = directory_of(broker_id)
        zookeeper.handle(0, Create(placement_path(broker_id, TOPIC), DirectoryAssignment(TOPIC_ID, {PARTITION: directory}).encode()))


def run(seed: int) -> Outcome:
    return Simulation(seed).run()
