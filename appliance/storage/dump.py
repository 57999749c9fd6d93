"""A file of a log as text, for `millrace log dump FILE` and for the repair of a damaged log.

Reads only. Lines of a segment are produced as it is read, so a large one needs no memory; small
files are read whole. Damage is shown as a line, because it is what the reader of the dump looks
for. Weak spot: nothing is shown behind the first broken batch, because the start of the next one is
unknown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Final

from appliance.base.model import FILE_START, Offset, Position
from appliance.records.batch import BatchHeader, batch_crc
from appliance.records.compression import CorruptBatch
from appliance.records.record import Record, iterate_records
from appliance.storage import checkpoints, file_io
from appliance.storage.directory_identity import CLEAN_SHUTDOWN_MARKER, META_PROPERTIES
from appliance.storage.indexes import OFFSET_ENTRY, TIME_ENTRY, OffsetIndex, TimeIndex
from appliance.storage.known_segments import SEGMENTS
from appliance.storage.log_damage import LOST_OFFSETS
from appliance.storage.producer_state import BrokenSnapshot, ProducerState
from appliance.storage.segment_files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    PARTITION_METADATA,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    offset_of_name,
)
from appliance.storage.segment_scan import SegmentScan
from appliance.storage.transaction_index import TRANSACTION_ENTRY, transaction_index_problem

_LARGEST_DECOMPRESSED_BYTES = 256 * 1024 * 1024


def dump_file(path: str, with_records: bool = False) -> Iterator[str]:
    """Yield lines about any file of a log directory or a partition directory.

    `with_records` adds a line for each record of a segment. Raises OSError, and `ValueError` for
    another kind of file.
    """
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
    scan = SegmentScan(fd, FILE_START, size_bytes, verify=False)
    for position, header in scan:
        batch = file_io.pread_all(fd, position, header.size_bytes)
        intact = batch_crc(batch, 0, len(batch)) == header.crc
        yield _batch_line(position, header, intact)
        if with_records and intact:
            yield from _record_lines(batch)
    if scan.problem is not None:
        yield f"position: {scan.valid_end} NOT A BATCH: {scan.problem}; {size_bytes - scan.valid_end} bytes are left"


def _batch_line(position: Position, header: BatchHeader, intact: bool) -> str:
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


def _dump_index(fd: int, base_offset: Offset) -> Iterator[str]:
    index = OffsetIndex(fd, base_offset)
    for number in range(index.count()):
        entry = index.entry(number)
        yield f"offset: {entry.offset} position: {entry.position}"
    yield from _remainder(fd, OFFSET_ENTRY.size)


def _dump_time_index(fd: int, base_offset: Offset) -> Iterator[str]:
    index = TimeIndex(fd, base_offset)
    for number in range(index.count()):
        entry = index.entry(number)
        yield f"timestamp: {entry.timestamp} offset: {entry.offset}"
    yield from _remainder(fd, TIME_ENTRY.size)


def _remainder(fd: int, entry_bytes: int) -> Iterator[str]:
    if left := file_io.size_of(fd) % entry_bytes:
        yield f"{left} bytes at the end are no whole entry"


def dump_transaction_index(content: bytes, base_offset: Offset) -> Iterator[str]:
    """Yield a line for each entry of a `.txnindex`, and one for the first problem."""
    whole = len(content) // TRANSACTION_ENTRY.size * TRANSACTION_ENTRY.size
    for version, producer_id, first_offset, last_offset, last_stable_offset in TRANSACTION_ENTRY.iter_unpack(content[:whole]):
        yield f"version: {version} producerId: {producer_id} firstOffset: {first_offset} lastOffset: {last_offset} lastStableOffset: {last_stable_offset}"
    problem = transaction_index_problem(content, base_offset)
    if problem is not None:
        yield f"NOT AS IT SHOULD BE: {problem}"


def dump_snapshot(content: bytes) -> Iterator[str]:
    """Yield a line for each producer of a snapshot, or one that names the damage."""
    state = ProducerState()
    try:
        state.decode(content)
    except BrokenSnapshot as problem:
        yield f"NOT A SNAPSHOT: {problem}"
        return
    if not len(state):
        yield "no producers"
    for producer_id, entry in state.snapshot():
        open_from = entry.transaction_first_offset
        line = (
            f"producerId: {producer_id} producerEpoch: {entry.producer_epoch} coordinatorEpoch: {entry.coordinator_epoch} "
            f"currentTxnFirstOffset: {open_from if open_from >= 0 else 'None'} lastTimestamp: {entry.timestamp}"
        )
        for batch in entry.batches:
            line += (
                f" firstSequence: {batch.base_sequence} lastSequence: {batch.last_sequence} lastOffset: {batch.last_offset} "
                f"offsetDelta: {batch.last_offset - batch.base_offset}"
            )
        yield line


def _dump_offsets(content: bytes) -> Iterator[str]:
    yield from _dump_checkpoint(content, ("topic", "partition", "offset"))


def _dump_epochs(content: bytes) -> Iterator[str]:
    yield from _dump_checkpoint(content, ("leaderEpoch", "startOffset"))


def _dump_checkpoint(content: bytes, names: tuple[str, ...]) -> Iterator[str]:
    if not content:
        yield "NOT A CHECKPOINT: it is empty"
        return
    try:
        entries = checkpoints.decode_lines(content)
    except checkpoints.BrokenCheckpoint as problem:
        yield f"NOT A CHECKPOINT: {problem}"
        return
    if not entries:
        yield "no entries"
    for words in entries:
        if len(words) != len(names):
            yield f"NOT AN ENTRY: {' '.join(words)}"
        else:
            yield " ".join(f"{name}: {word}" for name, word in zip(names, words, strict=True))


def _dump_segments(content: bytes) -> Iterator[str]:
    yield from _dump_checkpoint(content, ("topic", "partition", "baseOffset", "sizeBytes", "modifiedNs"))


def _dump_words(content: bytes) -> Iterator[str]:
    """Text of `key=value`, `key: value` or JSON, as it is."""
    text = content.decode("utf-8", "backslashreplace")
    try:
        yield json.dumps(json.loads(text))
    except ValueError:
        yield from text.splitlines()


BY_NAME: Final[dict[str, Callable[[bytes], Iterator[str]]]] = {
    LEADER_EPOCH_CHECKPOINT: _dump_epochs,
    checkpoints.RECOVERY_POINTS: _dump_offsets,
    checkpoints.LOG_START_OFFSETS: _dump_offsets,
    checkpoints.HIGH_WATERMARKS: _dump_offsets,
    checkpoints.CLEANED: _dump_offsets,
    SEGMENTS: _dump_segments,
    LOST_OFFSETS: _dump_words,
    PARTITION_METADATA: _dump_words,
    META_PROPERTIES: _dump_words,
    CLEAN_SHUTDOWN_MARKER: _dump_words,
}
"""Files that have one name, and the function that describes them."""
