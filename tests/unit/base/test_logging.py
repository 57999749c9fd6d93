"""The logger: whole lines, severities, and never a wait."""

from __future__ import annotations

import os

import pytest

from appliance.base.logging import LEVEL_VARIABLE, Logger, Severity, logger_from_environment


def written(logger_level: Severity = Severity.INFO) -> tuple[Logger, int]:
    reading, writing = os.pipe2(os.O_NONBLOCK)
    return Logger("acceptor@0", logger_level, writing), reading


def test_a_message_is_one_line_with_severity_process_and_fields() -> None:
    log, reading = written()
    log.warning("disk full", disk="d0")
    assert os.read(reading, 1000) == b"WARNING acceptor@0: disk full disk=d0\n"


def test_every_line_of_a_traceback_says_whose_it_is() -> None:
    log, reading = written()
    log.error("one\ntwo")
    assert os.read(reading, 1000) == b"ERROR acceptor@0: one\nERROR acceptor@0: two\n"


def test_less_severe_messages_than_wanted_are_not_written() -> None:
    log, reading = written(Severity.WARNING)
    log.info("quiet")
    log.notice("quiet")
    log.debug("quiet")
    with pytest.raises(BlockingIOError):
        os.read(reading, 1000)
    assert log.lines_dropped == 0


def test_a_reader_that_does_not_read_costs_lines_and_no_time() -> None:
    log, reading = written()
    for _ in range(1000):
        log.info("x" * 200)
    assert log.lines_dropped > 0
    os.close(reading)
    log.info("to nobody")  # no exception either


def test_the_environment_chooses_the_severity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEVEL_VARIABLE, "debug")
    assert logger_from_environment("x").level is Severity.DEBUG
    monkeypatch.setenv(LEVEL_VARIABLE, "loud")
    assert logger_from_environment("x").level is Severity.INFO
