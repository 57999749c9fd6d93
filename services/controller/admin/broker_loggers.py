"""Log levels of this box's processes, as Kafka's resource BROKER_LOGGER.

Owned by the controller process. A logger is a kind of process (`millrace.acceptor`), or `root`: all
kinds without a level of their own. As in Kafka, levels hold until the box restarts and no other box
knows them; processes follow the file that `LogLevels` reads within a second. Weak: supervisor,
ZooKeeper, search and mirror have no level of their own, and `log.severity=notice`, which Kafka does
not have, is described as WARN.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.layout import BoxLayout
from appliance.base.logging import KAFKA_LEVELS, ROOT_LOGGER, Logger, least_severity, logger_of
from appliance.base.settings import Box
from appliance.cluster.security_image import write_private
from appliance.protocol.config_apis import ConfigSource, DescribedConfig
from appliance.runtime.settings_watch import LOG_SEVERITY, LogLevels
from services.controller.zookeeper.config_changes import APPEND, DELETE, SUBTRACT, ConfigOperation

WITHOUT_LOGGER = "zookeeper"
"""Its Java writes the messages."""
_NOT_ALLOWED = {APPEND: "APPEND", SUBTRACT: "SUBTRACT"}


class BrokerLoggers:
    """The loggers of one box and their levels."""

    def __init__(self, layout: BoxLayout, box: Box, log: Logger) -> None:
        self._path = layout.log_levels_file
        self._box = box
        self._log = log
        self._levels = LogLevels(layout, box)

    @property
    def names(self) -> list[str]:
        """`root`, then the kinds of process that this box has."""
        kinds = {logger_of(name) for name in self._box.process_names() if name != WITHOUT_LOGGER}
        return [ROOT_LOGGER, *sorted(kinds)]

    def describe(self) -> list[DescribedConfig]:
        """Return the level in effect of each logger."""
        severity = least_severity(self._box.text(LOG_SEVERITY))
        base = next((level for level, least in KAFKA_LEVELS.items() if least is severity), "WARN")
        levels = {name: self._levels.level_of(name) or base for name in self.names}
        source = ConfigSource.DYNAMIC_BROKER_LOGGER
        return [DescribedConfig(name, level, config_source=source) for name, level in levels.items()]

    def alter(self, operations: Sequence[ConfigOperation], validate_only: bool) -> None:
        """Set or delete levels, all or none. Raises RequestRefused, by the rules of Kafka."""
        names, levels = self.names, dict(self._levels.levels)
        for name, operation, value in operations:
            _refuse_bad_level(names, name, operation, value)
            if operation == DELETE:
                levels.pop(name, None)
            else:
                levels[name] = value or ""
        if validate_only:
            return
        try:
            write_private(self._path, self._levels.encode(levels))
        except OSError as error:
            words = f"could not write {self._path}: {(error.strerror or str(error)).lower()}; try again"
            raise RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR, words) from error
        self._levels.look()
        set_now = ", ".join(f"{name}={level}" for name, level in sorted(levels.items()))
        self._log.info(f"log levels of this box until it restarts: {set_now or 'log.severity for all'}")


def _refuse_bad_level(names: Sequence[str], name: str, operation: int, value: str | None) -> None:
    if operation in _NOT_ALLOWED:
        words = f"{_NOT_ALLOWED[operation]} operation is not allowed for the BROKER_LOGGER resource"
        raise RequestRefused(ErrorCode.INVALID_REQUEST, words)
    if name not in names:
        raise RequestRefused(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist! Loggers are {', '.join(names)}.")
    if operation == DELETE:
        if name == ROOT_LOGGER:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, f"Removing the log level of the {name} logger is not allowed")
    elif value not in KAFKA_LEVELS:
        words = f"Cannot set the log level of {name} to {value} as it is not a supported log level."
        raise RequestRefused(ErrorCode.INVALID_CONFIG, f"{words} Valid log levels are {', '.join(KAFKA_LEVELS)}.")
