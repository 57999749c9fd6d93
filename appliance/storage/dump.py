"""A file of a log as text, for `millrace log dump FILE` and for the repair of a damaged log.

Reads only. Lines are produced as the file is read, so a large segment needs no memory. Weak spot:
nothing is shown behind the first broken batch, because the start of the next one is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

from appliance.records.batch import BatchHeader, batch_crc
from appliance.records.corrupt_batch import CorruptBatch
from appliance.records.record import Record, iterate_records
from appliance.storage import file_io
from appliance.storage.dump_small_files import BY_NAME, dump_snapshot, dump_transaction_index
from appliance.storage.indexes import OFFSET_ENTRY, TIME_ENTRY, OffsetIndex, TimeIndex
from appliance.storage.segment_files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    offset_of_name,
)
from appliance.storage.segment_scan import SegmentScan

_LARGEST_DECOMPRESSED_BYTES = 256 * 1024 * 1024


def dump_file(path: str, with_records: bool = False) -> Iterator[str]:
    """Lines about any file that a log directory or a partition's directory holds. Raises OSError, and `ValueError` for another kind of file."""
    name = _plain_name(path.rpartition("/")[2])
    fd = file_io.open_path(path, file_io.READ_ONLY)
    try:
        if offset_of_name(name, LOG_SUFFIX) is not None:
            yield from _dump_log(fd, with_records)
        elif (base_offset := offset_of_name(name, INDEX_SUFFIX)) is not None:
            yield from _dump_index(fd, base_offset)
        elif (base_offset := offset_of_name(name, TIME_INDEX_SUFFIX)) is not None:
            yield from _dump_time_index(fd, base_offset)
        elif (base_offset := offset_of_name(name, TRANSACTION_INDEX_SUFFIX)) is not None:
            yield from dump_transaction_index(file_io.pread_all(fd, 0, file_io.size_of(fd)), base_offset)
        elif offset_of_name(name, SNAPSHOT_SUFFIX) is not None:
            yield from dump_snapshot(file_io.pread_all(fd, 0, file_io.size_of(fd)))
        elif name in BY_NAME:
            yield from BY_NAME[name](file_io.pread_all(fd, 0, file_io.size_of(fd)))
        else:
            suffixes = ", ".join((*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX))
            raise ValueError(f"{path} is no file of a log: known are OFFSET with {suffixes}, and {', '.join(sorted(BY_NAME))}")
    finally:
        file_io.close(fd)


def _plain_name(name: str) -> str:
    """Without what says that a file is on its way in or out: it holds the same."""
    for suffix in (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, ".tmp"):
        name = name.removesuffix(suffix)
    return name


def _dump_log(fd: int, with_records: bool) -> Iterator[str]:
    size_bytes = file_io.size_of(fd)
    scan = SegmentScan(fd, 0, size_bytes, verify=False)
    for position, header in scan:
        batch = file_io.pread_all(fd, position, header.size_bytes)
        intact = batch_crc(batch, 0, len(batch)) == header.crc
        yield _batch_line(position, header, intact)
        if with_records and intact:
            yield from _record_lines(batch)
    if scan.problem is not None:
        yield f"position: {scan.valid_end} NOT A BATCH: {scan.problem}; {size_bytes - scan.valid_end} bytes are left"


def _batch_line(position: int, header: BatchHeader, intact: bool) -> str:
    codec = header.codec.name.lower() if header.attributes & 0x07 <= 4 else f"unknown({header.attributes & 0x07})"
    fields = [
        f"baseOffset: {header.base_offset}",
        f"lastOffset: {header.last_offset}",
        f"count: {header.records_count}",
        f"partitionLeaderEpoch: {header.partition_leader_epoch}",
        f"producerId: {header.producer_id}",
        f"producerEpoch: {header.producer_epoch}",
        f"baseSequence: {header.base_sequence}",
        f"isTransactional: {str(header.is_transactional).lower()}",
        f"isControl: {str(header.is_control).lower()}",
        f"position: {position}",
        f"{'LogAppendTime' if header.uses_log_append_time else 'CreateTime'}: {header.max_timestamp}",
        f"size: {header.size_bytes}",
        f"magic: {header.magic}",
        f"compresscodec: {codec}",
        f"crc: {header.crc}",
        f"isvalid: {str(intact).lower()}",
    ]
    return " ".join(fields)


def _record_lines(batch: bytes) -> Iterator[str]:
    try:
        for record in iterate_records(batch, _LARGEST_DECOMPRESSED_BYTES):
            yield "| " + _record_text(record)
    except CorruptBatch as problem:
        yield f"| BROKEN RECORDS: {problem}"


def _record_text(record: Record) -> str:
    headers = ", ".join(f"{name}={_text(value)}" for name, value in record.headers)
    return f"offset: {record.offset} timestamp: {record.timestamp} key: {_text(record.key)} value: {_text(record.value)} headers: [{headers}]"


def _text(value: bytes | None) -> str:
    return "null" if value is None else value.decode("utf-8", "backslashreplace").replace("\n", "\\n")


def _dump_index(fd: int, base_offset: int) -> Iterator[str]:
    index = OffsetIndex(fd, base_offset)
    for number in range(index.count()):
        entry = index.entry(number)
        yield f"offset: {entry.offset} position: {entry.position}"
    yield from _remainder(fd, OFFSET_ENTRY.size)


def _dump_time_index(fd: int, base_offset: int) -> Iterator[str]:
    index = TimeIndex(fd, base_offset)
    for number in range(index.count()):
        entry = index.entry(number)
        yield f"timestamp: {entry.timestamp} offset: {entry.offset}"
    yield from _remainder(fd, TIME_ENTRY.size)


def _remainder(fd: int, entry_bytes: int) -> Iterator[str]:
    if left := file_io.size_of(fd) % entry_bytes:
        yield f"{left} bytes at the end are no whole entry"
