"""Three boxes, or three brokers, that are one cluster and one contender: on loopback, each with two log directories, with one ZooKeeper for all of them.

The ZooKeeper is the same program for both, and counts as a process of the contender that uses it. Owned by the command, as all contenders are. Weak spots: all
share the machine's cores, where three boxes of their own would have three times as many; and loopback has no length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from lab.real_zookeeper import RealZooKeeper
from loadtest.beside_kafka.contenders import OURS, Appliance, Contender
from loadtest.beside_kafka.kafka_contender import Heap, KafkaContender, Release

ZOOKEEPER = "zookeeper"
MakeMember = Callable[[Path, int, str], Contender]
"""Directory, broker id, where ZooKeeper is."""


class ClusterContender(Contender):
    """Broker ids from 1 on; clients begin with the first."""

    def __init__(self, name: str, directory: Path, boxes: int, words: str, make: MakeMember) -> None:
        super().__init__(name, directory)
        self.disks = []
        self._boxes, self._words, self._make = boxes, words, make
        self._zookeeper: RealZooKeeper | None = None
        self.members: dict[int, Contender] = {}
        self.replication_factor = boxes

    @property
    def settings(self) -> str:
        return f"{self._boxes} on one machine, one ZooKeeper for all; {self._words}"

    @property
    def bootstrap(self) -> str:
        return ",".join(member.bootstrap for member in self.members.values())

    @property
    def is_alive(self) -> bool:
        return self._zookeeper is not None

    def start(self) -> None:
        if self._zookeeper is None:
            self._zookeeper = RealZooKeeper(self.directory / ZOOKEEPER)
            connect = self._zookeeper.connect
            self.members = {number: self._make(self.directory / f"box{number}", number, connect) for number in range(1, self._boxes + 1)}
            self.kafka = self.members[1].kafka
            self.disks = [disk for member in self.members.values() for disk in member.disks]
        elif self._zookeeper.process is None or self._zookeeper.process.poll() is not None:
            self._zookeeper.start()
        for member in self.members.values():
            if not member.is_alive:
                member.start()

    def stop(self) -> None:
        for member in self.members.values():
            if member.is_alive:
                member.stop()
        if self._zookeeper is not None:
            self._zookeeper.stop()

    def kill(self) -> None:
        for member in self.members.values():
            if member.is_alive:
                member.kill()
        if self._zookeeper is not None:
            self._zookeeper.kill()

    def remove(self) -> None:
        super().remove()
        self._zookeeper, self.members, self.disks = None, {}, []

    def pids(self) -> dict[str, int]:
        found = {f"{name}@{number}": pid for number, member in self.members.items() if member.is_alive for name, pid in member.pids().items()}
        if self._zookeeper is not None and self._zookeeper.process is not None:
            found[ZOOKEEPER] = self._zookeeper.process.pid
        return found

    def last_messages(self, lines: int = 15) -> str:
        return "\n".join(f"box {number}: {member.last_messages(lines)}" for number, member in self.members.items())

    def others_than(self, number: int) -> Sequence[Contender]:
        return [member for other, member in self.members.items() if other != number]


def millrace_cluster(directory: Path, boxes: int) -> ClusterContender:
    return ClusterContender(OURS, directory, boxes, "its defaults", Appliance)


def kafka_cluster(name: str, directory: Path, boxes: int, release: Release, heap: Heap) -> ClusterContender:
    def make(place: Path, number: int, zookeeper: str) -> Contender:
        return KafkaContender(name, place, release, heap, number, zookeeper)

    return ClusterContender(name, directory, boxes, f"Apache Kafka {release.version}; {heap.words} each; settings and JVM options as shipped", make)
