"""How far a log survives a power cut, and what a flush takes so that it does: the names of segments too, once; and no further than the log reaches."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.storage.log import Log
from appliance.storage.log_config import LogConfig
from tests.unit.storage.compaction_support import COMPACTED, compact, keyed
from tests.unit.storage.storage_support import NOW_MS, batch, open_log


def _flushed_directory(log: Log) -> str | None:
    """Of a whole round: the directory that it syncs, '' if none; None if nothing was due."""
    flush = log.flush_files()
    if flush is None:
        return None
    directory = "" if flush.pinned is None else os.path.realpath(flush.pinned.path)
    flush.sync()
    log.advance_recovery_point(flush.end_offset)
    return directory


def _roll(log: Log) -> None:
    log.roll()


def _begin_elsewhere(log: Log) -> None:
    log.begin_segment(log.log_end_offset + 5)


def _begin_while_empty(log: Log) -> None:
    log.roll()
    assert _flushed_directory(log) == log.directory
    log.begin_segment(log.log_end_offset + 5)


def _compact(log: Log) -> None:
    generation = log.segment_list_generation
    compact(log)
    assert log.segment_list_generation > generation and log.recovery_point == log.log_end_offset


@pytest.mark.parametrize(
    ("act", "config"),
    [
        pytest.param(_roll, LogConfig(), id="rolled"),
        pytest.param(_begin_elsewhere, LogConfig(), id="begun behind a gap"),
        pytest.param(_begin_while_empty, LogConfig(), id="begun elsewhere while empty"),
        pytest.param(_compact, COMPACTED, id="compacted"),
    ],
)
def test_a_segments_name_is_synced_with_the_round_that_follows_it(tmp_path: Path, act: Callable[[Log], None], config: LogConfig) -> None:
    log = open_log(tmp_path, config)
    for number in range(12):
        log.append_as_leader([keyed((b"k", b"%d" % number + b"x" * 100))], 0, NOW_MS)
    assert _flushed_directory(log) == log.directory, "the first segment's name, and the leader epochs'"
    log.append_as_leader([keyed((b"k", b"more"))], 0, NOW_MS)
    assert _flushed_directory(log) == "", "no name has come"
    act(log)
    assert _flushed_directory(log) == log.directory
    assert _flushed_directory(log) is None
    log.close()


def test_a_batch_flush_syncs_a_segments_name_once(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig())
    directories = []
    for number in range(4):
        if number == 2:
            log.roll()
        log.append_as_leader([batch(b"x")], 0, NOW_MS)
        flush = log.plan_batch_flush()
        assert flush is not None and flush.end_offset == number + 1
        log.on_batches_flushed(flush)
        directories.append(flush.directory)
        assert log.plan_batch_flush() is None
    assert directories == [log.directory, "", log.directory, ""]
    assert (log.durable_offset, log.recovery_point) == (4, 0), "the recovery point waits for all files that refer to them"
    log.close()


def test_a_log_that_is_cut_is_durable_no_further_than_it_reaches(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig())
    log.append_as_leader([batch(b"x") for _ in range(10)], 0, NOW_MS)
    log.flush()
    log.append_as_leader([batch(b"y") for _ in range(10)], 0, NOW_MS)
    log.flush_batches()
    assert (log.recovery_point, log.durable_offset) == (10, 20)
    log.truncate_to(15)
    assert (log.recovery_point, log.durable_offset) == (10, 15)
    log.truncate_to(5)
    assert (log.recovery_point, log.durable_offset) == (5, 5)
    log.append_as_leader([batch(b"z")], 0, NOW_MS)
    flush = log.plan_batch_flush()
    assert flush is not None and flush.directory == log.directory, "the segment was opened anew"
    log.advance_recovery_point(20)
    assert (log.recovery_point, log.durable_offset) == (6, 6)
    log.close()
