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


def test_names_in_a_message_act_on_no_terminal() -> None:
    log, reading = written()
    log.info("group \x1b]0;title\x07\x9b31m\u202egnitiaw left\tnow \ud800")
    assert os.read(reading, 1000) == b"INFO acceptor@0: group \\x1b]0;title\\x07\\x9b31m\\u202egnitiaw left\tnow \\ud800\n"


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


def test_a_full_pipe_delays_nothing_and_the_lost_lines_are_counted_and_reported() -> None:
    clock = ManualClock()
    log, reading = written(clock=clock)
    log.dropped_counter = tally = Tally()
    logged = 0
    while not log.lines_dropped:
        log.info("x" * 2000)
        logged += 1
        clock.advance_ms(PERIOD_MS)  # nothing is held back
    log.info("lost too")
    assert tally.value == log.lines_dropped == 2
    assert len(lines(reading)) == logged - 1
    log.info("at last")
    assert lines(reading) == ["WARNING acceptor@0: 2 lines were lost before this one: the log did not accept them in time", "INFO acceptor@0: at last"]
    os.close(reading)
    log.info("without a reader")  # no exception either
    assert tally.value == 3


def test_repeated_lines_are_held_back_and_counted() -> None:
    clock = ManualClock()
    log, reading = written(clock=clock)
    for number in range(LINES_A_PERIOD + 312):
        log.warning(f"trouble {number}")
    log.info("another line in between")
    assert len(lines(reading)) == LINES_A_PERIOD + 1
    log.sweep(clock.monotonic_ns())
    assert lines(reading) == []
    clock.advance_ms(PERIOD_MS)
    log.sweep(clock.monotonic_ns())
    assert lines(reading) == [f"WARNING acceptor@0: trouble {LINES_A_PERIOD + 311} (… and 311 more like this one)"]
    clock.advance_ms(PERIOD_MS * 3)
    log.sweep(clock.monotonic_ns())
    assert lines(reading) == [], "there was nothing more"


def test_a_line_that_keeps_repeating_is_logged_less_and_less_often() -> None:
    clock = ManualClock()
    log, reading = written(clock=clock)
    logged = []
    for _ in range(6):
        for _ in range(PERIOD_MS // 100):
            clock.advance_ms(100)
            for _ in range(10):
                log.error("again")
        logged.append(len(lines(reading)))
    assert logged[0] == LINES_A_PERIOD and sum(logged) < 3 * LINES_A_PERIOD + 10, logged


def test_held_back_lines_are_logged_when_the_process_ends() -> None:
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
