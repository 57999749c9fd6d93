"""A compacted log against a dictionary: keyed writes, tombstones, time, compactions of all kinds, reopenings and kills in any order."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.records.compression import Codec
from appliance.storage import file_io
from appliance.storage.log import Log
from appliance.storage.reading import LogReading
from appliance.storage.recovery import CLEAN, Recovery, SameBoot, Unclean
from tests.unit.storage.compaction_support import COMPACTED, job_of, keyed, plan_of, reports_of, stored_batches, stored_pairs
from tests.unit.storage.storage_support import NOW_MS, open_log, stored_bytes

PAIRS = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=5)
WRITE = st.tuples(st.just("write"), st.tuples(PAIRS, st.sampled_from(list(Codec)), st.booleans()))
COMPACT = st.tuples(st.just("compact"), st.tuples(st.sampled_from([24 * 4, 24 * 30, 1 << 16]), st.sampled_from([0, 1, 100])))
OTHERS = st.tuples(st.sampled_from(["close", "kill", "power cut", "flush"]), st.just(0))
LATER = st.tuples(st.just("later"), st.sampled_from([1, 600, 5000]))
STEPS = st.lists(WRITE | WRITE | WRITE | COMPACT | COMPACT | OTHERS | LATER, max_size=40)
GRACE_MS = COMPACTED.delete_retention_ms


class Model:
    """What was written last under each key, when, and the log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now_ms = NOW_MS
        self.serial = 0
        self.sequence = 0
        self.latest: dict[bytes, tuple[int, bytes | None, int]] = {}
        """Key → (offset, value, when it was written)."""
        self.everything: dict[int, tuple[bytes, bytes | None]] = {}
        self.first_dirty = 0
        self.log = open_log(path, COMPACTED)

    def write(self, what: tuple[list[tuple[int, bool]], Codec, bool]) -> None:
        pairs, codec, idempotent = what
        written: list[tuple[bytes | None, bytes | None]] = []
        for number, is_tombstone in pairs:
            self.serial += 1
            key, value = b"k%d" % number, None if is_tombstone else b"%d " % self.serial + b"x" * 40
            offset = self.log.log_end_offset + len(written)
            self.latest[key] = (offset, value, self.now_ms)
            self.everything[offset] = (key, value)
            written.append((key, value))
        producer = (9, 0, self.sequence) if idempotent else None
        self.sequence += len(pairs) if idempotent else 0
        (result,) = self.log.append_as_leader([keyed(*written, timestamp_ms=self.now_ms, codec=codec, producer=producer)], 0, self.now_ms)
        assert isinstance(result, tuple) and result[1] == self.log.log_end_offset - 1

    def later(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    def flush(self, _: int) -> None:
        self.log.flush()

    def compact(self, what: tuple[int, int]) -> None:
        """`groups`: after how many swapped groups the process dies (100: it does not)."""
        buffer_bytes, groups = what
        self.log.flush()
        plan = plan_of(self.log, self.first_dirty, self.now_ms)
        if plan is None:
            return
        reports = reports_of(job_of(self.log, plan, self.now_ms, buffer_bytes))
        if reports[-1].kind == "failed":
            assert "dedupe.buffer.size" in reports[-1].reason
            return
        for report in [report for report in reports if report.group is not None and report.group.is_changed][:groups]:
            assert report.group is not None and self.log.can_replace(report.group.bases)
            for path in self.log.replace_segments(report.group.bases, report.group.size_bytes):
                file_io.unlink(path)
        if groups < 100:
            self.kill(0)
        else:
            self.first_dirty = reports[-1].end_offset

    def close(self, _: int) -> None:
        self.log.close()
        self._open(CLEAN)

    def kill(self, _: int) -> None:
        log = self.log
        position = SameBoot(log.log_end_offset, log.active_base_offset, log.active_position, log.recovery_point)
        log.abandon()
        self._open(position)

    def power_cut(self, _: int) -> None:
        self.log.abandon()
        self._open(Unclean(self.log.recovery_point))

    def _open(self, recovery: Recovery) -> None:
        end = self.log.log_end_offset
        self.log: Log = open_log(self.path, COMPACTED, recovery)
        assert self.log.log_end_offset == end

    def verify(self) -> None:
        log = self.log
        pairs = stored_pairs(self.path)
        offsets = [offset for offset, _, _ in pairs]
        assert offsets == sorted(set(offsets))
        assert all(self.everything[offset] == (key, value) for offset, key, value in pairs)
        newest = {key: (offset, value) for offset, key, value in pairs}
        for key, (offset, value, written_ms) in self.latest.items():
            if value is not None or self.now_ms < written_ms + GRACE_MS:
                assert newest[key] == (offset, value)
            else:  # a tombstone may be gone, and with it everything before
                assert newest.get(key, (offset, None)) == (offset, None)
        seen: set[bytes] = set()
        for offset, key, _ in pairs:
            if offset < self.first_dirty:  # what is clean has no key twice
                assert key not in seen
                seen.add(key or b"")
        if self.sequence:
            last = log.producers.entry(9)
            assert last is not None and last.last_sequence == self.sequence - 1
            assert any(batch.header.producer_id == 9 and batch.header.last_offset == last.batches[-1].last_offset for batch in stored_batches(self.path))
        assert log.size_bytes == sum(len(content) for name, content in stored_bytes(self.path).items() if name.endswith(".log"))
        reading, end = LogReading(str(self.path)), log.log_end_offset
        assert reading.segments() == log.segment_base_offsets
        for batch in stored_batches(self.path):
            for offset in (batch.header.base_offset, batch.header.last_offset):
                assert reading.locate(offset, end).base_offset == batch.header.base_offset


@pytest.mark.slow
@given(STEPS)
def test_a_compacted_log_is_a_dictionary_whatever_happens_to_it(steps: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_io, "fsync", lambda fd: None)  # no power is cut for real
        patch.setattr(file_io, "fdatasync", lambda fd: None)
        model = Model(Path(directory))
        try:
            for name, argument in steps:
                getattr(model, name.replace(" ", "_"))(argument)
            model.verify()
            model.compact((1 << 16, 100))
            model.verify()
        finally:
            model.log.abandon()
