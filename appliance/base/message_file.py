"""The messages of a box under `millrace run`, which has no journald: a file in its runtime directory.

Each event is one JSON line with the fields that journald would have (`__REALTIME_TIMESTAMP` in µs),
so that `millrace logs` reads both alike. All processes append (O_APPEND keeps lines whole); only the
supervisor rotates. Only on tmpfs (`is_in_memory`), so that a hanging disk stops no process. Weak: the
file ends with the box; while the supervisor makes no turn, events beyond `MESSAGES_BYTES_MAX` are
left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

ROTATED_BYTES = 1 << 20
"""A file of this size becomes the older one, which replaces the one before."""
MESSAGES_BYTES_MAX = 2 << 20
EVENT_BYTES_MAX = 64 << 10
TIME_FIELD = "__REALTIME_TIMESTAMP"


class WallClock(Protocol):
    def wall_ms(self) -> int: ...


def is_in_memory(runtime_directory: str) -> bool:
    """Whether a runtime directory is on tmpfs, not in the state directory (`layout.preferred_roots`)."""
    session = os.environ.get("XDG_RUNTIME_DIR", "")
    return runtime_directory.startswith(("/run/", f"{session}/" if session.startswith("/") else "/run/"))


def older_path(path: str) -> str:
    """Return the path of the file before the last rotation."""
    return f"{path}.1"


class MessageFile:
    """The file as one process writes it. It holds no descriptor, because another process rotates it."""

    def __init__(self, path: str, clock: WallClock) -> None:
        self.path = path
        self._clock = clock

    def append(self, entry: Mapping[str, str]) -> None:
        """Append an event; without effect if the runtime directory is gone or the file is too large."""
        line = self._line(entry)
        if len(line) > EVENT_BYTES_MAX:
            line = self._line({name: text[: EVENT_BYTES_MAX // 20] for name, text in entry.items()})
        with suppress(OSError):
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                if os.fstat(descriptor).st_size < MESSAGES_BYTES_MAX:
                    os.write(descriptor, line)
            finally:
                os.close(descriptor)

    def _line(self, entry: Mapping[str, str]) -> bytes:
        """The line end before it ends a line of which a full tmpfs took a part only."""
        return b"\n" + json.dumps({TIME_FIELD: str(self._clock.wall_ms() * 1_000), **entry}).encode() + b"\n"

    def rotate(self) -> None:
        """Make a large file the older one. For the supervisor alone."""
        with suppress(OSError):
            if os.stat(self.path).st_size >= ROTATED_BYTES:
                os.rename(self.path, older_path(self.path))
