"""Compaction of one log: what stays, what goes, and what every step of a swap leaves when it is the last."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from appliance.base.errors import StorageFailed
from appliance.records.batch import DELETE_HORIZON_FLAG, TRANSACTIONAL_FLAG, read_batch_header
from appliance.records.compression import Codec
from appliance.storage import file_io
from appliance.storage.cleaned_segment import CleanedTransactions
from appliance.storage.log import Log
from appliance.storage.producer_state import DuplicateBatch
from appliance.storage.reading import LogReading
from appliance.storage.recovery import CLEAN, SameBoot, Unclean
from appliance.storage.transaction_index import AbortedTxn, decode_transaction_index, encode_transaction_index
from tests.unit.storage.compaction_support import (
    ABORT,
    COMMIT,
    COMPACTED,
    compact,
    follow,
    job_of,
    keyed,
    marker,
    plan_of,
    reports_of,
    stored_batches,
    stored_pairs,
    swap_in,
    with_producer,
)
from tests.unit.storage.storage_support import NOW_MS, failing_file_calls, open_log, stored_bytes


def filled(path: Path, rounds: int = 6, keys: int = 4, **config: object) -> Log:
    """A log of many small segments: every key written once a round."""
    path.mkdir(exist_ok=True)
    log = open_log(path, COMPACTED._replace(**config))  # type: ignore[arg-type]
    for number in range(rounds):
        log.append_as_leader([keyed((b"k%d" % key, b"%d" % number + b"x" * 60)) for key in range(keys)], 0, NOW_MS)
    return log


def compacted(path: Path, rounds: int = 6, **config: object) -> tuple[Log, int]:
    """As `filled`, compacted once and filled again: small segments that the next run makes one. The log and its first dirty offset."""
    log = filled(path, rounds, **config)
    clean_to = compact(log)
    for number in range(rounds):
        log.append_as_leader([keyed((b"k%d" % key, b"again %d" % number + b"x" * 60)) for key in range(3)], 0, NOW_MS)
    return log, clean_to


def roll(log: Log) -> None:
    """Put what was appended so far into sealed segments."""
    log.append_as_leader([keyed((b"filler", b"y" * 500))], 0, NOW_MS)
    log.append_as_leader([keyed((b"filler", b"y" * 500))], 0, NOW_MS)


@pytest.mark.parametrize("codec", list(Codec))
def test_the_newest_record_of_each_key_stays_with_its_offset_time_and_headers(tmp_path: Path, codec: Codec) -> None:
    log = open_log(tmp_path, COMPACTED)
    for number in range(9):
        log.append_as_leader([keyed(*((b"k%d" % key, b"%d" % number + b"x" * 30) for key in range(3)), codec=codec, timestamp_ms=NOW_MS + number)], 0, NOW_MS)
    roll(log)
    before = {batch.header.base_offset: batch for batch in stored_batches(tmp_path)}
    compact(log)
    pairs = stored_pairs(tmp_path)
    assert pairs[:3] == [(24 + key, b"k%d" % key, b"8" + b"x" * 30) for key in range(3)]
    for batch in stored_batches(tmp_path):
        original = before[batch.header.base_offset]
        assert set(batch.records) <= set(original.records)
        assert batch.header.last_offset == original.header.last_offset and batch.header.codec == original.header.codec
        assert batch.header.partition_leader_epoch == original.header.partition_leader_epoch
    log.close()


def test_a_batch_that_loses_some_of_its_records_keeps_its_range_of_offsets(tmp_path: Path) -> None:
    log = open_log(tmp_path, COMPACTED)
    log.append_as_leader([keyed((b"a", b"1"), (b"b", b"2"), (b"c", b"3"), codec=Codec.ZSTD, timestamp_ms=NOW_MS - 50)], 0, NOW_MS)
    log.append_as_leader([keyed((b"a", b"4"), (b"c", b"5"))], 0, NOW_MS)
    roll(log)
    compact(log)
    first = stored_batches(tmp_path)[0]
    assert (first.header.base_offset, first.header.last_offset, first.header.records_count) == (0, 2, 1)
    assert first.records == [(1, NOW_MS - 49, b"b", b"2")] and first.header.max_timestamp == NOW_MS - 49
    log.close()


def test_records_without_a_key_go(tmp_path: Path) -> None:
    log = open_log(tmp_path, COMPACTED)
    log.append_as_leader([keyed((None, b"lost"), (b"k", b"kept"))], 0, NOW_MS)
    roll(log)
    compact(log)
    assert stored_pairs(tmp_path)[0] == (1, b"k", b"kept")
    log.close()


def test_a_tombstone_removes_its_key_at_once_and_goes_itself_when_its_grace_is_over(tmp_path: Path) -> None:
    log = open_log(tmp_path, COMPACTED)
    log.append_as_leader([keyed((b"k", b"value"), timestamp_ms=NOW_MS - 9)], 0, NOW_MS)
    log.append_as_leader([keyed((b"k", None), timestamp_ms=NOW_MS - 7)], 0, NOW_MS)
    roll(log)
    clean_to = compact(log)
    first = stored_batches(tmp_path)[0]
    assert first.records == [(1, NOW_MS - 7, b"k", None)]
    assert first.header.attributes & DELETE_HORIZON_FLAG and first.header.base_timestamp == NOW_MS + 1000
    roll(log)
    clean_to = compact(log, clean_to, NOW_MS + 999)
    assert stored_batches(tmp_path)[0] == first
    roll(log)
    compact(log, clean_to, NOW_MS + 1000)
    assert b"k" not in {key for _, key, _ in stored_pairs(tmp_path)}
    log.close()


def test_the_active_segment_and_what_is_above_the_last_stable_offset_stay_untouched(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.flush()
    bases = log.segment_base_offsets
    contents = stored_bytes(tmp_path)
    stable = bases[2] + 1
    assert compact(log, last_stable_offset=stable) == bases[2]
    after = stored_bytes(tmp_path)
    for base in bases[2:]:
        assert after[f"{base:020d}.log"] == contents[f"{base:020d}.log"]
    assert log.segment_base_offsets[-1] == bases[-1]
    log.close()


def test_nothing_that_the_disk_may_not_have_yet_is_compacted(tmp_path: Path) -> None:
    log = filled(tmp_path)
    assert log.recovery_point == 0 and plan_of(log) is None
    log.close()


def test_small_segments_become_one_and_the_log_reads_on(tmp_path: Path) -> None:
    log, clean_to = compacted(tmp_path, rounds=12)
    before, generation = len(log.segment_base_offsets), log.segment_list_generation
    reading = LogReading(str(tmp_path))
    compact(log, clean_to)
    assert len(log.segment_base_offsets) < before * 2 / 3 and log.segment_list_generation > generation
    log.append_as_leader([keyed((b"k0", b"on"))], 0, NOW_MS)
    end = log.log_end_offset
    offsets = [offset for offset, _, _ in stored_pairs(tmp_path)]
    for each in (reading, LogReading(str(tmp_path))):
        for offset in range(end):
            assert each.locate(offset, end).base_offset == min(known for known in offsets if known >= offset)
    assert log.size_bytes == sum(len(content) for name, content in stored_bytes(tmp_path).items() if name.endswith(".log"))
    log.close()


def test_summaries_go_with_the_segments_that_they_were_made_of(tmp_path: Path) -> None:
    log = filled(tmp_path)
    roll(log)
    bases = log.segment_base_offsets[:-1]
    for base in bases:
        (tmp_path / f"{base:020d}.summary").write_bytes(b"made of the segment before")
    assert compact(log)
    first = log.segment_base_offsets[0]
    assert not (tmp_path / f"{first:020d}.summary").exists()
    (tmp_path / f"{first:020d}.summary").write_bytes(b"made of the new one")
    removed = log.advance_log_start_offset(log.log_end_offset)
    assert removed is not None and f"{first:020d}.summary.deleted" in [os.path.basename(path) for path in removed.rename()]
    log.close()
    assert not list(tmp_path.glob("*.summary"))


def test_indexes_of_compacted_segments_are_what_a_rebuild_would_write(tmp_path: Path) -> None:
    log = filled(tmp_path, rounds=3, keys=40, segment_bytes=4000)
    compact(log)
    log.close()
    written = stored_bytes(tmp_path)
    open_log(tmp_path, COMPACTED, Unclean(0)).close()
    assert {name: content for name, content in stored_bytes(tmp_path).items() if "index" in name} == {
        name: content for name, content in written.items() if "index" in name
    }
    assert sum(len(content) for name, content in written.items() if name.endswith(".index")) > 80


def test_the_time_of_the_last_source_stays_for_retention_by_time(tmp_path: Path) -> None:
    log, clean_to = compacted(tmp_path, rounds=12)
    for number, base in enumerate(log.segment_base_offsets):
        os.utime(tmp_path / f"{base:020d}.log", (1000 + number, 1000 + number))
    log.flush()
    plan = plan_of(log, clean_to)
    assert plan is not None
    reports = reports_of(job_of(log, plan))
    swap_in(log, reports)
    groups = [report.group for report in reports if report.group is not None]
    times = [int((tmp_path / f"{group.bases[0]:020d}.log").stat().st_mtime) for group in groups]
    assert times == [999 + sum(len(group.bases) for group in groups[: number + 1]) for number in range(len(groups))]
    log.close()


def test_keys_that_do_not_fit_into_the_map_are_cleaned_in_several_runs(tmp_path: Path) -> None:
    log = filled(tmp_path, rounds=4, keys=30)
    roll(log)
    dirty, runs = 0, 0
    while (following := compact(log, dirty, buffer_bytes=24 * 20)) > dirty:
        dirty, runs = following, runs + 1
    assert runs > 3 and dirty == log.active_base_offset
    latest = {key: value for _, key, value in stored_pairs(tmp_path)}
    assert {b"k%d" % key: b"3" + b"x" * 60 for key in range(30)}.items() <= latest.items()
    log.close()


def test_a_batch_whose_keys_never_fit_is_said_and_left_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path, COMPACTED._replace(segment_bytes=9000))
    log.append_as_leader([keyed(*((b"%d" % key, b"") for key in range(100)))], 0, NOW_MS)
    log.append_as_leader([keyed((b"z", b"z" * 8800))], 0, NOW_MS)
    log.flush()
    plan = plan_of(log)
    assert plan is not None
    (report,) = reports_of(job_of(log, plan, buffer_bytes=240))
    assert report.kind == "failed" and "log.cleaner.dedupe.buffer.size" in report.reason
    log.close()


def test_damage_is_said_and_nothing_is_written_over_it(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.flush()
    path = tmp_path / f"{log.segment_base_offsets[1]:020d}.log"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    before = stored_bytes(tmp_path)
    plan = plan_of(log)
    assert plan is not None
    (report,) = reports_of(job_of(log, plan))
    assert report.kind == "failed" and "checksum" in report.reason and stored_bytes(tmp_path) == before
    log.close()


def test_a_producers_last_batch_leaves_its_header_so_that_a_retry_is_known(tmp_path: Path) -> None:
    log = open_log(tmp_path, COMPACTED)
    log.append_as_leader([keyed((b"k", b"1"), producer=(7, 0, 0)), keyed((b"k", b"2"), (b"k", b"3"), producer=(7, 0, 1))], 0, NOW_MS)
    log.append_as_leader([keyed((b"k", b"4"))], 0, NOW_MS)
    roll(log)
    compact(log)
    first = stored_batches(tmp_path)[0]
    assert (first.header.base_offset, first.header.last_offset, first.header.base_sequence, first.records) == (1, 2, 1, [])
    log.close()
    for snapshot in tmp_path.glob("*.snapshot"):
        snapshot.unlink()
    log = open_log(tmp_path, COMPACTED, Unclean(0))
    staged = log.producers.stage()
    assert isinstance(staged.admit(7, 0, 1, log.log_end_offset, log.log_end_offset + 1, NOW_MS), DuplicateBatch)
    log.close()


def test_records_of_aborted_transactions_go_and_markers_only_when_nothing_is_left_to_mark(tmp_path: Path) -> None:
    log = open_log(tmp_path, COMPACTED)
    transactional = TRANSACTIONAL_FLAG
    follow(log, keyed((b"a", b"aborted"), producer=(1, 0, 0), attributes=transactional))
    follow(log, keyed((b"a", b"committed"), producer=(2, 0, 0), attributes=transactional))
    follow(log, keyed((b"b", b"aborted"), producer=(1, 0, 1), attributes=transactional), marker(1, 0, ABORT), marker(2, 0, COMMIT))
    follow(log, keyed((b"c", b"1"), producer=(1, 0, 2)), keyed((b"c", b"2"), producer=(2, 0, 1)))
    (tmp_path / f"{0:020d}.txnindex").write_bytes(encode_transaction_index([AbortedTxn(1, 0, 3, 1)]))
    roll(log)
    clean_to = compact(log)
    assert stored_pairs(tmp_path)[:2] == [(1, b"a", b"committed"), (6, b"c", b"2")]
    control = [batch.header for batch in stored_batches(tmp_path) if batch.header.is_control]
    assert [(header.base_offset, header.attributes & DELETE_HORIZON_FLAG) for header in control] == [(3, 0), (4, 0)]
    assert decode_transaction_index((tmp_path / f"{0:020d}.txnindex").read_bytes()) == [AbortedTxn(1, 0, 3, 1)]
    roll(log)
    clean_to = compact(log, clean_to)
    control = [batch.header for batch in stored_batches(tmp_path) if batch.header.is_control]
    assert [(header.base_offset, bool(header.attributes & DELETE_HORIZON_FLAG)) for header in control] == [(3, True), (4, False)]
    assert not (tmp_path / f"{0:020d}.txnindex").exists()
    roll(log)
    compact(log, clean_to, NOW_MS + 1000)
    assert [batch.header.base_offset for batch in stored_batches(tmp_path) if batch.header.is_control] == [4]
    log.close()


def test_a_run_that_finds_nothing_to_do_leaves_the_files_alone(tmp_path: Path) -> None:
    log = filled(tmp_path, rounds=1, keys=40)
    before, generation = stored_bytes(tmp_path), log.segment_list_generation
    log.flush()
    plan = plan_of(log)
    assert plan is not None
    swap_in(log, reports_of(job_of(log, plan._replace(segments=plan.segments[:1], end_offset=plan.segments[0].end_offset))))
    assert stored_bytes(tmp_path) == before and log.segment_list_generation == generation
    log.close()


class Killed(BaseException):
    """The process dies here."""


@pytest.mark.slow
@pytest.mark.parametrize("recovery", ["clean", "same boot", "unclean"])
def test_a_death_at_any_step_of_a_swap_leaves_one_whole_truth(tmp_path: Path, recovery: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    log, clean_to = compacted(source, rounds=5)
    log.append_as_leader([keyed((b"k1", None))], 0, NOW_MS)
    roll(log)
    log.flush()
    position = SameBoot(log.log_end_offset, log.active_base_offset, log.active_position, log.recovery_point)
    plan = plan_of(log, clean_to)
    assert plan is not None
    job = job_of(log, plan)
    log.abandon()
    model = {key: value for _, key, value in stored_pairs(source)}
    whole = {offset for offset, _, _ in stored_pairs(source)}
    how = {"clean": CLEAN, "same boot": position, "unclean": Unclean(position.recovery_point)}[recovery]
    for steps in range(1000):
        path = tmp_path / str(steps)
        shutil.copytree(source, path)
        log = open_log(path, COMPACTED)
        reports = reports_of(job._replace(directory=str(path)))
        with monkeypatch.context() as patch:
            _die_after(patch, steps)
            try:
                swap_in(log, reports)
                finished = True
            except Killed:
                finished = False
        log.abandon()
        for die_again_after in (0, 1, 3, 1000):  # the next start is killed as well
            with monkeypatch.context() as patch:
                _die_after(patch, die_again_after)
                try:
                    log = open_log(path, COMPACTED, how)
                    break
                except Killed:
                    continue
        pairs = stored_pairs(path)
        offsets = [offset for offset, _, _ in pairs]
        assert offsets == sorted(set(offsets)) and set(offsets) <= whole
        assert {key: value for _, key, value in pairs} == model
        assert log.log_end_offset == position.end_offset
        assert not [name for name in os.listdir(path) if name.endswith((".swap", ".cleaned", ".deleted"))]
        for name in os.listdir(path):
            assert not name.endswith(".log") or (path / name.replace(".log", ".index")).exists()
        end = log.log_end_offset
        reading = LogReading(str(path))
        assert all(reading.locate(offset, end).base_offset == offset for offset in offsets)
        log.close()
        if finished:
            break
    assert steps > 20


def _die_after(patch: pytest.MonkeyPatch, steps: int) -> None:
    left = [steps]
    for name in ("rename", "link", "unlink"):
        original = getattr(os, name)

        def call(*arguments: str, original: object = original) -> None:
            if not left[0]:
                raise Killed
            left[0] -= 1
            original(*arguments)  # type: ignore[operator]

        patch.setattr(file_io, name, call)


@pytest.mark.slow
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_any_failed_call_of_a_swap_leaves_a_log_that_opens_with_everything(tmp_path: Path, error: int) -> None:
    for fail_at in range(1, 500):
        path = tmp_path / str(fail_at)
        log, clean_to = compacted(path)
        log.flush()
        model = {key: value for _, key, value in stored_pairs(path)}
        plan = plan_of(log, clean_to)
        assert plan is not None
        reports = reports_of(job_of(log, plan))
        with failing_file_calls(fail_at, error=error) as faults:
            try:
                swap_in(log, reports)
            except (StorageFailed, OSError):
                pass
        if log.failed is None:  # nothing happened: it goes on
            log.append_as_leader([keyed((b"k0", b"on"))], 0, NOW_MS)
            model[b"k0"] = b"on"
        log.abandon()
        log = open_log(path, COMPACTED, Unclean(log.recovery_point))
        assert {key: value for _, key, value in stored_pairs(path)} == model
        log.close()
        if not faults.failed:
            break
    assert fail_at > 15


def test_a_run_reports_every_failed_file_call(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.flush()
    plan = plan_of(log)
    assert plan is not None
    job = job_of(log, plan)
    log.abandon()
    before = stored_bytes(tmp_path)
    for fail_at in range(1, 1000):
        with failing_file_calls(fail_at, error=errno.ENOSPC) as faults:
            reports = reports_of(job)
        for name in os.listdir(tmp_path):
            if name.endswith(".cleaned"):
                (tmp_path / name).unlink()
        assert stored_bytes(tmp_path) == before
        if not faults.failed:
            break
        if reports[-1].kind == "failed":
            assert "could not compact" in reports[-1].reason
    assert reports[-1].kind == "done" and fail_at > 50


def test_an_abort_whose_marker_is_not_in_the_log_takes_no_later_records_with_it() -> None:
    """Its segment went by retention and its files are still there, or a power cut left a hole."""
    gone, later = AbortedTxn(4, 15, 16, 17), AbortedTxn(4, 30, 33, 34)
    transactions = CleanedTransactions([gone, later])
    header = read_batch_header(with_producer(bytes(keyed((b"k", b"v"))), (4, 0, 0), TRANSACTIONAL_FLAG))
    assert [transactions.is_aborted(header._replace(base_offset=offset)) for offset in (15, 19, 30)] == [True, False, True]
