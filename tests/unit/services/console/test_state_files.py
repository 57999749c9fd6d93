"""What the console keeps on the state disk: over a restart, with a disk that fails, and when a file is damaged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.base.clock import ManualClock
from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.shm.counters import Counters
from appliance.storage import file_io
from lab.running_box import eventually
from services.console.activity import Between, Slim
from services.console.alarm import EVENTS, WARNING, Alarm, AlarmCondition, AlarmWatch
from services.console.alarm_history import AlarmHistory
from services.console.figure_history import KEPT_SERIES, POINTS_MAX, SLOT_BYTES, FigureHistory, HistorySpan
from services.console.figures import Figures
from services.console.state_files import EVERY_MS, RETRY_MS, StateFiles

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOON_MS = 20_000 * DAY_MS + 12 * HOUR_MS
HURTS = Alarm("Hurts", WARNING, AlarmCondition("millrace_disk_recent_fences", ">", 0), 0, "disk {disk} hurts", "It does.")
SECOND_NS = 1_000_000_000


class Kept:
    """One incarnation of what is kept in a directory, stepped by hand."""

    def __init__(self, directory: Path, layout: BoxLayout) -> None:
        self.clock = ManualClock(NOON_MS)
        self.counters = Counters.create_or_adopt(layout, "console", 1)
        self._said, writing = os.pipe2(os.O_NONBLOCK)
        self.watch = AlarmWatch([HURTS])
        self.alarms, self.figures = AlarmHistory(self.watch, [HURTS]), FigureHistory()
        self.files = StateFiles(str(directory), [self.alarms, self.figures], self.clock, self.counters, Logger("console", descriptor=writing))

    def turn(self, after_ms: int = EVERY_MS) -> None:
        """Let the time pass, and turn until no thread is at work."""
        self.clock.advance_ms(after_ms)
        self.files.turn()
        eventually(lambda: not self.files.is_working, "the thread ends")
        self.files.turn()

    def look(self, **fences: int) -> None:
        figures = Figures({"millrace_disk_recent_fences": {(disk,): count for disk, count in fences.items()}}, {})
        if self.watch.look(figures, self.clock.monotonic_ns(), self.clock.wall_ms()):
            self.alarms.note()

    def minute(self, start_ms: int, records: int, lag: float = 0.0) -> None:
        self.figures.add(Between(slim(start_ms, 0), slim(start_ms + 60_000, records)), 50.0, lag)

    def events(self) -> list[tuple[str, int, int | None]]:
        return [(event.words, event.began_wall_ms, event.ended_wall_ms) for event in self.watch.events]

    def count(self, name: str) -> int:
        return self.counters.counter(f"console.state_{name}").value


def slim(wall_ms: int, records: int) -> Slim:
    return Slim(wall_ms * 1_000_000, wall_ms, {"log_writer.records": records}, {}, {}, {}, {}, {}, {})


@pytest.fixture
def kept(tmp_path: Path, layout: BoxLayout) -> Iterator[Any]:
    made = []

    def start() -> Kept:
        made.append(Kept(tmp_path, layout))
        made[-1].turn()
        return made[-1]

    yield start
    for each in made:
        each.files.close()


def test_alarms_go_on_over_a_restart_or_end_with_the_next_look(kept: Any) -> None:
    first = kept()
    first.look(d0=1, d1=1, d2=1)
    first.clock.advance_ms(1000)
    first.look(d0=1, d1=1)
    began = first.clock.wall_ms() - 1000
    first.files.close()
    second = kept()
    assert second.events() == first.events() and len(second.events()) == 3
    second.look(d0=1)
    assert second.events() == [
        ("disk d0 hurts", began, None),
        ("disk d1 hurts", began, second.clock.wall_ms()),
        ("disk d2 hurts", began, began + 1000),
    ]
    assert [sample.is_firing for sample in second.watch.looks] == [True] and second.files.problems == {}


def test_an_alarm_that_was_seen_before_the_file_was_read_began_when_the_file_says(kept: Any, tmp_path: Path, layout: BoxLayout) -> None:
    first = kept()
    first.look(d0=1)
    first.files.close()
    second = Kept(tmp_path, layout)
    second.clock.advance_ms(DAY_MS)
    second.look(d0=1, d1=1)
    second.turn()
    assert [(words, began) for words, began, _ in second.events()] == [("disk d1 hurts", NOON_MS + DAY_MS), ("disk d0 hurts", first.events()[0][1])]


def test_the_files_are_bounded(kept: Any, tmp_path: Path) -> None:
    console = kept()
    for number in range(3 * EVENTS):
        console.look(**{f"d{number}" + "x" * 500: 1})
    for day in range(60):
        for minute in range(0, 24 * 60, 360):
            console.minute(NOON_MS + day * DAY_MS + minute * 60_000, 60)
    console.turn()
    assert (tmp_path / "figures").stat().st_size == SLOT_BYTES * 5_761 < 300_000
    assert (tmp_path / "alarms").stat().st_size < console.alarms.bytes_max // 2
    assert len(kept().events()) == EVENTS + 1


def test_figures_are_kept_by_the_minute_for_two_days_and_by_the_quarter_for_thirty(kept: Any) -> None:
    first = kept()
    for minute in range(30):
        first.minute(NOON_MS - HOUR_MS + minute * 60_000, 60 * minute)
    first.files.close()
    console = kept()
    hour = console.figures.document(HistorySpan(NOON_MS - HOUR_MS, NOON_MS), NOON_MS)
    assert hour["step_ms"] == 60_000 and hour["time_ms"][0] == NOON_MS - HOUR_MS and len(hour["time_ms"]) == 60
    assert hour["records_per_s"] == [*range(30), *[None] * 30] and hour["produce_p99_ms"] == [None] * 60
    month = console.figures.document(HistorySpan(NOON_MS - 30 * DAY_MS, NOON_MS), NOON_MS)
    assert month["step_ms"] == 4 * 900_000 and len(month["time_ms"]) == POINTS_MAX
    assert [value for value in month["records_per_s"] if value is not None] == [(7 + 22) / 2]
    day = console.figures.document(HistorySpan(NOON_MS - DAY_MS, NOON_MS), NOON_MS)
    assert day["step_ms"] == 120_000 and [value for value in day["records_per_s"] if value is not None] == [0.5 + 2 * pair for pair in range(15)]
    assert set(KEPT_SERIES) <= day.keys() and {value for value in day["fullest_disk_percent"] if value is not None} == {50.0}


def test_a_minute_is_one_of_the_wall_clock_and_begins_with_the_first_sample() -> None:
    figures = FigureHistory()
    assert [figures.minute_ended(NOON_MS + ms) for ms in (30_000, 59_999, 60_000, 61_000, 300_000, 1_000)] == [False, False, True, False, True, True]


@pytest.mark.parametrize("broken", [b"", b"x" * 100, None])
def test_a_damaged_file_is_reported_and_kept_and_what_is_readable_is_taken(kept: Any, tmp_path: Path, broken: bytes | None) -> None:
    first = kept()
    first.look(d0=1)
    first.minute(NOON_MS, 60)
    first.minute(NOON_MS + 60_000, 120)
    first.files.close()
    for name in ("alarms", "figures"):
        content = bytearray((tmp_path / name).read_bytes())
        place = SLOT_BYTES * (1 + NOON_MS // 60_000 % 2_880) + 10
        content[30 if name == "alarms" else place] ^= 1
        (tmp_path / name).write_bytes(bytes(content) if broken is None else broken)
    second = kept()
    assert second.count("damaged") == 2 and second.events() == []
    assert sorted(second.files.problems) == ["alarms", "figures"] and all("is damaged" in text for text in second.files.problems.values())
    shown = second.figures.document(HistorySpan(NOON_MS, NOON_MS + 120_000), NOON_MS + 120_000)
    assert shown["records_per_s"] == ([None, 2] if broken is None else [None, None])
    assert (tmp_path / "alarms.damaged").exists() and (tmp_path / "figures.damaged").exists()
    second.turn()
    third = kept()
    assert third.files.problems == {} and third.figures.document(HistorySpan(NOON_MS, NOON_MS + 120_000), NOON_MS + 120_000) == shown


@pytest.mark.parametrize("call", ["open_file", "pwritev", "fsync", "rename", "fdatasync"])
def test_a_disk_that_fails_is_reported_and_everything_is_written_when_it_works(kept: Any, tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    console = kept()
    console.turn()
    console.look(d0=1)
    console.minute(NOON_MS, 60)
    with monkeypatch.context() as patched:

        def fail(*_arguments: Any, **_named: Any) -> int:
            raise OSError(5, "Input/output error")

        patched.setattr(file_io, call, fail)
        console.turn()
        assert console.count("failures") >= 1 and all("Input/output error" in text for text in console.files.problems.values())
    console.turn(RETRY_MS - 1)
    assert console.files.problems, "it is not tried again at once"
    console.turn(1)
    assert console.files.problems == {}
    again = kept()
    assert again.events() == console.events() and again.figures.document(HistorySpan(NOON_MS, NOON_MS + 60_000), NOON_MS)["records_per_s"] == [1]


def test_what_cannot_be_read_is_read_again_and_not_overwritten(kept: Any, tmp_path: Path, layout: BoxLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    first = kept()
    first.look(d0=1)
    first.minute(NOON_MS, 60)
    first.files.close()
    second = Kept(tmp_path, layout)
    with monkeypatch.context() as patched:

        def fail(*_arguments: Any) -> int:
            raise OSError(5, "Input/output error")

        patched.setattr(file_io, "pread", fail)
        second.turn()
        second.minute(NOON_MS + 60_000, 120)
        second.turn()
    assert set(second.files.problems) == {"alarms", "figures"} and second.events() == []
    second.turn(RETRY_MS)
    second.turn()
    assert second.files.problems == {} and second.events() == first.events()
    second.files.close()
    assert kept().figures.document(HistorySpan(NOON_MS, NOON_MS + 120_000), NOON_MS)["records_per_s"] == [1, 2]


def test_without_the_directory_the_console_works_and_says_so(tmp_path: Path, layout: BoxLayout) -> None:
    console = Kept(tmp_path / "missing", layout)
    console.turn()
    console.look(d0=1)
    console.turn()
    assert "No such file or directory" in console.files.problems["alarms"] and len(console.events()) == 1
