"""Everything that must be true of an open log and its files, whatever happened to them before: asked of the files, not of what the log believes."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

from appliance.records.control_batch import read_end_transaction_marker
from appliance.records.record import iterate_records
from appliance.storage.checkpoints import RECOVERY_POINTS
from appliance.storage.dump import dump_file
from appliance.storage.log import Log
from appliance.storage.log_directory import LogDirectory
from appliance.storage.producer_state import ProducerState
from appliance.storage.reading import LogReading
from appliance.storage.scrub import SegmentScrub
from appliance.storage.segment_files import SNAPSHOT_SUFFIX, offset_of_name
from appliance.storage.transaction_index import AbortedTxn, read_transaction_index
from tests.faults.tortured_log import LIMIT, NAME, Memory, Stored, TorturedLog, stored_batches

_KEPT_FILES = {"leader-epoch-checkpoint", "partition.metadata"}


def verify(tortured: TorturedLog, is_fresh: bool = False) -> None:
    """`is_fresh`: it was opened just now, so that no file may be there that belongs to nothing."""
    log, memory = tortured.log, tortured.memory
    assert log is not None and log.failed is None
    stored = stored_batches(tortured.path)
    stored = [batch for batch in stored if batch.header.base_offset >= log.segment_base_offsets[0]]  # what retention took may wait for its removal
    _verify_offsets(log, stored)
    _verify_files(log, tortured.path, is_fresh)
    _verify_closed_segments(log, tortured.path)
    _verify_dump(log, tortured.path)
    _verify_epochs(log, stored)
    _verify_producers(log, memory, stored)
    if not tortured.config.is_compacted:
        _verify_aborted(log, memory, tortured.path)
        expected = [batch for batch in memory.history if batch.header.base_offset >= log.segment_base_offsets[0]]
        assert [batch.raw for batch in stored] == [batch.raw for batch in expected]
    else:
        _verify_compacted(log, memory, stored)
    _verify_lookups(log, tortured.path, stored)
    assert log.recovery_point <= log.log_end_offset and log.durable_offset <= log.log_end_offset
    if tortured.directory is not None:
        _verify_checkpoints(tortured.directory, log)


def _verify_offsets(log: Log, stored: list[Stored]) -> None:
    previous_end = log.segment_base_offsets[0]
    for batch in stored:
        assert batch.header.base_offset >= previous_end, f"batch {batch.header.base_offset} comes where {previous_end} is due"
        previous_end = batch.header.last_offset + 1
    assert previous_end <= log.log_end_offset
    assert log.segment_base_offsets[0] <= log.log_start_offset <= log.log_end_offset


def _verify_files(log: Log, path: Path, is_fresh: bool) -> None:
    names = set(os.listdir(path))
    bases = log.segment_base_offsets
    segments = {f"{base:020d}{suffix}" for base in bases for suffix in (".log", ".index", ".timeindex")}
    assert segments <= names, f"missing: {sorted(segments - names)}"
    for base, size_bytes in log.segment_sizes:
        assert (path / f"{base:020d}.log").stat().st_size == size_bytes
    if is_fresh:
        allowed = segments | _KEPT_FILES | {f"{base:020d}.txnindex" for base in bases}
        left = {name for name in names - allowed if not name.endswith(SNAPSHOT_SUFFIX)}
        assert not left, f"left over: {sorted(left)}"
    snapshots = sorted(name for name in names if name.endswith(SNAPSHOT_SUFFIX))
    if snapshots:
        newest = offset_of_name(snapshots[-1], SNAPSHOT_SUFFIX)
        assert newest is not None and newest <= log.log_end_offset, f"{snapshots[-1]} is of a future that never was"
        ProducerState().decode((path / snapshots[-1]).read_bytes())


def _verify_closed_segments(log: Log, path: Path) -> None:
    bases = [*log.segment_base_offsets, log.log_end_offset]
    for base, end in list(pairwise(bases))[:-1]:
        scrub = SegmentScrub(str(path), base, end)
        assert sum(scrub) == (path / f"{base:020d}.log").stat().st_size
        assert not scrub.damages, scrub.damages


def _verify_dump(log: Log, path: Path) -> None:
    """What DumpLogSegments would say."""
    for base in log.segment_base_offsets:
        for suffix in (".log", ".index", ".timeindex"):
            for line in dump_file(f"{path}/{base:020d}{suffix}"):
                assert not any(word in line for word in ("NOT A BATCH", "isvalid: false", "no whole entry")), line


def _verify_epochs(log: Log, stored: list[Stored]) -> None:
    entries = log.leader_epochs.entries
    assert list(entries) == sorted(set(entries))
    assert all(entry.start_offset <= log.log_end_offset for entry in entries)
    for batch in stored:
        if batch.header.base_offset >= log.log_start_offset:
            assert log.leader_epochs.epoch_at(batch.header.base_offset) == batch.header.partition_leader_epoch, batch.header.base_offset


def _replayed(stored: list[Stored]) -> tuple[ProducerState, list[AbortedTxn]]:
    state = ProducerState()
    aborted: list[AbortedTxn] = []
    for batch in stored:
        marker = read_end_transaction_marker(batch.raw) if batch.header.is_control else None
        aborted += state.replay(batch.header, marker)
    return state, aborted


def _verify_producers(log: Log, memory: Memory, stored: list[Stored]) -> None:
    """Of every producer with a batch in the log the last sequence, epoch and open transaction are known; of others nothing is made up."""
    wanted, _ = _replayed(memory.history)
    still_there = {batch.header.producer_id for batch in stored} - {-1}
    for producer_id in range(1, 10):
        known, expected = log.producers.entry(producer_id), wanted.entry(producer_id)
        if known is None:
            assert producer_id not in still_there, f"producer {producer_id} is forgotten"
            continue
        assert expected is not None, f"producer {producer_id} never wrote"
        assert known.last_sequence == expected.last_sequence, f"producer {producer_id}: {known} for {expected}"
        assert (known.producer_epoch, known.transaction_first_offset) == (expected.producer_epoch, expected.transaction_first_offset)


def _verify_aborted(log: Log, memory: Memory, path: Path) -> None:
    _, wanted = _replayed(memory.history)
    first = log.segment_base_offsets[0]
    found = [entry for base in log.segment_base_offsets for entry in read_transaction_index(str(path), base)]
    assert [entry[:3] for entry in found] == [entry[:3] for entry in wanted if entry.last_offset >= first]


def _verify_compacted(log: Log, memory: Memory, stored: list[Stored]) -> None:
    appended: dict[int, tuple[bytes | None, bytes | None]] = {}
    _, aborted = _replayed(memory.history)
    ended = {(producer_id, offset) for producer_id, first, last, _ in aborted for offset in range(first, last)}
    undone: dict[int, tuple[bytes | None, bytes | None]] = {}
    for batch in memory.history:
        is_undone = batch.header.is_transactional and (batch.header.producer_id, batch.header.base_offset) in ended
        (undone if is_undone else appended).update(batch.pairs())
    for batch in stored:  # offsets that a compaction of a batch made a hole are part of no pair
        for offset, pair in batch.pairs().items():
            assert appended.get(offset, undone.get(offset)) == pair, f"offset {offset} holds {pair}, {appended.get(offset)} was written"
    kept = {offset: pair for batch in stored for offset, pair in batch.pairs().items() if offset not in undone}
    newest: dict[bytes, int] = {key: offset for offset, (key, _) in sorted(kept.items()) if key is not None}
    missing = [offset for offset in appended if offset >= max(memory.compacted_below, log.segment_base_offsets[0]) and offset not in kept]
    assert not missing, f"offsets {missing} are missing without a compaction"
    latest: dict[bytes, int] = {key: offset for offset, (key, _) in sorted(appended.items()) if key is not None}
    for key, offset in latest.items():
        if appended[offset][1] is None:
            assert newest.get(key, offset) == offset, f"{key!r} was deleted at {offset} and is back"
        elif offset >= log.segment_base_offsets[0]:
            assert newest.get(key) == offset, f"the newest of {key!r} is {newest.get(key)}, {offset} was written"


def _verify_lookups(log: Log, path: Path, stored: list[Stored]) -> None:
    reading, end = LogReading(str(path)), log.log_end_offset
    if reading.segments() != log.segment_base_offsets:
        return  # retention is not through with the files
    for batch in stored:
        for offset in {batch.header.base_offset, batch.header.last_offset}:
            assert reading.locate(offset, end).base_offset == batch.header.base_offset
    data = [batch for batch in stored if not batch.header.is_control and batch.header.records_count]
    largest = max((batch.header.max_timestamp for batch in data), default=None)
    found = reading.offset_of_max_timestamp(end)
    assert (None if found is None else found.timestamp) == largest
    times = [(record.timestamp, record.offset) for batch in data for record in iterate_records(batch.raw, LIMIT)]
    for timestamp in {time for time, _ in times[:: max(1, len(times) // 5)]}:
        found = reading.offset_for_timestamp(timestamp, end)
        assert found is not None and found.offset == next(offset for time, offset in times if time >= timestamp)


def _verify_checkpoints(directory: LogDirectory, log: Log) -> None:
    saved = directory.checkpoints.lines[RECOVERY_POINTS].get(NAME, 0)
    assert saved <= log.log_end_offset or log.log_end_offset == log.log_start_offset, f"recovery point {saved} of a log that ends at {log.log_end_offset}"
