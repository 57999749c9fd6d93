"""Takes over settings that were reloaded while a process runs (`services/supervisor/settings_reload.py`).

The supervisor replaces `box.json` with one more in `reloads`; a process sees that within a second
(one stat on tmpfs). `box.settings` is changed in place, because components share it. Weak: what a
component copied at its start stays as it was, so the supervisor applies only settings of which that
is not true.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.base.settings import Box, load_box

LOG_SEVERITY = "log.severity"


class SettingsWatch:
    """The settings of one process. `on_reloaded` is called when they have changed."""

    def __init__(self, layout: BoxLayout, box: Box, log: Logger, on_reloaded: Callable[[], None] | None = None) -> None:
        self._layout = layout
        self._box = box
        self._log = log
        self._on_reloaded = on_reloaded
        self._reloads = box.reloads
        self._seen_ns = 0
        log.use_severity(box.text(LOG_SEVERITY))

    def look(self) -> bool:
        """Take over what was reloaded; call it once a second. Returns whether there was anything."""
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
        self._log.use_severity(box.text(LOG_SEVERITY))
        if self._on_reloaded is not None:
            self._on_reloaded()
        return True
