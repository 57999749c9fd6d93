"""Produces that are under way while their partition is frozen and given to another disk: what is in the log is said to be there, or clients write it twice.

A real log-writer and a real produce handler with real rings between them, each stepped by hand: so the acceptor can be late, as on a busy machine.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.base.clock import SystemClock
from appliance.base.errors import ErrorCode
from appliance.base.layout import BoxLayout
from appliance.cluster.metadata_cache import LocalReplica, MetadataCache, RowAddress
from appliance.ipc.descriptors import DescriptorKind
from appliance.ipc.proxies import LogWriterProxies
from appliance.ipc.source import Source
from appliance.protocol.framing import RequestHeader
from appliance.records.builder import BatchBuilder
from appliance.security.transport import PlainTransport
from lab.running_box import eventually
from services.acceptor.connection import Connection
from services.acceptor.delayed import DelayedRequests
from services.acceptor.handlers.produce import ProduceHandler
from tests.support.real_log_writer import BROKER_ID, DISK, TOPIC_ID, RealLogWriter

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")

PRODUCE_VERSION = 7


class LateAcceptor:
    """It takes requests and answers; completions wait in the ring until `catch_up`."""

    def __init__(self, writer: RealLogWriter) -> None:
        self._source = Source(writer.layout, "acceptor@0", 1, 1 << 20, 256)
        self.proxies = LogWriterProxies(
            self._source,
            [DISK],
            writer.poller,
            writer.counters,
            lambda part, entry: self.produces.on_completion(part, entry),
            lambda part: self.produces.on_lost(part),
            lambda _: None,
            lambda _: None,
        )
        view = cast(MetadataCache, SimpleNamespace(placement=self._placement))
        self.produces = ProduceHandler(view, self._source.arena, DelayedRequests(), SystemClock(), writer.counters, 1 << 20, lambda _: None)
        ours, theirs = socket.socketpair()
        self._socks = ours, theirs
        self.connection = Connection(PlainTransport(ours), "test", 0)

        def is_connected() -> bool:
            writer.turn()
            self.catch_up()
            return self.proxies.connected(DISK)

        eventually(is_connected, "the acceptor is let in")
        hosted = writer.agent.partitions.find(TOPIC_ID, 0)
        proxy = self.proxies.by_disk[DISK]
        assert hosted is not None and proxy.table is not None
        self._placed = LocalReplica("t", bytes(TOPIC_ID), 0, proxy, RowAddress(proxy.table, hosted.row, hosted.row_generation), 1 << 20)

    def _placement(self, _topic: str, _partition: int) -> LocalReplica:
        return self._placed

    def catch_up(self) -> None:
        self.proxies.do_work(SystemClock().monotonic_ns())

    def produce(self, records: bytes, acks: int = -1) -> None:
        body = struct.pack(">hhii", -1, acks, 60_000, 1) + struct.pack(">h1s", 1, b"t") + struct.pack(">iii", 1, 0, len(records)) + records
        assert self.produces.handle(self.connection, RequestHeader(0, PRODUCE_VERSION, 7, "", 0), memoryview(body), len(body), None)
        self.proxies.flush()

    def answer(self) -> tuple[int, int]:
        """(error code, base offset) of the one partition of the oldest produce."""
        assert self.connection.collect_ready()
        data = b"".join(bytes(cast(Any, piece)) for piece in self.connection.outgoing)
        self.connection.outgoing.clear()
        code, base_offset = struct.unpack_from(">hq", data, 4 + 4 + 4 + 3 + 4 + 4)
        return code, base_offset

    def close(self) -> None:
        self.proxies.close()
        self._source.close()
        for sock in self._socks:
            sock.close()


class World:
    """One log-writer that leads partition 0, its controller, and an acceptor."""

    def __init__(self, layout: BoxLayout, path: Path) -> None:
        self.writer = RealLogWriter(layout, path / DISK, 1)
        self.writer.recover()
        self.controller = self.writer.source("controller")
        self.says(DescriptorKind.CREATE)
        self.says(DescriptorKind.BECOME_LEADER, leader_epoch=0, isr=[BROKER_ID], replicas=[BROKER_ID])
        self.acceptor = LateAcceptor(self.writer)

    def says(self, kind: DescriptorKind, **more: Any) -> None:
        before = len(self.writer.completions)
        asked = {"topic": "t", "partition": 0, "topic_id": str(TOPIC_ID)} | more
        assert self.controller.offer_command(DISK, kind, asked, (kind, 0))
        self.controller.flush()
        eventually(lambda: self.writer.turn() >= 0 and len(self.writer.completions) > before, f"{kind.name} is answered")
        assert self.writer.completions[-1].error_code == ErrorCode.NONE

    def close(self) -> None:
        self.acceptor.close()
        self.writer.stop()


@pytest.fixture
def world(layout: BoxLayout, tmp_path: Path) -> Iterator[World]:
    made = World(layout, tmp_path)
    yield made
    made.close()


def _batch(records: int) -> bytes:
    builder = BatchBuilder()
    for number in range(records):
        builder.append(1_700_000_000_000, None, b"%d" % number)
    return builder.build()


@pytest.mark.parametrize("is_given_away", [False, True])
def test_a_batch_that_was_appended_before_the_freeze_is_acknowledged_after_it(world: World, is_given_away: bool) -> None:
    world.acceptor.produce(_batch(13))
    world.writer.turn()
    world.says(DescriptorKind.MOVE_FREEZE)
    if is_given_away:
        world.says(DescriptorKind.MOVE_COMMIT, log_end_offset=13)
    world.acceptor.catch_up()
    assert world.acceptor.answer() == (ErrorCode.NONE, 0), "a retry would be a second batch of 13 records"


def test_a_batch_that_comes_after_the_freeze_is_refused(world: World) -> None:
    world.says(DescriptorKind.MOVE_FREEZE)
    world.acceptor.produce(_batch(1))
    world.writer.turn()
    world.acceptor.catch_up()
    assert world.acceptor.answer()[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_produce_that_waits_for_a_flush_during_the_hand_over_is_acknowledged_because_the_copy_is_durable(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosted = world.writer.agent.partitions.find(TOPIC_ID, 0)
    assert hosted is not None
    world.writer.agent.partitions.configure(hosted, {"flush.messages": "1"})
    hosted.apply_config(0)
    monkeypatch.setattr(world.writer.agent.batch_flushes, "start_round", list)  # the disk takes its time
    world.acceptor.produce(_batch(13))
    world.writer.turn()
    world.says(DescriptorKind.MOVE_FREEZE)
    world.acceptor.catch_up()
    assert not world.acceptor.connection.collect_ready() or not world.acceptor.connection.outgoing, "it is not durable yet"
    world.says(DescriptorKind.MOVE_COMMIT, log_end_offset=13)
    world.acceptor.catch_up()
    assert world.acceptor.answer() == (ErrorCode.NONE, 0)
