"""The real log-writer agent on a directory of a test, stepped by hand, its time owned by the test; and sources that ask it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from appliance.base.clock import ManualClock, SystemClock
from appliance.base.errors import StorageFailed
from appliance.base.layout import BoxLayout, Disk
from appliance.base.logging import Logger
from appliance.base.model import TopicId
from appliance.base.settings import Box
from appliance.ipc.descriptors import Completion, DescriptorKind
from appliance.ipc.proxies import LogWriterProxies
from appliance.ipc.source import Source
from appliance.runtime.agent import ServiceContext
from appliance.runtime.poller import Poller
from appliance.shm.counters import Counters
from lab.running_box import eventually
from services.log_writer.agent import LogWriterAgent

DISK = "d0"
BROKER_ID = 1
TOPIC_ID = TopicId(bytes(range(16)))


class _Notifier:
    def ready(self) -> None:
        pass

    def status(self, text: str) -> None:
        pass


class RealLogWriter:
    """One incarnation on `path`. `answers` has (source, what was asked, error code) in the order in
    which completions were seen.
    """

    def __init__(
        self, layout: BoxLayout, path: Path, incarnation: int, settings: dict[str, Any] | None = None, disk: str = DISK, broker_id: int = BROKER_ID
    ) -> None:
        self.layout = layout
        self.disk = disk
        self.clock = ManualClock()
        self.poller = Poller()
        self._said, writing = os.pipe()
        os.set_blocking(self._said, False)
        self._writing = writing
        self._text = ""
        box = Box("test", broker_id, [Disk(disk, str(path))], str(path) + ".state", "127.0.0.1", "127.0.0.1", 0, 1, 1, settings=settings or {})
        self.counters = Counters.create_or_adopt(layout, f"log-writer@{disk}", incarnation)
        log = Logger("log-writer", descriptor=writing)
        context = ServiceContext(layout, box, self.clock, self.counters, self.poller, f"log-writer@{disk}", disk, incarnation, _Notifier(), log, {})
        self.agent = LogWriterAgent(context)
        self.sources: dict[str, LogWriterProxies] = {}
        self.answers: list[tuple[str, Any, int]] = []
        self.completions: list[Completion] = []

    def recover(self) -> None:
        while self.agent.startup is not None:
            self.agent.do_work()

    @property
    def said(self) -> str:
        try:
            while data := os.read(self._said, 65536):
                self._text += data.decode()
        except BlockingIOError:
            pass
        return self._text

    @property
    def disk_state(self) -> int:
        from appliance.shm.partition_table import DISK_STATE_WORD

        return int(self.agent.table.shared.words[DISK_STATE_WORD])

    def source(self, name: str) -> LogWriterProxies:
        """Connected when this returns."""

        def on_completion(context: Any, entry: tuple[Any, ...]) -> None:
            asked = context.finish() if hasattr(context, "finish") else context
            self.answers.append((name, asked, entry[2]))
            self.completions.append(Completion(*entry))

        source = Source(self.layout, name, 1, 1 << 20, 256)
        proxies = LogWriterProxies(source, [self.disk], self.poller, self.counters, on_completion, lambda _: None, lambda _: None, lambda _: None)
        self.sources[name] = proxies
        eventually(lambda: self.turn() is not None and proxies.connected(self.disk), f"{name} is let in")
        return proxies

    def turn(self) -> int:
        """One turn of the agent, then one of every source."""
        self.poller.poll(0)
        work = self.agent.do_work()
        self.look()
        return work

    def look(self) -> None:
        for proxies in self.sources.values():
            proxies.do_work(SystemClock().monotonic_ns())

    def seconds(self, count: int) -> None:
        """Let time go by, with housekeeping and its thread in each second."""
        for _ in range(count):
            self.clock.advance_ms(1001)
            self.turn()
            self.agent.flush_rounds.task.join()
            self.turn()

    def create(self, proxies: LogWriterProxies, partition: int, topic: str = "t") -> None:
        asked = {"topic": topic, "partition": partition, "topic_id": str(TOPIC_ID)}
        assert proxies.offer_command(self.disk, DescriptorKind.CREATE, asked, ("create", partition))

    def lead(self, proxies: LogWriterProxies, partition: int, topic: str = "t") -> None:
        asked = {"topic": topic, "partition": partition, "topic_id": str(TOPIC_ID), "leader_epoch": 0, "isr": [BROKER_ID], "replicas": [BROKER_ID]}
        assert proxies.offer_command(self.disk, DescriptorKind.BECOME_LEADER, asked, ("lead", partition))

    def produce(self, proxies: LogWriterProxies, partition: int, batch: bytes, flags: int = 0) -> int:
        """Return where the batch is in the arena."""
        hosted = self.agent.partitions.find(TOPIC_ID, partition)
        assert hosted is not None
        arena = proxies.source.arena
        position = arena.allocate(len(batch))
        arena.memory[position : position + len(batch)] = batch
        entry = (
            DescriptorKind.PRODUCE,
            flags,
            0,
            hosted.row,
            hosted.row_generation,
            hosted.leader_epoch,
            hosted.config_generation,
            len(batch),
            position,
            0,
            1,
            0,
            0,
            0,
        )
        assert proxies.by_disk[self.disk].offer(entry, 0, ("produce", partition))
        return int(position)

    def codes(self, verb: str) -> list[int]:
        return [code for _, (asked, _), code in self.answers if asked == verb]

    def die(self) -> None:
        """As `kill -9` leaves it: the table stays, nothing is flushed."""
        self._let_go()
        for hosted in self.agent.partitions.by_row.values():
            hosted.log.abandon()
        self.agent.directory.abandon()

    def stop(self) -> None:
        """The clean end."""
        self.agent.begin_stop()
        self.agent.close()
        self._let_go()

    def close_log(self) -> None:
        os.close(self._said)
        os.close(self._writing)

    def _let_go(self) -> None:
        for rounds in (self.agent.flush_rounds, self.agent.batch_flushes):
            with suppress(StorageFailed):
                rounds.close()
        self.agent.moves.incoming.close()  # a mover dies with its log-writer
        self.agent.door.close()
        for proxies in self.sources.values():
            proxies.close()
            proxies.source.close()
        self.sources.clear()
        self.poller.close()
        self.agent.doorbell.close()
        _ = self.said
        self.close_log()
        if os.path.exists(socket := self.layout.log_writer_socket(self.disk)):
            os.unlink(socket)


@contextmanager
def open_files_limit(limit: int) -> Iterator[None]:
    """The soft limit of this process, for a while."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
