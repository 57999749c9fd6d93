"""An ingest stepped by hand: the real agent with real sockets, and a real log-writer on a directory of its own; both can be killed between any two steps.

A kill lets go of what the kernel would close (sockets) and of nothing that it would not: names of shared memory stay, as they do after kill -9.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

import orjson

from appliance.agents.ingest import IngestAgent
from appliance.agents.log_writer import LogWriterAgent
from appliance.base.clock import SystemClock
from appliance.base.layout import BoxLayout, Disk
from appliance.base.logging import Logger, Severity
from appliance.base.model import TopicId
from appliance.base.settings import Box
from appliance.ingest.accounting import Ledger, read_ledger
from appliance.ipc.descriptors import DescriptorKind
from appliance.ipc.proxies import LogWriterProxies, Source, command_callbacks
from appliance.metadata.metadata_image import MetadataImage, PartitionImage, TopicImage, write_image
from appliance.records.record import Record, iterate_records
from appliance.runtime.agent import ServiceContext
from appliance.runtime.poller import Poller
from appliance.shm.counters import Counters, read_counters, unlink_all

TOPIC = "syslog"
TOPIC_ID = TopicId(b"syslog-topic-id!")
STEPS_MAX = 20_000


class _Notifier:
    def __init__(self) -> None:
        self.is_ready = False

    def ready(self) -> None:
        self.is_ready = True

    def status(self, text: str) -> None:
        pass


class _Process:
    """One agent with its poller; a turn is what the runner would do, without waiting."""

    def __init__(self, agent: Any, context: ServiceContext) -> None:
        self.agent = agent
        self.context = context

    def turn(self) -> None:
        self.agent.do_work()
        self.context.poller.poll(0)


class SteppedIngest:
    """A box with one ingest and the topic `syslog`. Of several disks the first has the log-writer that `log_writer` names; partitions take turns."""

    def __init__(self, directory: Path, partitions: int = 2, disks: int = 1, **settings: Any) -> None:
        self.layout = BoxLayout(tempfile.mkdtemp(prefix="millrace-"))  # short: the path of a Unix socket ends at 107 bytes
        self.disks = [Disk(f"d{number}", str(directory / f"d{number}")) for number in range(disks)]
        self.disk = self.disks[0]
        named: dict[str, str | int | bool] = {"ingest.arena.bytes": 2 << 20, "disk.budget.bytes": 1 << 20, "channel.ring.entries": 64, "ingest.batch.ms": 0}
        named |= {name.replace("_", "."): value for name, value in settings.items()}
        self.box = Box("stepped", 1, self.disks, str(directory / "state"), "127.0.0.1", "127.0.0.1", 1, 1, 1, settings=named)
        self.partitions = partitions
        self.clock = SystemClock()
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(self.tcp.getsockname())
        self._incarnation = 0
        self._generation = 0
        self.log_writer: _Process | None = None
        self.other_log_writers: dict[str, _Process] = {}
        self.ingest: _Process | None = None
        self._senders: list[socket.socket] = []
        self._kept: list[object] = []

    # -- processes

    def _context(self, name: str, instance: str, listening: dict[str, socket.socket]) -> ServiceContext:
        self._incarnation += 1
        return ServiceContext(
            self.layout,
            self.box,
            self.clock,
            Counters.create_or_adopt(self.layout, name, self._incarnation),
            Poller(),
            name,
            instance,
            self._incarnation,
            _Notifier(),
            Logger(name, Severity.ERROR),
            listening,
        )

    def start_log_writer(self) -> None:
        self.log_writer = self._start_log_writer("d0")

    def start_other_log_writer(self, disk: str) -> None:
        self.other_log_writers[disk] = self._start_log_writer(disk)

    def _start_log_writer(self, disk: str) -> _Process:
        context = self._context(f"log-writer@{disk}", disk, {})
        process = _Process(LogWriterAgent(context), context)
        while not context.notifier.is_ready:  # type: ignore[attr-defined]
            process.turn()
        return process

    def start_ingest(self) -> None:
        context = self._context("ingest@0", "0", {"syslog-tcp": self.tcp.dup(), "syslog-udp": self.udp.dup()})
        self.ingest = _Process(IngestAgent(context), context)

    @property
    def agent(self) -> IngestAgent:
        assert self.ingest is not None
        assert isinstance(self.ingest.agent, IngestAgent)
        return self.ingest.agent

    def start(self) -> None:
        """Everything, up to the point where lines are taken."""
        self.start_log_writer()
        for disk in self.disks[1:]:
            self.start_other_log_writer(disk.name)
        self.create_topic()
        self.start_ingest()
        self.run_until(lambda: self.is_ready)

    @property
    def is_ready(self) -> bool:
        return self.ingest is not None and self.ingest.context.notifier.is_ready  # type: ignore[attr-defined]

    def kill_log_writer(self) -> None:
        """Its sockets and its directory's lock go, its table stays."""
        process, self.log_writer = self.log_writer, None
        assert process is not None
        self._kill_log_writer(process)

    def kill_other_log_writer(self, disk: str) -> None:
        self._kill_log_writer(self.other_log_writers.pop(disk))

    def _kill_log_writer(self, process: _Process) -> None:
        agent = process.agent
        agent._door._listening.close()
        for control in agent._door._by_control:  # also who knocked and was not let in yet: the kernel closes every socket of the dead
            control.close()
        agent._directory.abandon()  # nothing, where the disk was offline
        process.context.poller.close()
        self._kept.append(process)

    def kill_ingest(self) -> None:
        """Its sockets go; counters, rings and arena stay."""
        process, self.ingest = self.ingest, None
        assert process is not None
        agent = process.agent
        for proxy in agent._proxies.by_disk.values():
            if proxy.channel is not None:
                proxy.channel.control.close()
        for connection in agent._connections._connections.values():
            connection.socket.close()
        agent._connections._listening.close()
        agent._datagrams._socket.close()
        process.context.poller.close()
        self._kept.append(process)

    # -- the topic

    def disk_of(self, partition: int) -> str:
        return self.disks[partition % len(self.disks)].name

    def create_topic(self) -> None:
        """What the controller would do: CREATE and BECOME_LEADER, then the image."""
        answers: list[int] = []
        on_completion, on_lost = command_callbacks(lambda _context, completion: answers.append(completion.error_code))
        self._incarnation += 1
        source = Source(self.layout, "controller", self._incarnation, 65536, 256)
        poller = Poller()
        counters = Counters.create_or_adopt(self.layout, "controller", self._incarnation)
        names = [disk.name for disk in self.disks]
        proxies = LogWriterProxies(source, names, poller, self.clock, counters, on_completion, on_lost, lambda _disk: None, lambda _disk: None)
        payloads = []
        for partition in range(self.partitions):
            identity = {"topic": TOPIC, "partition": partition, "topic_id": str(TOPIC_ID)}
            disk = self.disk_of(partition)
            payloads.append((disk, DescriptorKind.CREATE, {**identity, "config": {}}))
            payloads.append((disk, DescriptorKind.BECOME_LEADER, {**identity, "leader_epoch": 0, "isr": [1], "replicas": [1], "config": {}}))
        offered = 0
        for _ in range(STEPS_MAX):
            proxies.do_work(self.clock.monotonic_ns())
            while offered < len(payloads) and proxies.offer_command(*payloads[offered], None):
                offered += 1
            proxies.flush()
            poller.poll(0)
            self._turn_log_writers()
            if len(answers) == len(payloads):
                break
        assert answers == [0] * len(payloads)
        proxies.close()
        source.close()
        poller.close()
        self.publish(self.partitions)

    def publish(self, partitions: int, config: dict[str, str] | None = None, leaders: dict[int, int] | None = None) -> None:
        """An image in which the topic has `partitions` partitions (0: it is gone), all led by this box but those in `leaders` (partition → broker)."""
        self._generation += 1
        topics = {}
        if partitions:
            led = leaders or {}
            images = tuple(PartitionImage(led.get(partition, 1), 0, (1,), (1,), self.disk_of(partition)) for partition in range(partitions))
            topics[TOPIC] = TopicImage(TOPIC, TOPIC_ID, images, config or {})
        write_image(self.layout.image_file, MetadataImage(self._generation, "cluster", 1, {}, topics))
        if self.ingest is not None:
            self.agent._image.on_changed(self._generation)

    # -- steps and answers

    def step(self) -> None:
        if self.ingest is not None:
            self.ingest.turn()
        self._turn_log_writers()

    def _turn_log_writers(self) -> None:
        for process in (self.log_writer, *self.other_log_writers.values()):
            if process is not None:
                process.turn()

    def run_until(self, condition: Any, what: str = "the condition") -> None:
        for _ in range(STEPS_MAX):
            if condition():
                return
            self.step()
        raise AssertionError(f"{what} did not come true in {STEPS_MAX} steps; {self.ledger()}")

    def connect(self) -> socket.socket:
        """A TCP sender."""
        sender = socket.create_connection(self.tcp.getsockname())
        self._senders.append(sender)
        return sender

    def send_datagrams(self, *messages: bytes) -> None:
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for message in messages:
            sender.sendto(message, self.tcp.getsockname())
        sender.close()

    def counter(self, label: str) -> int:
        snapshot = read_counters(self.layout, "ingest@0")
        return snapshot.values.get(label, 0) if snapshot else 0

    def ledger(self) -> Ledger:
        snapshot = read_counters(self.layout, "ingest@0")
        return read_ledger(snapshot.values if snapshot else {})

    def records(self) -> list[Record]:
        """Everything that is in the logs, partition by partition."""
        return [record for partition in range(self.partitions) for record in self.records_of(partition)]

    def records_of(self, partition: int) -> list[Record]:
        """Everything that is in one partition's log."""
        found = []
        directory = Path(self.disks[partition % len(self.disks)].path) / f"{TOPIC}-{partition}"
        for segment in sorted(directory.glob("*.log")):
            data = segment.read_bytes()
            position = 0
            while position + 61 <= len(data):
                size_bytes = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
                found += list(iterate_records(data[position : position + size_bytes], 1 << 24))
                position += size_bytes
        return found

    def messages(self) -> list[str]:
        return [orjson.loads(record.value)["message"] for record in self.records() if record.value is not None]

    def close(self) -> None:
        for sender in self._senders:
            sender.close()
        for process in (self.ingest, self.log_writer, *self.other_log_writers.values()):
            if process is not None:
                process.agent.begin_stop()
                process.agent.close()
                process.context.poller.close()
        shutil.rmtree(self.layout.runtime_directory)
        self.tcp.close()
        self.udp.close()
        unlink_all(self.layout)
