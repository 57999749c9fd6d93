"""Run `millrace load` with parsed options: load, show progress, print the result.

Spark's output goes to a file, which is kept, and named in the message, if the load fails.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from appliance.base.clock import Clock, SystemClock
from appliance.command.output import NOTHING, Column, bytes_text, count_text, duration_text, plural, print_table, say

if TYPE_CHECKING:
    from appliance.pipeline.load_manifest import CommitDone
    from appliance.pipeline.load_run import LoadOrder, LoadView
    from appliance.pipeline.load_task import TaskRunner


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


DATABASE = "postgresql"
HERE = "local[*,3]"
"""This machine; a task may fail twice."""
_PASSWORD = re.compile(r"(//[^/@:]*):[^@/]*@")


class LoadCall:
    """One call of the command."""

    def __init__(self, order: LoadOrder, master: str | None, settings: dict[str, str], as_json: bool) -> None:
        self._order = order
        self._master = master
        self._settings = settings
        self._as_json = as_json
        self._clock = SystemClock()

    def report(self, *, plan: bool) -> None:
        """How things stand; nothing is changed."""
        view = self._look()
        due = view.survey.due(view.positions)
        if self._as_json:
            print(json.dumps(self._document(view), indent=2))
            return
        print_lags(view.survey.lags(view.positions))
        if plan:
            print_plan(due.ranges, due.lost, self._order.rules.commit_records)

    def load(self) -> None:
        from appliance.pipeline.spark_session import SessionOptions

        started_ms = self._clock.monotonic_ms()
        view = self._look()
        commits: list[CommitDone] = []
        with spark_log() as log, LoadDisplay(view.survey.due(view.positions).size, self._clock) as display:

            def on_commit(done: CommitDone) -> None:
                commits.append(done)
                display.on_commit(done.number, done.rows, done.record_bytes, done.offsets)

            session = SessionOptions("millrace load", self._master or HERE, log=log, settings=self._settings)
            if self._order.file_format == DATABASE:
                from appliance.pipeline.load_table import load_table

                positions = load_table(self._order, session, on_commit)
            else:
                from appliance.pipeline.load_run import load_directory, spark_runner

                def open_runner() -> AbstractContextManager[TaskRunner]:
                    return spark_runner(session, lambda progress: display.on_progress(*progress))

                positions = load_directory(self._order, uuid.uuid4().hex[:12], self._clock, open_runner, on_commit)
        self._say_sum(view._replace(positions=positions), commits, max(self._clock.monotonic_ms() - started_ms, 1) / 1000)

    def _look(self) -> LoadView:
        if self._order.file_format == DATABASE:
            from appliance.pipeline.load_table import look_at_table

            return look_at_table(self._order)
        from appliance.pipeline.load_run import look

        return look(self._order)

    def _say_sum(self, view: LoadView, commits: list[CommitDone], seconds: float) -> None:
        rows, bad_rows = sum(done.rows for done in commits), sum(done.bad_rows for done in commits)
        size_bytes = sum(done.record_bytes for done in commits)
        for skip in (skip for done in commits for skip in done.skipped):
            say(f"millrace: passed over {skip}")
        if self._as_json:
            figures = {"rows": rows, "bad_rows": bad_rows, "record_bytes": size_bytes, "commits": len(commits), "seconds": seconds}
            print(json.dumps({**figures, **self._document(view)}, indent=2))
            return
        print_lags(view.survey.lags(view.positions))
        where = _PASSWORD.sub(r"\1@", self._order.path)
        side_table = "millrace_bad_records" if self._order.file_format == DATABASE else f"{where}/_bad_records"
        beside = f"; {plural(bad_rows, 'bad record')} beside it in {side_table}" if bad_rows else ""
        took = f"{seconds:.1f}s" if seconds < 60 else duration_text(seconds)
        say(f"loaded {plural(rows, 'record')} ({bytes_text(size_bytes)}) into {where} in {plural(len(commits), 'commit')}, {took}{beside}")

    @staticmethod
    def _document(view: LoadView) -> dict[str, Any]:
        lags = view.survey.lags(view.positions)
        return {
            "last_commit": view.last.number if view.last else 0,
            "lag": sum(each.lag for each in lags),
            "lost": sum(each.lost for each in lags),
            "partitions": [{**each._asdict(), "lag": each.lag, "lost": each.lost} for each in lags],
        }


RUNNING_LOG = "millrace-load.{}."
"""Name of the file while the load with this pid runs."""


@contextmanager
def spark_log() -> Iterator[Path]:
    """The file for Spark's output; kept, and named in the message, if the load fails. Files of loads that were killed are removed."""
    _remove_logs_of_killed_loads(Path(tempfile.gettempdir()))
    number, name = tempfile.mkstemp(prefix=RUNNING_LOG.format(os.getpid()), suffix=".log")
    os.close(number)
    log = Path(name)
    try:
        yield log
    except BaseException:
        if log.exists() and log.stat().st_size:
            kept = log.rename(log.with_name(log.name.replace(RUNNING_LOG.format(os.getpid()), "millrace-load-")))
            say(f"millrace: what Spark said is in {kept}")
        else:
            log.unlink(missing_ok=True)
        raise
    log.unlink(missing_ok=True)


def _remove_logs_of_killed_loads(directory: Path) -> None:
    for path in directory.glob(RUNNING_LOG.format("[0-9]*") + "*.log"):
        with suppress(OSError):  # another user's, or another load removed it
            if path.lstat().st_uid == os.geteuid() and not os.path.exists(f"/proc/{path.name.split('.')[1]}"):
                path.unlink()
