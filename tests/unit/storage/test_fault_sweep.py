"""Every file call of a log fails once, then every one fails from then on; after each the recovered log is a prefix that holds
everything acknowledged."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import pytest

from appliance.base.errors import DiskFull, StorageFailed
from appliance.storage.log import Log
from appliance.storage.recovery import Recovery, SameBoot, Unclean
from tests.unit.storage.storage_support import batch, failing_file_calls, open_log, stored_bytes, stored_records


class LogRun:
    """Opens a log and writes to it as a log-writer would, remembering what it acknowledged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.acknowledged: list[tuple[int, bytes]] = []
        self.in_doubt: list[tuple[int, bytes]] = []
        self.flushed = 0
        self.position = SameBoot(0, 0, 0)
        self.log: Log | None = None

    def run(self) -> None:
        self.log = log = open_log(self.path)
        self._append(log, 0, [b"first"])
        for number in range(4):
            self._append(log, 0, [b"%d-%d " % (number, each) + b"x" * 60 for each in range(6)])
            if number == 1:
                self._flush(log)
        self._append(log, 4, [b"under a new epoch"])
        self._append(log, 4, [b"from a producer"], producer=7)
        self._append(log, 4, [b"y" * 100 + b"%d" % each for each in range(9)], producer=8)
        self._flush(log)
        self._append(log, 5, [b"last"])
        log.close()
        self.flushed = log.recovery_point

    def _append(self, log: Log, leader_epoch: int, values: list[bytes], producer: int | None = None) -> None:
        start = log.log_end_offset
        batches = [batch(value, producer=None if producer is None else (producer, 0, number)) for number, value in enumerate(values)]
        expected = [(start + number, value) for number, value in enumerate(values)]
        try:
            log.append_as_leader(batches, leader_epoch, 0)
        except StorageFailed:
            assert log.log_end_offset == start
            if log.failed:
                self.in_doubt = expected
                raise
            assert log.active_position == (self.path / f"{log.active_base_offset:020d}.log").stat().st_size
            return
        self.acknowledged += expected
        self.position = SameBoot(log.log_end_offset, log.active_base_offset, log.active_position, self.flushed)

    def _flush(self, log: Log) -> None:
        log.flush()
        self.flushed = log.recovery_point


def sweep(path: Path, forever: bool, error: int, recovery_of: str) -> int:
    """Run a log for each file call that can fail; return the number of runs."""
    for fail_at in range(1, 2000):
        directory = path / str(fail_at)
        directory.mkdir()
        life = LogRun(directory)
        with failing_file_calls(fail_at, forever, error) as faults:
            try:
                life.run()
            except StorageFailed:
                pass
        if life.log is not None:
            life.log.abandon()
        recovery: Recovery = life.position if recovery_of == "same boot" else Unclean(life.flushed)
        recovered = open_log(directory, recovery=recovery)
        records = stored_records(directory)
        whole = life.acknowledged + life.in_doubt
        assert records[: len(life.acknowledged)] == life.acknowledged, (fail_at, faults.failed)
        assert records == whole[: len(records)], (fail_at, faults.failed)
        assert recovered.log_end_offset == len(records)
        assert [result[:2] for result in recovered.append_as_leader([batch(b"on")], 9, 0)] == [(len(records), len(records))]
        recovered.close()
        assert rebuilt_indexes_agree(directory), (fail_at, faults.failed)
        if not faults.failed:
            return fail_at - 1
    raise AssertionError("the sweep did not end")


def rebuilt_indexes_agree(directory: Path) -> bool:
    """The indexes that a run leaves lead to batches: a whole rebuild finds the same offset entries."""
    before = {name: content for name, content in stored_bytes(directory).items() if name.endswith(".index")}
    open_log(directory, recovery=Unclean(0)).close()
    return before == {name: content for name, content in stored_bytes(directory).items() if name.endswith(".index")}


EVERYDAY = ((errno.EIO, False, "same boot"), (errno.EIO, True, "unclean"), (errno.ENOSPC, False, "unclean"), (errno.ENOSPC, True, "same boot"))
"""Each pair of values is among them; the other combinations are for long runs."""
COMBINATIONS = itertools.product((errno.EIO, errno.ENOSPC), (False, True), ("same boot", "unclean"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "forever", "recovery_of"), [pytest.param(*each, marks=[] if each in EVERYDAY else [pytest.mark.deep]) for each in COMBINATIONS]
)
def test_after_any_failed_file_call_the_recovered_log_holds_what_was_acknowledged(tmp_path: Path, forever: bool, error: int, recovery_of: str) -> None:
    assert sweep(tmp_path, forever, error, recovery_of) > 60


def test_a_full_disk_refuses_the_append_and_heals(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_as_leader([batch(b"before")], 0, 0)
    with failing_file_calls(1, error=errno.ENOSPC), pytest.raises(DiskFull, match="could not append to log syslog-3 at offset 1: no space left on device"):
        log.append_as_leader([batch(b"during")], 0, 0)
    assert log.append_as_leader([batch(b"after")], 0, 0) == [(1, 1, -1)]
    assert stored_records(tmp_path) == [(0, b"before"), (1, b"after")]
    log.close()


def test_an_append_that_rolls_and_fails_leaves_no_trace(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_as_leader([batch(b"before")], 0, 0)
    before, generation = stored_bytes(tmp_path), log.segment_list_generation
    fail_at = 1
    while True:
        with failing_file_calls(fail_at) as faults:
            try:
                log.append_as_leader([batch(b"z" * 90) for _ in range(12)], 0, 0)
            except StorageFailed as failure:
                assert type(failure) is StorageFailed
        if not faults.failed:
            break
        assert (log.log_end_offset, log.segment_list_generation, stored_bytes(tmp_path)) == (1, generation, before)
        fail_at += 1
    assert fail_at > 8 and log.log_end_offset == 13
    log.close()


def test_a_log_that_cannot_be_cut_back_refuses_everything_until_it_is_opened_again(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_as_leader([batch(b"before")], 0, 0)
    with failing_file_calls(1, forever=True), pytest.raises(StorageFailed, match="could not be cut back to offset 1"):
        log.append_as_leader([batch(b"during")], 0, 0)
    with pytest.raises(StorageFailed, match="could not be cut back"):
        log.append_as_leader([batch(b"after")], 0, 0)
    log.abandon()
    assert open_log(tmp_path, recovery=Unclean(0)).log_end_offset == 1
