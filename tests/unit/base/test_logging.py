"""The logger: whole events, severities, what is held back and what is lost, and never a wait."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from appliance.base import journal
from appliance.base import logging as log_fields
from appliance.base.clock import ManualClock
from appliance.base.logging import LEVEL_VARIABLE, LINES_A_PERIOD, PERIOD_NS_FIRST, SEVERITY_MEANINGS, Logger, Severity, logger_from_environment

PERIOD_MS = PERIOD_NS_FIRST // 1_000_000


def written(logger_level: Severity = Severity.INFO, clock: ManualClock | None = None) -> tuple[Logger, int]:
    reading, writing = os.pipe2(os.O_NONBLOCK)
    return Logger("acceptor@0", logger_level, writing, clock), reading


def lines(reading: int) -> list[str]:
    try:
        return os.read(reading, 1 << 20).decode().splitlines()
    except BlockingIOError:
        return []


def test_an_event_is_one_line_with_severity_and_process_and_its_fields_are_not_repeated() -> None:
    log, reading = written()
    log.warning("disk d0 is full", disk="d0")
    assert os.read(reading, 1000) == b"WARNING acceptor@0: disk d0 is full\n"


def test_every_line_of_a_stack_says_whose_it_is() -> None:
    log, reading = written()
    log.error("one\ntwo")
    assert os.read(reading, 1000) == b"ERROR acceptor@0: one\nERROR acceptor@0: two\n"


def test_less_severe_messages_than_wanted_are_not_written() -> None:
    log, reading = written(Severity.WARNING)
    log.info("quiet")
    log.notice("quiet")
    log.debug("quiet")
    assert lines(reading) == [] and log.lines_dropped == 0


class Tally:
    value = 0

    def add(self, amount: int = 1) -> None:
        self.value += amount


def test_a_reader_that_does_not_read_costs_lines_and_no_time_and_is_told_how_many() -> None:
    clock = ManualClock()
    log, reading = written(clock=clock)
    log.dropped_counter = tally = Tally()
    told = 0
    while not log.lines_dropped:
        log.info("x" * 2000)
        told += 1
        clock.advance_ms(PERIOD_MS)  # nothing is held back
    log.info("lost too")
    assert tally.value == log.lines_dropped == 2
    assert len(lines(reading)) == told - 1
    log.info("at last")
    assert lines(reading) == ["WARNING acceptor@0: 2 lines were lost before this one: the log did not accept them in time", "INFO acceptor@0: at last"]
    os.close(reading)
    log.info("to nobody")  # no exception either
    assert tally.value == 3


def test_what_is_said_again_and_again_is_held_back_and_counted() -> None:
    clock = ManualClock()
    log, reading = written(clock=clock)
    for number in range(LINES_A_PERIOD + 312):
        log.warning(f"trouble {number}")
    log.info("something else is told meanwhile")
    assert len(lines(reading)) == LINES_A_PERIOD + 1
    log.sweep(clock.monotonic_ns())
    assert lines(reading) == []
    clock.advance_ms(PERIOD_MS)
    log.sweep(clock.monotonic_ns())
    assert lines(reading) == [f"WARNING acceptor@0: trouble {LINES_A_PERIOD + 311} (… and 311 more like this one)"]
    clock.advance_ms(PERIOD_MS * 3)
    log.sweep(clock.monotonic_ns())
    assert lines(reading) == [], "there was nothing more"


def test_who_goes_on_and_on_is_heard_less_and_less() -> None:
    clock = ManualClock()
    log, reading = written(clock=clock)
    told = []
    for _ in range(6):
        for _ in range(PERIOD_MS // 100):
            clock.advance_ms(100)
            for _ in range(10):
                log.error("again")
        told.append(len(lines(reading)))
    assert told[0] == LINES_A_PERIOD and sum(told) < 3 * LINES_A_PERIOD + 10, told


def test_what_was_held_back_is_told_when_the_process_ends() -> None:
    log, reading = written(clock=ManualClock())
    for number in range(LINES_A_PERIOD + 1):
        log.info(f"number {number}\nwith more lines")
    lines(reading)
    log.close()
    assert lines(reading) == [f"INFO acceptor@0: number {LINES_A_PERIOD}"]


def test_the_environment_chooses_the_severity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEVEL_VARIABLE, "debug")
    assert logger_from_environment("x").level is Severity.DEBUG
    monkeypatch.setenv(LEVEL_VARIABLE, "loud")
    assert logger_from_environment("x").level is Severity.INFO


def test_the_page_about_logs_has_every_severity_and_every_field_and_no_other() -> None:
    page = (Path(__file__).parents[3] / "docs" / "messages.md").read_text()
    rows = dict(re.findall(r"^\| `MILLRACE_(\w+)` \| (.*) \|$", page, re.MULTILINE))
    assert rows == {name.upper(): meaning for name, meaning in log_fields.LOG_FIELDS.items()}
    severities = re.findall(r"^\| (\w+) \| (\d) \| (.*) \|$", page, re.MULTILINE)
    assert severities == [(severity.name.lower(), str(int(severity)), meaning) for severity, meaning in SEVERITY_MEANINGS.items()]
    for name, meaning in log_fields.STANDARD_FIELDS.items():
        assert f"| `{name}` | {meaning} |" in page
    assert f"{LINES_A_PERIOD} lines in {PERIOD_NS_FIRST // 10**9} s" in page and journal.SOCKET_PATH in page
