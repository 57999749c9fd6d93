"""An ingest stepped by hand: the real agent with real sockets, and a real log-writer on a directory of its own; both can be killed between any two steps.

A kill lets go of what the kernel would close (sockets) and of nothing that it would not: names of shared memory stay, as they do after kill -9.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from appliance.base.clock import SystemClock
from appliance.base.layout import Disk
from appliance.base.logging import Logger, Severity
from appliance.base.model import TopicId
from appliance.base.settings import Box
from appliance.client.address import Address
from appliance.cluster.metadata_image import BrokerImage, MetadataImage, PartitionImage, TopicImage, write_image
from appliance.ipc.descriptors import DescriptorKind
from appliance.ipc.frames import Frame
from appliance.ipc.proxies import LogWriterProxies, command_callbacks
from appliance.ipc.request_frames import AUTO_CREATE, COORDINATOR_ANSWER, LEASE_PRODUCER_IDS
from appliance.ipc.source import Source
from appliance.records.record import Record, iterate_records
from appliance.runtime.agent import ServiceContext
from appliance.runtime.poller import Poller
from appliance.runtime.request_server import RequestClient, RequestServer
from appliance.senders.accounting import Ledger, labels_of, read_ledger
from appliance.senders.sender_tables import tables_of
from appliance.shm.counters import Counters, read_counters
from lab.scratch_layout import make_layout, remove_layout
from services.ingest.agent import IngestAgent
from services.log_writer.agent import LogWriterAgent

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


class _PlayedController:
    """Leases producer ids, and records which topics are `wanted`. `is_away`: it answers no request."""

    def __init__(self, path: str) -> None:
        self.poller = Poller()
        self.is_away = False
        self.next_id = 1000
        self.wanted: set[str] = set()
        self._server = RequestServer(path, self.poller, self._on_frame)

    def _on_frame(self, client: RequestClient, frame: Frame) -> None:
        if frame.kind == LEASE_PRODUCER_IDS and not self.is_away:
            first, self.next_id = self.next_id, self.next_id + 1000
            self._server.send(client, COORDINATOR_ANSWER, frame.token, orjson.dumps({"error": 0, "first": first, "last": first + 999}))
        elif frame.kind == AUTO_CREATE:
            self.wanted |= orjson.loads(frame.payload)["topics"].keys()

    def close(self) -> None:
        self._server.close()
        self.poller.close()


class SteppedIngest:
    """A box with one ingest and the topic `syslog`. Of several disks the first has the log-writer that `log_writer` names; partitions take turns."""

    def __init__(self, directory: Path, partitions: int = 2, disks: int = 1, senders: Mapping[str, Any] | None = None, **settings: Any) -> None:
        self.layout = make_layout()
        self.disks = [Disk(f"d{number}", str(directory / f"d{number}")) for number in range(disks)]
        self.disk = self.disks[0]
        named: dict[str, str | int | bool] = {"ingest.arena.bytes": 2 << 20, "disk.budget.bytes": 1 << 20, "channel.ring.entries": 64, "ingest.batch.ms": 0}
        named |= {name.replace("_", "."): value for name, value in settings.items()}
        self.box = Box("stepped", 1, self.disks, str(directory / "state"), "127.0.0.1", "127.0.0.1", 1, 1, 1, settings=named, sender_tables=dict(senders or {}))
        self.partitions = partitions
        self.others: dict[str, TopicId] = {}
        self.leader_of_others = 1
        self.clock = SystemClock()
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(self.tcp.getsockname())
        self.http = socket.create_server(("127.0.0.1", 0))
        self.listed = {each.name: (each.fd_name, socket.create_server(("127.0.0.1", 0))) for each in tables_of(self.box).listeners if not each.is_built_in}
        """Listeners of the tables of senders."""
        self.controller = _PlayedController(self.layout.controller_socket)
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
        listening = {"syslog-tcp": self.tcp.dup(), "syslog-udp": self.udp.dup(), "ingest-http": self.http.dup()}
        listening |= {fd_name: sock.dup() for fd_name, sock in self.listed.values()}
        context = self._context("ingest@0", "0", listening)
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
        agent.door.listening.close()
        # Also unaccepted connections: the kernel closes every socket of a dead process.
        for control, channel in agent.door.connections.items():
            control.close()
            if channel is not None:
                channel._button.close()
        agent.directory.abandon()  # nothing, where the disk was offline
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
        for listening in agent._connections._listening_sockets:
            listening._socket.close()
        for each in agent._datagrams._sockets:
            each._socket.close()
        agent._tap.close()
        agent._controller.close()
        agent._sender.close()
        agent._peers.close()
        process.context.poller.close()
        self._kept.append(process)

    # -- the topic

    def disk_of(self, partition: int) -> str:
        return self.disks[partition % len(self.disks)].name

    def create_topic(self) -> None:
        """What the controller would do: CREATE and BECOME_LEADER, then the image."""
        for partition in range(self.partitions):
            self.command(partition, DescriptorKind.CREATE, {"config": {}})
            self.lead(partition)
        self.publish(self.partitions)

    def lead(self, partition: int, leader_epoch: int = 0, isr: Sequence[int] = (1,), replicas: Sequence[int] = (1,)) -> None:
        """Make this box lead a partition."""
        self.command(partition, DescriptorKind.BECOME_LEADER, {"leader_epoch": leader_epoch, "isr": list(isr), "replicas": list(replicas), "config": {}})

    def create_other(self, topic: str) -> None:
        """Another topic, of one partition on the first disk."""
        self.others[topic] = TopicId(topic.encode().ljust(16, b"!"))
        self.command(0, DescriptorKind.CREATE, {"config": {}}, topic)
        self.command(0, DescriptorKind.BECOME_LEADER, {"leader_epoch": 0, "isr": [1], "replicas": [1], "config": {}}, topic)
        self.publish(self.partitions)

    def command(self, partition: int, kind: DescriptorKind, payload: dict[str, Any], topic: str = TOPIC) -> None:
        """What the controller would say to the log-writer of a partition."""
        answers: list[int] = []
        on_completion, on_lost = command_callbacks(lambda _context, completion: answers.append(completion.error_code))
        self._incarnation += 1
        source = Source(self.layout, "controller", self._incarnation, 65536, 256)
        poller = Poller()
        counters = Counters.create_or_adopt(self.layout, "controller", self._incarnation)
        disk = self.disk_of(partition)
        proxies = LogWriterProxies(source, [disk], poller, counters, on_completion, on_lost, lambda _disk: None, lambda _disk: None)
        identity = {"topic": topic, "partition": partition, "topic_id": str(self.others.get(topic, TOPIC_ID))}
        is_offered = False
        for _ in range(STEPS_MAX):
            proxies.do_work(self.clock.monotonic_ns())
            is_offered = is_offered or proxies.offer_command(disk, kind, {**identity, **payload}, None)
            proxies.flush()
            poller.poll(0)
            self._turn_log_writers()
            if answers:
                break
        assert answers == [0]
        proxies.close()
        source.close()
        poller.close()

    def publish(
        self,
        partitions: int,
        config: dict[str, str] | None = None,
        leaders: dict[int, int] | None = None,
        brokers: Mapping[int, Address] | None = None,
        replicas: tuple[int, ...] = (1,),
    ) -> None:
        """An image in which the topic has `partitions` partitions (0: it is gone), all led by this box but those in `leaders` (partition → broker), and the
        other boxes are `brokers`."""
        self._generation += 1
        topics = {}
        if partitions:
            led = leaders or {}
            images = tuple(PartitionImage(led.get(partition, 1), 0, replicas, replicas, self.disk_of(partition)) for partition in range(partitions))
            topics[TOPIC] = TopicImage(TOPIC, TOPIC_ID, images, config or {})
        alone = (PartitionImage(self.leader_of_others, 0, (1,), (1,), self.disk.name),)
        topics |= {name: TopicImage(name, topic_id, alone, {}) for name, topic_id in self.others.items()}
        registered = {number: BrokerImage(number, *address) for number, address in (brokers or {}).items()}
        write_image(self.layout.image_file, MetadataImage(self._generation, "cluster", 1, registered, topics))
        if self.ingest is not None:
            self.agent._image.on_changed(self._generation)

    # -- steps and answers

    def step(self) -> None:
        if self.ingest is not None:
            self.ingest.turn()
        self.controller.poller.poll(0)
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

    def connect(self, listener: str = "") -> socket.socket:
        """A TCP sender; of syslog, or of a listener of the table."""
        listening = self.listed[listener][1] if listener else self.tcp
        sender = socket.create_connection(listening.getsockname())
        self._senders.append(sender)
        return sender

    def send_datagrams(self, *messages: bytes) -> None:
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for message in messages:
            sender.sendto(message, self.tcp.getsockname())
        sender.close()

    def counter(self, label: str) -> int:
        """The sum of all counters of this name that have these labels, and perhaps others."""
        snapshot = read_counters(self.layout, "ingest@0")
        name, labels = labels_of(label)
        values = {} if snapshot is None else snapshot.values
        return sum(value for known, value in values.items() if labels_of(known)[0] == name and labels.items() <= labels_of(known)[1].items())

    def ledger(self) -> Ledger:
        snapshot = read_counters(self.layout, "ingest@0")
        return read_ledger(snapshot.values if snapshot else {})

    def records(self) -> list[Record]:
        """Everything that is in the logs, partition by partition."""
        return [record for partition in range(self.partitions) for record in self.records_of(partition)]

    def records_of(self, partition: int, topic: str = TOPIC) -> list[Record]:
        """Everything that is in one partition's log."""
        found = []
        directory = Path(self.disks[partition % len(self.disks)].path) / f"{topic}-{partition}"
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
        self.controller.close()
        self.tcp.close()
        self.udp.close()
        self.http.close()
        for _, sock in self.listed.values():
            sock.close()
        remove_layout(self.layout)
