"""The scrubber, stepped by hand: its pace, its state over a restart, and its reports."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.base.layout import BoxLayout, Disk
from appliance.base.logging import Logger
from appliance.base.model import TopicPartition
from appliance.ipc.disk_reports import read_report
from appliance.shm.counters import Counters
from appliance.storage import file_io
from appliance.storage.log_config import LogConfig
from services.log_reader.scrubber import IDLE_SECONDS, Scrubber
from tests.support.cold_segments import make_cold, resident_bytes
from tests.unit.storage.storage_support import NOW_MS, batch, open_log

RATE = 1000
PAUSE_MS = 3_600_000
VALUE = b"v" * 100


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Two partitions of four segments each, of which three are closed."""
    monkeypatch.setattr(file_io, "fsync", os.fstat)
    monkeypatch.setattr(file_io, "fdatasync", os.fstat)
    for name in ("one-0", "two-1"):
        (tmp_path / name).mkdir()
        log = open_log(tmp_path / name, LogConfig(segment_bytes=200))
        for _ in range(4):
            log.append_as_leader([batch(VALUE)], 0, NOW_MS)
        log.close()
    (tmp_path / "lost+found").mkdir()
    return Disk("d0", str(tmp_path))


@pytest.fixture
def make(layout: BoxLayout, disk: Disk) -> Iterator[Callable[[ManualClock], Scrubber]]:
    counters = Counters.create_or_adopt(layout, "log-reader@d0", 1)
    yield lambda clock: Scrubber(disk, f"{layout.runtime_directory}/scrub.d0", clock, counters, Logger("log-reader@d0", descriptor=2), RATE, PAUSE_MS)
    counters.close()


def whole_pass(scrubber: Scrubber, clock: ManualClock) -> float:
    """The seconds that a pass takes when its pace is kept."""
    seconds, passes = 0.0, scrubber.report.passes
    while scrubber.report.passes == passes:
        wait = scrubber.step()
        clock.advance_ms(int(wait * 1000))
        seconds += wait
    return seconds


def test_a_pass_reads_every_closed_segment_at_its_rate(make: Callable[[ManualClock], Scrubber], disk: Disk) -> None:
    clock = ManualClock()
    scrubber = make(clock)
    sizes = [sum(path.stat().st_size for path in sorted(Path(disk.path, name).glob("*.log"))[:-1]) for name in ("one-0", "two-1")]
    assert whole_pass(scrubber, clock) == pytest.approx(sum(sizes) / RATE + IDLE_SECONDS)
    assert (scrubber.report.checked_bytes, scrubber.report.damages) == (sum(sizes), ())


def test_the_next_pass_waits_for_the_pause(make: Callable[[ManualClock], Scrubber]) -> None:
    clock = ManualClock()
    scrubber = make(clock)
    whole_pass(scrubber, clock)
    clock.advance_ms(PAUSE_MS - 10_000)
    assert (scrubber.step(), scrubber.report.ended_ms > 0) == (IDLE_SECONDS, True)
    clock.advance_ms(10_000)
    scrubber.step()
    assert (scrubber.report.ended_ms, scrubber.report.partition) == (0, "one-0")


def test_damage_is_reported_once_a_pass_with_its_location(make: Callable[[ManualClock], Scrubber], disk: Disk, capfd: pytest.CaptureFixture[str]) -> None:
    file = Path(disk.path, "two-1", "00000000000000000001.log")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    clock = ManualClock()
    scrubber = make(clock)
    whole_pass(scrubber, clock)
    (damage,) = scrubber.report.damages
    assert (damage.topic, damage.partition, damage.kind, damage.file, damage.offset, damage.position) == ("two", 1, "checksum", file.name, 1, 0)
    assert not damage.is_rebuildable
    (line,) = capfd.readouterr().err.splitlines()
    assert all(word in line for word in ("two-1", "offset 1", str(file), "checksum"))
    clock.advance_ms(PAUSE_MS)
    whole_pass(scrubber, clock)
    assert len(scrubber.report.damages) == 1


def test_a_pass_goes_on_where_a_restart_interrupted_it(make: Callable[[ManualClock], Scrubber], layout: BoxLayout) -> None:
    clock = ManualClock()
    first = make(clock)
    while first.report.partition != "two-1":
        clock.advance_ms(11_000)
        first.step()
    clock.advance_ms(11_000)
    first.step()
    known = read_report(f"{layout.runtime_directory}/scrub.d0")
    assert known.partition == "two-1"
    second = make(clock)
    second.step()
    assert (second.report.partition, second.report.base_offset) == (known.partition, known.base_offset)


def test_an_index_that_was_written_anew_leaves_the_report(make: Callable[[ManualClock], Scrubber], disk: Disk) -> None:
    index = Path(disk.path, "one-0", "00000000000000000000.timeindex")
    good = index.read_bytes()
    index.write_bytes(b"")
    clock = ManualClock()
    os.utime(index, (clock.wall_ms() / 1000 - 60,) * 2)
    scrubber = make(clock)
    whole_pass(scrubber, clock)
    scrubber.step()
    assert [(damage.file, damage.is_rebuildable) for damage in scrubber.report.damages] == [(index.name, True)]
    index.write_bytes(good)
    os.utime(index, (clock.wall_ms() / 1000 + 60,) * 2)
    scrubber.step()
    assert scrubber.report.damages == ()


def test_a_repaired_segment_is_checked_again_and_leaves_the_report(
    make: Callable[[ManualClock], Scrubber], disk: Disk, capfd: pytest.CaptureFixture[str]
) -> None:
    file = Path(disk.path, "two-1", "00000000000000000001.log")
    good = file.read_bytes()
    damaged = bytearray(good)
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    clock = ManualClock()
    os.utime(file, (clock.wall_ms() / 1000 - 60,) * 2)
    scrubber = make(clock)
    whole_pass(scrubber, clock)
    before = scrubber.report
    assert len(before.damages) == 1
    scrubber.step()
    assert scrubber.report == before, "it was not written to"
    os.utime(file, (clock.wall_ms() / 1000 + 3_600,) * 2)
    assert [scrubber.step() for _ in range(3)] == [IDLE_SECONDS] * 3, "a time to come says nothing"
    for content, count in ((damaged, 1), (good, 0)):
        clock.advance_ms(5_000)
        file.write_bytes(content)
        os.utime(file, (clock.wall_ms() / 1000,) * 2)
        for _ in range(20):
            clock.advance_ms(int(scrubber.step() * 1000))
        assert len(scrubber.report.damages) == count and scrubber.report.passes == before.passes
    assert capfd.readouterr().err.count("damage in two-1") == 1, "known damage is not reported again"


def test_what_is_no_partition_is_left_alone(make: Callable[[ManualClock], Scrubber], disk: Disk) -> None:
    for name in ("one-0.0123456789abcdef0123456789abcdef-delete", "odd"):
        Path(disk.path, name).mkdir()
        Path(disk.path, name, "00000000000000000000.log").write_bytes(b"rubbish")
        Path(disk.path, name, "00000000000000000001.log").write_bytes(b"")
    clock = ManualClock()
    scrubber = make(clock)
    whole_pass(scrubber, clock)
    assert scrubber.report.damages == ()


def test_a_segment_that_compaction_replaced_under_its_eyes_is_begun_anew(make: Callable[[ManualClock], Scrubber], disk: Disk, tmp_path: Path) -> None:
    """The new file is damaged at the same place as the old one was: one look at each is no finding, two at the new one are."""
    directory = Path(disk.path, "one-0")
    log = directory / "00000000000000000000.log"
    content = bytearray(log.read_bytes())
    content[-1] ^= 1
    log.write_bytes(content)
    clock = ManualClock()
    scrubber = make(clock)

    def replace(damaged: bool) -> None:
        if not damaged:
            content[-1] ^= 1
        (directory / "swap").write_bytes(content)
        os.rename(directory / "swap", log)

    scrubber.step()  # the damaged file is open
    replace(damaged=True)
    scrubber.step()  # it was seen, and thrown away; the new one is open
    replace(damaged=False)
    whole_pass(scrubber, clock)
    assert not scrubber.report.damages
    clock.advance_ms(PAUSE_MS)
    content[-1] ^= 1
    replace(damaged=True)
    whole_pass(scrubber, clock)
    (damage,) = scrubber.report.damages
    assert damage.kind == "checksum"


def test_a_pass_leaves_the_page_cache_as_it_was(make: Callable[[ManualClock], Scrubber], disk: Disk) -> None:
    files = [path for path in sorted(Path(disk.path).glob("*-*/*")) if path.suffix in (".log", ".index", ".timeindex") and path.stat().st_size]
    make_cold(*files)
    clock = ManualClock()
    scrubber = make(clock)
    whole_pass(scrubber, clock)
    assert (scrubber.report.damages, scrubber.report.checked_bytes > 0) == ((), True)
    assert [path.name for path in files if resident_bytes(path)] == []


def test_a_location_where_a_read_found_damage_is_checked_at_once_also_in_an_active_segment(
    make: Callable[[ManualClock], Scrubber], disk: Disk, capfd: pytest.CaptureFixture[str]
) -> None:
    """The finding stays until what it names is right, however often the segment is written to."""
    file = Path(disk.path, "two-1", "00000000000000000003.log")
    good = file.read_bytes()
    file.write_bytes(good[:-1] + bytes((good[-1] ^ 1,)))
    clock = ManualClock()
    scrubber = make(clock)
    whole_pass(scrubber, clock)
    assert not scrubber.report.damages, "no pass reads what still grows"
    for _ in range(2):
        scrubber.look_at(TopicPartition("two", 1), 3)
        assert scrubber.step() == 0
    (damage,) = scrubber.report.damages
    assert (damage.topic, damage.partition, damage.kind, damage.offset, damage.sound_offset, damage.sound_position) == ("two", 1, "checksum", 3, 3, 0)
    assert len(capfd.readouterr().err.splitlines()) == 1
    for seconds in (1, 2):
        os.utime(file, (damage.found_ms / 1000 + seconds,) * 2)
        clock.advance_ms(2_000)
        scrubber.step()
        assert scrubber.report.damages == (damage,)
    file.write_bytes(good)
    os.utime(file, (damage.found_ms / 1000 + 3,) * 2)
    clock.advance_ms(2_000)
    for _ in range(2):
        scrubber.step()
    assert not scrubber.report.damages


def test_damage_that_the_disk_does_not_have_is_taken_out_of_the_page_cache(
    make: Callable[[ManualClock], Scrubber], disk: Disk, capfd: pytest.CaptureFixture[str]
) -> None:
    file = Path(disk.path, "one-0", "00000000000000000001.log")
    with open(file, "r+b") as written:
        os.fsync(written.fileno())
    file.read_bytes()
    assert resident_bytes(file)
    scrubber = make(ManualClock())
    scrubber.look_at(TopicPartition("one", 0), 1)
    assert scrubber.step() == 0
    assert not scrubber.report.damages and not resident_bytes(file)
    assert "a reader found a damaged batch in one-0 at offset 1; the disk has it as it was written" in capfd.readouterr().err
    for nowhere in (TopicPartition("gone", 0), TopicPartition("one", 0)):
        scrubber.look_at(nowhere, -1)
        assert scrubber.step() == 0
    assert not capfd.readouterr().err
