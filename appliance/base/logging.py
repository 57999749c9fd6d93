"""Logs one event per call: to journald with fields, or as plain lines `LEVEL process: text` on
stderr; under `millrace run` also with fields to the box's message file.

Each process has one `Logger`, created in `service_main`. The standard library's logging is not
used, because it costs 2 MB in each of a dozen processes and takes locks. Severities and fields are
listed in docs/messages.md. Weak: an event is dropped and counted if it is not accepted at once
(journald hangs, a terminal is stopped with Ctrl-S, a pipe is full), because an event loop must not
wait for the reader of a log.

The fields of a log message beside its text. journald receives them as `MILLRACE_…`;
docs/messages.md lists them.

Fields are for programs and filters (`journalctl MILLRACE_DISK=d0`); the text contains all that a
person needs. Weak: journald indexes each distinct value, so what differs in each message (an
offset, a duration) belongs only in the text.

Limits repeated log messages: per period, each place in the code writes a number of messages; the
rest are counted.

Owned by one `Logger`; time is an argument. At the end of the period the last suppressed message is
written with their number, so that an operator sees that the problem continues; the next period is
longer. Weak: what differs between suppressed messages (the partition, for example) is lost;
counters have more.
"""

from __future__ import annotations

import os
import select
import sys
from enum import IntEnum
from typing import Generic, NamedTuple, Protocol, TypeVar

from appliance.base.clock import SystemClock
from appliance.base.journal import Journal, JournalAbsent, encode_entry, is_journal
from appliance.base.layout import RUNTIME_VARIABLE, BoxLayout
from appliance.base.message_file import MessageFile, is_in_memory
from appliance.base.terminal_text import terminal_text

PREFIX = "MILLRACE_"

LOG_FIELDS: dict[str, str] = {
    "process": "the process that reports it: `log-writer@d0`; every line has it",
    "disk": "name of the disk (log directory) that the line is about",
    "topic": "name of the topic",
    "partition": "number of the partition; `topic` stands beside it",
    "peer": "another process of the box that the line is about, as in `process`",
    "listener": "name of a listener of the ingestion endpoint",
    "client": "address of a client connection, `host:port`",
    "principal": "the authenticated user, as in access control entries: `User:alice`",
    "audit": "kind of an audit event: `audit.topic.deleted`",
    "reason": "one word for why or which: a label as counters have it (reason, policy, kind), or an alarm's name",
    "lines_untold": "how many lines like this one were left out",
}
"""Meaning by name as in a call: `log.warning(…, disk="d0")`."""

STANDARD_FIELDS: dict[str, str] = {
    "MESSAGE": "the text, which is complete without any field; a stack is part of it",
    "PRIORITY": "the severity as a number",
    "SYSLOG_IDENTIFIER": "`millrace-` and the process, which is its unit's name: `journalctl -t millrace-log-writer@d0`",
    "CODE_FILE, CODE_LINE, CODE_FUNC": "the place in the code",
}
"""journald's own fields in each message."""


LINES_A_PERIOD = 50
PERIOD_NS_FIRST = 10_000_000_000
PERIOD_NS_MAX = 300_000_000_000
LOOK_NS = 1_000_000_000

Line = TypeVar("Line")
Place = tuple[str, int]
"""File and line of the code."""


class Suppressed(NamedTuple, Generic[Line]):
    """The last suppressed message of a place, and how many were suppressed."""

    last: Line
    lines: int


class _Period(Generic[Line]):
    """One period of one place."""

    __slots__ = ("count", "ends_ns", "last", "period_ns", "suppressed")

    def __init__(self, now_ns: int, period_ns: int) -> None:
        self.period_ns = period_ns
        self.ends_ns = now_ns + period_ns
        self.count = 0
        self.suppressed = 0
        self.last: Line | None = None


class LogRepeats(Generic[Line]):
    """The limits of all places that logged recently."""

    def __init__(self) -> None:
        self._places: dict[Place, _Period[Line]] = {}
        self._next_look_ns = 0

    def may_log(self, place: Place, line: Line, now_ns: int) -> bool:
        """Return whether to write the message now. If not, it is kept as the last suppressed one.
        Call `take_suppressed` before."""
        period = self._places.get(place)
        if period is None:
            period = self._places[place] = _Period(now_ns, PERIOD_NS_FIRST)
        if period.count < LINES_A_PERIOD:
            period.count += 1
            return True
        period.suppressed += 1
        period.last = line
        return False

    def take_suppressed(self, now_ns: int) -> list[Suppressed[Line]]:
        """Return the suppressed messages of places whose period is over. Cheap: it checks once a
        second."""
        if now_ns < self._next_look_ns:
            return []
        self._next_look_ns = now_ns + LOOK_NS
        taken = []
        for place, period in list(self._places.items()):
            if now_ns < period.ends_ns:
                continue
            if period.last is None:
                del self._places[place]
            else:
                taken.append(Suppressed(period.last, period.suppressed))
                self._places[place] = _Period(now_ns, min(PERIOD_NS_MAX, period.period_ns * 2))
        return taken

    def take_all(self) -> list[Suppressed[Line]]:
        """Return all suppressed messages, at the end of the process."""
        ended, self._places = list(self._places.values()), {}
        return [Suppressed(period.last, period.suppressed) for period in ended if period.last is not None]


LEVEL_VARIABLE = "MILLRACE_LOG_LEVEL"
DROPPED_COUNTER = "log.lines_dropped"
IDENTIFIER = "millrace-"
PIPE_BYTES = 4096
"""A writable pipe accepts this many bytes without blocking (PIPE_BUF)."""


class Severity(IntEnum):
    """The numbers of syslog; `SEVERITY_MEANINGS` defines their use."""

    CRITICAL = 2
    ERROR = 3
    WARNING = 4
    NOTICE = 5
    INFO = 6
    DEBUG = 7


SEVERITY_MEANINGS: dict[Severity, str] = {
    Severity.CRITICAL: "records or state are damaged or missing, or the box cannot serve: act now",
    Severity.ERROR: "something does not work, and will not until a person acts",
    Severity.WARNING: "trouble that the box has dealt with, or is dealing with, by itself; look if it comes again",
    Severity.NOTICE: "nothing is wrong; a person may want to know (a limit that is low, trouble that is over)",
    Severity.INFO: "the story: what came, went, began, ended",
    Severity.DEBUG: "for finding a defect of the program",
}


ROOT_LOGGER = "root"
LOGGER_PREFIX = "millrace."
KAFKA_LEVELS: dict[str, Severity] = {
    "FATAL": Severity.CRITICAL,
    "ERROR": Severity.ERROR,
    "WARN": Severity.WARNING,
    "INFO": Severity.INFO,
    "DEBUG": Severity.DEBUG,
    "TRACE": Severity.DEBUG,
}
"""Levels of Kafka's loggers → the least severity that is logged."""


def logger_of(process_name: str) -> str:
    """Return the name of a process's logger for Kafka's clients: all processes of a kind share it."""
    return LOGGER_PREFIX + process_name.partition("@")[0]


class Tally(Protocol):
    """Counts dropped lines; in a process of a box, a shared counter."""

    def add(self, amount: int = 1) -> None: ...


class MonotonicClock(Protocol):
    def monotonic_ns(self) -> int: ...


class _Event(NamedTuple):
    severity: Severity
    text: str
    fields: dict[str, object]
    place: tuple[str, int, str]
    """File, line and function of the call."""


class Logger:
    """Logs events of at least the chosen severity. `journal` None: plain lines on `descriptor`."""

    def __init__(
        self, process_name: str, level: Severity = Severity.INFO, descriptor: int = 2, clock: MonotonicClock | None = None, journal: Journal | None = None
    ) -> None:
        self.process_name = process_name
        self.level = level
        self.lines_dropped = 0
        self.dropped_counter: Tally | None = None
        self.common_fields: dict[str, object] = {}
        """Fields of each event of this process: its disk, if it serves one."""
        self.message_file: MessageFile | None = None
        """Also gets each event, if no journald has it."""
        self._clock = SystemClock() if clock is None else clock
        self._repeats: LogRepeats[_Event] = LogRepeats()
        self._unreported_drops = 0
        self._journal = journal
        self._is_stream_of_journal = journal is not None
        self._descriptor = descriptor
        self._writable = select.poll()
        self._writable.register(descriptor, select.POLLOUT)

    def use_severity(self, name: str) -> None:
        """Log events of this severity and worse from now on, or of the one in the environment."""
        self.level = least_severity(name)

    # --- for callers

    def log(self, severity: Severity, text: str, **fields: object) -> None:
        """Log an event. `fields` are those of `LOG_FIELDS`."""
        self._emit(severity, text, fields)

    def critical(self, text: str, **fields: object) -> None:
        self._emit(Severity.CRITICAL, text, fields)

    def error(self, text: str, **fields: object) -> None:
        self._emit(Severity.ERROR, text, fields)

    def warning(self, text: str, **fields: object) -> None:
        self._emit(Severity.WARNING, text, fields)

    def notice(self, text: str, **fields: object) -> None:
        self._emit(Severity.NOTICE, text, fields)

    def info(self, text: str, **fields: object) -> None:
        self._emit(Severity.INFO, text, fields)

    def debug(self, text: str, **fields: object) -> None:
        self._emit(Severity.DEBUG, text, fields)

    def sweep(self, now_ns: int) -> None:
        """Write how many events were suppressed, when their period is over. Call it regularly; it
        costs a comparison."""
        for suppressed in self._repeats.take_suppressed(now_ns):
            self._write_suppressed(suppressed)

    def keep_messages(self, layout: BoxLayout) -> None:
        """Also write to the message file of this box, unless journald has the events, or the file
        would be on a disk."""
        if self._journal is None and is_in_memory(layout.runtime_directory):
            self.message_file = MessageFile(layout.message_file, SystemClock())

    def close(self) -> None:
        """Write the suppressed events, because the process ends."""
        for suppressed in self._repeats.take_all():
            self._write_suppressed(suppressed)

    # --- output

    def _emit(self, severity: Severity, text: str, fields: dict[str, object]) -> None:
        if severity > self.level:
            return
        caller = sys._getframe(2)
        event = _Event(severity, text, fields, (caller.f_code.co_filename, caller.f_lineno, caller.f_code.co_qualname))
        now_ns = self._clock.monotonic_ns()
        self.sweep(now_ns)
        if self._repeats.may_log(event.place[:2], event, now_ns):
            self._write(event)

    def _write_suppressed(self, suppressed: Suppressed[_Event]) -> None:
        last = suppressed.last
        first_line = last.text.partition("\n")[0]
        if suppressed.lines > 1:
            first_line += f" (… and {suppressed.lines - 1} more like this one)"
        self._write(last._replace(text=first_line, fields=last.fields | {"lines_untold": suppressed.lines - 1}))

    def _write(self, event: _Event) -> None:
        if self.message_file is not None:
            self.message_file.append(self._entry(event))
        if self._unreported_drops and not self._put(_lost(self._unreported_drops)):
            self._drop()
            return
        self._unreported_drops = 0
        if not self._put(event):
            self._drop()

    def _drop(self) -> None:
        self.lines_dropped += 1
        self._unreported_drops += 1
        if self.dropped_counter is not None:
            self.dropped_counter.add()

    def _put(self, event: _Event) -> bool:
        if self._journal is not None:
            try:
                return self._journal.send(encode_entry(self._entry(event)))
            except JournalAbsent:
                pass  # stderr also leads to journald
        return self._put_lines(event)

    def _entry(self, event: _Event) -> dict[str, str]:
        file, line, function = event.place
        entry = {"MESSAGE": event.text, "PRIORITY": str(int(event.severity)), "SYSLOG_IDENTIFIER": IDENTIFIER + self.process_name}
        entry |= {"CODE_FILE": file, "CODE_LINE": str(line), "CODE_FUNC": function, f"{PREFIX}PROCESS": self.process_name}
        return entry | {PREFIX + name.upper(): str(value) for name, value in (self.common_fields | event.fields).items()}

    def _put_lines(self, event: _Event) -> bool:
        """Write plain lines. journald removes a prefix `<3>`; a person at a terminal gets the name
        of the severity."""
        prefix = f"<{int(event.severity)}>" if self._is_stream_of_journal else f"{event.severity.name} {self.process_name}: "
        lines = event.text.splitlines() or [""]
        data = "".join(f"{prefix}{terminal_text(line)}\n" for line in lines).encode("utf-8", "backslashreplace")
        try:
            for start in range(0, len(data), PIPE_BYTES):
                if not self._writable.poll(0):
                    return False
                os.write(self._descriptor, data[start : start + PIPE_BYTES])
        except OSError:
            return False  # no process reads the other end
        return True


def _lost(count: int) -> _Event:
    text = f"{count} {'line was' if count == 1 else 'lines were'} lost before this one: the log did not accept them in time"
    return _Event(Severity.WARNING, text, {"lines_untold": count}, (__file__, 0, "_lost"))


def least_severity(name: str) -> Severity:
    """Return the severity that `log.severity` names, unless the environment chose one."""
    chosen = os.environ.get(LEVEL_VARIABLE, "").upper()
    return Severity[chosen if chosen in Severity.__members__ else name.upper()]


def logger_from_environment(process_name: str) -> Logger:
    """Return a logger with the severity in `MILLRACE_LOG_LEVEL` (critical, error, warning, notice,
    info, debug; default info), to journald if stderr leads there."""
    name = os.environ.get(LEVEL_VARIABLE, "").upper()
    level = Severity[name] if name in Severity.__members__ else Severity.INFO
    log = Logger(process_name, level, journal=Journal() if is_journal(2) else None)
    if RUNTIME_VARIABLE in os.environ:
        log.keep_messages(BoxLayout.from_environment())
    return log
