"""Fills partition directories of a stopped box with much data in little time: old segments are holes with whole indexes, the newest have real batches.

Nothing of the holes is ever read by a broker that only reads what it must; one that scans them finds no batch and cuts, which the benchmark sees.
Weak spot: holes cost no disk time where a real old segment would, if a client read it.
"""

from __future__ import annotations

from pathlib import Path

from appliance.base.clock import SystemClock
from appliance.base.model import LeaderEpoch, Offset, TopicId, TopicPartition
from appliance.records.builder import BatchBuilder
from appliance.storage.indexes import OFFSET_ENTRY, TIME_ENTRY
from appliance.storage.log import Log
from appliance.storage.log_config import LogConfig
from appliance.storage.recovery import CLEAN
from appliance.storage.segment_files import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, offset_of_name, segment_path

INDEX_INTERVAL = 4096


def plant_sealed(directory: Path, count: int, segment_bytes: int) -> Offset:
    """Closed segments in place of what is there, and an empty active one; the log end offset."""
    for file in directory.iterdir():
        if any(offset_of_name(file.name, suffix) is not None for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)):
            file.unlink()
    offsets = segment_bytes // INDEX_INTERVAL
    for number in range(count + 1):
        _plant(directory, Offset(number * offsets), segment_bytes if number < count else 0)
    return Offset(count * offsets)


def _plant(directory: Path, base_offset: Offset, size_bytes: int) -> None:
    """One offset every 4 KiB."""
    entries = range(1, size_bytes // INDEX_INTERVAL)
    with open(segment_path(str(directory), base_offset, LOG_SUFFIX), "wb") as file:
        file.truncate(size_bytes)
    Path(segment_path(str(directory), base_offset, INDEX_SUFFIX)).write_bytes(b"".join(OFFSET_ENTRY.pack(n, n * INDEX_INTERVAL) for n in entries))
    Path(segment_path(str(directory), base_offset, TIME_INDEX_SUFFIX)).write_bytes(
        TIME_ENTRY.pack(SystemClock().wall_ms(), len(entries)) if size_bytes else b""
    )


def append(directory: Path, name: TopicPartition, topic_id: TopicId, segment_bytes: int, size_bytes: int, batch_bytes: int) -> int:
    """Real batches behind what is planted, not flushed; the new log end offset."""
    config = LogConfig(segment_bytes=segment_bytes)
    clock = SystemClock()
    log = Log.open(str(directory), name, topic_id, config, clock, CLEAN)
    builder = BatchBuilder()
    builder.append(clock.wall_ms(), None, bytes(batch_bytes))
    whole = builder.build()
    leader_epoch = max(LeaderEpoch(0), log.leader_epochs.latest)
    for _ in range(size_bytes // len(whole) // 256 + 1):
        log.append_as_leader([memoryview(bytearray(whole)) for _ in range(256)], leader_epoch, clock.wall_ms())
    end = log.log_end_offset
    log.abandon()
    return end
