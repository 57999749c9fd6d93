"""Takes over settings that were reloaded while a process runs (`services/supervisor/settings_reload.py`).

The supervisor replaces `box.json` with one more in `reloads`; a process sees that within a second
(one stat on tmpfs). `box.settings` is changed in place, because components share it. Weak: what a
component copied at its start stays as it was, so the supervisor applies only settings of which that
is not true. The same look follows the log levels that Kafka's clients set (`LogLevels`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from appliance.base.layout import BoxLayout
from appliance.base.logging import KAFKA_LEVELS, ROOT_LOGGER, Logger, logger_of
from appliance.base.settings import Box, load_box
from appliance.base.trusted_files import read_file

LOG_SEVERITY = "log.severity"
LEVELS_BYTES_MAX = 64 << 10


class LogLevels:
    """Levels by logger that were set since the box started (Kafka's resource BROKER_LOGGER).

    The controller process writes the file. It names the start of the box, so the next start has no
    levels, as in Kafka; a process that restarts meanwhile has them again.
    """

    def __init__(self, layout: BoxLayout, box: Box) -> None:
        self._path = layout.log_levels_file
        self._started_wall_ms = box.started_wall_ms
        self._seen: tuple[int, int] | None = None
        self.levels: dict[str, str] = {}
        self.look()

    def look(self) -> bool:
        """Read the file if it was replaced; returns whether it was. A damaged one has no levels."""
        try:
            status = os.stat(self._path)
            if (status.st_ino, status.st_mtime_ns) == self._seen:
                return False
            content = read_file(self._path, LEVELS_BYTES_MAX)
        except OSError:
            return False  # none was set, the box ends, or no descriptor is left: looked for again
        self._seen = status.st_ino, status.st_mtime_ns
        try:
            document = json.loads(content)
            is_ours = document["started_wall_ms"] == self._started_wall_ms
            found = document["levels"].items() if is_ours else ()
            self.levels = {name: level for name, level in found if level in KAFKA_LEVELS}
        except (ValueError, TypeError, KeyError, AttributeError):
            self.levels = {}
        return True

    def encode(self, levels: dict[str, str]) -> bytes:
        """Return the file with these levels."""
        return json.dumps({"started_wall_ms": self._started_wall_ms, "levels": levels}).encode()

    def level_of(self, logger: str) -> str | None:
        """Return the level that was set for a logger, or else for all; None: `log.severity` holds."""
        return self.levels.get(logger, self.levels.get(ROOT_LOGGER))


class SettingsWatch:
    """The settings of one process. `on_reloaded` is called when they have changed."""

    def __init__(self, layout: BoxLayout, box: Box, log: Logger, on_reloaded: Callable[[], None] | None = None) -> None:
        self._layout = layout
        self._box = box
        self._log = log
        self._on_reloaded = on_reloaded
        self._reloads = box.reloads
        self._seen_ns = 0
        self._levels = LogLevels(layout, box)
        self._use_severity()

    def _use_severity(self) -> None:
        level = self._levels.level_of(logger_of(self._log.process_name))
        if level is None:
            self._log.use_severity(self._box.text(LOG_SEVERITY))
        else:
            self._log.level = KAFKA_LEVELS[level]

    def look(self) -> bool:
        """Take over what was reloaded, and log levels; call it once a second. Returns whether
        settings were reloaded."""
        if self._levels.look():
            self._use_severity()
        try:
            changed_ns = os.stat(self._layout.box_file).st_mtime_ns
            if changed_ns == self._seen_ns:
                return False
            box = load_box(self._layout)
        except (OSError, ValueError, TypeError):
            return False  # the box ends, or is of another release, or this process has no descriptor: read again at the next look
        self._seen_ns = changed_ns
        if box.reloads == self._reloads:
            return False
        self._reloads = box.reloads
        self._box.settings.update(box.settings)
        self._box.sender_tables.clear()
        self._box.sender_tables.update(box.sender_tables)
        self._use_severity()
        if self._on_reloaded is not None:
            self._on_reloaded()
        return True
