"""What a log knows of producers whose batches retention took, after everything that can happen to what is left: power cuts, truncations, full disks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base.errors import DiskFull
from appliance.storage import file_io
from appliance.storage.log_config import LogConfig
from appliance.storage.transaction_index import read_transaction_index
from tests.faults.log_integrity import verify
from tests.faults.tortured_log import TorturedLog
from tests.support.volatile_files import VolatileFiles

ROLLING = LogConfig(segment_bytes=900, index_interval_bytes=150)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[VolatileFiles]:
    with VolatileFiles(str(tmp_path)) as volatile:
        yield volatile


@pytest.fixture
def log(tmp_path: Path, disk: VolatileFiles) -> Iterator[TorturedLog]:
    tortured = TorturedLog(tmp_path, ROLLING, random.Random(1), disk)
    tortured.create()
    yield tortured
    tortured.abandon()


def cut_everywhere(log: TorturedLog, seed: int) -> None:
    log.chance.seed(seed)
    log.reopen("power")
    verify(log, is_fresh=True)


@pytest.mark.parametrize("seed", range(5))
def test_a_transaction_begun_below_the_log_start_is_aborted_after_a_power_cut(log: TorturedLog, seed: int) -> None:
    log.append_transaction(4, 250, "")
    log.append([103, 173, 188, 124, 73, 114], records=3)
    log.retain(5)
    assert log.log is not None and log.log.segment_base_offsets[0] > 0
    cut_everywhere(log, seed)
    log.append_transaction(4, 89, "abort")
    verify(log)


def test_a_transaction_begun_below_the_log_start_is_known_after_a_truncation(log: TorturedLog) -> None:
    log.append_transaction(4, 64, "")
    log.append([18, 130, 91, 59], records=3)
    log.retain(10)
    log.truncate(10)
    log.append_transaction(4, 290, "")
    verify(log)


@pytest.mark.parametrize("seed", range(5))
def test_a_producers_last_batches_are_known_after_retention_rolls_and_a_power_cut(log: TorturedLog, seed: int) -> None:
    log.append([22, 96, 106, 65, 44], producer_id=1, records=2)
    log.retain(9)
    log.append([164, 133, 17, 44], producer_id=1)
    log.append([140, 101, 196, 142, 195, 187], producer_id=1, records=3)
    log.retain(15)
    cut_everywhere(log, seed)
    cut_everywhere(log, seed)


def test_a_log_that_must_start_over_knows_its_producers(log: TorturedLog) -> None:
    """What lay between what was durable and the log start offset is gone with the power; the durable rest lies below the start and goes with it."""
    log.append([10], producer_id=1)
    log.flush()
    log.append([10], producer_id=1)
    log.retain(1)
    log.append([10] * 2, producer_id=1)
    log.retain(3)
    log.abandon()
    path = log.path / f"{0:020d}.log"
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size // 2)  # two of four are left
    log.open_as("power")
    assert log.log is not None and log.log.log_start_offset == log.log.log_end_offset == 3
    entry = log.log.producers.entry(1)
    assert entry is not None and entry.last_sequence == 1


def test_a_snapshot_that_a_roll_could_not_write_is_written_later(log: TorturedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append([10], producer_id=1)

    def full(path: str, content: bytes, durable: bool = True) -> None:
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(file_io, "replace_file", full)
        log.roll()
    log.append([10], producer_id=2)
    log.roll()
    assert sorted(path.name for path in log.path.glob("*.snapshot")) == [f"{offset:020d}.snapshot" for offset in (0, 1, 2)]
    log.retain(1)
    cut_everywhere(log, 1)
    assert log.log is not None and log.log.producers.entry(1) is not None


def test_segments_without_a_snapshot_are_read_before_they_go(log: TorturedLog) -> None:
    """A directory that an older version left."""
    for _ in range(3):
        log.append([10], producer_id=1)
        log.append_transaction(4, 10, "")
        log.roll()
    log.close()
    for path in sorted(log.path.glob("*.snapshot"))[:-1]:
        path.unlink()
    log.open_as("clean")
    log.settle("clean")
    log.retain(4)
    assert (log.path / f"{4:020d}.snapshot").exists()
    assert log.log is not None
    log.log.truncate_to(5)
    entry = log.log.producers.entry(4)
    assert entry is not None and entry.transaction_first_offset == 1


@pytest.mark.parametrize("seed", range(5))
def test_what_was_flushed_stays_while_a_new_start_is_not_written_down(log: TorturedLog, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removed segment that was never synced comes back torn: it must not end the log before what was synced behind it."""
    log.append_transaction(4, 71, "")

    def full(file: str, collect: object) -> None:
        raise DiskFull("no space left on device")

    monkeypatch.setattr(log.directory.checkpoints, "save", full)
    with pytest.raises(DiskFull):
        log.retain(1)
    log.append([50], producer_id=1)
    log.flush_batches()
    assert log.memory.durable_end == 2
    cut_everywhere(log, seed)


def test_an_entry_of_an_abort_that_the_power_cut_took_is_forgotten(log: TorturedLog) -> None:
    """Nothing is left of a segment but its index; a compacted log goes on behind such a hole, where the producer's next transaction is committed."""
    log.config = log.config._replace(cleanup_policy="compact")
    log.append_transaction(5, 10, "abort")
    log.roll()
    log.append_transaction(5, 10, "commit")
    log.abandon()
    (log.path / f"{0:020d}.log").write_bytes(b"")
    log.open_as("power")
    assert log.log is not None and log.log.segment_base_offsets == [0, 2]
    assert read_transaction_index(str(log.path), 0) == []


def test_zeros_in_a_torn_transaction_index_are_no_entry(log: TorturedLog) -> None:
    log.append_transaction(5, 14, "commit")
    log.flush()
    log.append_transaction(5, 147, "abort")
    log.abandon()
    for suffix in (".log", ".txnindex"):
        path = log.path / f"{0:020d}{suffix}"
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2] if suffix == ".log" else b"\0" * 34)
    log.open_as("power")
    log.settle("power")
    verify(log, is_fresh=True)


@pytest.mark.parametrize("seed", range(5))
def test_the_final_time_index_entry_before_a_kill_is_synced(log: TorturedLog, seed: int) -> None:
    """The segment was flushed, then sealed, then the process was killed: its last entry is in the page cache only."""
    log.append([10, 10])
    log.flush()
    log.roll()
    log.reopen("killed")
    log.append([10])
    log.flush()
    cut_everywhere(log, seed)
