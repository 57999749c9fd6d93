"""`millrace topic tail`: records as they come, or those of a time range, one a line.

Values go to a pipe byte for byte. On a terminal, bytes that are no text and control characters are shown as escapes: a log line must
not be able to control the reader's terminal; a line has the colour of its severity, unless NO_COLOR is set.
"""

from __future__ import annotations

import base64
import os
import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NamedTuple, Protocol

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import Offset, TopicPartition
from appliance.base.terminal_text import terminal_json
from appliance.base.time_texts import parse_moment
from appliance.command.failures import PartlyDone, UsageProblem
from appliance.command.kafka import open_cluster, require_topic_name
from appliance.command.options import BootstrapOption, ConfigOption, DataOption, argument, option
from appliance.command.output import plural, printable, say, until_reader_closes
from appliance.command.record_text import coloured, local_time, parsed_value

if TYPE_CHECKING:
    from appliance.client.cluster import ClusterClient
    from appliance.client.fetch import TopicTail
    from appliance.records.record import Record

POLL_MS = 1_000
SHOWN_PARTITIONS_MAX = 12
FORMAT_HELP = r"Print each record so, as kcat does: %t topic, %p partition, %o offset, %T time in ms, %k key, %h headers, %s value, %% a %; \n and \t."


def tail(
    name: Annotated[str, argument("NAME", "The topic.")],
    from_beginning: Annotated[bool, option("--from-beginning", "-b", help="Start at the oldest record instead of at new ones.")] = False,
    since: Annotated[
        str | None, option("--since", "-s", metavar="TIME", help="Start here: an age as 15m, 2h, 7d, or a time as 14:03, yesterday, 2026-11-21T14:03.")
    ] = None,
    until: Annotated[
        str | None, option("--until", "-u", metavar="TIME", help="End at the first record of each partition that is not before this time.")
    ] = None,
    offset: Annotated[int | None, option("--offset", metavar="N", min=0, help="Start at this offset of one partition.")] = None,
    no_follow: Annotated[bool, option("--no-follow", help="End at what is there now. Without a start: at the oldest record.")] = False,
    max_records: Annotated[int | None, option("--max", "-n", metavar="N", min=0, help="End after N records.")] = None,
    grep: Annotated[str | None, option("--grep", "-g", metavar="REGEX", help="Only records whose value has a match (RE2; (?i) ignores case).")] = None,
    keys: Annotated[bool, option("--keys", "-k", help="Print each record's key before its value.")] = False,
    headers: Annotated[bool, option("--headers", help="Print each record's headers before its value.")] = False,
    offsets: Annotated[bool, option("--offsets", "-o", help="Print partition:offset before each record.")] = False,
    timestamps: Annotated[bool, option("--timestamps", help="Print each record's time, local with its zone.")] = False,
    as_json: Annotated[bool, option("--json", help="One JSON object a record: topic, partition, offset, timestamp (ms), key, headers, value.")] = False,
    template: Annotated[str | None, option("--format", metavar="TEXT", help=FORMAT_HELP)] = None,
    partition: Annotated[int | None, option("--partition", metavar="N", min=0, help="Only this partition.")] = None,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Print a topic's records as they come, one a line; Ctrl-C ends it and says how far it came.

    Example: millrace topic tail syslog --since 10m --grep 'timed out' --no-follow
    """
    require_topic_name(name)
    now_ms = int(datetime.now(UTC).timestamp() * 1_000)
    chosen = TailRange.chosen(from_beginning, since, until, offset, no_follow, now_ms)
    fields = Fields(keys, headers, offsets, timestamps)
    if sum((as_json, template is not None, any(fields))) > 1:
        raise UsageProblem("--json, --format and the fields (--keys, --headers, --offsets, --timestamps) exclude each other")
    is_terminal = sys.stdout.isatty()
    line: RecordFormat = (
        JsonFormat(name)
        if as_json
        else TemplateFormat(name, template, escape=is_terminal)
        if template is not None
        else LineFormat(*fields, escape=is_terminal, colours=is_terminal and not os.environ.get("NO_COLOR"))
    )
    progress = TailProgress(matches=value_filter(grep))
    try:
        with open_cluster(bootstrap, data, config) as cluster:
            following = _open_tail(cluster, name, chosen, partition)
            try:
                progress.ends = chosen.ends(cluster, name, following.next_offsets)
                with until_reader_closes():
                    copy_records(following, line, sys.stdout.buffer, max_records, progress)
                if not chosen.is_followed and following.unserved:
                    raise PartlyDone("\n".join(f"partition {each} of {name} was not read: {why}" for each, why in following.unserved.items()))
            finally:
                progress.next_offsets = following.next_offsets
                following.close()
    except KeyboardInterrupt:
        say(f"ended by Ctrl-C: {progress.words()}")


class TailRange(NamedTuple):
    """Which records are wanted. Times in ms; None: no such bound. `is_followed`: also those that come later."""

    start: int
    start_offset: Offset | None
    until_ms: int | None
    is_followed: bool

    @classmethod
    def chosen(cls, from_beginning: bool, since: str | None, until: str | None, offset: int | None, no_follow: bool, now_ms: int) -> TailRange:
        """Raises UsageProblem for bounds that contradict each other, and for what is no time."""
        from appliance.client.fetch import StartAt

        if sum((from_beginning, since is not None, offset is not None)) > 1:
            raise UsageProblem("--from-beginning, --since and --offset exclude each other")
        moments: list[int | None] = []
        for named, text in (("since", since), ("until", until)):
            try:
                moments.append(None if text is None else parse_moment(text, now_ms))
            except ValueError as problem:
                raise UsageProblem(f"--{named}: {problem}") from problem
        is_followed = not no_follow and until is None
        start = StartAt.EARLIEST if from_beginning or not is_followed else StartAt.LATEST
        return cls(start if moments[0] is None else moments[0], None if offset is None else Offset(offset), moments[1], is_followed)

    def ends(self, cluster: ClusterClient, topic: str, partitions: Mapping[int, int]) -> dict[int, int] | None:
        """Return the offset before which each partition ends; None without an end."""
        if self.is_followed:
            return None
        from appliance.client.admin import list_offsets
        from appliance.client.fetch import StartAt

        asked = [TopicPartition(topic, each) for each in partitions]
        ends = {each.partition: int(found.offset) for each, found in list_offsets(cluster, asked, StartAt.LATEST).items()}
        if self.until_ms is not None:
            found_ends = list_offsets(cluster, asked, self.until_ms)
            ends |= {each.partition: int(found.offset) for each, found in found_ends.items() if found.offset >= 0}
        return ends


def _open_tail(cluster: ClusterClient, name: str, chosen: TailRange, partition: int | None) -> TopicTail:
    """UsageProblem if the topic does not exist."""
    from appliance.client.fetch import TopicTail

    try:
        if chosen.start_offset is not None and partition is None and (count := len(cluster.topic(name, complete=False).partitions)) > 1:
            raise UsageProblem(f"--offset is for one partition, and topic {name} has {count}; add --partition N")
        return TopicTail(cluster, name, start_at=chosen.start, start_offset=chosen.start_offset, partitions=None if partition is None else [partition],
                         on_notice=lambda notice: say(f"millrace: {notice}"))  # fmt: skip
    except RequestRefused as error:
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        raise UsageProblem(f"there is no topic {name}; `millrace topic list` names all, `millrace topic create {name}` creates it") from error


def value_filter(pattern: str | None) -> Callable[[bytes], bool] | None:
    """Return whether a value has a match; None without a pattern. UsageProblem for a wrong one."""
    if pattern is None:
        return None
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        search = re2.compile(pattern.encode(), options).search
    except re2.error as problem:
        raise UsageProblem(f"--grep: {pattern!r} is no regular expression of RE2: {problem}") from problem
    return lambda value: search(value) is not None


class TailProgress:
    """How far a tail came. `ends`: it ends when each partition has reached its offset."""

    def __init__(self, matches: Callable[[bytes], bool] | None = None, ends: dict[int, int] | None = None) -> None:
        self.matches = matches
        self.ends = ends
        self.records = 0
        self.next_offsets: Mapping[int, int] = {}

    def wanted(self, partition: int, records: list[Record]) -> list[Record]:
        """Return the records before the end that the filter lets pass."""
        if self.ends is not None:
            end = self.ends.get(partition, 0)
            records = [record for record in records if record.offset < end]
        if self.matches is not None:
            records = [record for record in records if record.value is not None and self.matches(record.value)]
        return records

    def is_over(self, following: TopicTail) -> bool:
        return self.ends is not None and all(following.next_offsets.get(partition, end) >= end for partition, end in self.ends.items())

    def words(self) -> str:
        """Return the number of records, and the offsets at which the next tail would go on."""
        shown = [f"{partition}:{offset}" for partition, offset in sorted(self.next_offsets.items())]
        more = f" and {len(shown) - SHOWN_PARTITIONS_MAX} more partitions" if len(shown) > SHOWN_PARTITIONS_MAX else ""
        places = f"; next offsets {' '.join(shown[:SHOWN_PARTITIONS_MAX])}{more}" if shown else ""
        return f"{plural(self.records, 'record')}{places}"


class RecordFormat(Protocol):
    """Formats a record with the end of its line, if it has one."""

    def format(self, partition: int, record: Record) -> bytes: ...


def copy_records(following: TopicTail, line: RecordFormat, target: BinaryIO, max_records: int | None, progress: TailProgress | None = None) -> None:
    """Write lines until `max_records` were written (None: for ever) or the end is reached, flushed whenever nothing more is there at the moment."""
    progress = progress or TailProgress()
    left = sys.maxsize if max_records is None else max_records
    while left > 0 and not progress.is_over(following):
        for partition, records in following.poll(POLL_MS):
            taken = progress.wanted(partition, records)[:left]
            left -= len(taken)
            progress.records += len(taken)
            target.write(b"".join([line.format(partition, record) for record in taken]))
        target.flush()


class Fields(NamedTuple):
    """What is printed before a value."""

    keys: bool = False
    headers: bool = False
    offsets: bool = False
    timestamps: bool = False


class LineFormat:
    """Format a record as a line: the requested fields, then the value, separated by tabs."""

    def __init__(self, keys: bool = False, headers: bool = False, offsets: bool = False, timestamps: bool = False, *,
                 escape: bool = False, colours: bool = False) -> None:  # fmt: skip
        self._fields = Fields(keys, headers, offsets, timestamps)
        self._escape = escape
        self._colours = colours

    def format(self, partition: int, record: Record) -> bytes:
        fields = self._fields
        parts = []
        if fields.timestamps:
            parts.append(local_time(record.timestamp).encode())
        if fields.offsets:
            parts.append(f"{partition}:{record.offset}".encode())
        if fields.keys:
            parts.append(b"null" if record.key is None else record.key)
        if fields.headers:
            parts.append(headers_text(record))
        parts.append(b"" if record.value is None else record.value)
        if self._escape:
            parts = [printable(part) for part in parts]
        if self._colours:
            document = parsed_value(record.value or b"") or {}
            return coloured(b"\t".join(parts).decode(), document.get("severity")).encode() + b"\n"
        return b"\t".join(parts) + b"\n"


def headers_text(record: Record) -> bytes:
    """`name=value,…`"""
    return b",".join(name.encode() + b"=" + (b"null" if value is None else value) for name, value in record.headers)


class JsonFormat:
    """Format a record as a JSON object. Bytes that are not UTF-8 are in base 64, in a field with the suffix `_base64`."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def format(self, partition: int, record: Record) -> bytes:
        document = parsed_value(record.value or b"")
        shown: dict[str, Any] = {"topic": self._topic, "partition": partition, "offset": record.offset, "timestamp": record.timestamp}
        shown |= _text_field("key", record.key)
        shown["headers"] = [{"name": name} | _text_field("value", value) for name, value in record.headers]
        shown |= _text_field("value", record.value) if document is None else {"value": document}
        return terminal_json(shown).encode() + b"\n"


def _text_field(name: str, content: bytes | None) -> dict[str, Any]:
    try:
        return {name: None if content is None else content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content or b"").decode()}


_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\\\": "\\"}


class TemplateFormat:
    """Format a record by a template of kcat's letters; without an end of line unless the template has one. UsageProblem for an unknown letter."""

    def __init__(self, topic: str, template: str, *, escape: bool = False) -> None:
        known: dict[str, Callable[[int, Record], bytes]] = {
            "t": lambda _partition, _record: topic.encode(),
            "p": lambda partition, _record: str(partition).encode(),
            "o": lambda _partition, record: str(record.offset).encode(),
            "T": lambda _partition, record: str(record.timestamp).encode(),
            "k": lambda _partition, record: record.key or b"",
            "h": lambda _partition, record: headers_text(record),
            "s": lambda _partition, record: record.value or b"",
            "%": lambda _partition, _record: b"%",
        }
        text = re.sub(r"\\[ntr\\]", lambda found: _ESCAPES[found.group()], template)
        self._parts: list[bytes | Callable[[int, Record], bytes]] = []
        for piece in re.split(r"(%.?)", text, flags=re.DOTALL):
            if piece.startswith("%") and piece[1:] not in known:
                raise UsageProblem(f"--format: {piece} is unknown; there are {' '.join(f'%{letter}' for letter in known)}")
            self._parts.append(known[piece[1:]] if piece.startswith("%") else piece.encode())
        self._escape = escape

    def format(self, partition: int, record: Record) -> bytes:
        found = []
        for part in self._parts:
            content = part if isinstance(part, bytes) else part(partition, record)
            found.append(printable(content) if self._escape and not isinstance(part, bytes) else content)
        return b"".join(found)
