"""The real replica-fetcher and the real log-writer of one box, stepped by hand, and a leader that the test plays."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from appliance.base.clock import ManualClock
from appliance.base.layout import BoxLayout, Disk
from appliance.base.logging import Logger
from appliance.base.model import LeaderEpoch
from appliance.base.setting_row import SettingValue
from appliance.base.settings import Box
from appliance.client.address import Address
from appliance.cluster.metadata_image import BrokerImage, MetadataImage, PartitionImage, TopicImage, write_image
from appliance.ipc.descriptors import DescriptorKind
from appliance.runtime.agent import ServiceContext
from appliance.runtime.poller import Poller
from appliance.shm.counters import Counters
from appliance.shm.partition_table import Row
from services.replica_fetcher.agent import ReplicaFetcherAgent
from tests.support.real_log_writer import BROKER_ID, DISK, TOPIC_ID, RealLogWriter
from tests.support.scripted_leader import LedLog, ScriptedLeader
from tests.support.scripted_peer import until

LEADER_ID = 2
OWN_EPOCH = 77


class _Notifier:
    def __init__(self) -> None:
        self.said: list[str] = []

    def ready(self) -> None:
        self.said.append("ready")

    def status(self, text: str) -> None:
        self.said.append(text)


class SteppedFollower:
    """Broker 1 with the disk d0; broker 2 is the test. The topic `t` has as many partitions as are followed."""

    def __init__(self, layout: BoxLayout, path: Path, settings: dict[str, SettingValue] | None = None) -> None:
        path.mkdir(exist_ok=True)
        self.layout = layout
        self.clock = ManualClock()
        self.poller = Poller()
        self.path = path
        self.settings = settings or {}
        self.writer = RealLogWriter(layout, path, 1)
        self.writer.recover()
        self.controller = self.writer.source("controller")
        self.leader = ScriptedLeader(self.turn)
        self.epochs: list[int] = []
        self.own_epoch = OWN_EPOCH
        self.leader_box = BrokerImage(LEADER_ID, *self.leader.peer.address, None, 5)
        self.isr: tuple[int, ...] = (LEADER_ID,)
        self._generation = 0
        self._incarnation = 10
        self._said, self._saying = os.pipe()
        os.set_blocking(self._said, False)
        self.writer_is_held = False
        """The disk keeps the log-writer waiting: it takes no turn."""
        self.agent = self._start()

    def _start(self) -> ReplicaFetcherAgent:
        self._incarnation += 1
        settings: dict[str, SettingValue] = {"replica.fetcher.arena.bytes": 4 << 20, "socket.request.max.bytes": 2 << 20, **self.settings}
        box = Box("test", BROKER_ID, [Disk(DISK, str(self.path))], "", "", "", 0, 0, 0, settings=settings)
        self.counters = Counters.create_or_adopt(self.layout, "replica-fetcher", self._incarnation)
        log = Logger("replica-fetcher", descriptor=self._saying)
        self.notifier = _Notifier()
        context = ServiceContext(self.layout, box, self.clock, self.counters, self.poller, "replica-fetcher", "", self._incarnation, self.notifier, log, {})
        return ReplicaFetcherAgent(context)

    # --- time

    def turn(self) -> None:
        """A millisecond goes by."""
        self.clock.advance_ms(1)
        self.poller.poll(0)
        self.agent.do_work()
        if not self.writer_is_held:
            self.writer.turn()

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.turn()

    def until(self, condition: Callable[[], object]) -> None:
        until(condition, self.turn, "it did not come to pass")

    # --- what the controller does

    def follow(self, partition: int, leader_epoch: int = 0, log: LedLog | None = None) -> LedLog:
        """Make the partition if it is new, and have the leader lead it under `leader_epoch`."""
        led = log or LedLog(leader_epoch)
        self.leader.logs[TOPIC_ID, partition] = led
        led.leader_epoch = leader_epoch
        if partition >= len(self.epochs):
            self.epochs.append(leader_epoch)
            self.writer.create(self.controller, partition)
        self.epochs[partition] = leader_epoch
        self.become_follower(partition, leader_epoch)
        self.publish()
        return led

    def become_follower(self, partition: int, leader_epoch: int) -> None:
        command = {"topic": "t", "partition": partition, "topic_id": str(TOPIC_ID), "leader": LEADER_ID, "leader_epoch": leader_epoch}
        command |= {"isr": [LEADER_ID], "replicas": [LEADER_ID, BROKER_ID], "config": {}, "config_generation": 0}
        assert self.controller.offer_command(DISK, DescriptorKind.BECOME_FOLLOWER, command, ("follow", partition))
        self.controller.flush()
        self.writer.turn()
        self.writer.turn()
        assert self.writer.codes("follow")[-1] == 0

    def publish(self, leaders: Sequence[int] | None = None) -> None:
        """A new image."""
        self._generation += 1
        replicas = (LEADER_ID, BROKER_ID)
        partitions = tuple(
            PartitionImage(leaders[number] if leaders else LEADER_ID, LeaderEpoch(epoch), replicas, self.isr, DISK) for number, epoch in enumerate(self.epochs)
        )
        brokers = {BROKER_ID: BrokerImage(BROKER_ID, "127.0.0.1", 1, None, self.own_epoch)}
        if self.leader_box is not None:
            brokers[LEADER_ID] = self.leader_box
        topic = TopicImage("t", TOPIC_ID, partitions, {})
        write_image(self.layout.image_file, MetadataImage(self._generation, "cluster", BROKER_ID, brokers, {"t": topic}))
        self.agent.image_follower.on_changed(self._generation)

    def leader_moves(self, address: Address, epoch: int) -> None:
        self.leader_box = BrokerImage(LEADER_ID, *address, None, epoch)
        self.publish()

    # --- what is there

    def row(self, partition: int) -> Row:
        hosted = self.writer.agent.partitions.find(TOPIC_ID, partition)
        table = self.controller.by_disk[DISK].table
        assert hosted is not None and table is not None
        return table.read(hosted.row)

    def log_end_offset(self, partition: int) -> int:
        return self.row(partition).log_end_offset

    def content(self, partition: int) -> bytes:
        return b"".join(segment.read_bytes() for segment in sorted((self.path / f"t-{partition}").glob("*.log")))

    def counted(self, name: str) -> int:
        """A counter of the replica-fetcher's, all its labels together."""
        return sum(value for label, value in self.counted_by_label().items() if label.partition("{")[0] == f"replica_fetcher.{name}")

    def counted_by_label(self) -> dict[str, int]:
        return {label: self.counters.counter(label).value for label in self.counters.labels()}

    @property
    def said(self) -> str:
        try:
            return os.read(self._said, 1 << 20).decode()
        except BlockingIOError:
            return ""

    def arena_is_free(self) -> bool:
        following = self.agent.following
        return following is None or not following.source.arena.slots_in_use()

    # --- ends

    def kill_and_start(self) -> None:
        """Another incarnation of the replica-fetcher; the old one hangs up everywhere."""
        self.agent.close()
        self.counters.close()
        self.leader.peer.hang_up()
        self.agent = self._start()

    def restart_log_writer(self) -> None:
        """Killed, and started again; it receives the order to follow, as from the controller."""
        self.writer.die()
        self.writer.counters.close()
        self.writer = RealLogWriter(self.layout, self.path, self.writer.agent.context.incarnation + 1)
        self.writer.recover()
        self.controller = self.writer.source("controller")
        for partition, leader_epoch in enumerate(self.epochs):
            self.become_follower(partition, leader_epoch)

    def close(self) -> None:
        self.agent.close()
        self.leader.peer.die()
        self.writer.stop()
        self.writer.counters.close()
        self.counters.close()
        self.poller.close()
        os.close(self._said)
        os.close(self._saying)
