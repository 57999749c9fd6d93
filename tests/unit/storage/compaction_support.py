"""What tests of compaction share: keyed batches, control batches, and a whole compaction of a log, run and swapped in as a log-writer does it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from appliance.records.batch import BATCH_HEADER, CONTROL_FLAG, RECORDS_AT, TRANSACTIONAL_FLAG, BatchHeader, read_batch_header
from appliance.records.builder import BatchBuilder
from appliance.records.compression import Codec
from appliance.records.crc32c import crc32c
from appliance.records.record import iterate_records
from appliance.storage import file_io
from appliance.storage.cleaner import run_cleaning
from appliance.storage.cleaning_plan import CleanableSegment, CleaningCandidate, CleaningJob, CleaningPlan, RunReport, plan_cleaning
from appliance.storage.log import Log
from appliance.storage.log_config import LogConfig
from tests.unit.storage.storage_support import LIMIT, NOW_MS, stored_bytes

COMPACTED = LogConfig(
    segment_bytes=600, index_interval_bytes=150, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0, delete_retention_ms=1000, segment_index_bytes=10_000
)
ABORT, COMMIT = 0, 1
Pair = tuple[bytes | None, bytes | None]


def with_producer(raw: bytes, producer: tuple[int, int, int], attributes: int = 0) -> memoryview:
    """The batch as producer (id, epoch, base sequence) sends it, with more attribute bits."""
    header = read_batch_header(raw)
    header = header._replace(producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2], attributes=header.attributes | attributes, crc=0)
    crc = crc32c(BATCH_HEADER.pack(*header)[21:] + raw[RECORDS_AT:])
    return memoryview(bytearray(BATCH_HEADER.pack(*header._replace(crc=crc)) + raw[RECORDS_AT:]))


def keyed(*pairs: Pair, timestamp_ms: int = NOW_MS, codec: Codec = Codec.NONE, producer: tuple[int, int, int] | None = None, attributes: int = 0) -> memoryview:
    builder = BatchBuilder(codec)
    for number, (key, value) in enumerate(pairs):
        builder.append(timestamp_ms + number, key, value, (("h", b"1"),) if number % 2 else ())
    return with_producer(builder.build(), producer or (-1, -1, -1), attributes)


def marker(producer_id: int, producer_epoch: int, kind: int, timestamp_ms: int = NOW_MS) -> memoryview:
    """An end-transaction marker, as a transaction coordinator has it written."""
    builder = BatchBuilder()
    builder.append(timestamp_ms, b"\x00\x00" + kind.to_bytes(2, "big"), b"\x00\x00" + bytes(4))
    return with_producer(builder.build(), (producer_id, producer_epoch, -1), TRANSACTIONAL_FLAG | CONTROL_FLAG)


def follow(log: Log, *batches: memoryview) -> None:
    """Append as a follower does: batches that only a leader with a transaction coordinator would let in."""
    offset = log.log_end_offset
    for batch in batches:
        batch[0:8] = offset.to_bytes(8, "big")
        batch[12:16] = (0).to_bytes(4, "big")
        offset += read_batch_header(batch).last_offset_delta + 1
    log.append_as_follower(list(batches))


class StoredBatch(NamedTuple):
    """A batch and its records: (offset, timestamp, key, value)."""

    header: BatchHeader
    records: list[tuple[int, int, bytes | None, bytes | None]]


def stored_batches(path: Path) -> list[StoredBatch]:
    found = []
    for content in stored_bytes(path, ".log").values():
        position = 0
        while position < len(content):
            header = read_batch_header(content, position)
            records = iterate_records(content[position : position + header.size_bytes], LIMIT)
            found.append(StoredBatch(header, [(record.offset, record.timestamp, record.key, record.value) for record in records]))
            position += header.size_bytes
    return found


def stored_pairs(path: Path) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of every data record, in the order of the files."""
    return [(offset, key, value) for batch in stored_batches(path) if not batch.header.is_control for offset, _, key, value in batch.records]


def plan_of(log: Log, first_dirty_offset: int = 0, now_ms: int = NOW_MS, last_stable_offset: int | None = None) -> CleaningPlan | None:
    bases = log.segment_base_offsets
    sizes = [(Path(log.directory) / f"{base:020d}.log").stat().st_size for base in bases]
    segments = tuple(CleanableSegment(base, bases[number + 1], sizes[number]) for number, base in enumerate(bases[:-1]))
    uncleanable = min(log.active_base_offset, log.recovery_point, log.log_end_offset if last_stable_offset is None else last_stable_offset)
    return plan_cleaning(CleaningCandidate(segments, first_dirty_offset, uncleanable, log.config), now_ms)


def job_of(log: Log, plan: CleaningPlan, now_ms: int = NOW_MS, buffer_bytes: int = 1 << 20) -> CleaningJob:
    config = log.config
    return CleaningJob.decode(
        CleaningJob(
            log.directory, [(segment.base_offset, segment.end_offset) for segment in plan.segments], plan.first_dirty_offset, now_ms,
            config.delete_retention_ms, config.segment_bytes, config.segment_index_bytes, config.index_interval_bytes, buffer_bytes,
            log.producers.last_batches(),
        ).encode()
    )  # fmt: skip


def reports_of(job: CleaningJob) -> list[RunReport]:
    """What a run says, through its lines of JSON."""
    reports: list[RunReport] = []
    run_cleaning(job, lambda report: reports.append(RunReport.decode(report.encode())))
    return reports


def swap_in(log: Log, reports: list[RunReport], tidy: Callable[[str], None] = file_io.unlink) -> int:
    """What the log-writer makes of a run's reports; the new first dirty offset."""
    for report in reports:
        if report.group is not None and report.group.is_changed:
            assert log.can_replace(report.group.bases)
            for leftover in log.replace_segments(report.group.bases, report.group.size_bytes):
                tidy(leftover)
    assert reports[-1].kind == "done", reports[-1].reason
    return reports[-1].end_offset


def compact(log: Log, first_dirty_offset: int = 0, now_ms: int = NOW_MS, buffer_bytes: int = 1 << 20, last_stable_offset: int | None = None) -> int:
    """Flush, plan, run, swap: the new first dirty offset."""
    log.flush()
    plan = plan_of(log, first_dirty_offset, now_ms, last_stable_offset)
    return first_dirty_offset if plan is None else swap_in(log, reports_of(job_of(log, plan, now_ms, buffer_bytes)))
