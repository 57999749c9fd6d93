"""`millrace topic tail`: records as they come, one a line, until Ctrl-C or --max.

Values go to a pipe byte for byte. On a terminal, bytes that are no text and control characters are shown as escapes: a log line must
not be able to control the reader's terminal.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, BinaryIO

from appliance.command.kafka import open_cluster, require_topic_name
from appliance.command.options import BootstrapOption, ConfigOption, DataOption, argument, option
from appliance.command.output import printable, say, until_reader_closes

if TYPE_CHECKING:
    from appliance.client.fetch import TopicTail
    from appliance.records.record import Record

POLL_MS = 1_000


def tail(
    name: Annotated[str, argument("NAME", "The topic.")],
    from_beginning: Annotated[bool, option("--from-beginning", "-b", help="Start at the oldest record instead of at new ones.")] = False,
    max_records: Annotated[int | None, option("--max", "-n", metavar="N", min=0, help="End after N records.")] = None,
    keys: Annotated[bool, option("--keys", "-k", help="Print each record's key before its value.")] = False,
    headers: Annotated[bool, option("--headers", help="Print each record's headers before its value.")] = False,
    offsets: Annotated[bool, option("--offsets", "-o", help="Print partition:offset before each record.")] = False,
    partition: Annotated[int | None, option("--partition", metavar="N", min=0, help="Only this partition.")] = None,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Print a topic's records as they come, one a line; Ctrl-C ends it."""
    require_topic_name(name)
    line = LineFormat(keys=keys, headers=headers, offsets=offsets, escape=sys.stdout.isatty())
    try:
        with open_cluster(bootstrap, data, config) as cluster:
            from appliance.client.fetch import StartAt, TopicTail

            following = TopicTail(cluster, name, start_at=StartAt.EARLIEST if from_beginning else StartAt.LATEST,
                                  partitions=None if partition is None else [partition], on_notice=lambda notice: say(f"millrace: {notice}"))  # fmt: skip
            try:
                with until_reader_closes():
                    copy_records(following, line, sys.stdout.buffer, max_records)
            finally:
                following.close()
    except KeyboardInterrupt:
        pass  # the ordinary end of following something


def copy_records(following: TopicTail, line: LineFormat, target: BinaryIO, max_records: int | None) -> None:
    """Write lines until `max_records` were written (None: for ever), flushed whenever nothing more is there at the moment."""
    left = sys.maxsize if max_records is None else max_records
    while left > 0:
        for partition, records in following.poll(POLL_MS):
            taken = records[:left]
            left -= len(taken)
            target.write(b"".join([line.format(partition, record) for record in taken]))
        target.flush()


class LineFormat:
    """Format a record as a line: the requested fields, then the value, separated by tabs."""

    def __init__(self, *, keys: bool = False, headers: bool = False, offsets: bool = False, escape: bool = False) -> None:
        self._keys = keys
        self._headers = headers
        self._offsets = offsets
        self._escape = escape

    def format(self, partition: int, record: Record) -> bytes:
        parts = []
        if self._offsets:
            parts.append(f"{partition}:{record.offset}".encode())
        if self._keys:
            parts.append(b"null" if record.key is None else record.key)
        if self._headers:
            parts.append(b",".join(name.encode() + b"=" + (b"null" if value is None else value) for name, value in record.headers))
        parts.append(b"" if record.value is None else record.value)
        if self._escape:
            parts = [printable(part) for part in parts]
        return b"\t".join(parts) + b"\n"
