"""Read one partition of a state topic: from its log start to the log end at the start of the load, through the log-reader.

That is the end of the leader's log, not the high watermark: records between the two were appended under an earlier leader,
and are committed as soon as the in-sync replicas have fetched them. `state_topic` waits for that before it uses them.

Owned by the coordinator process. LOOKUP finds the batch, OPEN returns the size of its segment (its descriptor is not used,
because a read on it could wait for the disk), READ brings whole batches into the log-reader's arena. One request at a time; a
portion is decoded in the turn of its arrival.
Weak spot: a damaged batch is skipped and logged; its records are lost to the coordinator, as to any consumer.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from appliance.base.errors import ErrorCode
from appliance.base.logging import Logger
from appliance.cluster.metadata_cache import LocalReplica
from appliance.cluster.state_log import LoadedRecord, ProducerIdentity
from appliance.ipc.log_reader_messages import FIRST_WHATEVER, IS_ACTIVE, LOOKUP, OPEN, READ, WHOLE_BATCHES, Answer, Extent, ReadAnswer
from appliance.ipc.log_reader_proxy import LogReaderProxy
from appliance.records.batch import CONTROL_FLAG, LOG_OVERHEAD, RECORDS_AT, TRANSACTIONAL_FLAG, read_batch_header
from appliance.records.compression import CorruptBatch
from appliance.records.control_batch import read_end_transaction_marker
from appliance.records.record import iterate_records
from appliance.shm.partition_table import Row, TornRow

PORTION_BYTES = 256 * 1024
"""Asked for at a time: some 3,000 records, 20 ms of a turn."""
_BATCH_BYTES_MAX = 64 << 20

OnRecords = Callable[[list[LoadedRecord]], None]
OnDone = Callable[[str], None]
"""Called once, with why it failed, or "" when everything was read."""


class StateLoad:
    """One load. `start` may already end it."""

    def __init__(self, reader: LogReaderProxy, placement: LocalReplica, on_records: OnRecords, on_done: OnDone, log: Logger) -> None:
        self._reader = reader
        self._placement = placement
        self._on_records = on_records
        self._on_done = on_done
        self._log = log
        self._offset = 0
        self._end_offset = 0
        self._generation = 0
        self._is_over = False
        # the segment that is being read
        self._base_offset = 0
        self._position = 0
        self._limit = 0
        self._inode = 0
        self._is_active = False

    def start(self) -> None:
        row = self._row()
        if row is None:
            self._end("its row cannot be read")
            return
        self._offset, self._end_offset = row.log_start_offset, row.log_end_offset
        self._look_up()

    @property
    def end_offset(self) -> int:
        """What was read ends here, or where the log ended at the start: a portion may bring what was appended since."""
        return max(self._offset, self._end_offset)

    def cancel(self) -> None:
        """Cancel the load; responses in flight are dropped."""
        self._is_over = True

    def _row(self) -> Row | None:
        try:
            return self._placement.read_row()
        except TornRow:
            return None

    def _end(self, problem: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._on_done(problem)

    def _ask(self, kind: int, value_a: int, value_b: int, then: Callable[[Answer, int], None], extent: Extent | None = None) -> None:
        placement = self._placement

        def on_answer(answer: Answer | None, descriptor: int) -> None:
            if descriptor >= 0:
                os.close(descriptor)
            if self._is_over:
                if answer is not None and kind == READ and answer.offsets:
                    self._reader.arena.give_back(ReadAnswer.unpacked(answer.offsets))
                return
            if answer is None:
                self._end("the log-reader gave no answer")
            elif answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and kind == LOOKUP:
                self._on_nothing_there()
            elif answer.error_code:
                self._end(f"the log-reader says {ErrorCode(answer.error_code).name}")
            else:
                then(answer, descriptor)

        if not self._reader.ask(kind, placement.topic, placement.partition, self._generation, value_a, value_b, on_answer, extent):
            self._end("the log-reader does not listen")

    def _look_up(self) -> None:
        row = self._row()
        if row is None:
            self._end("its row cannot be read")
            return
        self._offset = max(self._offset, row.log_start_offset)
        if self._offset >= self._end_offset:
            self._end("")
            return
        self._generation = row.segment_list_generation
        self._ask(LOOKUP, self._offset, row.log_end_offset, self._on_found)

    def _on_nothing_there(self) -> None:
        """Compaction has taken all that was behind the last batch read; or the log begins later now."""
        row = self._row()
        if row is not None and row.log_start_offset > self._offset:
            self._look_up()
        else:
            self._end("")

    def _on_found(self, answer: Answer, _descriptor: int) -> None:
        self._base_offset, self._position, self._inode = answer.a, answer.b, answer.d
        self._ask(OPEN, self._base_offset, 0, self._on_opened)

    def _on_opened(self, answer: Answer, _descriptor: int) -> None:
        row = self._row()
        if row is None or answer.b != self._inode:
            self._look_up()  # compaction put another file there meanwhile
            return
        self._is_active = self._base_offset == row.active_base_offset
        self._limit = row.active_position if self._is_active else answer.a
        self._read()

    def _read(self) -> None:
        if self._offset >= self._end_offset:
            self._end("")
        elif self._position >= self._limit:
            self._look_up()
        else:
            flags = WHOLE_BATCHES | FIRST_WHATEVER | (IS_ACTIVE if self._is_active else 0)
            self._ask(READ, self._base_offset, self._position, self._on_read, Extent(PORTION_BYTES, self._limit, self._inode, flags))

    def _on_read(self, answer: Answer, _descriptor: int) -> None:
        told = ReadAnswer.unpacked(answer.offsets)
        parts = self._reader.arena.take(told) if told.parts else []
        portion = b"".join([part.memory for part in parts])
        del parts
        if not portion or told.next_offset < 0:
            self._end(f"no whole batch at position {self._position} of segment {self._base_offset}")
            return
        records: list[LoadedRecord] = []
        self._decode(portion, records)
        self._position += len(portion)
        self._offset = told.next_offset
        self._on_records(records)
        self._read()

    def _decode(self, portion: bytes, records: list[LoadedRecord]) -> None:
        position = 0
        while position + RECORDS_AT <= len(portion):
            header = read_batch_header(portion, position)
            end = position + max(header.size_bytes, LOG_OVERHEAD)
            batch = memoryview(portion)[position:end]
            position = end
            producer = ProducerIdentity(header.producer_id, header.producer_epoch) if header.attributes & TRANSACTIONAL_FLAG else None
            try:
                if header.attributes & CONTROL_FLAG:
                    marker = read_end_transaction_marker(batch)
                    if marker is not None:
                        records.append(LoadedRecord(header.base_offset, header.max_timestamp, b"", None, producer, marker.is_commit))
                    continue
                records += (
                    LoadedRecord(record.offset, record.timestamp, record.key, record.value, producer)
                    for record in iterate_records(batch, _BATCH_BYTES_MAX)
                    if record.key is not None
                )
            except CorruptBatch as problem:
                placement = self._placement
                words = f"{placement.topic}-{placement.partition}: the batch at offset {header.base_offset} is left out: {problem}"
                self._log.critical(words, topic=placement.topic, partition=placement.partition, disk=placement.disk)
                self._reader.have_checked(placement.topic, placement.partition, header.base_offset)
