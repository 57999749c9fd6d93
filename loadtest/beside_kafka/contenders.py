"""A contender is what is measured: something that starts, stops, is killed, and says which processes are its own. Here the appliance; Kafka is in
kafka_contender.py, three of either that are one cluster in clusters.py.

Each has two log directories below a directory of its own, all on one file system. Owned by the command, which ends all of them whatever happens. Weak
spot: those that run together share two cores, and a contender without load still uses a little of them; it shows as `others` in a row's figures.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lab.certificates import Authority
from lab.running_box import Address, RunningBox, eventually, processes_of, start_box
from loadtest.benchmark import BenchmarkFailed
from loadtest.memory import process_memory

DISKS = 2
DELETE_DELAY_MS = 100
"""Files of a topic that one turn has used are gone before the next."""
KAFKA_GONE_SECONDS = 30.0
OURS = "Millrace"
PORTS_FIRST, PORTS_LAST = 20_000, 32_000
"""Below those that the kernel gives to outgoing connections: a broker that is down for a while finds its port free again."""
_ports = itertools.cycle(range(PORTS_FIRST + os.getpid() % 10_000, PORTS_LAST))


def lasting_port() -> int:
    """One that no process listens on, and that no connection is given."""
    for port in _ports:
        with socket.socket() as listening, suppress(OSError):
            listening.bind(("127.0.0.1", port))
            return port
    raise AssertionError


class TlsEnd(NamedTuple):
    """A listener with TLS: address, PEM file with key and certificate, that of the authority."""

    address: str
    keystore: str
    authority: str

    @property
    def listener(self) -> str:
        return f"TLS://{self.address}"


class Contender(ABC):
    """One system under test, alive or not. `start`, `stop` and `kill` as often as wanted; the directories stay until `remove`."""

    replication_factor = 1
    """Of the topics that loads make."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self.disks = [directory / f"d{index}" for index in range(DISKS)]
        self.kafka = Address("127.0.0.1", lasting_port())
        self.tls: TlsEnd | None = None
        for disk in self.disks:
            disk.mkdir(parents=True)

    @property
    def bootstrap(self) -> str:
        return str(self.kafka)

    def offer_tls(self, authority: Authority) -> None:
        """Before the first start: a listener with TLS beside the one in clear text."""
        keystore = authority.sign(self.directory.name, "IP:127.0.0.1").write_keystore(self.directory / "keystore.pem")
        self.tls = TlsEnd(f"127.0.0.1:{lasting_port()}", str(keystore), str(authority.certificate))

    @property
    def client_options(self) -> dict[str, object]:
        """Of librdkafka, for the listener with TLS if there is one."""
        if self.tls is None:
            return {}
        return {"bootstrap.servers": self.tls.address, "security.protocol": "ssl", "ssl.ca.location": self.tls.authority}

    @property
    @abstractmethod
    def settings(self) -> str:
        """In words, what it is and how it is set."""

    @abstractmethod
    def start(self) -> None:
        """Returns when it says, or shows, that it serves. Raises AssertionError with what it said."""

    @abstractmethod
    def stop(self) -> None:
        """In order. Raises AssertionError if it does not."""

    @abstractmethod
    def kill(self) -> None:
        """All its processes, with -9; returns when they are gone."""

    @abstractmethod
    def pids(self) -> dict[str, int]:
        """Of all its processes: broker, controller, ZooKeeper, everything."""

    @property
    @abstractmethod
    def is_alive(self) -> bool: ...

    @abstractmethod
    def last_messages(self, lines: int = 15) -> str: ...

    def pss_bytes(self) -> int:
        """Memory of all its processes, shared pages in parts; arenas and heaps are in it as far as they were touched."""
        return sum(process_memory(pid).total for pid in self.pids().values())

    def remove(self) -> None:
        """Ends what runs, and takes away what is stored."""
        if self.is_alive:
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def await_no_files_of(self, topic: str, seconds: float = KAFKA_GONE_SECONDS) -> None:
        """Until the directories of a removed topic are gone."""
        deadline = time.monotonic() + seconds
        while left := [entry.name for disk in self.disks for entry in disk.iterdir() if entry.name.startswith(f"{topic}-")]:
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"{self.name} still has {left[0]} {seconds:g} s after its topic was removed")
            time.sleep(0.02)


class Appliance(Contender):
    """`millrace run` as it comes, in its default settings but for the port and the delay of deletions. One of several where it gets the address of a
    ZooKeeper."""

    def __init__(self, directory: Path, broker_id: int | None = None, zookeeper: str | None = None) -> None:
        super().__init__(OURS, directory)
        self._cluster = {} if zookeeper is None else {"broker_id": broker_id, "zookeeper": zookeeper}
        self._box: RunningBox | None = None

    @property
    def settings(self) -> str:
        return "its defaults; its own ZooKeeper"

    @property
    def is_alive(self) -> bool:
        return self._box is not None

    def start(self) -> None:
        settings: dict[str, object] = {"log.segment.delete.delay.ms": DELETE_DELAY_MS}
        if self.tls is not None:
            settings |= {
                "listeners": f"PLAINTEXT://{self.bootstrap},{self.tls.listener}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TLS:SSL",
                "ssl.keystore.location": self.tls.keystore,
            }
        port = self.kafka.port if self.tls is None else 0
        self._box = start_box(self.directory / "box", seconds=120, data=self.disks, settings=settings, kafka_port=port, **self._cluster)

    def stop(self) -> None:
        box, self._box = self._living(), None
        code = box.stop()
        assert code == 0, f"it ended with {code}\n{box.messages}"

    def kill(self) -> None:
        """Its processes die with their parent, by SIGKILL, too."""
        box, self._box = self._living(), None
        if box.process.poll() is None:
            box.kill_supervisor()
        eventually(lambda: not processes_of(box.layout), "all processes of the box are gone")

    def pids(self) -> dict[str, int]:
        return self._living().pids()

    def last_messages(self, lines: int = 15) -> str:
        return "" if self._box is None else "\n".join(self._box.messages.splitlines()[-lines:])

    def _living(self) -> RunningBox:
        assert self._box is not None, f"{self.name} does not run"
        return self._box
