"""What storage tests share: batches, a log in a temporary directory, and file calls that fail on order."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from appliance.base.clock import ManualClock
from appliance.base.model import TopicId, TopicPartition
from appliance.records.batch import RECORDS_AT, read_batch_header
from appliance.records.builder import BatchBuilder
from appliance.records.record import iterate_records
from appliance.storage import file_io
from appliance.storage.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from appliance.storage.log import Log
from appliance.storage.log_config import LogConfig
from appliance.storage.log_directory import LogDirectory
from appliance.storage.recovery import CLEAN, Recovery

NAME = TopicPartition("syslog", 3)
TOPIC_ID = TopicId(bytes(range(16)))
NOW_MS = 1_700_000_000_000
SMALL = LogConfig(segment_bytes=600, index_interval_bytes=150)
LIMIT = 10_000_000


def close_clean(directory: LogDirectory, **offsets: Mapping[TopicPartition, int]) -> None:
    """Save these checkpoints, then leave the mark of a clean stop."""
    files = {"recovery_points": RECOVERY_POINTS, "high_watermarks": HIGH_WATERMARKS, "log_start_offsets": LOG_START_OFFSETS}
    for name, lines in offsets.items():
        directory.checkpoints.save(files[name], lambda lines=lines: lines)  # type: ignore[misc]
    directory.close_clean()


def batch(*values: bytes, timestamp_ms: int = NOW_MS, producer: tuple[int, int, int] | None = None) -> memoryview:
    """A writable batch as it lies in an arena; `producer` is (id, epoch, base sequence)."""
    builder = BatchBuilder()
    for value in values:
        builder.append(timestamp_ms, None, value)
    raw = bytearray(builder.build())
    if producer is not None:
        from appliance.records.batch import ATTRIBUTES_AT, CRC_AT, PRODUCER_ID_AT
        from appliance.records.crc32c import crc32c

        producer_id, producer_epoch, base_sequence = producer
        raw[PRODUCER_ID_AT : PRODUCER_ID_AT + 14] = (
            producer_id.to_bytes(8, "big", signed=True) + producer_epoch.to_bytes(2, "big") + base_sequence.to_bytes(4, "big", signed=True)
        )
        raw[CRC_AT:ATTRIBUTES_AT] = crc32c(raw[ATTRIBUTES_AT:]).to_bytes(4, "big")
    return memoryview(raw)


def with_attributes(raw: memoryview, attributes: int) -> memoryview:
    """The same batch with more attributes, and the checksum anew."""
    from appliance.records.batch import ATTRIBUTES_AT, CRC_AT
    from appliance.records.crc32c import crc32c

    raw[ATTRIBUTES_AT + 1] |= attributes
    raw[CRC_AT:ATTRIBUTES_AT] = crc32c(raw[ATTRIBUTES_AT:]).to_bytes(4, "big")
    return raw


def open_log(path: Any, config: LogConfig = SMALL, recovery: Recovery = CLEAN, **more: Any) -> Log:
    return Log.open(str(path), NAME, TOPIC_ID, config, ManualClock(NOW_MS), recovery, **more)


def stored_bytes(path: Any, suffix: str = "") -> dict[str, bytes]:
    """Every file of a partition directory whose name ends so; those that are `.deleted` may go while we read."""
    return {name: (path / name).read_bytes() for name in sorted(os.listdir(path)) if name.endswith(suffix) and (path / name).is_file()}


def stored_records(path: Any) -> list[tuple[int, bytes | None]]:
    """(offset, value) of every record in the segments, read with nothing but the batch format."""
    found = []
    for name, content in stored_bytes(path).items():
        if name.endswith(".log"):
            position = 0
            while position + RECORDS_AT <= len(content):
                size_bytes = read_batch_header(content, position).size_bytes
                found += [(record.offset, record.value) for record in iterate_records(content[position : position + size_bytes], LIMIT)]
                position += size_bytes
            assert position == len(content), f"{name} does not end with a whole batch"
    return found


class Faults:
    """Fails the n-th file call, alone or with all that follow; a failing write leaves half of its bytes in the file."""

    def __init__(self, fail_at: int, forever: bool, error: int) -> None:
        self.calls = 0
        self.failed: list[str] = []
        self._fail_at, self._forever, self._error = fail_at, forever, error

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            self.calls += 1
            if self.calls == self._fail_at or (self._forever and self.calls > self._fail_at):
                self.failed.append(name)
                if name == "pwritev":
                    fd, buffers, position = arguments
                    content = b"".join(buffers)
                    os.pwrite(fd, content[: len(content) // 2], position)
                if name == "close":  # Linux closes the descriptor even if it reports an error
                    function(*arguments)
                raise OSError(self._error, os.strerror(self._error))
            return function(*arguments, **more)

        return call


@contextmanager
def failing_file_calls(fail_at: int, forever: bool = False, error: int = errno.EIO) -> Iterator[Faults]:
    faults = Faults(fail_at, forever, error)
    originals = {name: getattr(file_io, name) for name in file_io.CALLS}
    try:
        for name, function in originals.items():
            setattr(file_io, name, faults.wrap(name, function))
        yield faults
    finally:
        for name, function in originals.items():
            setattr(file_io, name, function)
