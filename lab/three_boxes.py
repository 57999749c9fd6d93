"""Three boxes on loopback and one ZooKeeper beside them, for tests of what boxes do for each other: each can be killed whole, and comes back.

No namespaces and no disks of their own, so that they start in seconds and need no privilege; a box is killed by kill -9 of its supervisor, with which every
process of it dies. Weak spot: loopback is never cut; for that there is `cluster`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

from lab.real_zookeeper import RealZooKeeper
from lab.running_box import STOP_SECONDS, RunningBox, StartingBox, begin_box

SMALL: Mapping[str, object] = {
    "acceptor.arena.bytes": 16 << 20,
    "socket.request.max.bytes": 8 << 20,
    "disk.budget.bytes": 8 << 20,
    "ingest.arena.bytes": 16 << 20,
    "log.reader.arena.bytes": 8 << 20,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
}
"""Three of them in the memory of one."""


class ThreeBoxes:
    """Brokers 1 to 3."""

    def __init__(self, directory: Path, settings: Mapping[str, object] | None = None) -> None:
        self.directory = directory
        self._settings = {**SMALL, **(settings or {})}
        self.zookeeper = RealZooKeeper(directory / "zookeeper")
        self._coming: dict[int, StartingBox] = {}
        self._ports: dict[int, int] = {}
        self.boxes: dict[int, RunningBox] = {}
        try:
            for broker_id in (1, 2, 3):
                self.begin(broker_id)
            self.await_all()
        except BaseException:
            self.close()
            raise

    def settings_of(self, broker_id: int) -> Mapping[str, object]:
        """For the next start of a box."""
        return self._settings

    def begin(self, broker_id: int) -> None:
        """Start a box, for the first time or again; where clients found it they find it again."""
        directory, port = self.directory / f"box{broker_id}", self._ports.get(broker_id, 0)
        self._coming[broker_id] = begin_box(
            directory,
            disks=1,
            broker_id=broker_id,
            zookeeper=self.zookeeper.connect,
            settings=self.settings_of(broker_id),
            kafka_port=port,
        )

    def await_all(self) -> None:
        """Until everyone who was started serves."""
        for broker_id in list(self._coming):
            self.boxes[broker_id] = box = self._coming.pop(broker_id).wait()
            self._ports[broker_id] = box.kafka.port

    def kill(self, broker_id: int) -> None:
        """All its processes, at once."""
        self.boxes.pop(broker_id).kill_supervisor()

    # -- `copy_run.CopiedThrough`

    replicas = 3
    victims: tuple[str, ...] = ("box 1", "box 2", "box 3")

    def hurt(self, victim: str) -> bool:
        """Kill a box, and start it again; the box killed before it is back first."""
        self.await_all()
        broker_id = int(victim.split()[1])
        self.kill(broker_id)
        self.begin(broker_id)
        return True

    @property
    def bootstrap(self) -> str:
        return ",".join(box.bootstrap for box in self.boxes.values())

    @property
    def messages(self) -> str:
        """Of all boxes."""
        return "\n".join(f"--- {file.parent.name}\n{file.read_text(errors='replace')[-4000:]}" for file in sorted(self.directory.glob("box*/messages")))

    def close(self) -> None:
        for starting in self._coming.values():
            starting.process.terminate()  # not kill: the memory of a box that is not started again would stay
            starting.process.wait(STOP_SECONDS)
            if starting.process.stdout is not None:
                starting.process.stdout.close()
        for box in self.boxes.values():
            box.stop()
        self.zookeeper.stop()


_KILLED_ALONE = ("coordinator", "log-writer@d0", "controller", "acceptor@0")


class ThreeBoxesProcesses(ThreeBoxes):
    """The same, of which single processes are killed too. Their own box starts them again."""

    victims = (*ThreeBoxes.victims, *(f"{process} of box {broker_id}" for broker_id in (1, 2, 3) for process in _KILLED_ALONE))

    def hurt(self, victim: str) -> bool:
        process, _, number = victim.partition(" of box ")
        if not number:
            return super().hurt(victim)
        self.await_all()
        if pid := self.boxes[int(number)].pids().get(process):
            os.kill(pid, signal.SIGKILL)
        return bool(pid)
