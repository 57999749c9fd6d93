"""A log is copied while it is written, cut back, started over, completed; and its copy is promoted: byte by byte the same log."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import DiskFull, StorageFailed
from appliance.records.batch import stamp_batch
from appliance.storage import checkpoints, file_io
from appliance.storage import log as log_module
from appliance.storage.future_directories import FutureDirectories, FutureLog, settle
from appliance.storage.log import Log
from appliance.storage.log_config import LogConfig
from appliance.storage.log_directory import LogDirectory
from appliance.storage.log_move import LogMove
from appliance.storage.move_record import MOVE_RECORD, Complete, MoveRecord, read_move
from appliance.storage.move_source import SourceChanged, SourceFailed, SourceState
from appliance.storage.recovery import CLEAN, Unclean
from appliance.storage.retention import FreeSpaceReserve
from tests.unit.storage.storage_support import NAME, NOW_MS, SMALL, TOPIC_ID, batch, open_log, stored_bytes, stored_records

NO_RESERVE = FreeSpaceReserve(0, 0)
CONFIG: Mapping[str, str] = {"index.interval.bytes": "150"}


class Move:
    """A source on one disk, that is written here, and its copy on another."""

    def __init__(self, path: Path, config: LogConfig = SMALL) -> None:
        self.source_path = path / "source" / str(NAME)
        self.source_path.mkdir(parents=True)
        self.source: Log = open_log(self.source_path, config)
        self.life = 1
        self.target_path = path / "target"
        self.directory = LogDirectory.open(str(self.target_path), 1, None, ManualClock(NOW_MS))
        self.futures = FutureDirectories(self.directory)
        self.future: FutureLog = self.futures.make(TOPIC_ID, MoveRecord(NAME.topic, NAME.partition, "d0", "id", -1))
        self.copy = self.begin()

    def begin(self, reserve: FreeSpaceReserve = NO_RESERVE) -> LogMove:
        """Another incarnation of the mover."""
        self.copy = LogMove(self.future.path, str(self.source_path), TOPIC_ID, CONFIG, ManualClock(NOW_MS), reserve)
        return self.copy

    def append(self, count: int, leader_epoch: int = 0, producer: int | None = None) -> None:
        start = self.source.log_end_offset
        for number in range(start, start + count):
            one = batch(b"%d " % number + b"v" * 80, producer=None if producer is None else (producer, 0, number))
            self.source.append_as_leader([one], leader_epoch, NOW_MS)

    @property
    def state(self) -> SourceState:
        log = self.source
        return SourceState(self.life, log.log_start_offset, log.log_end_offset, log.active_base_offset, is_led=False)

    def catch_up(self) -> None:
        self.copy.align(self.state)
        while self.copy.copy_some(self.state):
            pass

    def complete(self) -> Complete:
        self.source.snapshot_producers()
        self.catch_up()
        wanted = Complete(self.source.log_end_offset, self.source.log_end_offset, self.source.log_start_offset)
        self.copy.complete(self.state, wanted)
        self.copy.close()
        return wanted

    def promote(self) -> Log:
        """What the log-writer of the target does; the log that it opens."""
        future = self.futures.look_again(self.future)
        assert future.complete is not None
        self.futures.promote(future)
        return open_log(self.target_path / str(NAME), recovery=CLEAN, log_start_offset=future.complete.log_start_offset)

    def hurt_source(self, recovery_point: int) -> None:
        """A power cut at the source, which had synced so much."""
        self.source.abandon()
        self.source = open_log(self.source_path, recovery=Unclean(0))
        self.source.truncate_to(recovery_point)
        self.life += 1

    def batches(self, path: str | Path) -> bytes:
        return b"".join(content for name, content in stored_bytes(Path(path)).items() if name.endswith(".log"))


@pytest.fixture
def move(tmp_path: Path) -> Move:
    return Move(tmp_path)


def delete_all(directory: LogDirectory) -> None:
    while directory.is_deleting:
        directory.delete_some(1 << 20)


def same_files(move: Move) -> None:
    """Segments and indexes of the promoted log are those of a source that was closed."""
    move.source.close()
    source, target = stored_bytes(move.source_path), stored_bytes(move.target_path / str(NAME))
    kinds = (".log", ".index", ".timeindex", ".txnindex", "leader-epoch-checkpoint")
    assert {name: content for name, content in target.items() if name.endswith(kinds)} == {
        name: content for name, content in source.items() if name.endswith(kinds)
    }


def test_a_promoted_log_has_the_bytes_the_segments_and_the_indexes_of_its_source(move: Move) -> None:
    move.append(30)
    move.append(5, leader_epoch=3, producer=7)
    move.catch_up()
    move.append(20, leader_epoch=4, producer=7)
    wanted = move.complete()
    log = move.promote()
    assert (log.log_end_offset, log.recovery_point) == (wanted.log_end_offset, wanted.log_end_offset)
    assert log.leader_epochs.entries == move.source.leader_epochs.entries and len(log.segment_base_offsets) > 5
    entry, known = move.source.producers.entry(7), log.producers.entry(7)
    assert entry is not None and known is not None and known.last_sequence == entry.last_sequence and known.batches == entry.batches[-1:]
    log.close()
    same_files(move)


def test_all_batches_that_a_producer_may_send_again_survive_the_promotion(move: Move) -> None:
    move.append(4, producer=6)
    move.append(20, producer=7)
    move.complete()
    record = read_move(move.future.path)
    assert record is not None
    log = move.promote()
    # Of another epoch, and of an unknown producer.
    log.producers.remember_earlier([(6, 1, [[0, 0, 0, 0, 0]]), (8, 0, [[0, 0, 0, 0, 0]])])
    log.producers.remember_earlier(record.recent_batches)
    for producer_id, count in ((6, 4), (7, 5)):
        known, expected = log.producers.entry(producer_id), move.source.producers.entry(producer_id)
        assert known is not None and expected is not None and known.batches == expected.batches and len(known.batches) == count
    log.close()


def test_nothing_that_the_targets_checkpoints_say_of_a_former_log_is_said_of_a_promoted_one(move: Move) -> None:
    """A topic of that name was there once, and its log was longer."""
    move.directory.checkpoints.save(checkpoints.LOG_START_OFFSETS, lambda: {NAME: 1000})
    move.directory.checkpoints.save(checkpoints.RECOVERY_POINTS, lambda: {NAME: 1000})
    move.append(10)
    move.complete()
    move.promote().abandon()
    for name in (checkpoints.LOG_START_OFFSETS, checkpoints.RECOVERY_POINTS):
        assert checkpoints.read_offsets(str(move.target_path / name)) == {}


def test_the_record_stays_in_a_promoted_log_until_it_is_settled(move: Move) -> None:
    move.append(10)
    wanted = move.complete()
    move.promote().abandon()
    path = move.target_path / str(NAME)
    record = read_move(str(path))
    assert record is not None and record.complete == wanted and record.topic_partition == NAME
    settle(str(path))
    assert read_move(str(path)) is None and not (path / MOVE_RECORD).exists()


def test_a_copy_begins_at_the_segment_of_the_log_start_and_forgets_what_retention_takes(move: Move) -> None:
    move.append(60, producer=9)
    removed = move.source.advance_log_start_offset(31)
    assert removed is not None
    move.catch_up()
    assert move.copy.log.segment_base_offsets[0] == move.source.segment_base_offsets[0] > 20
    removed.rename()
    removed.close()
    again = move.source.advance_log_start_offset(52)
    assert again is not None
    again.rename()
    again.close()
    move.complete()
    log = move.promote()
    assert (log.log_start_offset, log.segment_base_offsets) == (52, move.source.segment_base_offsets)
    assert move.batches(log.directory) == move.batches(move.source_path)
    known, expected = log.producers.entry(9), move.source.producers.entry(9)
    assert known is not None and expected is not None and known.last_sequence == expected.last_sequence
    log.close()


def test_producers_whose_batches_retention_took_are_known_to_the_copy(move: Move) -> None:
    move.append(5, producer=4)
    move.append(40)
    removed = move.source.advance_log_start_offset(40)
    assert removed is not None
    removed.rename()
    removed.close()
    move.complete()
    log = move.promote()
    known, expected = log.producers.entry(4), move.source.producers.entry(4)
    assert known is not None and expected is not None and known.last_sequence == expected.last_sequence
    log.close()


def test_a_copy_of_a_shortened_log_has_the_snapshot_of_its_first_segment_as_the_source_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the first segment is the active one and snapshots lie behind its beginning: only it
    has the producers below.
    """
    monkeypatch.setattr(log_module, "SNAPSHOT_INTERVAL_BYTES", 200)
    move = Move(tmp_path, SMALL._replace(segment_bytes=4000))
    move.append(60, producer=9)
    move.source.flush()
    first = move.source.active_base_offset
    move.append(1, producer=9)
    removed = move.source.advance_log_start_offset(first)
    assert removed is not None
    removed.rename()
    removed.close()
    assert move.source.segment_base_offsets == [first]
    move.catch_up()
    for _ in range(3):
        move.source.snapshot_producers()
        move.source.flush()
        move.append(1, producer=9)
        move.catch_up()
        move.copy.flush(move.state)
    assert move.source.segment_base_offsets == [first]
    snapshot = f"{first:020d}.snapshot"
    assert snapshot in os.listdir(move.source_path) and snapshot in os.listdir(move.future.path)
    move.complete()
    log = move.promote()
    assert snapshot in os.listdir(log.directory)
    log.close()


def test_a_log_that_lost_everything_to_retention_is_moved_with_its_offsets(move: Move) -> None:
    move.append(20)
    move.source.roll()
    removed = move.source.advance_log_start_offset(20)
    assert removed is not None
    removed.rename()
    removed.close()
    assert move.complete() == Complete(20, 20, 20)
    log = move.promote()
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (20, 20, 0)
    log.close()


def test_a_compacted_log_keeps_its_gaps_and_its_end(tmp_path: Path) -> None:
    """A gap before the end of the log, where nothing but an empty segment follows."""
    move = Move(tmp_path)
    move.append(8)
    for base in (20, 40):
        move.source.begin_segment(base)
        move.source.append_as_follower([_at(batch(b"x" * 50), base)])
    move.source.begin_segment(100)
    move.complete()
    log = move.promote()
    assert log.log_end_offset == 100 and log.segment_base_offsets[-3:] == [20, 40, 100]
    assert stored_records(Path(log.directory)) == stored_records(move.source_path)
    log.close()


def _at(raw: memoryview, offset: int) -> memoryview:
    stamp_batch(raw, 0, offset, 0)
    return raw


def test_a_mover_that_died_goes_on_behind_what_it_had_synced(move: Move) -> None:
    move.append(40)
    move.catch_up()
    move.copy.flush(move.state)
    synced = move.copy.log.log_end_offset
    move.append(10)
    move.catch_up()
    move.copy.close()
    move.append(5)
    copy = move.begin()
    copy.align(move.state)
    assert copy.log.log_end_offset == synced == 40
    move.complete()
    log = move.promote()
    log.close()
    same_files(move)


def test_a_copy_that_is_ahead_of_a_source_that_lost_its_end_is_cut_by_leader_epoch(move: Move) -> None:
    move.append(30)
    move.catch_up()
    move.copy.flush(move.state)
    move.hurt_source(25)
    move.append(10, leader_epoch=1)
    assert move.source.log_end_offset == 35
    move.complete()
    log = move.promote()
    log.close()
    same_files(move)


def test_a_copy_is_cut_by_leader_epoch_and_not_by_the_log_end(move: Move) -> None:
    """The source lost what the copy has, and is at the same end again with other records: only the leader epochs tell."""
    move.append(30)
    move.catch_up()
    move.copy.flush(move.state)
    move.hurt_source(20)
    move.append(10, leader_epoch=5)
    move.copy.close()
    copy = move.begin()
    copy.align(move.state)
    assert copy.log.log_end_offset == 20
    move.complete()
    log = move.promote()
    log.close()
    same_files(move)


def test_a_copy_of_a_leader_epoch_that_the_source_lost_is_cut_to_where_both_agree(move: Move) -> None:
    move.append(10)
    move.append(10, leader_epoch=2)
    move.append(10, leader_epoch=3)
    move.catch_up()
    move.hurt_source(10)
    move.source.leader_epochs.truncate_from_end(10)
    move.append(25, leader_epoch=4)
    move.complete()
    log = move.promote()
    log.close()
    same_files(move)


def test_a_source_that_was_compacted_meanwhile_is_copied_anew(move: Move) -> None:
    move.append(30)
    move.catch_up()
    move.copy.flush(move.state)
    move.copy.close()
    checkpoints.write_offsets(str(move.source_path.parent / checkpoints.CLEANED), {NAME: 12})
    copy = move.begin()
    assert copy.record.source_cleaned_offset == 0 and copy.record.recovery_point == 30
    copy.align(move.state)
    assert copy.log.log_end_offset == 0
    record = read_move(move.future.path)
    assert record is not None and (record.source_cleaned_offset, record.recovery_point) == (12, 0)
    move.complete()
    move.promote().close()


def test_a_copy_is_not_complete_if_the_source_was_compacted_before_its_end(move: Move) -> None:
    move.append(10)
    move.catch_up()
    checkpoints.write_offsets(str(move.source_path.parent / checkpoints.CLEANED), {NAME: 5})
    with pytest.raises(SourceChanged, match="compacted"):
        move.copy.complete(move.state, Complete(10, 10, 0))
    assert read_move(move.future.path).complete is None  # type: ignore[union-attr]
    move.complete()
    move.promote().close()


def test_nothing_is_complete_that_does_not_end_where_it_should(move: Move) -> None:
    move.append(10)
    move.catch_up()
    with pytest.raises(SourceChanged, match="ends at 10, not at 9"):
        move.copy.complete(move.state, Complete(9, 9, 0))
    assert read_move(move.future.path).complete is None  # type: ignore[union-attr]
    move.copy.close()


def test_copying_on_first_withdraws_the_completion_record(move: Move) -> None:
    move.append(10)
    move.complete()
    move.append(10)
    copy = move.begin()
    copy.align(move.state)
    record = read_move(move.future.path)
    assert record is not None and record.complete is None and record.recovery_point == 10
    assert copy.log.log_end_offset == 10
    move.complete()
    move.promote().close()
    same_files(move)


def test_nothing_behind_the_end_that_the_owner_reports_is_copied(move: Move) -> None:
    move.append(10)
    told = move.state
    move.append(10)
    move.copy.align(told)
    while move.copy.copy_some(told):
        pass
    assert move.copy.log.log_end_offset == 10
    move.copy.close()


def test_a_damaged_batch_of_the_source_is_not_copied(move: Move) -> None:
    move.append(3)
    path = move.source_path / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    move.copy.align(move.state)
    move.copy.copy_some(move.state)
    with pytest.raises(SourceChanged, match="checksum"):
        move.copy.copy_some(move.state)
    assert move.copy.log.log_end_offset == 1
    move.copy.close()


def test_a_source_that_is_gone_is_said_to_have_changed(move: Move) -> None:
    move.append(30)
    move.copy.align(move.state)
    shutil.rmtree(move.source_path)
    with pytest.raises((SourceChanged, SourceFailed)):
        while move.copy.copy_some(move.state):
            pass
    move.copy.close()


def test_a_copy_stops_before_it_takes_the_disks_reserve(move: Move, monkeypatch: pytest.MonkeyPatch) -> None:
    move.append(10)
    monkeypatch.setattr(file_io, "space", lambda _path: file_io.Space(1 << 30, 58 << 20))
    copy = move.begin(FreeSpaceReserve(1 << 30, 5))
    copy.align(move.state)
    with pytest.raises(DiskFull, match="too little space"):
        copy.copy_some(move.state)
    monkeypatch.setattr(file_io, "space", lambda _path: file_io.Space(1 << 30, 1 << 29))
    move.complete()
    move.promote().close()


def test_a_future_is_found_again_by_its_name_and_kafkas_own_are_left_alone(move: Move) -> None:
    move.append(10)
    wanted = move.complete()
    foreign = move.target_path / f"other-0.{'ab' * 16}-future"
    foreign.mkdir()
    (foreign / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}")
    halfway = move.target_path / f"other-1.{bytes(range(1, 17)).hex()}-future"
    halfway.mkdir()
    again = FutureDirectories(move.directory)
    again.load()
    assert [(future.topic_partition, future.complete) for future in again.futures.values()] == [(NAME, wanted)]
    assert again.make(TOPIC_ID, MoveRecord(NAME.topic, NAME.partition, "d0", "id")).complete == wanted, "what is there is kept"
    delete_all(move.directory)
    assert foreign.exists() and not halfway.exists()
    again.remove(again.futures[TOPIC_ID, NAME.partition])
    assert not os.path.exists(move.future.path)
    delete_all(move.directory)
    assert sorted(name for name in os.listdir(move.target_path) if "-" in name and not name.startswith(".")) == [foreign.name]


def test_a_log_is_never_promoted_over_a_record_that_is_broken(move: Move) -> None:
    Path(move.future.path, MOVE_RECORD).write_bytes(b"{}")
    with pytest.raises(StorageFailed, match="not the record of a move"):
        move.begin()
    again = FutureDirectories(move.directory)
    again.load()
    assert not again.futures and "not the record" in move.directory.problems[-1]
    assert os.path.isdir(move.future.path)


def test_bytes_read_while_the_source_restarted_are_not_used(move: Move) -> None:
    """It may have cut the log, and written something else in its place, while we read."""
    move.append(30)
    move.catch_up()
    move.append(2)
    with pytest.raises(SourceChanged, match="another owner"):
        move.copy.copy_some(move.state, lambda: False)
    assert move.copy.log.log_end_offset == 30
    move.hurt_source(20)
    move.append(20, leader_epoch=5)
    move.complete()
    move.promote().close()
    same_files(move)


def test_a_move_does_not_complete_over_another_incarnation_of_the_source(move: Move) -> None:
    move.append(10)
    move.catch_up()
    with pytest.raises(SourceChanged, match="another owner"):
        move.copy.complete(move.state, Complete(10, 10, 0), lambda: False)
    record = read_move(move.future.path)
    assert record is not None and record.complete is None
    move.complete()
    move.promote().close()
    same_files(move)
