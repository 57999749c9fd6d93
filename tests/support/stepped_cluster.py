"""Several boxes over one ZooKeeper in memory, stepped by hand in one process, on one clock: real controllers, fake log-writers.

Time passes only in `turn`: a millisecond each. A box may be killed (its session stays until `expire`), stopped cleanly, or lose its session.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from appliance.base.clock import ManualClock
from appliance.cluster.metadata_image import PartitionImage
from appliance.cluster.znodes import PartitionState, partition_state_path
from appliance.protocol.topic_apis import CreatableTopic, ReplicaAssignment, TopicConfig
from tests.support.fake_log_writer import FakeLogWriter
from tests.support.memory_zookeeper import MemorySession, MemoryZooKeeper
from tests.support.stepped_controller import SteppedBox

TURNS_MAX = 40_000
SETTINGS = {"auto.leader.rebalance.enable": False}


class SteppedCluster:
    """Boxes 1, 2, …; `boxes` are those that run."""

    def __init__(self, directory: Path, count: int = 3, settings: dict[str, Any] | None = None) -> None:
        self.clock = ManualClock()
        self.zookeeper = MemoryZooKeeper(self.clock.wall_ms)
        self._directory = directory
        self._settings = {**SETTINGS, **(settings or {})}
        self.all: dict[int, SteppedBox] = {}
        self.boxes: dict[int, SteppedBox] = {}
        for broker_id in range(1, count + 1):
            self.start(broker_id)

    # --- boxes come and go

    def make(self, broker_id: int, name: str = "", **options: Any) -> SteppedBox:
        box = SteppedBox(
            self._directory / (name or f"box-{broker_id}"), self.zookeeper, broker_id, self._settings, 9091 + broker_id, clock=self.clock, **options
        )
        self.all[broker_id] = box
        return box

    def start(self, broker_id: int, needs_epoch_bump: bool = False) -> SteppedBox:
        """A box that was not there, or is back, with the disks that it had."""
        box = self.all.get(broker_id) or self.make(broker_id)
        box.start_writers(needs_epoch_bump)
        box.start_controller()
        self.boxes[broker_id] = box
        self.until(lambda: box.notifier.is_ready, f"box {broker_id} is ready")
        return box

    def kill(self, broker_id: int, expire: bool = True) -> SteppedBox:
        """Everything of the box is gone at once; `expire`: ZooKeeper notices."""
        box = self.boxes.pop(broker_id)
        assert box.agent is not None
        session_id = box.agent.session.session_id
        for name in list(box.writers):
            box.kill_writer(name)
        box.kill_controller()
        Path(box.agent_session_file()).unlink(missing_ok=True)
        if expire:
            self.zookeeper.end_session(session_id)
        return box

    def end_controller(self, broker_id: int) -> SteppedBox:
        """A clean end of the controller process alone."""
        box = self.boxes[broker_id]
        assert box.agent is not None and box._poller is not None
        box.agent.close()
        box._poller.close()
        box.agent = None
        if box.client is not None:
            box.client.close()
            box.client = None
        return box

    def close(self) -> None:
        for box in self.all.values():
            box.close()

    # --- time passes

    def turn(self) -> None:
        self.clock.advance_ms(1)
        for box in list(self.boxes.values()):
            box.turn(0)

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        for _ in range(TURNS_MAX):
            if answer := condition():
                return answer
            self.turn()
        states = [box.agent.status_line() for box in self.boxes.values() if box.agent is not None]
        raise AssertionError(f"not in {TURNS_MAX} turns: {what}; {states}")

    def pass_ms(self, milliseconds: int) -> None:
        for _ in range(milliseconds):
            self.turn()

    def until_quiet(self) -> None:
        """Until no box has anything to do and all images are alike."""

        def quiet() -> bool:
            return all(self._is_idle(box) for box in self.boxes.values()) and self._images_agree()

        self.until(quiet, "quiet")
        self.pass_ms(600)  # every box has evaluated everything once more
        self.until(quiet, "quiet again")

    @staticmethod
    def _is_idle(box: SteppedBox) -> bool:
        agent = box.agent
        assert agent is not None
        session = cast(MemorySession, agent.session)  # `MemoryZooKeeper.session` made it
        busy = len(agent._runner) or len(agent._own_runner) or agent._replicas.bring_up.waiting or agent.cluster.roles_to_send or agent._publisher.is_pending
        return agent._membership.has_arrived and not busy and session.is_idle

    def _images_agree(self) -> bool:
        seen = {str([(name, [part[:4] for part in topic.partitions]) for name, topic in box.image().topics.items()]) for box in self.boxes.values()}
        return len(seen) <= 1

    # --- what is there

    def state(self, topic: str, partition: int = 0) -> PartitionState:
        path = partition_state_path(topic, partition)
        return PartitionState.decode(path, self.zookeeper.data(path))

    def image_of(self, broker_id: int, topic: str, partition: int = 0) -> PartitionImage:
        return self.boxes[broker_id].image().topics[topic].partitions[partition]

    def controllers(self) -> list[SteppedBox]:
        """Boxes that take themselves for the controller of the cluster."""
        return [box for box in self.boxes.values() if box.agent is not None and box.agent.cluster.fence is not None]

    def controller(self) -> SteppedBox:
        box: SteppedBox = self.until(self.controllers, "there is a controller")[0]
        return box

    def writer_of(self, broker_id: int, topic: str, partition: int = 0) -> FakeLogWriter:
        """The log-writer that has the partition on this box."""
        writers = [writer for writer in self.boxes[broker_id].writers.values() if (topic, partition) in writer.directory.partitions]
        assert len(writers) == 1, f"{topic}-{partition} lies on {len(writers)} disks of box {broker_id}"
        return writers[0]

    def leads(self, broker_id: int, topic: str, partition: int = 0) -> int | None:
        """The leader epoch under which this box's log-writer leads the partition, None if it does not."""
        return self.writer_of(broker_id, topic, partition).leading.get((topic, partition))

    def create(self, name: str, *replicas: tuple[int, ...], configs: dict[str, str] | None = None, wait: bool = True) -> None:
        """A topic with these replicas of its partitions."""
        box = self.controller()
        assignments = tuple(ReplicaAssignment(partition, brokers) for partition, brokers in enumerate(replicas))
        configured = tuple(TopicConfig(key, value) for key, value in (configs or {}).items())
        box.send_create(CreatableTopic(name, -1, -1, assignments, configured))
        if wait:
            self.until(lambda: box.frames, f"{name} is created")
            self.until_quiet()

    def delete(self, name: str, wait: bool = True) -> None:
        box = self.controller()
        box.send_delete(name)
        if wait:
            self.until(lambda: box.frames, f"{name} is deleted")
            self.until_quiet()

    def wish(self, broker_id: int, topic: str, partition: int, isr: tuple[int, ...], changed: dict[str, object] | None = None) -> None:
        """The log-writer of a leader proposes this in-sync set."""
        agent = self.boxes[broker_id].agent
        assert agent is not None
        known = agent.cluster.topics[topic]
        writer = self.writer_of(broker_id, topic, partition)
        disk = next(name for name, other in self.boxes[broker_id].writers.items() if other is writer)
        document = {
            "topic": topic,
            "partition": partition,
            "topic_id": str(known.topic_id),
            "leader_epoch": known.states[partition].leader_epoch,
            "partition_epoch": known.state_versions[partition],
            "isr": list(isr),
            "change": 1,
            "broker_epochs": {str(member): agent.cluster.broker_epochs.get(member, -1) for member in isr},
        }
        agent._replicas.isr.on_requests(disk, [{**document, **(changed or {})}])
