"""What a coordinator's agents stand on, stepped by hand: one real row, a real arena, a log-writer and a log-reader that the test plays.

The log-reader answers questions at once out of `log` (whole batches, as they lie in a segment), or not at all while `reader_is_away`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from appliance.base.clock import ManualClock
from appliance.base.errors import ErrorCode
from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger, Severity
from appliance.cluster.metadata_cache import LocalReplica, MetadataCache, RowAddress
from appliance.cluster.state_log import LoadedRecord
from appliance.ipc.descriptors import Descriptor
from appliance.ipc.log_reader_messages import LOOKUP, OPEN, READ, Answer, Extent, ReadAnswer
from appliance.ipc.log_reader_proxy import LogReaderProxy
from appliance.records.batch import read_batch_header
from appliance.shm.arena import Arena
from appliance.shm.counters import Counters
from appliance.shm.partition_table import ROLE_LEADER, ROLE_NONE, PartitionTableReader, PartitionTableWriter, Row
from services.coordinator.state.state_partition import StateAppend
from services.coordinator.state.state_topic import StateTopic

TOPIC = "__state"
INODE = 7


class PlayedLogReader:
    """One segment, from offset 0."""

    def __init__(self) -> None:
        self.log = b""
        self.asked: list[int] = []
        self.checked: list[tuple[str, int, int]] = []
        """Places that it was to have looked at."""
        self.is_away = False
        self.error_code = 0
        self.given_back = 0
        self.batches_a_portion = 1
        """One: several turns of a load."""
        self.arena = cast(Any, SimpleNamespace(take=self._take, give_back=self._give_back, released=[]))
        self._memory: dict[int, bytes] = {}

    def append(self, batch: bytes) -> None:
        """As the log stamps it: with the next offset."""
        offset = self.end_offset
        stamped = bytearray(batch)
        stamped[:8] = offset.to_bytes(8, "big")
        self.log += bytes(stamped)

    def truncate(self, offset: int) -> None:
        """As a follower does whose leader never had the rest."""
        position = self._find(offset)[0]
        self.log = self.log[:position]

    @property
    def end_offset(self) -> int:
        position = end = 0
        while position < len(self.log):
            header = read_batch_header(self.log, position)
            position, end = position + header.size_bytes, header.base_offset + header.last_offset_delta + 1
        return end

    def ask(self, kind: int, topic: str, partition: int, generation: int, value_a: int, value_b: int, on_answer: Any, extent: Extent | None = None) -> bool:
        self.asked.append(kind)
        if self.is_away:
            return False
        on_answer(self._answer(kind, value_a, value_b, extent), -1)
        return True

    def have_checked(self, topic: str, partition: int, offset: int) -> None:
        self.checked.append((topic, partition, offset))

    def _answer(self, kind: int, value_a: int, value_b: int, extent: Extent | None) -> Answer:
        if self.error_code:
            return Answer(kind, 0, self.error_code)
        if kind == OPEN:
            return Answer(OPEN, 0, 0, len(self.log), INODE)
        if kind == LOOKUP:
            position, header = self._find(value_a)
            return Answer(LOOKUP, 0, 0, 0, position, header.size_bytes, INODE, header.base_offset)
        assert kind == READ and extent is not None
        header = read_batch_header(self.log, value_b)
        end = value_b + header.size_bytes
        for _ in range(1, self.batches_a_portion):
            header = read_batch_header(self.log, end)
            end += header.size_bytes
        portion = self.log[value_b:end]
        self._memory[len(self._memory)] = portion
        told = ReadAnswer(1, header.base_offset + header.last_offset_delta + 1, 0, ((len(self._memory) - 1, 0, len(portion)),))
        return Answer(READ, 0, 0, offsets=told.packed())

    def _find(self, offset: int) -> tuple[int, Any]:
        position = 0
        while True:
            header = read_batch_header(self.log, position)
            if header.base_offset + header.last_offset_delta >= offset:
                return position, header
            position += header.size_bytes

    def _take(self, told: ReadAnswer) -> list[Any]:
        return [SimpleNamespace(memory=self._memory[slot]) for slot, _position, _size in told.parts]

    def _give_back(self, told: ReadAnswer) -> None:
        self.given_back += len(told.parts)


class KeptState:
    """A coordinator that only records its calls."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.records: list[LoadedRecord] = []
        self.skipped_records = 0

    def begin_load(self, partition: int) -> None:
        self.records = []
        self.told.append(("begin", partition))

    def load(self, partition: int, records: list[LoadedRecord]) -> None:
        self.records += records

    def finish_load(self, partition: int, now_ms: int) -> None:
        self.told.append(("finish", partition))

    def unload(self, partition: int, now_ms: int) -> None:
        self.told.append(("unload", partition))


class SteppedState:
    """Partition 0 of `TOPIC` on disk d0."""

    def __init__(self, layout: BoxLayout) -> None:
        self.clock = ManualClock()
        self.counters = Counters.create_or_adopt(layout, "coordinator", 1)
        self.writer = PartitionTableWriter.create(layout.shared_memory_name("table", "d0", 1), 1)
        self.writer.add_row(self._row(ROLE_LEADER, 3, 0))
        self.table = PartitionTableReader.attach(layout.shared_memory_name("table", "d0", 1))
        self.arena = Arena.create(layout.shared_memory_name("arena", "coordinator", 1), 1 << 16, 1)
        self.offered: list[tuple[Descriptor, Any]] = []
        self.is_full = False
        self.proxy = cast(Any, SimpleNamespace(disk="d0", serving=True, is_hung=False, table=self.table, offer=self._offer, offer_or_queue=self._offer))
        self.placement: LocalReplica | None = LocalReplica(TOPIC, bytes(16), 0, self.proxy, RowAddress(self.table, 0, 1))
        self.wanted = SimpleNamespace(leader=1)
        topics = {TOPIC: SimpleNamespace(partitions=(self.wanted,))}
        self.view = cast(
            MetadataCache,
            SimpleNamespace(
                image=SimpleNamespace(topics=topics),
                broker_id=1,
                placement=lambda topic, partition: self.placement if (topic, partition) == (TOPIC, 0) else None,
                why_absent=lambda *_: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ),
        )
        self.reader = PlayedLogReader()
        readers = {"d0": cast(LogReaderProxy, self.reader)}
        self.log = Logger("coordinator", Severity.ERROR)
        self.topic = StateTopic(TOPIC, self.arena, self.view, readers, self.clock, lambda: 1_000, self.counters, self.log)
        self.state = KeptState()
        self.topic.serve(self.state)

    @staticmethod
    def _row(role: int, leader_epoch: int, end: int, size_bytes: int = 0, high_watermark: int | None = None) -> Row:
        high_watermark = end if high_watermark is None else high_watermark
        return Row._make((bytes(16), 0, 0, role, leader_epoch, 0, end, high_watermark, high_watermark, 1, 1, 0, 0, size_bytes, 0, size_bytes, 1))

    def show(self, leader_epoch: int = 3, is_leader: bool = True, high_watermark: int | None = None, row_generation: int = 1) -> None:
        """The row as the log-writer writes it."""
        row = self._row(ROLE_LEADER if is_leader else ROLE_NONE, leader_epoch, self.reader.end_offset, len(self.reader.log), high_watermark)
        self.writer.store(0, row._replace(row_generation=row_generation))

    def lead_elsewhere(self, broker_id: int) -> None:
        """As the image says; the row is as it was."""
        self.wanted.leader = broker_id

    def _offer(self, descriptor: tuple[int, ...], _charge: int, context: Any) -> bool:
        if self.is_full:
            return False
        self.offered.append((Descriptor._make(descriptor), context))
        return True

    def complete(self, error_code: int = 0, leader_epoch: int = 3) -> StateAppend:
        """The oldest descriptor: appended (its bytes go into the log), or refused."""
        descriptor, context = self.offered.pop(0)
        append: StateAppend = context
        if not error_code:
            self.reader.append(bytes(self.arena.memory[append.slot : append.slot + descriptor[7]]))
        end = self.reader.end_offset
        self.topic.on_completion(append, (descriptor[0], 0, error_code, 0, 0, end - 1, -1, 0, end, leader_epoch, 1, 0))
        return append

    def turn(self) -> int:
        return self.topic.turn(self.clock.monotonic_ns())

    def lead(self) -> None:
        """Found, read, and served."""
        self.topic.refresh()
        while self.topic.loading_count:
            self.turn()

    def close(self) -> None:
        self.topic.end_all()
        self.arena.close()
        self.table.close()
        self.writer.close()
        self.counters.close()
