"""A log against a list, by hypothesis: appends with producers, epochs and transactions, rolls, truncations, retention, compaction, flushes, repairs,
clean stops, kills and power cuts in any order, any of them with a file call that fails. After every step everything is asked of the files
(`log_integrity`)."""

from __future__ import annotations

import errno
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from appliance.base.errors import StorageFailed
from appliance.storage.log_config import LogConfig
from tests.faults.failing_calls import FailingCalls
from tests.faults.log_integrity import verify
from tests.faults.tortured_log import TorturedLog
from tests.support.volatile_files import VolatileFiles
from tests.unit.storage.compaction_support import COMPACTED

TORTURE_SECONDS = int(os.environ.get("MILLRACE_TORTURE_SECONDS", "3600"))
MEMORY_DISK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
SIZES = st.lists(st.integers(0, 200), min_size=1, max_size=6)
OFFSETS = st.integers(0, 120)
PRODUCERS = st.sampled_from([-1, -1, 1, 2])


class LogMachine(RuleBasedStateMachine):
    """Each step is one action; `next_fault` lets a call of the next one fail."""

    config = LogConfig(segment_bytes=900, index_interval_bytes=150)
    keys = 0

    def __init__(self) -> None:
        super().__init__()
        self._top = tempfile.TemporaryDirectory(dir=MEMORY_DISK)
        path = os.path.realpath(self._top.name)
        self._volatile = VolatileFiles(path)
        self._volatile.__enter__()
        self._fault: tuple[int, bool, int] | None = None
        self.log = TorturedLog(Path(path), self.config, random.Random(1), self._volatile)
        self.log.create()

    def teardown(self) -> None:
        self.log.abandon()
        self._volatile.__exit__(None, None, None)
        self._top.cleanup()

    def _do(self, action: Callable[[], None]) -> None:
        fault, self._fault = self._fault, None
        if fault is None:
            action()
        else:
            with FailingCalls(*fault, self._volatile):
                try:
                    action()
                except (StorageFailed, OSError):
                    pass
            if self.log.log is None or self.log.log.failed or self.log.memory.may_be_empty:
                is_started_over = self.log.memory.may_be_empty
                self.log.abandon()
                how = "killed"
                # The next incarnation trusts the disk alone, not the page cache.
                if self._volatile.has_failed_syncs:
                    self._volatile.cut(self.log.chance)
                    how = "power"
                self.log.open_as(how)
                self.log.settle(how)
                if is_started_over:
                    self.log.start_over(self.log.row.end_offset + 50)
            self.log.repeat_checkpoint()
        if self.log.damaged_index:
            self.log.rebuild_index()
        verify(self.log)

    @rule(fail_at=st.integers(1, 40), forever=st.booleans(), error=st.sampled_from([errno.EIO, errno.ENOSPC]))
    def next_fault(self, fail_at: int, forever: bool, error: int) -> None:
        self._fault = (fail_at, forever, error)

    @rule(sizes=SIZES, producer_id=PRODUCERS, records=st.integers(1, 3), late_ms=st.sampled_from([0, 0, 5, 50]))
    def append(self, sizes: list[int], producer_id: int, records: int, late_ms: int) -> None:
        self._do(lambda: self.log.append(sizes, producer_id, self.keys, records, late_ms))

    @rule(size=st.integers(0, 300), marker=st.sampled_from(["", "commit", "abort"]), producer_id=st.sampled_from([4, 5]))
    def transaction(self, size: int, marker: str, producer_id: int) -> None:
        self._do(lambda: self.log.append_transaction(producer_id, size, marker))

    @rule()
    def roll(self) -> None:
        self._do(self.log.roll)

    @rule()
    def new_epoch(self) -> None:
        self._do(self.log.new_epoch)

    @rule()
    def flush(self) -> None:
        self._do(self.log.flush)

    @rule()
    def flush_batches(self) -> None:
        self._do(self.log.flush_batches)

    @precondition(lambda self: not self.config.is_compacted)
    @rule(back=st.integers(0, 40))
    def truncate(self, back: int) -> None:
        self._do(lambda: self.log.truncate(max(0, self.log.row.end_offset - back)))

    @rule(ahead=st.integers(0, 60))
    def retain(self, ahead: int) -> None:
        self._do(lambda: self.log.retain(self.log.row.log_start_offset + ahead))

    @rule(ahead=st.integers(1, 40))
    def start_over(self, ahead: int) -> None:
        self._do(lambda: self.log.start_over(self.log.row.end_offset + ahead))

    @rule(number=st.integers(0, 3))
    def rebuild_index(self, number: int) -> None:
        self._do(lambda: self.log.rebuild_index(number))

    @rule(how=st.sampled_from(["clean", "killed", "power"]), seed=st.integers(0, 1 << 16))
    def reopen(self, how: str, seed: int) -> None:
        self._fault = None
        self.log.chance.seed(seed)
        self.log.reopen(how)
        verify(self.log, is_fresh=True)

    @precondition(lambda self: self.config.is_compacted)
    @rule(buffer_bytes=st.sampled_from([24 * 8, 1 << 16]), later_ms=st.sampled_from([0, 400, 1500]))
    def compact(self, buffer_bytes: int, later_ms: int) -> None:
        def act() -> None:
            try:
                self.log.compact(buffer_bytes, later_ms)
            except StorageFailed as failure:
                if "dedupe.buffer.size" not in str(failure):
                    raise

        self._do(act)


class CompactedLogMachine(LogMachine):
    config = COMPACTED._replace(segment_bytes=900)
    keys = 5


MACHINES = [LogMachine, CompactedLogMachine]
EVERYDAY = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # the steps are short enough to be read; to shrink them takes minutes
)


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_a_log_is_what_was_appended_whatever_happens_to_it(machine: type[LogMachine]) -> None:
    run_state_machine_as_test(machine, settings=EVERYDAY)


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_a_log_is_what_was_appended_for_as_long_as_there_is_time(machine: type[LogMachine]) -> None:
    """MILLRACE_TORTURE_SECONDS for both machines together."""
    ends_at = time.monotonic() + TORTURE_SECONDS / len(MACHINES)
    at_random = settings(EVERYDAY, max_examples=200, stateful_step_count=50, derandomize=False, print_blob=True)
    while time.monotonic() < ends_at:
        run_state_machine_as_test(machine, settings=at_random)
