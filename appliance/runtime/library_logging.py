"""What libraries say by Python's `logging` becomes events of the process that uses them: kazoo in the controller, uvicorn in the console.

Imported only by processes that have `logging` anyway. Weak spot: a library's words are its own; from its severity follows nothing for an
operator, so it is never more than a warning.
"""

from __future__ import annotations

import logging

from appliance.base.logging import Logger, Severity


class LibraryLines(logging.Handler):
    """Hands records on, a stack as part of its event."""

    def __init__(self, log: Logger) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
        except Exception as error:  # its format and its arguments do not fit
            text = f"{record.msg!r} ({error})"
        self._log.log(Severity.WARNING, f"{record.name}: {text}")


def forward_library_logging(log: Logger) -> None:
    """From now on; what is less than a warning is not even formatted."""
    root = logging.getLogger()
    root.handlers[:] = [LibraryLines(log)]
    root.setLevel(logging.WARNING)
