"""Replicas of one partition, each with a real log-writer of its own, stepped by hand, and a played fetcher.

The fetcher reads the leader's files and rows, and puts into the rings what acceptor and replica-fetcher
would.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import orjson

from appliance.base.layout import BoxLayout
from appliance.base.model import LeaderEpoch, Offset
from appliance.ipc.descriptors import (
    ACKS_ALL_FLAG,
    COMMIT_FLAG,
    Completion,
    DescriptorKind,
    Progress,
    ReplicaAppend,
    TruncateOrder,
    Truncation,
    progress_descriptor,
    replica_append_descriptor,
    truncate_descriptor,
)
from appliance.ipc.proxies import LogWriterProxies
from appliance.records.builder import BatchBuilder
from appliance.shm.partition_table import PartitionTableReader, Row
from appliance.storage.segment_files import LOG_SUFFIX, segment_path
from appliance.storage.segment_scan import SegmentBatches
from lab.running_box import eventually
from lab.scratch_layout import scratch_layout
from services.log_writer.replicas.replica import Replica
from tests.support.diverging_answers import diverging_answer
from tests.support.real_log_writer import TOPIC_ID, RealLogWriter

LAG_MS = 10_000
BROKER_EPOCH = 100
"""Of broker N: this and N."""


def batch(records: int = 1, value: bytes = b"value") -> bytes:
    builder = BatchBuilder()
    for _ in range(records):
        builder.append(1_700_000_000_000, None, value)
    return builder.build()


class SteppedReplica:
    """One broker with one partition, `t-0`. Incarnations come one after the other: `die`, or
    `stop`, then `start`.
    """

    def __init__(self, broker_id: int, layout: BoxLayout, path: Path, config: dict[str, str], lag_ms: int = LAG_MS) -> None:
        self.broker_id = broker_id
        self._settings = {"replica.lag.time.max.ms": lag_ms}
        self.config = config
        self.wishes: list[dict[str, Any]] = []
        self._layout = layout
        self._path = path
        self._life = 0
        self.start()

    def start(self) -> None:
        self._life += 1
        self.writer = RealLogWriter(self._layout, self._path, self._life, self._settings, broker_id=self.broker_id)
        self.writer.recover()
        self.controller = self.writer.source("controller")
        self.controller.on_isr_changes = lambda _disk, wishes: self.wishes.extend(wishes)
        self.acceptor = self.writer.source("acceptor@0")
        self.fetcher = self.writer.source("replica-fetcher")

    def die(self) -> None:
        self.writer.die()

    def stop(self) -> None:
        self.writer.stop()

    @property
    def hosted(self) -> Replica:
        found = self.writer.agent.partitions.find(TOPIC_ID, 0)
        assert found is not None
        return found

    @property
    def row(self) -> Row:
        return PartitionTableReader(self.writer.agent.table.shared).read(self.hosted.row)

    @property
    def log_end(self) -> int:
        return self.hosted.log.log_end_offset

    def batches(self, offset: int = 0) -> Iterator[tuple[int, int, bytes, int, int]]:
        """(base offset, last offset, bytes, segment, position) of each whole batch in its files, below the log end."""
        log = self.hosted.log
        for base, size_bytes in log.segment_sizes:
            with open(segment_path(log.directory, base, LOG_SUFFIX), "rb") as file:
                position = 0
                for header, content in SegmentBatches(file.fileno(), size_bytes):
                    if header.last_offset >= offset:
                        yield header.base_offset, header.last_offset, content, base, position
                    position += len(content)

    @property
    def content(self) -> bytes:
        return b"".join(each[2] for each in self.batches())

    def boundaries(self) -> dict[int, set[tuple[int, int]]]:
        """Where offsets at which batches begin or end may be said to be: (segment, position)."""
        found: dict[int, set[tuple[int, int]]] = {}
        for base_offset, last_offset, content, segment, position in self.batches():
            found.setdefault(base_offset, set()).add((segment, position))
            found.setdefault(last_offset + 1, set()).add((segment, position + len(content)))
        found.setdefault(self.log_end, set()).add((self.hosted.log.active_base_offset, self.hosted.log.active_position))
        return found

    # -- what others ask

    def turn(self, count: int = 3) -> None:
        for _ in range(count):
            self.writer.turn()

    def command(self, kind: DescriptorKind, **more: Any) -> int:
        asked = {"topic": "t", "partition": 0, "topic_id": str(TOPIC_ID), "config": self.config, **more}
        assert self.controller.offer_command(self.writer.disk, kind, orjson.loads(orjson.dumps(asked)), (kind.name, 0))
        return self.answer(self.controller)[0].error_code

    def create(self) -> None:
        assert self.command(DescriptorKind.CREATE) == 0

    def lead(self, leader_epoch: int, isr: list[int], replicas: list[int], partition_epoch: int = 0) -> int:
        return self.command(DescriptorKind.BECOME_LEADER, leader_epoch=leader_epoch, isr=isr, replicas=replicas, partition_epoch=partition_epoch)

    def follow(self, leader: int, leader_epoch: int, isr: list[int], replicas: list[int]) -> int:
        return self.command(DescriptorKind.BECOME_FOLLOWER, leader=leader, leader_epoch=leader_epoch, isr=isr, replicas=replicas)

    def isr(self, leader_epoch: int, isr: list[int], partition_epoch: int, wish: int = -1) -> int:
        return self.command(DescriptorKind.ISR, leader_epoch=leader_epoch, isr=isr, partition_epoch=partition_epoch, wish=wish)

    def mark(self, producer_id: int, producer_epoch: int, is_commit: bool) -> None:
        """The end of a transaction, as its coordinator writes it."""
        hosted = self.hosted
        flags = COMMIT_FLAG if is_commit else 0
        place = hosted.row, hosted.row_generation, hosted.leader_epoch, hosted.config_generation
        entry = (DescriptorKind.TRANSACTION_MARKER, flags, 0, *place, 0, 0, 0, producer_id, 1, producer_epoch, 0)
        assert self.acceptor.by_disk[self.writer.disk].offer(entry, 0, ("mark", 0))
        assert self.answer(self.acceptor)[-1].error_code == 0

    def produce(self, content: bytes, acks_all: bool = False, flags: int = 0, leader_epoch: int | None = None) -> None:
        """`produced` has its completion."""
        hosted, arena = self.hosted, self.acceptor.source.arena
        position = arena.allocate(len(content))
        arena.memory[position : position + len(content)] = content
        flags |= ACKS_ALL_FLAG if acks_all else 0
        epoch = hosted.leader_epoch if leader_epoch is None else leader_epoch
        place = hosted.row, hosted.row_generation, epoch, hosted.config_generation
        assert self.acceptor.by_disk[self.writer.disk].offer(
            (DescriptorKind.PRODUCE, flags, 0, *place, len(content), position, 0, 1, 0, 0, 0), 0, ("produce", 0)
        )

    @property
    def produced(self) -> list[Completion]:
        return [each for each in self.writer.completions if each.kind == DescriptorKind.PRODUCE]

    def append(self, content: bytes, leaders: ReplicaAppend, leader_epoch: int | None = None) -> Completion:
        self.offer_append(content, leaders, leader_epoch)
        return self.answer(self.fetcher)[0]

    def offer_append(self, content: bytes, leaders: ReplicaAppend, leader_epoch: int | None = None) -> None:
        hosted, arena = self.hosted, self.fetcher.source.arena
        position = arena.allocate(max(1, len(content)))
        arena.memory[position : position + len(content)] = content
        epoch = hosted.leader_epoch if leader_epoch is None else leader_epoch
        entry = replica_append_descriptor(hosted.row, hosted.row_generation, LeaderEpoch(epoch), position, len(content), leaders)
        assert self.fetcher.by_disk[self.writer.disk].offer(entry, 0, _Slot(self.fetcher, position))

    def truncate(self, kind: Truncation, offset: int, leader_epoch: int = -1) -> Completion:
        hosted = self.hosted
        entry = truncate_descriptor(hosted.row, hosted.row_generation, hosted.leader_epoch, TruncateOrder(kind, LeaderEpoch(leader_epoch), Offset(offset)))
        assert self.fetcher.by_disk[self.writer.disk].offer(entry, 0, ("truncate", 0))
        return next(each for each in self.answer(self.fetcher) if each.kind == DescriptorKind.TRUNCATE)

    def progress(self, replica: int, offset: int, log_start_offset: int = 0, broker_epoch: int | None = None) -> None:
        hosted = self.hosted
        told = Progress(
            replica,
            Offset(offset),
            self.writer.clock.monotonic_ns(),
            BROKER_EPOCH + replica if broker_epoch is None else broker_epoch,
            Offset(log_start_offset),
        )
        entry = progress_descriptor(hosted.row, hosted.row_generation, hosted.leader_epoch, told)
        assert self.acceptor.by_disk[self.writer.disk].offer(entry, 0, ("progress", 0))
        before = len(self.writer.completions)
        kind = int(DescriptorKind.PROGRESS)  # a deletion may go on waiting
        eventually(lambda: self.writer.turn() >= 0 and kind in {each.kind for each in self.writer.completions[before:]}, "the answer")

    def delete_records(self, offset: int, timeout_ms: int) -> None:
        """`deleted` has its completion."""
        hosted = self.hosted
        place = hosted.row, hosted.row_generation, hosted.leader_epoch, hosted.config_generation
        deadline_ns = self.writer.clock.monotonic_ns() + timeout_ms * 1_000_000
        entry = (DescriptorKind.DELETE_RECORDS, 0, 0, *place, 0, 0, 0, offset, 0, 0, deadline_ns)
        assert self.acceptor.by_disk[self.writer.disk].offer(entry, 0, ("delete", 0))
        eventually(lambda: self.writer.turn() >= 0 and not self.writer.agent.retention.is_under_way, "the leader's part")
        self.turn(1)

    @property
    def deleted(self) -> list[tuple[int, int]]:
        """(error code, low watermark) of each answer."""
        return [(each.error_code, each.log_start_offset) for each in self.writer.completions if each.kind == DescriptorKind.DELETE_RECORDS]

    def answer(self, proxies: LogWriterProxies) -> list[Completion]:
        before = len(self.writer.completions)
        proxy = proxies.by_disk[self.writer.disk]
        eventually(lambda: self.writer.turn() >= 0 and not proxy.outstanding, "the answer")
        return [each for each in self.writer.completions[before:] if each.kind != DescriptorKind.PRODUCE] or self.writer.completions[before:]


class _Slot:
    def __init__(self, proxies: LogWriterProxies, position: int) -> None:
        self._arena = proxies.source.arena
        self._position = position

    def finish(self) -> tuple[str, int]:
        self._arena.free(self._position)
        return ("append", 0)


def fetch(follower: SteppedReplica, leader: SteppedReplica, max_bytes: int = 1 << 20, appends: bool = True) -> str:
    """One fetch and what follows from it, as acceptor and replica-fetcher would have it: truncated,
    appended, reported.
    """
    own, theirs = follower.hosted.log, leader.hosted.log
    diverging = diverging_answer(own.leader_epochs.latest, own.log_end_offset, theirs.leader_epochs.end_offset_for, theirs.log_end_offset)
    if diverging not in (None, (-1, -1)):
        assert diverging is not None
        assert follower.truncate(Truncation.DIVERGED, diverging[1], diverging[0]).error_code == 0
        return "truncated"
    if own.log_end_offset < theirs.log_start_offset:
        assert follower.truncate(Truncation.START_AT, theirs.log_start_offset).error_code == 0
        return "truncated"
    if own.log_end_offset > theirs.log_end_offset:
        assert follower.truncate(Truncation.TO_OFFSET, theirs.log_end_offset).error_code == 0
        return "truncated"
    leader.progress(follower.broker_id, own.log_end_offset, own.log_start_offset)
    if not appends:
        return "told"
    told = ReplicaAppend(leader.row.high_watermark, leader.row.log_start_offset)
    content = b""
    for _, _, each, _, _ in leader.batches(own.log_end_offset):
        if content and len(content) + len(each) > max_bytes:
            break
        content += each
    completion = follower.append(content, told)
    assert (completion.error_code, completion.log_end_offset) == (0, own.log_end_offset)
    return "appended" if content else "told"


@contextmanager
def replicas(path: Path, count: int, config: dict[str, str] | None = None, lag_ms: int = LAG_MS) -> Iterator[list[SteppedReplica]]:
    """Brokers 1 to `count`, none of them with a role. Brokers that run at the end are stopped."""
    with ExitStack() as stack:
        made = [
            SteppedReplica(number, stack.enter_context(scratch_layout()), path / f"broker-{number}", config or {}, lag_ms) for number in range(1, count + 1)
        ]
        for each in made:
            each.create()
        yield made
        for each in made:
            if each.writer.sources:
                each.stop()


def check_watermark(replica: SteppedReplica) -> None:
    """The row's high watermark is between two batches, and its place in the files is where it says."""
    row = replica.row
    boundaries = replica.boundaries()
    assert row.log_start_offset <= row.last_stable_offset <= row.high_watermark <= row.log_end_offset
    if row.high_watermark in boundaries:
        assert (row.watermark_base_offset, row.watermark_position) in boundaries[row.high_watermark], row
    else:
        assert row.high_watermark == row.log_start_offset, (row, sorted(boundaries))
