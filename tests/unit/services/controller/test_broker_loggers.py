"""Levels of a box's loggers: what may be set, what holds, and for how long."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.layout import BoxLayout, Disk
from appliance.base.logging import LEVEL_VARIABLE, Logger, Severity
from appliance.base.settings import Box
from appliance.protocol.config_apis import ConfigSource
from appliance.runtime.settings_watch import SettingsWatch
from services.controller.admin.broker_loggers import BrokerLoggers
from services.controller.zookeeper.config_changes import APPEND, DELETE, SET, SUBTRACT, ConfigOperation

ACCEPTOR, CONTROLLER, ROOT = "millrace.acceptor", "millrace.controller", "root"
BOX = Box("b", 1, [Disk("d0", "/srv/d0"), Disk("d1", "/srv/d1")], "/srv/state", "127.0.0.1", "127.0.0.1", 9092, 514, 8080, started_wall_ms=5)


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BoxLayout:
    monkeypatch.delenv(LEVEL_VARIABLE, raising=False)
    return BoxLayout(str(tmp_path))


@pytest.fixture
def descriptor() -> Iterator[int]:
    null = os.open(os.devnull, os.O_WRONLY)
    yield null
    os.close(null)


@pytest.fixture
def loggers(layout: BoxLayout, descriptor: int) -> BrokerLoggers:
    return BrokerLoggers(layout, BOX, Logger("controller", descriptor=descriptor))


def levels(loggers: BrokerLoggers) -> dict[str, str | None]:
    return {each.name: each.value for each in loggers.describe()}


def test_each_kind_of_process_has_a_logger_with_the_level_of_the_settings(loggers: BrokerLoggers) -> None:
    kinds = ("acceptor", "console", "controller", "coordinator", "ingest", "log-reader", "log-writer", "replica-fetcher")
    assert levels(loggers) == dict.fromkeys([ROOT, *(f"millrace.{kind}" for kind in kinds)], "INFO")
    assert {(each.config_source, each.read_only, each.synonyms) for each in loggers.describe()} == {(ConfigSource.DYNAMIC_BROKER_LOGGER, False, ())}


def test_a_severity_that_kafka_does_not_have_is_described_as_the_next_one(layout: BoxLayout, descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = BOX._replace(settings={"log.severity": "notice"})
    described = BrokerLoggers(layout, settings, Logger("controller", descriptor=descriptor))
    assert levels(described)[ACCEPTOR] == "WARN"
    monkeypatch.setenv(LEVEL_VARIABLE, "critical")
    assert levels(described)[ACCEPTOR] == "FATAL"


def test_a_level_holds_for_its_logger_and_roots_for_those_without(loggers: BrokerLoggers) -> None:
    loggers.alter([ConfigOperation(ACCEPTOR, SET, "TRACE"), ConfigOperation(ROOT, SET, "ERROR")], False)
    found = levels(loggers)
    assert (found[ACCEPTOR], found[CONTROLLER], found[ROOT]) == ("TRACE", "ERROR", "ERROR")
    loggers.alter([ConfigOperation(ACCEPTOR, SET, "WARN")], True)
    assert levels(loggers) == found
    loggers.alter([ConfigOperation(ACCEPTOR, DELETE)], False)
    assert levels(loggers)[ACCEPTOR] == "ERROR"


@pytest.mark.parametrize(
    ("operation", "code", "words"),
    [
        (ConfigOperation("kafka.server", SET, "INFO"), ErrorCode.INVALID_CONFIG, "does not exist"),
        (ConfigOperation("millrace.zookeeper", DELETE), ErrorCode.INVALID_CONFIG, "does not exist"),
        (ConfigOperation(ACCEPTOR, SET, "debug"), ErrorCode.INVALID_CONFIG, "Valid log levels are FATAL, ERROR"),
        (ConfigOperation(ROOT, DELETE), ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger"),
        (ConfigOperation(ACCEPTOR, APPEND, "INFO"), ErrorCode.INVALID_REQUEST, "APPEND operation is not allowed"),
        (ConfigOperation(ACCEPTOR, SUBTRACT, "INFO"), ErrorCode.INVALID_REQUEST, "SUBTRACT operation is not allowed"),
    ],
)
def test_what_kafka_refuses_is_refused_and_changes_nothing(loggers: BrokerLoggers, operation: ConfigOperation, code: ErrorCode, words: str) -> None:
    with pytest.raises(RequestRefused, match=words) as refused:
        loggers.alter([ConfigOperation(CONTROLLER, SET, "DEBUG"), operation], False)
    assert refused.value.code is code and set(levels(loggers).values()) == {"INFO"}


def test_a_level_that_cannot_be_written_is_refused(layout: BoxLayout, loggers: BrokerLoggers) -> None:
    Path(f"{layout.log_levels_file}.tmp").mkdir()
    with pytest.raises(RequestRefused, match=r"could not write .*log-levels: is a directory; try again"):
        loggers.alter([ConfigOperation(ACCEPTOR, SET, "DEBUG")], False)
    assert levels(loggers)[ACCEPTOR] == "INFO"


def test_levels_survive_the_controller_process_and_end_with_the_box(layout: BoxLayout, loggers: BrokerLoggers, descriptor: int) -> None:
    loggers.alter([ConfigOperation(ACCEPTOR, SET, "DEBUG")], False)
    log = Logger("controller", descriptor=descriptor)
    assert levels(BrokerLoggers(layout, BOX, log))[ACCEPTOR] == "DEBUG"
    assert levels(BrokerLoggers(layout, BOX._replace(started_wall_ms=6), log))[ACCEPTOR] == "INFO"


def test_a_process_follows_the_level_of_its_kind(layout: BoxLayout, loggers: BrokerLoggers, descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Logger("acceptor@1", descriptor=descriptor)
    watch = SettingsWatch(layout, BOX, log)

    def level_after(*operations: ConfigOperation) -> Severity:
        loggers.alter(operations, False)
        assert not watch.look(), "no settings were reloaded"
        return log.level

    assert log.level is Severity.INFO
    assert level_after(ConfigOperation(CONTROLLER, SET, "FATAL")) is Severity.INFO
    assert level_after(ConfigOperation(ACCEPTOR, SET, "TRACE")) is Severity.DEBUG
    log.level = Severity.NOTICE  # looking again changes nothing
    assert not watch.look() and log.level is Severity.NOTICE
    other = Logger("acceptor@0", descriptor=descriptor)
    SettingsWatch(layout, BOX, other)
    assert other.level is Severity.DEBUG, "a process that starts has the level"
    assert level_after(ConfigOperation(ROOT, SET, "WARN")) is Severity.DEBUG
    monkeypatch.setenv(LEVEL_VARIABLE, "error")
    assert level_after(ConfigOperation(ACCEPTOR, DELETE)) is Severity.WARNING, "a level that was set goes before the environment"


@pytest.mark.parametrize("content", [b"", b"[]", b'{"started_wall_ms": 5, "levels": [1]}', b'{"started_wall_ms": 5, "levels": {"root": ["INFO"]}}'])
def test_a_damaged_file_has_no_levels(layout: BoxLayout, descriptor: int, content: bytes) -> None:
    Path(layout.log_levels_file).write_bytes(content)
    os.chmod(layout.log_levels_file, 0o600)
    log = Logger("acceptor@0", descriptor=descriptor)
    SettingsWatch(layout, BOX, log)
    assert log.level is Severity.INFO
