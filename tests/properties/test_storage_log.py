"""A log against the simplest model there is: a list. Appends, flushes, rolls, truncations, kills, torn tails and clean stops in any order."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.storage import file_io
from appliance.storage.indexes import OffsetIndex, TimeIndex
from appliance.storage.log import Log
from appliance.storage.log_config import LogConfig
from appliance.storage.reading import LogReading
from appliance.storage.recovery import CLEAN, Recovery, SameBoot, Unclean
from tests.unit.storage.storage_support import NOW_MS, batch, open_log, stored_bytes, stored_records

APPEND = st.tuples(
    st.just("append"),
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 200), st.integers(-50, 50), st.booleans()), min_size=1, max_size=8),
)
TRUNCATE = st.tuples(st.just("truncate"), st.integers(0, 60))
KILL = st.tuples(st.just("kill"), st.integers(0, 80))
OTHERS = st.tuples(st.sampled_from(["flush", "close", "power cut", "new epoch"]), st.just(0))
STEPS = st.lists(APPEND | APPEND | TRUNCATE | KILL | OTHERS, max_size=15)
CONFIGS = st.fixed_dictionaries(
    {
        "segment_bytes": st.integers(1000, 3000),
        "index_interval_bytes": st.integers(0, 500),
        "segment_ms": st.sampled_from([20, 10_000]),
        "segment_index_bytes": st.sampled_from([48, 10_000]),
        "message_timestamp_type": st.sampled_from(["CreateTime", "LogAppendTime"]),
    }
).map(lambda settings: LogConfig(**settings))


class Model:
    """What must be in the log, and the log."""

    def __init__(self, path: Path, config: LogConfig) -> None:
        self.path, self.config = path, config
        self.records: list[bytes] = []
        self.batch_starts: list[int] = []
        self.flushed = 0
        self.leader_epoch = 0
        self.serial = 0
        self.sequence = 0
        self.log = self._open(CLEAN)

    def _open(self, recovery: Recovery) -> Log:
        return open_log(self.path, self.config, recovery)

    def append(self, shapes: list[tuple[int, int, int, bool]]) -> None:
        batches, expected = [], []
        for count, size_bytes, late_ms, idempotent in shapes:
            values = []
            for _ in range(count):
                self.serial += 1
                values.append(b"%d " % self.serial + b"x" * size_bytes)
            producer = (5, self.leader_epoch, self.sequence) if idempotent else None
            self.sequence += count if idempotent else 0
            batches.append(batch(*values, timestamp_ms=NOW_MS + self.serial + late_ms, producer=producer))
            start = len(self.records)
            self.batch_starts.append(start)
            self.records += values
            expected.append((start, start + count - 1, NOW_MS if self.config.uses_log_append_time else -1))
        assert self.log.append_as_leader(batches, self.leader_epoch, NOW_MS) == expected

    def truncate(self, offset: int) -> None:
        if offset < len(self.records):
            start = max(each for each in self.batch_starts if each <= offset)
            self.records = self.records[:start]
            self.batch_starts = [each for each in self.batch_starts if each < start]
            self.flushed = min(self.flushed, start)
            self._forget_sequences()
        assert self.log.truncate_to(offset) == len(self.records)

    def _forget_sequences(self) -> None:
        self.new_epoch(0)

    def new_epoch(self, _: int) -> None:
        self.leader_epoch += 1
        self.sequence = 0

    def flush(self, _: int) -> None:
        self.log.flush()
        self.flushed = len(self.records)

    def kill(self, torn_bytes: int) -> None:
        """The process dies in the middle of an append: `torn_bytes` of a batch are in the file."""
        position = SameBoot(self.log.log_end_offset, self.log.active_base_offset, self.log.active_position, self.flushed)
        self._tear(torn_bytes)
        self.log = self._open(position)

    def power_cut(self, _: int) -> None:
        self._tear(33)
        self.log = self._open(Unclean(self.flushed))

    def _tear(self, torn_bytes: int) -> None:
        path = self.path / f"{self.log.active_base_offset:020d}.log"
        self.log.abandon()
        with path.open("ab") as file:
            file.write(bytes(batch(b"x" * 100))[:torn_bytes])

    def close(self, _: int) -> None:
        self.log.close()
        self.flushed = len(self.records)
        self.log = self._open(CLEAN)

    def verify(self) -> None:
        log = self.log
        assert stored_records(self.path) == list(enumerate(self.records))
        assert (log.log_end_offset, log.recovery_point) == (len(self.records), self.flushed)
        assert log.active_position == (self.path / f"{log.active_base_offset:020d}.log").stat().st_size
        self._verify_indexes()
        reading = LogReading(str(self.path))
        assert reading.segments() == log.segment_base_offsets
        starts = [*self.batch_starts, len(self.records)]
        for start, end in pairwise(starts):
            for offset in (start, end - 1):
                assert reading.locate(offset, len(self.records)).base_offset == start

    def _verify_indexes(self) -> None:
        """Entries ascend and none points past the end; of a rebuild they say the same."""
        for base in self.log.segment_base_offsets:
            size_bytes = (self.path / f"{base:020d}.log").stat().st_size
            for suffix, kind in ((".index", OffsetIndex), (".timeindex", TimeIndex)):
                fd = file_io.open_path(str(self.path / f"{base:020d}{suffix}"), file_io.READ_ONLY)
                index: Any = kind(fd, base)
                entries = [index.entry(number) for number in range(index.count())]
                file_io.close(fd)
                assert entries == sorted(set(entries))
                if suffix == ".index":
                    assert all(entry.offset < len(self.records) and 0 < entry.position < size_bytes for entry in entries)
        before = stored_bytes(self.path)
        self.log.abandon()
        log = open_log(self.path, self.config, Unclean(0))
        assert log.log_end_offset == len(self.records)
        log.abandon()
        after = stored_bytes(self.path)
        assert {name: content for name, content in before.items() if name.endswith(".index")} == {
            name: content for name, content in after.items() if name.endswith(".index")
        }
        self.log = self._open(Unclean(self.flushed))


@pytest.mark.slow
@given(CONFIGS, STEPS)
def test_a_log_is_a_list_whatever_happens_to_it(config: LogConfig, steps: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_io, "fsync", lambda fd: None)  # no power is cut for real
        patch.setattr(file_io, "fdatasync", lambda fd: None)
        model = Model(Path(directory), config)
        for name, argument in steps:
            getattr(model, name.replace(" ", "_"))(argument)
        try:
            model.verify()
        finally:
            model.log.abandon()
