"""What `millrace load` shows: a bar on a terminal, a line for each commit elsewhere; tables of plan and lag.

Knows numbers and names, and nothing of the pipeline.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from appliance.base.clock import Clock
from appliance.command.output import NOTHING, Column, bytes_text, count_text, plural, print_table, say

LAG_COLUMNS = (
    Column("topic"),
    Column("partition", is_number=True),
    Column("loaded to", is_number=True),
    Column("end", is_number=True),
    Column("lag", is_number=True),
    Column("lost", is_number=True),
)


def print_lags(lags: Iterable[Any]) -> None:
    """One line a partition: topic, partition, loaded (or None), start, end, lag, lost."""
    rows = [
        [each.topic, str(each.partition), NOTHING if each.loaded is None else str(each.loaded), str(each.end), count_text(each.lag), count_text(each.lost)]
        for each in lags
    ]
    print_table(LAG_COLUMNS, rows)


def print_plan(ranges: Iterable[Any], lost: Iterable[Any], commit_records: int) -> None:
    total, topics = 0, set()
    for each in ranges:
        total += each.size
        topics.add(each.topic)
    for skip in lost:
        print(f"lost: {skip}")
    if not total:
        print("there is nothing to load")
        return
    commits = plural(-(-total // commit_records), "commit")
    print(f"up to {plural(total, 'record')} of {plural(len(topics), 'topic')} would be loaded, in {commits}")


class LoadDisplay:
    """Progress of one run over `total` offsets, on stderr."""

    def __init__(self, total: int, clock: Clock) -> None:
        self._total = total
        self._clock = clock
        self._started_ms: int | None = None  # when the first task could begin
        self._done = 0
        self._done_bytes = 0
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> LoadDisplay:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("loading"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(file=sys.stderr), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("loading", total=self._total, rate="starting Spark")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def on_progress(self, offsets: int, record_bytes: int) -> None:
        """Of the commit under way; from any thread."""
        now_ms = self._clock.monotonic_ms()
        self._started_ms = now_ms if self._started_ms is None else self._started_ms
        if self._bar is not None and self._done_bytes + record_bytes:
            rate = (self._done_bytes + record_bytes) / max(now_ms - self._started_ms, 1) * 1000
            self._bar.update(self._task, completed=min(self._done + offsets, self._total), rate=f"{bytes_text(rate)}/s")

    def on_commit(self, number: int, rows: int, record_bytes: int, offsets: int) -> None:
        self._done += offsets
        self._done_bytes += record_bytes
        if self._bar is None:
            say(f"commit {number}: {plural(rows, 'record')}, {bytes_text(record_bytes)}")
        else:
            self.on_progress(0, 0)
