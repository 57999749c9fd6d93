"""A box: a disk that outlives it, and the processes that a kill, a power cut or a crash of one of them takes.

Weak spot: one disk, one partition, and no process that hangs.
"""

from __future__ import annotations

from collections.abc import Callable

from services.controller.decisions.cluster import Cluster
from tests.simulation.acceptor import Acceptor
from tests.simulation.controller_process import PARTITION, TOPIC, ControllerProcess
from tests.simulation.fetcher import Fetcher
from tests.simulation.invariants import Invariants
from tests.simulation.records import MemoryLog
from tests.simulation.world import MS, World
from tests.simulation.writer import LEADER, NONE, Writer
from tests.simulation.zookeeper import ZooKeeper

SYNC_EVERY = 900 * MS


class Box:
    def __init__(
        self, world: World, zookeeper: ZooKeeper, broker_id: int, replicas: tuple[int, ...], min_insync: int, watched: Invariants, box_at: Callable[[int], Box]
    ) -> None:
        self._world, self._zookeeper, self._watched, self._box_at = world, zookeeper, watched, box_at
        self.broker_id = broker_id
        self._replicas, self._min_insync = replicas, min_insync
        self.log = MemoryLog()
        self.is_up = False
        self._session_id = 0
        self._is_unclean = False
        self._synced_checkpoint = 0
        self._kept_watermark = 0
        """The high watermark in the table row, which a boot keeps."""
        self._seen_leader = (-1, -1)
        self._seen_isr: tuple[int, ...] = ()
        self.start()
        world.after(int(world.chance.random() * SYNC_EVERY), self._sync)

    @property
    def is_well(self) -> bool:
        """Up, with a role, and heard by ZooKeeper."""
        return self.is_up and self.writer.role != NONE and self.controller.is_settled

    # --- coming and going

    def start(self) -> None:
        """All processes."""
        self.is_up = True
        self._start_writer()
        self.acceptor = Acceptor(self._world, self.writer, self._replicas)
        self.fetcher = Fetcher(self._world, self.broker_id, self.writer, self._box_at, self._broker_epoch)
        self._start_controller()

    def _start_writer(self) -> None:
        watermark = self._synced_checkpoint if self._is_unclean else self._kept_watermark
        self.writer = Writer(self._world, self.broker_id, self.log, watermark, self._is_unclean, self._min_insync, self._watched)

    def _start_controller(self) -> None:
        self._seen_leader, self._seen_epoch = (-1, -1), -1
        self.controller = ControllerProcess(self._world, self._zookeeper, self.broker_id, self._session_id, self._on_image)
        self.controller.on_writer(self.writer)

    def kill(self) -> None:
        """Every process at once; the operating system goes on, so nothing is lost."""
        self._stop_controller()
        self._stop_writer()
        self.fetcher.die()
        self.is_up = False
        self._world.note(f"box {self.broker_id}: killed, its log ends at {self.log.end_offset}")

    def cut_power(self) -> None:
        """What was not synced may be gone; /run is."""
        self.kill()
        gone = self.log.cut_power(self._world.chance)
        self._session_id, self._is_unclean = 0, True
        self._synced_checkpoint = min(self._synced_checkpoint, self.log.end_offset)
        self._world.note(f"box {self.broker_id}: its power was cut, {gone} records are gone")

    def lose_disk(self) -> None:
        """The box dies, and comes back with an empty disk."""
        self.cut_power()
        self.log.lose()
        self._synced_checkpoint = 0
        self._world.note(f"box {self.broker_id}: its disk is gone")

    def restart_writer(self) -> None:
        former = self.writer
        self._stop_writer()
        self.controller.on_writer_gone()
        self._start_writer()
        leader, leader_epoch = self._seen_leader
        if former.role and former.leader_epoch == leader_epoch and (leader == self.broker_id) == (former.role == LEADER):
            self.writer.serve_again(former.role, leader_epoch, self._seen_isr, self._replicas)
        self.acceptor.use(self.writer)
        self.fetcher.use(self.writer)
        self.controller.on_writer(self.writer)
        self._world.note(f"box {self.broker_id}: another incarnation of its log-writer")

    def restart_controller(self) -> None:
        self._stop_controller()
        self._start_controller()
        self._world.note(f"box {self.broker_id}: another incarnation of its controller process")

    def _stop_writer(self) -> None:
        writer = self.writer
        self._kept_watermark, self._is_unclean = writer.high_watermark, writer.needs_epoch_bump
        writer.die()

    def _stop_controller(self) -> None:
        self._session_id = self.controller.session.session_id
        self.controller.die()

    # --- what goes on

    def _sync(self) -> None:
        if self.is_up:
            self.log.sync()
            self._synced_checkpoint = self.writer.checkpoint
        self._world.after(SYNC_EVERY, self._sync)

    def _broker_epoch(self) -> int:
        """Of our own registration, as our image has it."""
        return self.controller.cluster.broker_epochs.get(self.broker_id, -1)

    def _on_image(self, cluster: Cluster) -> None:
        topic = cluster.topics.get(TOPIC)
        if topic is None or not self.is_up:
            return
        state = topic.states[PARTITION]
        epoch = self._broker_epoch()
        self._seen_isr = state.isr
        if (state.leader, state.leader_epoch) != self._seen_leader:
            self._seen_leader = state.leader, state.leader_epoch
            self.fetcher.follow(state.leader, state.leader_epoch)
        if epoch != self._seen_epoch:
            self._seen_epoch = epoch
            self.fetcher.forget_session()

    @property
    def known_leader(self) -> tuple[int, int]:
        """Leader and leader epoch, as the image has them."""
        return self._seen_leader
