"""`millrace logs`: what the processes of the box report, from the journal, or the message file of `millrace run`.

The journal is read by `journalctl -o json`, which is part of systemd, has its rights, indexes and rotation, and ends with the command; its
Python binding would be a package to build. Names and texts may be a client's: nothing in them acts on a terminal. Weak spots: events of
processes and units are filtered here, after journalctl has written them all; what a process writes into a file that the supervisor has renamed
a moment ago may be missing while following.
"""

from __future__ import annotations

import grp
import json
import os
import select
import shutil
import stat
import subprocess
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, NamedTuple

from appliance.base.clock import SystemClock
from appliance.base.errors import MillraceError
from appliance.base.layout import DATA_VARIABLE, BoxLayout
from appliance.base.logging import IDENTIFIER, LOG_FIELDS, PREFIX, Severity
from appliance.base.message_file import EVENT_BYTES_MAX, TIME_FIELD, is_in_memory, older_path
from appliance.base.settings import Box, load_box
from appliance.base.terminal_text import terminal_json, terminal_text
from appliance.base.time_texts import moment_text, parse_moment
from appliance.base.trusted_files import open_directory
from appliance.command.failures import UsageProblem
from appliance.command.finding import find_running_box, is_installed
from appliance.command.options import ConfigOption, DataOption, JsonOption, option
from appliance.command.output import say, until_reader_closes
from appliance.command.record_text import coloured, local_time
from appliance.senders.conditions import SEVERITIES

LOOK_SECONDS = 0.2
COLUMNS_MIN = 60
UNITS = "millrace*"
NOT_READABLE = "this user may not read the journal of the box; run the command with sudo, or as a member of the group systemd-journal"
JOURNAL_GROUPS = frozenset({"systemd-journal", "adm", "wheel"})


def logs(
    since: Annotated[
        str, option("--since", "-s", metavar="TIME", help="From here on: an age as 15m, 2h, 7d, or a time as 14:03, yesterday, 2026-11-21T14:03. [default: 1h]")
    ] = "1h",
    until: Annotated[str | None, option("--until", "-u", metavar="TIME", help="Up to here. [default: now]")] = None,
    follow: Annotated[bool, option("--follow", "-f", help="Go on with events that come later, until Ctrl-C.")] = False,
    process: Annotated[str | None, option("--process", metavar="NAME", help="Only of this process: controller, log-writer@d0, 'ingest@*'.")] = None,
    disk: Annotated[str | None, option("--disk", metavar="NAME", help="Only about this disk, from all processes.")] = None,
    severity: Annotated[str, option("--severity", metavar="NAME", help="Only this severe or worse: warning, error, … [default: debug]")] = "debug",
    event: Annotated[
        str | None, option("--event", metavar="NAME", help="Only events of this name: audit.topic.deleted, 'audit.*'; see docs/messages.md.")
    ] = None,
    as_json: JsonOption = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Show what the processes of the box report: time, process, severity, event, text.

    Example: millrace logs --since 2h --severity warning --process 'log-writer@*'
    """
    wanted = EventFilter.chosen(since, until, severity, process, disk, event)
    if follow and until is not None:
        raise UsageProblem("--follow and --until exclude each other")
    is_terminal = sys.stdout.isatty()
    layout = _layout_of_run(data, config)
    may_read = layout is not None or may_read_journal(os.geteuid(), _group_names())
    if follow and not may_read:
        raise MillraceError(NOT_READABLE)
    if follow:
        check_names(wanted, data, config)
    if layout is not None and not is_in_memory(layout.runtime_directory):
        raise MillraceError(f"this box keeps no events: {layout.runtime_directory} is on a disk; they are where its output goes (XDG_RUNTIME_DIR was not set)")
    entries = journal_entries(wanted, follow) if layout is None else file_entries(layout, follow)
    printer = EventLines(as_json, shutil.get_terminal_size().columns if is_terminal else 0, is_terminal and not os.environ.get("NO_COLOR"))
    count = 0
    try:
        with until_reader_closes():
            for entry in entries:
                found = event_of(entry) if entry is not None else None
                if found is not None and wanted.has(found):
                    count += 1
                    sys.stdout.write(printer.text(found))
                if entry is None or follow:
                    sys.stdout.flush()
    except KeyboardInterrupt:
        return
    if not count and not may_read:
        raise MillraceError(NOT_READABLE)
    if not count:
        check_names(wanted, data, config)
    if not count and not as_json:
        say(f"no such event since {moment_text(wanted.since_us // 1_000)}; --since 7d looks further back")


def _layout_of_run(data: str | None, config: str | None) -> BoxLayout | None:
    """The box of `millrace run`; None if the journal has the events, also while the installed box does not run."""
    try:
        found = find_running_box(data, config)
    except UsageProblem:
        if data is None and not os.environ.get(DATA_VARIABLE) and is_installed():
            return None
        raise
    from appliance.runtime.unit_process import SYSTEMD  # shared memory, which `--help` need not wait for

    return None if found.box.get("managed_by") == SYSTEMD else found.layout


def check_names(wanted: EventFilter, data: str | None, config: str | None) -> None:
    """Raise UsageProblem for a process or disk that the running box does not have; events of former ones were looked for before."""
    if wanted.process is None and wanted.disk is None:
        return
    try:
        box = load_box(find_running_box(data, config).layout)
    except (UsageProblem, OSError, ValueError, TypeError, KeyError):
        return  # no box runs, or one of another release: its names are not known
    if (problem := unknown_name(wanted, box)) is not None:
        raise UsageProblem(problem)


def unknown_name(wanted: EventFilter, box: Box) -> str | None:
    """Say which wanted process or disk a box does not have, and which it has."""
    processes = ["supervisor", *box.process_names(), "search", "mirror"]
    for what, pattern, names in (("process", wanted.process, processes), ("disk", wanted.disk, [disk.name for disk in box.disks])):
        if pattern is not None and not any(fnmatchcase(name, pattern) if what == "process" else name == pattern for name in names):
            return f"--{what} {pattern}: the box has no such {what}, and no event of one in that time; it has {', '.join(names)}"
    return None


def may_read_journal(user: int, groups: Collection[str]) -> bool:
    """Whether journald shows a user the entries of all (systemd-journald.service(8)); to others journalctl shows their own, without a word."""
    return user == 0 or not JOURNAL_GROUPS.isdisjoint(groups)


def _group_names() -> set[str]:
    return {group.gr_name for group in grp.getgrall() if group.gr_gid in {os.getegid(), *os.getgroups()}}


class LoggedEvent(NamedTuple):
    """One event. `name`: the kind of an audit event, or the reason; empty without one. `fields`: those of `LOG_FIELDS`."""

    time_us: int
    process: str
    severity: int
    name: str
    text: str
    fields: dict[str, str]


def event_of(entry: Mapping[str, Any]) -> LoggedEvent | None:
    """Return the event of an entry with journald's names; None for what is none."""
    try:
        time_us, severity = int(_text(entry[TIME_FIELD])), int(_text(entry.get("PRIORITY", "6")))
    except (KeyError, ValueError):
        return None
    fields = {name: _text(entry[key]) for name in LOG_FIELDS if (key := PREFIX + name.upper()) in entry}
    process = fields.pop("process", "") or _process_of_unit(entry)
    return LoggedEvent(time_us, process, severity, fields.get("audit") or fields.get("reason", ""), _text(entry.get("MESSAGE")), fields)


def _process_of_unit(entry: Mapping[str, Any]) -> str:
    """Of a line that a process wrote to stderr, and of what systemd says about a unit (field UNIT)."""
    units = [_text(entry[key]) for key in ("UNIT", "_SYSTEMD_UNIT") if key in entry]
    unit = next((each for each in units if each.startswith("millrace")), "")
    return unit.removeprefix(IDENTIFIER).removesuffix(".service")


def _text(value: Any) -> str:
    """A value as journalctl writes it: a text, numbers of bytes, several values, or nothing if it is too large."""
    if isinstance(value, list):
        if all(type(byte) is int and 0 <= byte < 256 for byte in value):
            return bytes(value).decode(errors="backslashreplace")
        return "\n".join(map(_text, value))
    return "" if value is None else str(value)


class EventFilter(NamedTuple):
    """Which events are wanted. Times in µs; names of process and event may have wildcards."""

    since_us: int
    until_us: int | None
    severity: int
    process: str | None
    disk: str | None
    name: str | None

    @classmethod
    def chosen(cls, since: str, until: str | None, severity: str, process: str | None, disk: str | None, name: str | None) -> EventFilter:
        """Raises UsageProblem for what is no time or no severity, and for an empty time range."""
        now_ms = SystemClock().wall_ms()
        moments: dict[str, int] = {}
        for option_name, text in (("since", since), ("until", until)):
            try:
                moments |= {} if text is None else {option_name: parse_moment(text, now_ms) * 1_000}
            except ValueError as problem:
                raise UsageProblem(f"--{option_name}: {problem}") from problem
        if severity.lower() not in SEVERITIES:
            raise UsageProblem(f"--severity {severity}: it must be one of {', '.join(each.name.lower() for each in Severity)}")
        if "until" in moments and moments["until"] <= moments["since"]:
            raise UsageProblem(f"--until ({moment_text(moments['until'] // 1_000)}) is not after --since ({moment_text(moments['since'] // 1_000)})")
        return cls(moments["since"], moments.get("until"), SEVERITIES[severity.lower()], process, disk, name)

    def has(self, event: LoggedEvent) -> bool:
        is_in_time = self.since_us <= event.time_us and (self.until_us is None or event.time_us < self.until_us)
        if not is_in_time or event.severity > self.severity or (self.disk is not None and event.fields.get("disk") != self.disk):
            return False
        pairs = ((self.process, event.process), (self.name, event.name))
        return all(pattern is None or fnmatchcase(text, pattern) for pattern, text in pairs)


def journal_command(wanted: EventFilter, follow: bool) -> list[str]:
    """Return the call of journalctl for the events of the box, and what it can leave out by its indexes."""
    command = ["journalctl", "--no-pager", "--quiet", "--all", "--output=json", f"--unit={UNITS}", f"--since=@{wanted.since_us / 1e6:.6f}"]
    command += [] if wanted.until_us is None else [f"--until=@{wanted.until_us / 1e6:.6f}"]
    command += [] if wanted.severity == Severity.DEBUG else [f"--priority={wanted.severity}"]
    command += ["--follow", "--no-tail"] if follow else []
    return command + ([] if wanted.disk is None else [f"{PREFIX}DISK={wanted.disk}"])


def journal_entries(wanted: EventFilter, follow: bool) -> Iterator[dict[str, Any] | None]:
    """Yield the entries of the journal. Raises MillraceError if it cannot be read."""
    try:
        running = subprocess.Popen(journal_command(wanted, follow), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise MillraceError(f"could not run journalctl: {error.strerror}; the events of an installed box are in systemd's journal") from error
    assert running.stdout is not None and running.stderr is not None
    try:
        for line in running.stdout:
            if (entry := parsed_entry(line)) is not None:
                yield entry
        complaint = running.stderr.read(1 << 16).decode(errors="replace").strip()
        # without an entry of a unit that matches, journalctl ends with an error
        if running.wait() and "No data available" not in complaint:
            raise MillraceError(f"journalctl failed: {complaint}; run the command with sudo, or as a user of the group systemd-journal")
    finally:
        running.kill()
        running.wait()
        running.stdout.close()
        running.stderr.close()


def parsed_entry(line: bytes) -> dict[str, Any] | None:
    """Return the entry in a line of JSON, None for anything else (a line that is cut)."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def file_entries(layout: BoxLayout, follow: bool) -> Iterator[dict[str, Any] | None]:
    """Yield the entries of the message file, None whenever nothing more is there at the moment; ends with the box."""
    path = layout.message_file
    for descriptor in _open_in_turn(layout, [older_path(path), path], follow):
        with open(descriptor, "rb") as opened:
            is_last_look = False
            while not is_last_look:
                is_last_look = not follow or _is_rotated(descriptor, path)
                while line := opened.readline(2 * EVENT_BYTES_MAX):
                    if line[-1:] != b"\n" and not is_last_look:
                        opened.seek(-len(line), os.SEEK_CUR)  # it is being written
                        break
                    if (entry := parsed_entry(line)) is not None:
                        yield entry
                yield None
                if not is_last_look:
                    select.select([], [], [], LOOK_SECONDS)


def _open_in_turn(layout: BoxLayout, paths: list[str], follow: bool) -> Iterator[int]:
    """Yield descriptors of the files that exist; after the last one, of the file that has its name now, as long as the box runs."""
    for path in paths:
        if (descriptor := _open(layout, path)) is not None:
            yield descriptor
    while follow and os.path.exists(layout.box_file):
        if (descriptor := _open(layout, paths[-1])) is not None:
            yield descriptor
        else:
            select.select([], [], [], LOOK_SECONDS)


def _open(layout: BoxLayout, path: str) -> int | None:
    """Open a file that only this box can have written; None if there is none. Raises MillraceError."""
    try:
        directory = open_directory(layout.runtime_directory)
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(os.path.basename(path), flags, dir_fd=directory)
        finally:
            os.close(directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MillraceError(f"could not read {path}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return descriptor


def _is_rotated(descriptor: int, path: str) -> bool:
    """Whether another file has the name now, or none: then this one gets no more events."""
    try:
        return not os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return True


class EventLines:
    """Formats events: JSON, a line with the whole time, or wrapped to a terminal of `columns`, with a line for each day."""

    def __init__(self, as_json: bool, columns: int = 0, is_coloured: bool = False) -> None:
        self._as_json = as_json
        self._columns = columns
        self._is_coloured = is_coloured
        self._day = ""

    def text(self, event: LoggedEvent) -> str:
        time = local_time(event.time_us // 1_000)
        severity = Severity(min(max(event.severity, Severity.CRITICAL), Severity.DEBUG)).name.lower()
        if self._as_json:
            shown: dict[str, Any] = {"time": time, "timestamp": event.time_us // 1_000, "process": event.process, "severity": event.severity}
            shown |= {"severity_name": severity, "event": event.name or None, "text": event.text, **event.fields}
            return terminal_json(shown) + "\n"
        head, *more = [terminal_text(line) for line in event.text.splitlines() or [""]]
        process, name = terminal_text(event.process) or "-", terminal_text(event.name)
        head = head.removeprefix(f"{name}: ") if name else head
        if not self._columns:
            lines = [f"{time} {process:<15} {severity:<8} {name or '-'} {head}", *(f"    {line}" for line in more)]
            return "\n".join(lines) + "\n"
        day, _, clock = time.partition("T")
        start = f"{clock[:8]} {process:<15} {severity:<8} "
        lines = [f"{name}: {head}" if name else head, *more]
        width = max(self._columns, COLUMNS_MIN)
        rest = " " * len(start)
        wrap = textwrap.TextWrapper(width, initial_indent=rest, subsequent_indent=rest, break_on_hyphens=False)
        wrapped = [part for line in lines for part in wrap.wrap(line) or [rest]]
        text = start + wrapped[0][len(start) :] + "".join(f"\n{line}" for line in wrapped[1:])
        is_new_day, self._day = self._day != day, day
        zone = clock[12:] or "+00:00"
        return (f"{day} ({zone})\n" if is_new_day else "") + (coloured(text, event.severity) if self._is_coloured else text) + "\n"
