"""Search one partition in the segment files of this box, one window of memory after the other.

In a window the batch headers are walked, and neighbouring uncompressed batches are searched for the
query's literals as they lie there; of a batch without a hit nothing else is read. Compressed
batches are opened one by one. Only records with a hit are parsed. Control batches, batches of
aborted transactions and everything from the last stable offset on are left out.

Owned by one thread at a time. Weak: a damaged batch without a hit is not noticed; the scan
ends when `LATE_BYTES` of the log in a row begin more than `LATE_MS` after the time range, so records
that come later than that are missed.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Generator, Iterator
from contextlib import closing, nullcontext
from itertools import islice
from typing import NamedTuple

from appliance.base.model import Offset
from appliance.pipeline.batch_scan import AbortedRecords, RawBatches, ReadProgress, find_batch
from appliance.pipeline.local_rows import LocalRow
from appliance.pipeline.local_segments import LocalSegments
from appliance.pipeline.offset_range import OffsetRange
from appliance.records.batch import (
    BATCH_HEADER,
    CODEC_MASK,
    CONTROL_FLAG,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC,
    RECORDS_AT,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    batch_crc,
    read_batch_header,
    stored_batch_problem,
)
from appliance.records.compression import Codec, CorruptBatch, decompress, opened_batch_limit
from appliance.records.record import decode_varint
from appliance.senders.record_query import parse_query
from appliance.storage.reading import LogReading
from appliance.storage.segment_files import SUMMARY_SUFFIX, segment_path
from services.search.matching import Document, Predicate, compile_node, field_names, fields_of
from services.search.prefilter import Literals, Prefilter, Verdict, folded_value, literals_of, verdict_of
from services.search.summary import SEGMENT_BYTES_MIN, SegmentFilter, SegmentIdentity, SegmentSummary

WINDOW_BYTES = 8 << 20
MATCH_BYTES = 200
"""Of a match in memory, besides its value."""
MATCHES_BYTES = 8 << 20
"""A window with more of them is handed on in parts."""
LARGE_BATCH_BYTES = 1 << 20
SAMPLE_RECORDS = 200
SAMPLE_FIELDS_MAX = 500
NOTES_MAX = 100
LATE_MS = 3_600_000
LATE_BYTES = 128 << 20
"""A sender whose clock is wrong shares the partition with others: its records end no scan."""


class Match(NamedTuple):
    """A record that fulfils the query. Compared by time, then by place."""

    timestamp_ms: int
    partition: int
    offset: int
    value: bytes
    before: tuple[Match, ...] = ()
    """Records around it, if they were asked for."""
    after: tuple[Match, ...] = ()

    @property
    def size_bytes(self) -> int:
        return len(self.value) + MATCH_BYTES


class Wanted(NamedTuple):
    """What every partition is searched for. Times in ms; `since_ms` <= time < `until_ms`."""

    predicate: Predicate
    literals: Literals | None
    since_ms: int
    until_ms: int
    verdict: Verdict | None = None
    fields: tuple[str, ...] = ()
    """that the query names"""
    segments: SegmentFilter | None = None
    """None: no summaries are used."""

    @classmethod
    def of(cls, query: str, since_ms: int, until_ms: int, uses_summaries: bool = True) -> Wanted:
        """Raises `QueryProblem`."""
        node = parse_query(query)
        has_negation = "-" in query or "not" in query.lower()
        return cls(compile_node(node), literals_of(node), since_ms, until_ms, verdict_of(node) if has_negation else None, tuple(fields_of(node)),
            SegmentFilter(node, since_ms, until_ms) if uses_summaries else None)  # fmt: skip

    def fulfils(self, record: Match) -> bool:
        """Return whether a record is in the time range and fulfils the query."""
        if not self.since_ms <= record.timestamp_ms < self.until_ms:
            return False
        verdict = self.verdict(folded_value(record.value)) if self.verdict is not None else None
        return self.predicate(Document(record.value)) if verdict is None else verdict


class Window(NamedTuple):
    """The result of one window. `frontier_ms`: later ones begin about there."""

    matches: list[Match]
    scanned_bytes: int
    opened_bytes: int
    """uncompressed"""
    frontier_ms: int
    next_offset: int


class _Matches(list[Match]):
    """Of a window, or a part of one."""

    size_bytes = 0


_one_large = threading.Lock()
"""Large batches are opened one at a time, so that two threads do not need twice the memory."""


class _Batch(NamedTuple):
    position: int
    end: int
    base_offset: int
    records_count: int
    base_timestamp: int
    append_time: int
    """-1: records have times of their own"""
    codec: int


class PartitionScan:
    """One partition. `windows` may be read once."""

    def __init__(self, found: LocalRow, topic: str, partition: int, wanted: Wanted, window_bytes: int = WINDOW_BYTES, start_offset: int | None = None) -> None:
        """`start_offset`: where to begin, instead of the beginning of the time range."""
        self.partition = partition
        self._found = found
        self._wanted = wanted
        self._window_bytes = window_bytes
        self._late_bytes = 0
        self._prefilter = None if wanted.literals is None else Prefilter(wanted.literals)
        self.notes: list[str] = []
        """What could not be searched, for people; at most `NOTES_MAX`."""
        self.skipped_bytes = 0
        """Of segments, or parts of them, whose summaries rule the query out."""
        self.lacks_summaries = self.has_broken_summaries = False
        self.sampled_fields: set[str] = set()
        self.sampled_records = 0
        self.range = self._range(topic, start_offset)

    @property
    def directory(self) -> str:
        return self._found.directory

    @property
    def wanted_fields(self) -> tuple[str, ...]:
        return self._wanted.fields

    def _range(self, topic: str, start_offset: int | None) -> OffsetRange:
        """Return the offsets that may have records of the time range."""
        row = self._found.row
        start: int = row.log_start_offset
        end: int = row.last_stable_offset
        if start_offset is not None:
            start = min(max(start, start_offset), end)
        elif start < end and self._wanted.since_ms > 0:
            first = LogReading(self._found.directory).offset_for_timestamp(self._wanted.since_ms, Offset(end))
            start = end if first is None else max(start, first.offset)
        return OffsetRange(topic, self.partition, start, end)

    def windows(self) -> Generator[Window, None, None]:
        """Yield results in the order of the log. Raises `NotReadHere`."""
        wanted = self.range
        if not wanted.size:
            self._found.table.close()
            return
        progress = ReadProgress(wanted.start)
        segments = LocalSegments(self._found, wanted, True, self._window_bytes, self._parts)
        frontier_ms = -1
        with closing(segments.raw_batches(progress, lambda loss: self._note(str(loss)))) as pieces:
            for raw in pieces:
                start, offset = raw.position, progress.next_offset
                for part in self._search(raw, progress):
                    frontier_ms = max(frontier_ms, part.frontier_ms)
                    part.matches.sort()
                    yield part._replace(frontier_ms=frontier_ms, next_offset=offset)
                yield Window([], progress.position - start, 0, frontier_ms, progress.next_offset)
                if self._late_bytes >= LATE_BYTES:
                    return

    def _parts(self, base_offset: Offset, position: int, figures: os.stat_result) -> Iterator[tuple[int, int]]:
        """Yield the parts of a segment that its summary does not rule out."""
        rules, size_bytes = self._wanted.segments, figures.st_size
        found = [(0, size_bytes)]
        if rules is not None and size_bytes >= SEGMENT_BYTES_MIN:
            summary = SegmentSummary.open(segment_path(self.directory, base_offset, SUMMARY_SUFFIX), SegmentIdentity.of(figures))
            if summary is None:
                self.lacks_summaries = True
            else:
                with closing(summary):
                    found = rules.ranges(summary)
                self.has_broken_summaries = self.has_broken_summaries or summary.is_broken
        for start, end in [*found, (size_bytes, size_bytes)]:
            if start > position:
                self.skipped_bytes += start - position
                self._late_bytes = 0  # what was skipped may be in time
                position = start
            if end > position:
                yield position, end
                position = end

    def _search(self, raw: RawBatches, progress: ReadProgress) -> Iterator[Window]:
        """Search the whole batches of a window; yield matches, uncompressed bytes and time reached."""
        opened_bytes, reached_ms = 0, -1
        neighbours: list[_Batch] = []
        matches = _Matches()
        for batch in self._walk(raw, progress):
            reached_ms = max(reached_ms, batch.base_timestamp)
            if not batch.codec and self._wants_sample:
                self._sample(raw.memory, batch.position + RECORDS_AT, batch.end, batch)
            if matches.size_bytes > MATCHES_BYTES:
                if neighbours:
                    opened_bytes += self._search_plain(raw.memory, neighbours, matches)
                    neighbours = []
                yield Window(matches, 0, opened_bytes, reached_ms, 0)
                matches, opened_bytes = _Matches(), 0
            if batch.codec:
                opened_bytes += self._search_compressed(raw.memory, batch, matches)
                continue
            if neighbours and neighbours[-1].end != batch.position:
                opened_bytes += self._search_plain(raw.memory, neighbours, matches)
                neighbours = []
            neighbours.append(batch)
        if neighbours:
            opened_bytes += self._search_plain(raw.memory, neighbours, matches)
        yield Window(matches, 0, opened_bytes, reached_ms, 0)

    def _walk(self, raw: RawBatches, progress: ReadProgress) -> Iterator[_Batch]:
        """Yield the batches that may have wanted records, and advance `progress` past all."""
        unpack, memory, limit, end_offset = BATCH_HEADER.unpack_from, raw.memory, raw.limit, self.range.end
        since_ms, late_ms = self._wanted.since_ms, self._wanted.until_ms + LATE_MS
        position, next_offset = raw.position, progress.next_offset
        while next_offset < end_offset and position + RECORDS_AT <= limit:
            fields = unpack(memory, position)
            base_offset, length, _, magic, _, attributes, last_delta, base_timestamp, max_timestamp, _, _, _, count = fields
            end = position + length + LOG_OVERHEAD
            is_whole = end <= limit
            if magic != MAGIC or length + LOG_OVERHEAD < RECORDS_AT or last_delta < 0 or (not is_whole and position == raw.position and raw.first_is_whole):
                position, next_offset = self._behind_damage(raw, position, next_offset)
                continue
            if not is_whole or base_offset >= end_offset:
                next_offset = next_offset if not is_whole else end_offset
                break
            is_new = base_offset + last_delta >= next_offset
            next_offset = max(next_offset, base_offset + last_delta + 1)
            at, position = position, end
            self._late_bytes = self._late_bytes + end - at if base_timestamp >= late_ms else 0
            if attributes & (CONTROL_FLAG | TRANSACTIONAL_FLAG) and not self._is_data(BatchHeader._make(fields), raw.aborted, memory[at:end]):
                continue
            if is_new and count > 0 and max_timestamp >= since_ms:
                append_time = max_timestamp if attributes & LOG_APPEND_TIME_FLAG else -1
                yield _Batch(at, end, base_offset, count, base_timestamp, append_time, attributes & CODEC_MASK)
        progress.position = position
        progress.reach(min(next_offset, end_offset))

    def _is_data(self, header: BatchHeader, aborted: AbortedRecords | None, batch: memoryview) -> bool:
        """Return False for a control batch and for one of an aborted transaction."""
        if aborted is None:
            return not header.is_control
        is_aborted = aborted.has(header)
        if header.is_control:
            aborted.on_marker(header, batch)
            return False
        return not is_aborted

    def _behind_damage(self, raw: RawBatches, position: int, next_offset: int) -> tuple[int, int]:
        reason = stored_batch_problem(raw.memory, position, raw.limit)
        self._note(f"a damaged batch of {self.range.topic}-{self.partition} at offset {next_offset} was passed over: {reason}")
        following = find_batch(raw.memory, position + 1, raw.limit, next_offset)
        return following or (raw.limit, self.range.end if raw.resume_offset is None else max(raw.resume_offset, next_offset))

    def _search_compressed(self, memory: memoryview, batch: _Batch, matches: _Matches) -> int:
        if not self._is_intact(memory, batch):
            return 0
        stored = memory[batch.position + RECORDS_AT : batch.end]
        with _one_large if len(stored) > LARGE_BATCH_BYTES else nullcontext():
            try:
                body = memoryview(decompress(Codec(batch.codec), stored, opened_batch_limit(len(stored))))
            except (CorruptBatch, ValueError, MemoryError) as problem:
                self._note_damage(batch, problem)
                return 0
            if self._wants_sample:
                self._sample(body, 0, len(body), batch)
            if self._prefilter is None:
                self._search_whole(body, 0, len(body), batch, matches)
            else:
                self._search_hits(body, [batch._replace(position=-RECORDS_AT, end=len(body))], matches, is_checked=True)
            return len(body)

    def _search_plain(self, memory: memoryview, batches: list[_Batch], matches: _Matches) -> int:
        if self._prefilter is None:
            for batch in batches:
                if self._is_intact(memory, batch):
                    self._search_whole(memory, batch.position + RECORDS_AT, batch.end, batch, matches)
        else:
            self._search_hits(memory, batches, matches, is_checked=False)
        return batches[-1].end - batches[0].position

    def _search_whole(self, memory: memoryview, start: int, end: int, batch: _Batch, matches: _Matches) -> None:
        try:
            opened = _OpenedBatch(memory, start, end, batch)
            for number in range(batch.records_count):
                self._judge(opened, number, matches)
        except (CorruptBatch, IndexError, MemoryError) as problem:
            self._note_damage(batch, problem)

    def _search_hits(self, memory: memoryview, batches: list[_Batch], matches: _Matches, is_checked: bool) -> None:
        """Parse the records of neighbouring batches that contain a literal, each once."""
        assert self._prefilter is not None
        starts = [batch.position for batch in batches]
        opened: dict[int, _OpenedBatch | None] = {}

        def on_hit(position: int) -> int:
            place = bisect_right(starts, position) - 1
            batch = batches[place]
            start = batch.position + RECORDS_AT
            if position < start:
                return position + 1  # a header
            try:
                if place not in opened:
                    opened[place] = None
                    if is_checked or self._is_intact(memory, batch):
                        opened[place] = _OpenedBatch(memory, start, batch.end, batch)
                if (found := opened[place]) is None:
                    return batch.end
                number = found.number_at(position)
                self._judge(found, number, matches)
                return found.end_of(number)
            except (CorruptBatch, IndexError, MemoryError) as problem:
                opened[place] = None
                self._note_damage(batch, problem)
                return batch.end

        self._prefilter.scan(memory, max(starts[0], 0), batches[-1].end, on_hit)

    def _judge(self, opened: _OpenedBatch, number: int, matches: _Matches) -> None:
        if number in opened.judged:
            return
        opened.judged.add(number)
        record = opened.read(number)
        if record is not None and self.range.start <= record.offset < self.range.end and self._wanted.fulfils(record):
            match = record._replace(partition=self.partition)
            matches.append(match)
            matches.size_bytes += match.size_bytes

    def _is_intact(self, memory: memoryview, batch: _Batch) -> bool:
        if batch_crc(memory, batch.position, batch.end - batch.position) == read_batch_header(memory, batch.position).crc:
            return True
        self._note_damage(batch, "its checksum does not match its bytes")
        return False

    def _note_damage(self, batch: _Batch, problem: Exception | str) -> None:
        reason = "it needs more memory than search.memory.bytes" if isinstance(problem, MemoryError) else str(problem)
        self._note(f"the batch of {self.range.topic}-{self.partition} at offset {batch.base_offset} was left out: {reason}")

    def _note(self, text: str) -> None:
        if len(self.notes) < NOTES_MAX:
            self.notes.append(text)
        elif len(self.notes) == NOTES_MAX:
            self.notes.append(f"more of this kind in {self.range.topic}-{self.partition}")

    @property
    def _wants_sample(self) -> bool:
        return self.sampled_records < SAMPLE_RECORDS and bool(self._wanted.fields)

    def _sample(self, memory: memoryview, start: int, end: int, batch: _Batch) -> None:
        """Collect the names of the fields in the first records, so that a name that none has can be
        said."""
        try:
            opened = _OpenedBatch(memory, start, end, batch)
            count = min(batch.records_count, SAMPLE_RECORDS - self.sampled_records)
            for number in range(count):
                record = opened.read(number)
                names = field_names(Document(record.value).fields) if record is not None else ()
                self.sampled_fields.update(islice(names, SAMPLE_FIELDS_MAX - len(self.sampled_fields)))
            self.sampled_records += count
        except (CorruptBatch, IndexError, MemoryError):
            pass  # the search itself reports it


class _OpenedBatch:
    """The records of a batch in plain memory. Raises `CorruptBatch` or IndexError if they do not
    fill it."""

    def __init__(self, memory: memoryview, start: int, end: int, batch: _Batch) -> None:
        self.judged: set[int] = set()
        self._batch = batch
        self._start = start
        self._body = body = bytes(memory[start:end])
        self._edges = edges = [0]
        position = 0
        for _ in range(batch.records_count):
            length = body[position]
            if length < 0x80:
                position += 1 + (length >> 1)
            elif (byte := body[position + 1]) < 0x80:
                position += 2 + ((length & 0x7F | byte << 7) >> 1)
            else:
                size_bytes, position = decode_varint(body, position)
                position += size_bytes
            edges.append(position)
        if position != len(body) or sorted(edges) != edges:
            raise CorruptBatch("the records of a batch do not end where it does")

    def number_at(self, position: int) -> int:
        return bisect_right(self._edges, position - self._start) - 1

    def end_of(self, number: int) -> int:
        return self._start + self._edges[number + 1]

    def read(self, number: int) -> Match | None:
        """Return time, offset and value; None without a value."""
        body, end = self._body, self._edges[number + 1]
        _, position = decode_varint(body, self._edges[number])
        timestamp_delta, position = decode_varint(body, position + 1)
        offset_delta, position = decode_varint(body, position)
        key_bytes, position = decode_varint(body, position)
        value_bytes, position = decode_varint(body, position + max(key_bytes, 0))
        if value_bytes < 0:
            return None
        if position + value_bytes > end:
            raise CorruptBatch("a value is longer than its record")
        batch = self._batch
        timestamp = batch.base_timestamp + timestamp_delta if batch.append_time < 0 else batch.append_time
        return Match(timestamp, 0, batch.base_offset + offset_delta, body[position : position + value_bytes])
