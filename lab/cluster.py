"""Three boxes that are one cluster, each on a machine of its own (`machine.py`) with its disks and its member of the ZooKeeper ensemble; and ways to hurt
them.

`start_cluster` returns when all serve; they start side by side. Clients of the test belong on the machine of the clients: `with cluster.clients():`. After a
fault `mend` brings everything back, whatever the fault was. Weak spot: the state directory of a box lies on the host's own disk, so that a dead or hung disk
takes logs alone, never ZooKeeper's data; and `kill` closes the connections of a dead box (the kernel says so to its peers), as a cut does not.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from appliance.base.zookeeper_access import ZooKeeperTls, new_secret, replace_secret
from appliance.cluster.zookeeper_probe import zookeeper_serves
from lab.machine import Disk, Namespace, Network, address_of
from lab.running_box import COMMAND, READY, ROOT, STOP_SECONDS, RunningBox, environment, eventually, processes_of, run_arguments
from lab.zookeeper_clients import auth_of, zookeeper_client
from services.controller.zookeeper.session import SavedSession

READY_SECONDS = 120.0
KAFKA_PORT, SYSLOG_PORT, HTTP_PORT, INGEST_PORT, ZOOKEEPER_PORT = 9092, 5514, 8080, 8081, 2181
SETTINGS: Mapping[str, object] = {
    "log.disk.deadline.ms": 1500,
    "log.disk.probe.interval.ms": 300,
    "group.initial.rebalance.delay.ms": 100,
    "auto.create.topics.enable": False,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
}


class ClusterBox:
    """One of the boxes. `running` is its present run, None while it is down."""

    def __init__(self, number: int, machine: Namespace, directory: Path, arguments: Sequence[str], disks: Sequence[Disk]) -> None:
        self.number = number
        self.machine = machine
        self.directory = directory
        self.disks = list(disks)
        self._arguments = list(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._frozen: list[int] = []
        self._dead_disks: set[int] = set()
        self._shift_file: Path | None = None
        self.running: RunningBox | None = None

    @property
    def address(self) -> str:
        return f"{address_of(self.number)}:{KAFKA_PORT}"

    @property
    def messages(self) -> str:
        return (self.directory / "messages").read_text(errors="replace")

    @property
    def box(self) -> RunningBox:
        assert self.running is not None, f"box {self.number} is down"
        return self.running

    def begin(self) -> None:
        """Start it; `await_ready` waits until it serves."""
        assert self._process is None and self.running is None
        variables = environment()
        if self._shift_file is not None:
            variables |= {"MILLRACE_TEST_SHIFT": str(self._shift_file), "PYTHONPATH": f"{ROOT}/lab/shifted_clock{os.pathsep}{variables['PYTHONPATH']}"}
        with open(self.directory / "messages", "ab") as file:
            self._process = self.machine.run_in(
                [*COMMAND, *self._arguments], env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=file, cwd="/"
            )

    def await_ready(self, seconds: float = READY_SECONDS) -> None:
        assert self._process is not None
        process, began = self._process, time.monotonic()
        host = address_of(self.number)
        ready_line = f"{READY}kafka={host}:{KAFKA_PORT} syslog={host}:{SYSLOG_PORT} http={host}:{HTTP_PORT} ingest={host}:{INGEST_PORT}"
        while self.running is None or not all_serve(self.running):
            assert process.poll() is None, f"box {self.number} ended\n{self.messages[-6000:]}"
            assert time.monotonic() < began + seconds, f"box {self.number} is not ready within {seconds:g} s\n{self.messages[-6000:]}"
            with suppress(StopIteration, OSError, AssertionError):  # it has no runtime directory yet
                self.running = self.running or RunningBox(process, self.directory, [ready_line], self.directory / "messages", 0.0)
            time.sleep(0.02)
        self.running.ready_seconds = time.monotonic() - began
        self._process = None

    # -- what can be done to it

    def stop(self) -> None:
        """SIGTERM, and wait: a clean stop."""
        assert self.box.stop() == 0, self.messages[-2000:]
        self.running = None

    def kill(self) -> None:
        """kill -9 of every process at once; returns when they are gone, but for what a hung disk holds."""
        box = self.box
        for pid in [box.process.pid, *processes_of(box.layout)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        box.process.wait()
        assert box.process.stdout is not None
        box.process.stdout.close()
        self.running = None

    def freeze(self) -> None:
        """SIGSTOP for all of it, its supervisor first, so that no process is missed and restarted."""
        box = self.box
        self._frozen = [box.process.pid, *processes_of(box.layout)]
        for pid in self._frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def suspend(self, name: str) -> None:
        """SIGSTOP for one process, until `thaw`."""
        self._frozen.append(self.box.stop_process(name))

    def thaw(self) -> None:
        for pid in reversed(self._frozen):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._frozen = []

    def shift_clock(self, milliseconds: int) -> None:
        """The wall clock of all its processes is so far from the machine's, from now on. Raises AssertionError if a process does not look."""
        if self._shift_file is None:
            self._shift_file = self.directory / "clock-shift"
            self._shift_file.write_bytes(bytes(8))
        with open(self._shift_file, "r+b") as file:
            file.write(struct.pack("<q", milliseconds))
        for pid, name in processes_of(self.running.layout).items() if self.running is not None and milliseconds else ():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                maps = Path(f"/proc/{pid}/maps").read_text()
                assert not maps or self._shift_file.name in maps or "libjvm" in maps, f"{name} of box {self.number} has the machine's clock"

    def unshift_clock(self) -> None:
        if self._shift_file is not None:
            self.shift_clock(0)

    def shut_disk_down(self, index: int) -> None:
        """What was not synced is lost, and every call fails, until `replug`."""
        self.disks[index].shut_down()
        self._dead_disks.add(index)

    def replug(self) -> None:
        """Power for dead disks, whose journals are replayed. Processes with files open there must end first, so the box goes down."""
        if self._dead_disks and self.running is not None:
            self.kill()
        for index in self._dead_disks:
            eventually(self.disks[index].try_unmount, f"{self.disks[index].path} can be unmounted")
            self.disks[index].mount()
        self._dead_disks.clear()

    def expire_session(self, connect: str) -> None:
        """End the session of its controller at the ensemble, as its expiry does. From the machine of the clients."""
        saved = SavedSession.load(f"{self.box.layout.runtime_directory}/zookeeper.session", self.box.box.zookeeper)
        assert saved is not None
        credentials = auth_of(self.box.box.state_directory)
        double = zookeeper_client(connect, credentials, client_id=(saved.session_id, saved.password))
        double.start(10)
        double.stop()
        double.close()

    def end(self) -> None:
        """Whatever state it is in."""
        self.thaw()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None
        if self.running is not None:
            self.kill()


class Cluster:
    """All of it."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, object] | None = None,
        boxes: int = 3,
        disks: int = 2,
        disk_mib: int = 192,
        has_secret: bool = True,
        senders: Mapping[str, object] | None = None,
        shifts_clocks: bool = False,
    ) -> None:
        """`has_secret`: every box has the secret of the ensemble from the beginning. `shifts_clocks`: `ClusterBox.shift_clock` may be called."""
        numbers = range(1, boxes + 1)
        self.network = Network(numbers)
        self.boxes: dict[int, ClusterBox] = {}
        self.secret = new_secret()
        members = ",".join(f"{number}={address_of(number)}" for number in numbers)
        for number in numbers:
            machine, place = self.network.machines[number], directory / f"box{number}"
            place.mkdir(parents=True)
            (place / "state").mkdir()
            if has_secret:
                replace_secret(str(place / "state"), self.secret)
            made = [Disk(machine, place / f"image{index}", place / f"disk{index}", disk_mib) for index in range(disks)]
            arguments = run_arguments(
                place,
                data=[disk.log for disk in made],
                settings={**SETTINGS, "broker.rack": f"rack{number}", **(settings or {})},
                senders=senders,
                broker_id=number,
                listen=address_of(number),
                kafka_port=KAFKA_PORT,
                syslog_port=SYSLOG_PORT,
                http_port=HTTP_PORT,
                ingest_port=INGEST_PORT,
                zookeeper_members=members,
            )
            self.boxes[number] = ClusterBox(number, machine, place, arguments, made)
            if shifts_clocks:
                self.boxes[number].shift_clock(0)

    @property
    def bootstrap(self) -> str:
        return ",".join(box.address for box in self.boxes.values())

    @property
    def zookeeper(self) -> str:
        return ",".join(f"{address_of(number)}:{ZOOKEEPER_PORT}" for number in self.boxes)

    @contextmanager
    def clients(self) -> Iterator[None]:
        with self.network.clients.inside():
            yield

    def last_words(self) -> str:
        """The last of what each box has said."""
        return "\n".join(f"--- box {box.number}\n{box.messages[-6000:]}" for box in self.boxes.values())

    def start(self) -> None:
        for box in self.boxes.values():
            box.begin()
        for box in self.boxes.values():
            box.await_ready()

    def mend(self, seconds: float = READY_SECONDS) -> None:
        """Network, processes, disks and boxes as they were; returns when every process of every box serves."""
        self.network.heal()
        for box in self.boxes.values():
            for disk in box.disks:
                disk.thaw()
                disk.empty()
            box.thaw()
            box.unshift_clock()
            box.replug()
        down = [box for box in self.boxes.values() if box.running is None]
        for box in down:
            box.begin()
        for box in down:
            box.await_ready(seconds)
        for box in self.boxes.values():
            eventually(lambda box=box: all_serve(box.box), f"all processes of box {box.number} serve", seconds)  # type: ignore[misc]
        self.await_ensemble(seconds)

    def await_ensemble(self, seconds: float = READY_SECONDS, tls: ZooKeeperTls | None = None) -> None:
        """Every member is in: a fault that takes the leader of an ensemble with a member missing takes its majority, too."""
        context = None if tls is None else tls.context()
        with self.clients():
            for number in self.boxes:
                eventually(
                    lambda number=number: zookeeper_serves(address_of(number), ZOOKEEPER_PORT, tls=context),  # type: ignore[misc]
                    f"member {number} is in the ensemble",
                    seconds,
                )

    def end(self) -> None:
        for box in self.boxes.values():
            for disk in box.disks:
                with suppress(OSError):
                    disk.thaw()
        for box in self.boxes.values():
            box.end()
        self.network.end()

    def stop(self) -> list[str]:
        """A clean stop of all, side by side; what is left of them."""
        problems: list[str] = []
        running = [box.box for box in self.boxes.values() if box.running is not None]
        for box in running:
            box.process.send_signal(signal.SIGTERM)
        for box in running:
            box.exit_code = box.process.wait(STOP_SECONDS)  # `box.stop()` would say it a second time, which means: at once
            assert box.process.stdout is not None
            box.process.stdout.close()
            with self.clients():  # a connection attempt shows what still listens
                problems += box.leftovers()
        for clusterbox in self.boxes.values():
            clusterbox.running = None
        return problems


def all_serve(box: RunningBox) -> bool:
    """Whether every process serves. ingest does only where the box leads a partition of its topic, and the box says that it is ready only with it."""
    try:
        processes: dict[str, dict[str, Any]] = box.status()
    except (AssertionError, OSError):
        return False
    return all(process["state"] == "serving" for name, process in processes.items() if not name.startswith(("ingest@", "supervisor")))


@contextmanager
def running_cluster(directory: Path, **options: Any) -> Iterator[Cluster]:
    """A cluster that serves. What is left of it at the end is not checked here; a test that stops it cleanly checks that."""
    cluster = Cluster(directory, **options)
    try:
        cluster.start()
        yield cluster
    except BaseException:
        print(cluster.last_words())
        raise
    finally:
        cluster.end()
