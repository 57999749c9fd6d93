"""Forwards messages of libraries that use Python's `logging` (kazoo, uvicorn) to the log of the
process.

Only processes that import `logging` anyway load this module. Weak: the severity of a library says
nothing about what an operator must do, so it is never above warning.
"""

from __future__ import annotations

import logging

from appliance.base.logging import Logger, Severity


class LibraryLines(logging.Handler):
    """A handler that logs each record; a stack trace is part of its event."""

    def __init__(self, log: Logger) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
        except Exception as error:  # its format does not fit its arguments
            text = f"{record.msg!r} ({error})"
        self._log.log(Severity.WARNING, f"{record.name}: {text}")


def forward_library_logging(log: Logger) -> None:
    """Forward warnings and above from now on; lower levels are not even formatted."""
    root = logging.getLogger()
    root.handlers[:] = [LibraryLines(log)]
    root.setLevel(logging.WARNING)
