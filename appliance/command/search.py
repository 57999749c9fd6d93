"""`millrace search`: records that fulfil a query, in time order, from the segments of the box on this machine.

The console does the work (`/api/search` on its Unix socket), in a process that exists for this search. Results go to stdout; progress, what
could not be searched, and totals to stderr. Weak spot: partitions that only other boxes have are named, not searched.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlencode

from appliance.base.errors import MillraceError
from appliance.base.terminal_text import terminal_json
from appliance.base.time_texts import moment_text, parse_moment
from appliance.command.failures import PartlyDone, UsageProblem
from appliance.command.finding import find_running_box
from appliance.command.kafka import require_topic_name
from appliance.command.options import ConfigOption, DataOption, argument, option
from appliance.command.output import Column, bytes_text, count_text, duration_text, plural, print_table, say, until_reader_closes
from appliance.command.record_text import parsed_value, record_line

TIMEOUT_SECONDS = 60


def search(
    query: Annotated[
        str, argument("QUERY", "What to search for; without one, every record matches. One that begins with - goes behind --, or begins with not.")
    ] = "",
    topic: Annotated[str, option("--topic", "-t", metavar="NAME", help="The topic. [default: syslog]")] = "syslog",
    since: Annotated[
        str, option("--since", "-s", metavar="TIME", help="From here on: an age as 15m, 2h, 7d, or a time as 14:03, yesterday, 2026-11-21T14:03. [default: 1h]")
    ] = "1h",
    until: Annotated[str | None, option("--until", "-u", metavar="TIME", help="Up to here. [default: now]")] = None,
    limit: Annotated[int, option("--limit", "-n", metavar="N", min=0, help="End after N records. [default: all]")] = 0,
    newest: Annotated[bool, option("--newest", help="With --limit: the last N records instead of the first.")] = False,
    count: Annotated[bool, option("--count", "-c", help="Print the number of records only.")] = False,
    by: Annotated[str | None, option("--by", metavar="NAMES", help="Count by second, minute, hour, day or fields, such as minute,host.")] = None,
    partition: Annotated[list[int] | None, option("--partition", metavar="N", min=0, help="Only this partition; may be given several times.")] = None,
    before: Annotated[int, option("--before-context", "-B", metavar="N", min=0, max=100, help="Also N records of its partition in front of each.")] = 0,
    after: Annotated[int, option("--after-context", "-A", metavar="N", min=0, max=100, help="Also N records behind each.")] = 0,
    context: Annotated[int, option("--context", "-C", metavar="N", min=0, max=100, help="Also N records on both sides of each.")] = 0,
    follow: Annotated[bool, option("--follow", "-f", help="Go on with records that come later, until Ctrl-C.")] = False,
    as_json: Annotated[bool, option("--json", help="One JSON object a record: partition, offset, timestamp (ms), value.")] = False,
    raw: Annotated[bool, option("--raw", help="The stored values, byte for byte.")] = False,
    quiet: Annotated[bool, option("--quiet", "-q", help="No progress and no totals.")] = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Search the stored records of a topic: words, "phrases", /regular expressions/, FIELD=VALUE, severity<=err, -not, or, ( ).

    Example: millrace search 'host=web* severity<=err "timed out" -debug' --since 2h
    """
    require_topic_name(topic)
    if as_json and raw:
        raise UsageProblem("--json and --raw exclude each other")
    if newest and not limit:
        raise UsageProblem("--newest needs --limit N")
    before, after = max(before, context), max(after, context)
    if (before or after) and (follow or count or by):
        raise UsageProblem("records around each (-A, -B, -C) go with neither --follow nor --count nor --by")
    now_ms = int(datetime.now(UTC).timestamp() * 1_000)
    parameters: dict[str, Any] = {"topic": topic, "query": query, "limit": limit, "order": "newest" if newest else "oldest", "before": before, "after": after}
    for name, text in (("since", since), ("until", until)):
        try:
            parameters |= {} if text is None else {name: parse_moment(text, now_ms)}
        except ValueError as problem:
            raise UsageProblem(f"--{name}: {problem}") from problem
    if until is not None and parameters["until"] <= parameters["since"]:
        raise UsageProblem(f"--until ({moment_text(parameters['until'])}) is not after --since ({moment_text(parameters['since'])})")
    parameters |= {name: "true" for name, is_set in (("count", count), ("follow", follow)) if is_set}
    parameters |= {"by": by} if by else {}
    parameters |= {"partition": ",".join(map(str, partition))} if partition else {}
    found = find_running_box(data, config)
    form = Form.JSON if as_json else Form.RAW if raw else Form.CONTEXT if before or after else Form.LINES
    printer = Printer(form, topic=topic, by=by or "", shows_progress=not quiet and sys.stderr.isatty())
    try:
        with until_reader_closes():
            for document in answer_of(found.layout.console_socket, parameters, query):
                printer.take(document)
    except KeyboardInterrupt:
        printer.clear_progress()
        if not quiet:
            say(f"ended by Ctrl-C: {printer.words()}")
        return
    finally:
        printer.clear_progress()
    printer.finish(quiet)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over the console's Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_SECONDS)
        self.sock.connect(self._path)


def answer_of(console_socket: str, parameters: dict[str, Any], query: str = "") -> Iterator[dict[str, Any]]:
    """Yield the documents of the answer. Raises `UsageProblem` for a wrong query, else `MillraceError`."""
    connection = _UnixConnection(console_socket)
    try:
        connection.request("GET", f"/api/search?{urlencode(parameters)}")
        response = connection.getresponse()
        if response.status != 200:
            raise _refusal(response.status, json.loads(response.read(1 << 16) or b"{}"), query)
        while line := response.readline():
            yield json.loads(line)
    except PermissionError as error:
        raise MillraceError(f"this user may not search: {error.strerror} ({console_socket}); run it as the box's user, or with sudo") from error
    except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
        raise MillraceError(f"the console of the box does not answer: {error}; look at `millrace status`") from error
    finally:
        connection.close()


def _refusal(status: int, document: dict[str, Any], query: str) -> MillraceError:
    message = str(document.get("error", f"the console answered {status}"))
    column = document.get("column")
    if isinstance(column, int) and "\n" not in query:
        message += f"\n  {query}\n  {' ' * (column - 1)}^"
    return UsageProblem(message) if status in (400, 404) else MillraceError(message)


class Totals(NamedTuple):
    """How far a search came."""

    matches: int = 0
    scanned_bytes: int = 0


class Form(Enum):
    """How records are printed. CONTEXT: a match behind `> `, other records behind blanks, and `--` between groups."""

    LINES = 0
    CONTEXT = 1
    JSON = 2
    RAW = 3


class Printer:
    """Prints the documents of an answer."""

    def __init__(self, form: Form, *, topic: str, by: str, shows_progress: bool) -> None:
        self._form = form
        self._ends: dict[int, int] = {}
        """By partition, the offset behind its last record that was printed."""
        self._last_partition = -1
        self._topic = topic
        self._by = by.split(",")
        self._shows_progress = shows_progress
        self._is_coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._has_progress = False
        self._printed = 0
        self._totals = Totals()
        self._counts: list[dict[str, Any]] = []
        self._end: dict[str, Any] | None = None

    def take(self, document: dict[str, Any]) -> None:
        """Print a record; keep everything else. Raises `MillraceError` if the search failed."""
        if (record := document.get("record")) is not None:
            self._print(record)
        elif (progress := document.get("progress")) is not None:
            self._totals = Totals(progress["matches"], progress["bytes"])
            sys.stdout.flush()
            if self._shows_progress and "of" in progress:
                self._show(progress)
        elif (counted := document.get("count")) is not None:
            self._counts.append(counted)
        elif (end := document.get("end")) is not None:
            self._end = end
            self._totals = Totals(end["matches"], end["scanned_bytes"])
        elif (error := document.get("error")) is not None:
            raise MillraceError(error["message"])

    def _print(self, record: dict[str, Any]) -> None:
        self.clear_progress()
        self._printed += 1
        if self._form is Form.JSON:
            sys.stdout.write(terminal_json({"topic": self._topic} | _with_values(record)) + "\n")
            return
        group = [*record.get("before", ()), record, *record.get("after", ())]
        partition, start = record["partition"], group[0]["offset"]
        if self._form is Form.CONTEXT and self._printed > 1 and (partition, start) != (self._last_partition, self._ends.get(partition)):
            sys.stdout.write("--\n")
        for each in group:
            value = _value_of(each)
            if self._form is Form.RAW:
                sys.stdout.buffer.write(value + b"\n")
            else:
                mark = "" if self._form is Form.LINES else "> " if each is record else "  "
                sys.stdout.write(mark + record_line(each["timestamp"], value, self._is_coloured) + "\n")
        self._last_partition, self._ends[partition] = partition, group[-1]["offset"] + 1

    def _show(self, progress: dict[str, Any]) -> None:
        share = 100 * progress["bytes"] // max(progress["of"], 1)
        left = "" if progress["left_ms"] is None else f", {duration_text(progress['left_ms'] / 1_000)} left"
        rate = bytes_text(progress["bytes_per_second"])
        text = f"{share} % of {bytes_text(progress['of'])}, {rate}/s{left}, {plural(progress['matches'], 'record')}"
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
        self._has_progress = True

    def clear_progress(self) -> None:
        """Remove the line of progress."""
        if self._has_progress:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._has_progress = False

    def words(self) -> str:
        """Return the totals."""
        matches = self._printed or self._totals.matches
        return f"{plural(matches, 'record')} in {bytes_text(self._totals.scanned_bytes)}"

    def finish(self, quiet: bool) -> None:
        """Print counts and totals. Raises `PartlyDone` if partitions were not searched."""
        if self._end is None:
            raise MillraceError(f"the search was broken off after {self.words()}; look at `millrace status`")
        self._print_counts()
        sys.stdout.flush()
        for note in self._end["notes"]:
            say(f"millrace: {note}")
        if self._end["unordered"]:
            say(f"millrace: {plural(self._end['unordered'], 'record')} came later than their order: their time is far behind their neighbours'")
        if self._end["stopped"] == "duration":
            say("millrace: the search ended early, after search.duration.max.ms; narrow it by time")
        if not quiet:
            seconds = self._end["milliseconds"] / 1_000
            rate = self._end["scanned_bytes"] / max(seconds, 0.001)
            skipped = self._end["skipped_bytes"]
            passed_over = f" ({bytes_text(skipped)} skipped by summaries)" if skipped else ""
            words = f"{self.words()}{passed_over}, {seconds:.1f} s, {bytes_text(rate)}/s"
            say(words + ("; more may follow (--limit)" if self._end["stopped"] == "limit" else ""))
        if absent := self._end["not_searched"]:
            lines = [f"partition {each['partition']} of {self._topic} was not searched: {each['reason']}" for each in absent]
            raise PartlyDone("\n".join(lines))

    def _print_counts(self) -> None:
        if self._form is Form.JSON:
            for each in self._counts:
                sys.stdout.write(terminal_json(each) + "\n")
        elif self._counts and self._counts[0]["by"]:
            rows = [[*map(_shown, each["by"]), count_text(each["count"])] for each in self._counts]
            print_table([*map(Column, self._by), Column("records", is_number=True)], rows)
            for index, name in enumerate(self._by):
                if all(each["by"][index] is None for each in self._counts):
                    say(f"millrace: no record has a field {name}; of time there are second, minute, hour and day")
        else:
            for each in self._counts:
                print(each["count"])


def _value_of(record: dict[str, Any]) -> bytes:
    return base64.b64decode(record["value_base64"]) if "value_base64" in record else record["value"].encode()


def _with_values(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record, and those around it, with values that are JSON objects as such."""
    document = parsed_value(_value_of(record))
    around = {name: [_with_values(each) for each in record[name]] for name in ("before", "after") if name in record}
    return record | around | ({} if document is None else {"value": document})


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)
