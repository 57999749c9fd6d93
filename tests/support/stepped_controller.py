"""A controller stepped by hand: the real agent, a real ZooKeeper session, fake log-writers; it can be cut off before or after any of its steps.

A step is one thing that an operation asks for: a ZooKeeper request, a command to a disk, an image. `killed_at(n, sent)` makes the n-th
step the last: with `sent` it is still carried out, and no reply arrives.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from appliance.base.clock import Clock, SystemClock
from appliance.base.layout import Disk
from appliance.base.logging import Logger, Severity
from appliance.base.settings import Box
from appliance.cluster.metadata_image import MetadataImage, read_image
from appliance.ipc.frames import Frame, FrameSocket, connect_unix
from appliance.ipc.request_frames import AUTO_CREATE, IMAGE_CHANGED, KAFKA_REQUEST, pack_kafka_request
from appliance.protocol import topic_apis
from appliance.protocol.topic_apis import CreatableTopic, CreatedTopic, CreateTopicsRequest, DeletedTopic, DeleteTopicsRequest, TopicToDelete
from appliance.runtime.agent import ServiceContext
from appliance.runtime.poller import Poller
from appliance.shm.counters import Counters
from lab.scratch_layout import make_layout, remove_layout
from services.controller.agent import ControllerAgent
from tests.support.fake_log_writer import FakeDirectory, FakeLogWriter
from tests.support.memory_zookeeper import MemoryZooKeeper

PATIENCE_SECONDS = 90.0
DISKS = ("d0", "d1")


class Killed(Exception):
    """The step at which the controller was to die."""


class _Notifier:
    def __init__(self) -> None:
        self.is_ready = False
        self.said = ""

    def ready(self) -> None:
        self.is_ready = True

    def status(self, text: str) -> None:
        self.said = text


class SteppedBox:
    """One box: a runtime directory, directories of two fake disks, and at most one controller and two log-writers at a time."""

    def __init__(
        self,
        directory: Path,
        zookeeper: str | MemoryZooKeeper,
        broker_id: int = 1,
        settings: dict[str, Any] | None = None,
        kafka_port: int = 9092,
        cluster_id: str = "",
        clock: Clock | None = None,
    ) -> None:
        """`zookeeper`: a connect string, or a server in memory."""
        self.zookeeper = zookeeper
        self.layout = make_layout()
        self.clock = clock or SystemClock()
        self.box = Box(
            "test",
            broker_id,
            [Disk(name, f"/nonexistent/{name}") for name in DISKS],
            str(directory / "state"),
            "127.0.0.1",
            "127.0.0.1",
            kafka_port,
            1,
            1,
            zookeeper=zookeeper if isinstance(zookeeper, str) else "memory",
            settings={"zookeeper.auth.required": False, **(settings or {})},  # its server is open
            cluster_id=cluster_id,
        )
        of_broker = f"-of-{broker_id}" if broker_id != 1 else ""
        self.directories = {name: FakeDirectory(f"directory-of-{name}{of_broker}") for name in DISKS}
        self.writers: dict[str, FakeLogWriter] = {}
        self.agent: ControllerAgent | None = None
        self.notifier = _Notifier()
        self.client: FrameSocket | None = None
        self.frames: list[Frame] = []
        self.steps = 0
        self._incarnation = 0
        self._poller: Poller | None = None
        self._counters: Counters | None = None

    # --- processes come and go

    def start_writers(self, needs_epoch_bump: bool = False) -> None:
        for name in DISKS:
            if name not in self.writers:
                self.start_writer(name, needs_epoch_bump)

    def start_writer(self, name: str, needs_epoch_bump: bool = False) -> FakeLogWriter:
        self._incarnation += 1
        self.writers[name] = FakeLogWriter(self.layout, name, self.directories[name], self._incarnation, needs_epoch_bump)
        return self.writers[name]

    def kill_writer(self, name: str) -> None:
        self.writers.pop(name).die()

    def start_controller(self) -> ControllerAgent:
        self._incarnation += 1
        self.notifier = _Notifier()
        self._poller = Poller()
        self._counters = Counters.create_or_adopt(self.layout, "controller", self._incarnation)
        log = Logger("controller", Severity.ERROR)
        context = ServiceContext(self.layout, self.box, self.clock, self._counters, self._poller, "controller", "", self._incarnation, self.notifier, log, {})
        in_memory = isinstance(self.zookeeper, MemoryZooKeeper)
        self.agent = ControllerAgent(context, self.zookeeper.session) if in_memory else ControllerAgent(context)  # type: ignore[union-attr,arg-type]
        self.client = None
        return self.agent

    def killed_at(self, step: int, sent: bool) -> None:
        """Let the controller die at its `step`-th step from now (counted from 0)."""
        assert self.agent is not None
        self.steps = 0

        def dying(original: Callable[..., None]) -> Callable[..., None]:
            def performed(*arguments: Any) -> None:
                if self.steps == step:
                    if sent:
                        original(*arguments[:-1], lambda _result: None)
                    raise Killed
                self.steps += 1
                original(*arguments)

            return performed

        for runner in (self.agent._runner, self.agent._moves._own_runner):
            runner.ask, runner.command, runner.publish = dying(runner.ask), dying(runner.command), dying(runner.publish)

    def kill_controller(self) -> None:
        """Let what it has sent arrive, then let go of everything as the kernel would."""
        agent = self.agent
        assert agent is not None and self._poller is not None
        deadline = time.monotonic() + 10
        while agent.session._in_flight > len(agent.session._arrived) and time.monotonic() < deadline:
            select.select([], [], [], 0.001)
        agent._disks.flush()
        for writer in self.writers.values():
            writer.turn()
        agent.session.abandon()
        agent._server.close()
        agent._disks.close()
        self._poller.close()
        self.agent = None
        if self.client is not None:
            self.client.close()
            self.client = None

    def close(self) -> None:
        if self.agent is not None:
            assert self._poller is not None
            self.agent.close()
            self._poller.close()
        if self.client is not None:
            self.client.close()
        for name in list(self.writers):
            self.kill_writer(name)
        remove_layout(self.layout)

    def agent_session_file(self) -> str:
        return f"{self.layout.runtime_directory}/zookeeper.session"

    # --- time passes

    def turn(self, wait_ms: int = 1) -> None:
        assert self.agent is not None and self._poller is not None
        self.agent.do_work()
        if (writing := self.agent._membership._writing) is not None:
            writing.thread.join()  # as if the disk of the state directory answered within the turn
        for writer in list(self.writers.values()):
            writer.turn()
        self._poller.poll(wait_ms)
        if self.client is not None:
            self.frames += [frame for frame in self.client.receive() if frame.kind != IMAGE_CHANGED]

    def until(self, condition: Callable[[], Any], what: str = "") -> Any:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (answer := condition()):
            assert time.monotonic() < deadline, f"not in time: {what}; {self.agent.status_line() if self.agent else ''}"
            self.turn()
        return answer

    def until_ready(self) -> None:
        self.until(lambda: self.notifier.is_ready, "ready")

    def until_quiet(self) -> None:
        """Until nothing is under way and nothing is left to do."""
        agent = self.agent
        assert agent is not None

        def quiet() -> bool:
            busy = len(agent._runner) or agent._replicas.bring_up.waiting or agent.cluster.roles_to_send or agent.cluster.deleting or agent._moves.is_busy()
            return agent._membership.has_arrived and not busy

        self.until_ready()
        self.until(quiet, "quiet")
        agent._reconsider_at_ms = 0
        self.turn()
        self.until(quiet, "quiet")

    # --- what clients do

    def connected(self) -> FrameSocket:
        if self.client is None:
            self.client = self.until(lambda: connect_unix(self.layout.controller_socket), "controller.sock")
        return self.client

    def send(self, kind: int, payload: bytes, token: int = 1) -> None:
        client = self.connected()
        self.frames = []
        client.send(kind, token, payload)

    def answer(self) -> bytes:
        return bytes(self.until(lambda: self.frames, "an answer")[0].payload)

    def send_create(self, *topics: CreatableTopic, timeout_ms: int = 60_000, validate_only: bool = False) -> None:
        body = topic_apis.CREATE_TOPICS_REQUEST.encode(7, CreateTopicsRequest(topics, timeout_ms, validate_only))
        self.send(KAFKA_REQUEST, pack_kafka_request(19, 7, "test", "::1", body))

    def send_create_of(self, name: str) -> None:
        """A topic of one partition on this box."""
        self.send_create(CreatableTopic(name, 1, 1))

    def create(self, *topics: CreatableTopic, **options: Any) -> tuple[CreatedTopic, ...]:
        self.send_create(*topics, **options)
        body = self.answer()
        return topic_apis.CREATE_TOPICS_RESPONSE.decode(body, 0, len(body), 7).topics

    def send_delete(self, *names: str, timeout_ms: int = 60_000) -> None:
        body = topic_apis.DELETE_TOPICS_REQUEST.encode(6, DeleteTopicsRequest(tuple(TopicToDelete(name) for name in names), (), timeout_ms))
        self.send(KAFKA_REQUEST, pack_kafka_request(20, 6, "test", "::1", body))

    def delete(self, *names: str, **options: Any) -> tuple[DeletedTopic, ...]:
        self.send_delete(*names, **options)
        body = self.answer()
        return topic_apis.DELETE_TOPICS_RESPONSE.decode(body, 0, len(body), 6).topics

    def auto_create(self, payload: bytes) -> bytes:
        self.send(AUTO_CREATE, payload)
        return self.answer()

    def count(self, label: str) -> int:
        assert self._counters is not None
        return self._counters.counter(label).value

    def restored(self) -> bool:
        """Whether its controller found that the box was restored from a copy."""
        assert self._counters is not None
        return bool(self._counters.gauge("controller.restored").value)

    def image(self) -> MetadataImage:
        return read_image(self.layout.image_file) or MetadataImage.empty()

    def on_disks(self, topic: str) -> dict[int, str]:
        """partition → topic id of everything that the disks hold of a topic."""
        held = {}
        for directory in self.directories.values():
            for (name, partition), topic_id in directory.partitions.items():
                if name == topic:
                    assert partition not in held, f"{topic}-{partition} lies on two disks"
                    held[partition] = topic_id
        return held

    def leading(self, topic: str) -> dict[int, int]:
        """partition → leader epoch under which a log-writer leads it."""
        return {partition: epoch for writer in self.writers.values() for (name, partition), epoch in writer.leading.items() if name == topic}
