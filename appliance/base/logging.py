"""What a process tells its operator: plain lines `LEVEL process: message` on stderr, one write each.

Owned by no one: every process has one `Logger`, made in `service_main`. The standard library's logging is not used, because it
costs 2 MB in each of a dozen processes and takes locks. Weak spot: a line is dropped, and counted, when stderr cannot take it at
once (a terminal stopped with Ctrl-S, a full pipe): an event loop must never wait for somebody who reads a log.
"""

from __future__ import annotations

import os
import select
from enum import IntEnum

LEVEL_VARIABLE = "MILLRACE_LOG_LEVEL"


class Severity(IntEnum):
    """Syslog's severities, so that journald fields need no table."""

    ERROR = 3
    WARNING = 4
    NOTICE = 5
    INFO = 6
    DEBUG = 7


class Logger:
    """Writes lines of at least the chosen severity. `fields` become ` name=value`; under journald they will be fields of their own."""

    def __init__(self, process_name: str, level: Severity = Severity.INFO, descriptor: int = 2) -> None:
        self.process_name = process_name
        self.level = level
        self.lines_dropped = 0
        self._descriptor = descriptor
        self._writable = select.poll()
        self._writable.register(descriptor, select.POLLOUT)

    def log(self, severity: Severity, message: str, **fields: object) -> None:
        if severity > self.level:
            return
        tail = "".join(f" {name}={value}" for name, value in fields.items())
        lines = (message + tail).splitlines() or [""]
        prefix = f"{severity.name} {self.process_name}: "
        data = "".join(f"{prefix}{line}\n" for line in lines).encode("utf-8", "backslashreplace")
        try:
            if self._writable.poll(0):
                os.write(self._descriptor, data)
                return
        except OSError:
            pass  # nobody is there to be told
        self.lines_dropped += 1

    def error(self, message: str, **fields: object) -> None:
        self.log(Severity.ERROR, message, **fields)

    def warning(self, message: str, **fields: object) -> None:
        self.log(Severity.WARNING, message, **fields)

    def notice(self, message: str, **fields: object) -> None:
        self.log(Severity.NOTICE, message, **fields)

    def info(self, message: str, **fields: object) -> None:
        self.log(Severity.INFO, message, **fields)

    def debug(self, message: str, **fields: object) -> None:
        self.log(Severity.DEBUG, message, **fields)


def logger_from_environment(process_name: str) -> Logger:
    """A logger whose severity is what `MILLRACE_LOG_LEVEL` names (error, warning, notice, info, debug), info when it names none."""
    name = os.environ.get(LEVEL_VARIABLE, "").upper()
    return Logger(process_name, Severity[name] if name in Severity.__members__ else Severity.INFO)
