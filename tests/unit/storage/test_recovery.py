"""What a log is after each kind of end."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.storage import file_io
from appliance.storage.log import Log
from appliance.storage.log_config import LogConfig
from appliance.storage.recovery import CLEAN, SameBoot, Unclean
from tests.unit.storage.storage_support import NOW_MS, SMALL, batch, open_log, stored_bytes, stored_records

ONE_SEGMENT = LogConfig(index_interval_bytes=150)


def filled(path: Path, config: LogConfig = SMALL, count: int = 20) -> Log:
    log = open_log(path, config)
    for number in range(count):
        log.append_as_leader([batch(b"%d" % number + b"x" * 80, timestamp_ms=NOW_MS + number)], 1 + number // 10, NOW_MS)
    return log


def position_of(log: Log, recovery_point: int = 0) -> SameBoot:
    return SameBoot(log.log_end_offset, log.active_base_offset, log.active_position, recovery_point)


def last_log(path: Path) -> Path:
    return max(path.glob("*.log"))


def test_a_clean_log_opens_as_it_was_closed(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    files = stored_bytes(tmp_path)
    again = open_log(tmp_path)
    assert (again.log_end_offset, again.recovery_point, again.segment_base_offsets) == (20, 20, log.segment_base_offsets)
    assert again.leader_epochs.entries == ((1, 0), (2, 10))
    assert stored_bytes(tmp_path) == files
    again.append_as_leader([batch(b"on")], 2, NOW_MS)
    again.close()


def test_opening_a_clean_log_reads_only_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, ONE_SEGMENT, 3000).close()
    read: list[int] = []
    pread = file_io.pread

    def counted(fd: int, size_bytes: int, position: int) -> bytes:
        data = pread(fd, size_bytes, position)
        read.append(len(data))
        return data

    monkeypatch.setattr(file_io, "pread", counted)
    open_log(tmp_path, ONE_SEGMENT).abandon()
    assert sum(read) < 20_000 < last_log(tmp_path).stat().st_size


def test_in_the_same_boot_only_what_lies_behind_the_position_is_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path, ONE_SEGMENT, 3000)
    position = position_of(log)
    log.append_as_leader([batch(b"behind the row")], 1000, NOW_MS)
    log.abandon()
    read: list[int] = []
    pread = file_io.pread

    def counted(fd: int, size_bytes: int, at: int) -> bytes:
        data = pread(fd, size_bytes, at)
        read.append(len(data))
        return data

    monkeypatch.setattr(file_io, "pread", counted)
    again = open_log(tmp_path, ONE_SEGMENT, recovery=position)
    assert again.log_end_offset == 3001
    assert sum(read) < 20_000 < last_log(tmp_path).stat().st_size
    again.abandon()


def test_in_the_same_boot_a_torn_append_is_cut_and_whole_batches_are_kept(tmp_path: Path) -> None:
    log = filled(tmp_path)
    position = position_of(log)
    log.append_as_leader([batch(b"whole")], 2, NOW_MS)
    log.abandon()
    with last_log(tmp_path).open("ab") as file:
        file.write(bytes(batch(b"torn"))[:40])
    again = open_log(tmp_path, recovery=position)
    assert (again.log_end_offset, again.recovered_cut_bytes) == (21, 40)
    assert stored_records(tmp_path)[-1] == (20, b"whole")
    again.close()


def test_in_the_same_boot_segments_that_were_rolled_behind_the_position_are_found(tmp_path: Path) -> None:
    log = filled(tmp_path, count=2)
    position = position_of(log)
    for number in range(2, 20):
        log.append_as_leader([batch(b"%d" % number + b"x" * 80)], 2, NOW_MS)
    files, bases = stored_bytes(tmp_path), log.segment_base_offsets
    log.abandon()
    again = open_log(tmp_path, recovery=position)
    assert (again.log_end_offset, again.segment_base_offsets) == (20, bases)
    again.close()
    after = stored_bytes(tmp_path)
    assert {name: after[name] for name in files if name.endswith((".log", ".index"))} == {
        name: content for name, content in files.items() if name.endswith((".log", ".index"))
    }


@pytest.mark.parametrize("lie", ["shorter file", "other offset", "not a boundary", "damaged before", "no such segment"])
def test_a_position_that_the_file_contradicts_leads_to_a_whole_scan(tmp_path: Path, lie: str) -> None:
    log = filled(tmp_path, ONE_SEGMENT)
    position = position_of(log)
    log.abandon()
    path, expected = last_log(tmp_path), 20
    size_bytes = path.stat().st_size
    if lie == "shorter file":
        with path.open("r+b") as file:
            file.truncate(size_bytes - 1)
        expected = 19
    elif lie == "other offset":
        position = position._replace(end_offset=25)
    elif lie == "not a boundary":
        position = position._replace(active_position=size_bytes - 3)
    elif lie == "damaged before":
        with path.open("r+b") as file:
            file.seek(size_bytes - 5)
            file.write(b"?")
        expected = 19
    else:
        position = position._replace(active_base_offset=7)
    again = open_log(tmp_path, ONE_SEGMENT, recovery=position)
    assert again.log_end_offset == expected
    assert [offset for offset, _ in stored_records(tmp_path)] == list(range(expected))
    again.close()


def test_an_unclean_log_is_cut_at_the_first_bad_batch_and_later_segments_go(tmp_path: Path) -> None:
    log = filled(tmp_path)
    bases = log.segment_base_offsets
    log.abandon()
    damaged = tmp_path / f"{bases[2]:020d}.log"
    raw = bytearray(damaged.read_bytes())
    raw[len(raw) // 2] ^= 1
    damaged.write_bytes(raw)
    again = open_log(tmp_path, recovery=Unclean(0))
    assert again.segment_base_offsets == bases[:3]
    assert [offset for offset, _ in stored_records(tmp_path)] == list(range(again.log_end_offset))
    assert bases[2] < again.log_end_offset < bases[3]
    again.close()


def test_in_the_same_boot_a_bad_batch_behind_the_position_cuts_and_the_indexes_forget_it(tmp_path: Path) -> None:
    log = filled(tmp_path, ONE_SEGMENT, 10)
    position = position_of(log)
    for number in range(10, 20):
        log.append_as_leader([batch(b"x" * 200, timestamp_ms=NOW_MS + number)], 1, NOW_MS)
    log.abandon()
    with last_log(tmp_path).open("r+b") as file:
        file.seek(position.active_position + 100)
        file.write(b"?")
    again = open_log(tmp_path, ONE_SEGMENT, recovery=position)
    assert again.log_end_offset == 10
    again.close()
    files = stored_bytes(tmp_path)
    open_log(tmp_path, ONE_SEGMENT, recovery=Unclean(0)).close()
    assert stored_bytes(tmp_path) == files


def test_a_file_that_lost_what_was_known_to_be_there_is_scanned_whole(tmp_path: Path) -> None:
    log = filled(tmp_path, ONE_SEGMENT)
    before_last = log.active_position
    log.append_as_leader([batch(b"lost")], 2, NOW_MS)
    position = position_of(log)
    log.abandon()
    with last_log(tmp_path).open("r+b") as file:
        file.truncate(before_last)
        file.seek(400)
        file.write(b"?")
    again = open_log(tmp_path, ONE_SEGMENT, recovery=position)
    assert again.log_end_offset == 2
    again.close()


def test_a_compacted_log_may_have_holes_and_ends_at_a_bad_batch_all_the_same(tmp_path: Path) -> None:
    compacted = SMALL._replace(cleanup_policy="compact")
    log = filled(tmp_path)
    bases = log.segment_base_offsets
    log.abandon()
    (tmp_path / f"{bases[1]:020d}.log").write_bytes(b"")
    log = open_log(tmp_path, compacted, Unclean(0))
    assert (log.log_end_offset, log.segment_base_offsets) == (20, bases)
    log.abandon()
    with (tmp_path / f"{bases[2]:020d}.log").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"?")
    log = open_log(tmp_path, compacted, Unclean(0))
    assert log.segment_base_offsets == bases[:3] and bases[2] < log.log_end_offset < bases[3]
    log.close()


def test_a_hole_that_a_power_cut_left_ends_the_log(tmp_path: Path) -> None:
    log = filled(tmp_path)
    bases = log.segment_base_offsets
    log.abandon()
    (tmp_path / f"{bases[2]:020d}.log").write_bytes(b"")
    again = open_log(tmp_path, recovery=Unclean(0))
    assert (again.log_end_offset, again.segment_base_offsets) == (bases[2], bases[:3])
    again.close()


def test_damage_below_the_recovery_point_is_not_looked_for(tmp_path: Path) -> None:
    log = filled(tmp_path)
    bases = log.segment_base_offsets
    log.abandon()
    damaged = tmp_path / f"{bases[0]:020d}.log"
    damaged.write_bytes(bytes(len(damaged.read_bytes())))
    again = open_log(tmp_path, recovery=Unclean(bases[2]))
    assert again.log_end_offset == 20
    again.close()


def test_a_rebuilt_index_equals_the_one_that_appends_wrote(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    files = stored_bytes(tmp_path)
    for path in [*tmp_path.glob("*.index"), *tmp_path.glob("*.timeindex")]:
        path.write_bytes(b"garbage")
    open_log(tmp_path, recovery=Unclean(0)).close()
    assert stored_bytes(tmp_path) == files


@pytest.mark.parametrize("damage", [b"", b"\x00" * 8, b"\x00" * 80, b"garbage!" * 3, b"odd"])
def test_a_broken_index_of_a_clean_log_is_rebuilt(tmp_path: Path, damage: bytes) -> None:
    filled(tmp_path, ONE_SEGMENT).close()
    files = stored_bytes(tmp_path)
    (tmp_path / "00000000000000000000.index").write_bytes(damage)
    again = open_log(tmp_path, ONE_SEGMENT)
    assert again.log_end_offset == 20
    again.close()
    if damage:
        assert stored_bytes(tmp_path) == files


def test_a_sealed_segment_that_lost_its_index_gets_a_new_one(tmp_path: Path) -> None:
    filled(tmp_path).close()
    files = stored_bytes(tmp_path)
    (tmp_path / "00000000000000000000.index").unlink()
    (tmp_path / "00000000000000000000.timeindex").unlink()
    open_log(tmp_path).close()
    assert stored_bytes(tmp_path) == files


@pytest.mark.parametrize("content", [b"0\n1\n500 0\n", b"0\n3\n1 0\n2 10\n2147483647 15\n"])
@pytest.mark.parametrize("config", [SMALL, ONE_SEGMENT])
def test_leader_epochs_that_no_batch_has_are_not_believed(tmp_path: Path, config: LogConfig, content: bytes) -> None:
    """Such a partition refused to lead until the controller's epochs had grown beyond them."""
    filled(tmp_path, config).close()
    (tmp_path / "leader-epoch-checkpoint").write_bytes(content)
    log = open_log(tmp_path, config)
    assert log.leader_epochs.entries == ((1, 0), (2, 10))
    log.close()
    assert open_log(tmp_path, config).leader_epochs.entries == ((1, 0), (2, 10))


def test_leftovers_are_swept_and_unknown_files_stay(tmp_path: Path) -> None:
    filled(tmp_path).close()
    left = [
        "00000000000000000007.index",
        "00000000000000000007.summary",
        "00000000000000000000.summary.tmp",
        "00000000000000000000.log.deleted",
        "00000000000000000000.log.cleaned",
        "leader-epoch-checkpoint.tmp",
    ]
    for name in [*left, "notes.txt"]:
        (tmp_path / name).write_bytes(b"x")
    open_log(tmp_path).close()
    assert (tmp_path / "notes.txt").exists()
    assert not [name for name in left if (tmp_path / name).exists()]


def test_an_interrupted_compaction_of_kafka_is_finished_as_kafka_does(tmp_path: Path) -> None:
    filled(tmp_path).close()
    compacted = (tmp_path / "00000000000000000000.log").read_bytes()
    (tmp_path / "00000000000000000000.log.swap").write_bytes(compacted)
    (tmp_path / "00000000000000000000.log").write_bytes(compacted + b"what it replaces")
    (tmp_path / "00000000000000000000.index").unlink()
    before = stored_bytes(tmp_path)
    log = open_log(tmp_path)
    log.close()
    after = stored_bytes(tmp_path)
    assert after["00000000000000000000.log"] == compacted and "00000000000000000000.index" in after
    assert not [name for name in after if name.endswith(".swap")]
    assert {name for name in before if name.endswith(".log")} == {name for name in after if name.endswith(".log")}


def test_a_swap_beside_what_was_not_complete_is_dropped(tmp_path: Path) -> None:
    filled(tmp_path).close()
    before = stored_bytes(tmp_path)
    (tmp_path / "00000000000000000000.log.cleaned").write_bytes(b"half")
    (tmp_path / "00000000000000000000.index.swap").write_bytes(b"x")
    open_log(tmp_path).close()
    assert stored_bytes(tmp_path) == before


@pytest.mark.parametrize("recovery", [CLEAN, Unclean(0)])
def test_a_torn_epoch_checkpoint_is_rebuilt_from_the_batches(tmp_path: Path, recovery: Unclean) -> None:
    filled(tmp_path).close()
    (tmp_path / "leader-epoch-checkpoint").write_bytes(b"0\n2\n1 0\n")
    log = open_log(tmp_path, recovery=recovery)
    assert log.leader_epochs.entries == ((1, 0), (2, 10))
    log.close()


def test_epochs_behind_the_checkpoint_are_found_by_the_scan(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.abandon()
    (tmp_path / "leader-epoch-checkpoint").write_bytes(b"0\n1\n1 0\n")
    log = open_log(tmp_path, recovery=Unclean(0))
    assert log.leader_epochs.entries == ((1, 0), (2, 10))
    log.close()


def test_a_log_that_ends_below_its_start_offset_begins_anew_there(tmp_path: Path) -> None:
    filled(tmp_path).abandon()
    log = open_log(tmp_path, recovery=Unclean(0), log_start_offset=50)
    assert (log.log_start_offset, log.log_end_offset, log.segment_base_offsets) == (50, 50, [50])
    log.close()
    assert stored_records(tmp_path) == []
