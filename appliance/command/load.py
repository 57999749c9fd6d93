"""`millrace load`: topics into Parquet, into a Delta table, or into PostgreSQL, each record exactly once, by a Spark job.

Killed anywhere and started again it goes on where it was. Everything of the pipeline (Spark, Arrow) is imported when it is needed, and only here.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from appliance.base.clock import SystemClock
from appliance.base.errors import ConfigurationProblems
from appliance.command.failures import UsageProblem
from appliance.command.finding import bootstrap_addresses
from appliance.command.kafka import require_topic_name
from appliance.command.load_display import LoadDisplay, print_lags, print_plan
from appliance.command.options import BootstrapOption, ConfigOption, DataOption, argument, option
from appliance.command.output import bytes_text, duration_text, plural, say

if TYPE_CHECKING:
    from appliance.pipeline.load_manifest import CommitDone
    from appliance.pipeline.load_run import LoadOrder, LoadView
    from appliance.pipeline.load_task import TaskRunner


class Decoding(StrEnum):
    """What a record's value is."""

    RAW = "raw"
    SYSLOG = "syslog"
    JSON = "json"


class FileFormat(StrEnum):
    PARQUET = "parquet"
    DELTA = "delta"


DATABASE = "postgresql"
HERE = "local[*,3]"
"""This machine; a task may fail twice."""
_PASSWORD = re.compile(r"(//[^/@:]*):[^@/]*@")


class PartedBy(StrEnum):
    """Whose date and hour."""

    RECORD = "record"
    ARRIVAL = "arrival"


def load(
    topics: Annotated[list[str], argument("TOPIC…", "The topics.")],
    to: Annotated[str, option("--to", metavar="DIR", help="A directory (local or shared by POSIX), or postgresql://USER@HOST/DATABASE[?table=NAME].")],
    decode: Annotated[Decoding | None, option("--decode", help="What values are. [default: raw, or as the topic was loaded before]")] = None,
    schema: Annotated[
        str | None, option("--schema", metavar="FIELDS", help="Fields of JSON records: 'host string, latency double'; @FILE reads it. [default: from a sample]")
    ] = None,
    file_format: Annotated[FileFormat, option("--format", help="Plain Parquet files, or a Delta table (one topic a directory).")] = FileFormat.PARQUET,
    by: Annotated[PartedBy, option("--by", help="Date and hour of the record, or of its arrival.")] = PartedBy.RECORD,
    headers: Annotated[bool | None, option("--headers/--no-headers", help="Keep records' headers in a column.")] = None,
    master: Annotated[str | None, option("--master", metavar="URL", help="A Spark cluster. [default: this machine]")] = None,
    settings: Annotated[list[str] | None, option("--spark", metavar="NAME=VALUE", help="A setting of Spark; may be given several times.")] = None,
    dry_run: Annotated[bool, option("--dry-run", help="Show what would be loaded; change nothing, start no Spark.")] = False,
    lag: Annotated[bool, option("--lag", help="Only say how far each partition is loaded.")] = False,
    accept_loss: Annotated[bool, option("--accept-loss", help="Go on without records that were deleted before they were loaded.")] = False,
    skip_corrupt: Annotated[bool, option("--skip-corrupt", help="Go on behind damaged batches.")] = False,
    commit_records: Annotated[int | None, option("--commit-records", metavar="N", min=1, help="Records in one commit, at most. [default: 16 million]")] = None,
    task_records: Annotated[int | None, option("--task-records", metavar="N", min=1, help="Records in one file, at most. [default: 500,000]")] = None,
    as_json: Annotated[bool, option("--json", help="The report as JSON.")] = False,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Load topics into a warehouse, each record once; run again it goes on where it was."""
    for name in topics:
        require_topic_name(name)
    with _pipeline():
        from appliance.pipeline.cluster_access import ClusterAccess
        from appliance.pipeline.load_run import LoadOrder
        from appliance.pipeline.load_survey import Wish
        from appliance.pipeline.loader import LoadRules

        destination, database, fields = _understood(to, schema)
        if database and file_format is FileFormat.DELTA:
            raise UsageProblem("--format is for directories")
        rules = LoadRules(accept_loss, skip_corrupt, by_arrival=by is PartedBy.ARRIVAL)
        rules = rules._replace(commit_records=commit_records or rules.commit_records, task_records=task_records or rules.task_records)
        access = ClusterAccess(tuple(bootstrap_addresses(bootstrap, data, config)), read_committed=True, client_id="millrace-load")
        order = LoadOrder(list(dict.fromkeys(topics)), destination, access, Wish(decode, fields, headers), rules, DATABASE if database else file_format)
        run = LoadCommand(order, master, _spark_settings(settings or []), as_json)
        if dry_run or lag:
            run.report(plan=dry_run)
        else:
            run.load()


@contextmanager
def _pipeline() -> Iterator[None]:
    """Where its packages are not installed, say how they are."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("pyarrow", "numpy", "pyspark", "pandas", "deltalake", "psycopg"):
            raise
        raise ConfigurationProblems([f"{error.name} is not installed here: pip install 'millrace[pipeline]', or sudo ./install.sh --pipeline"]) from error


def _understood(to: str, schema: str | None) -> tuple[str, bool, Any]:
    """Where to, whether that is a database, the fields. Raises UsageProblem for what cannot be meant."""
    from appliance.pipeline.json_fields import parse_fields
    from appliance.pipeline.load_destination import parse_destination
    from appliance.pipeline.load_problem import LoadProblem

    try:
        text = Path(schema[1:]).read_text() if schema and schema.startswith("@") else schema
        destination = parse_destination(to)
        fields = None if text is None else parse_fields(text)
        return destination.directory or destination.database or "", destination.directory is None, fields
    except LoadProblem as error:
        raise UsageProblem(str(error)) from error
    except OSError as error:
        raise UsageProblem(f"--schema {schema}: {(error.strerror or str(error)).lower()}") from error


def _spark_settings(settings: list[str]) -> dict[str, str]:
    pairs = [setting.partition("=") for setting in settings]
    if wrong := [name for name, equals, _ in pairs if not equals or not name.startswith("spark.")]:
        raise UsageProblem(f"--spark {wrong[0]}: write --spark spark.NAME=VALUE")
    return {name: value for name, _, value in pairs}


class LoadCommand:
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
        with _spark_log() as log, LoadDisplay(view.survey.due(view.positions).size, self._clock) as display:

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


@contextmanager
def _spark_log() -> Iterator[Path]:
    """Where Spark talks to; kept, and told of, when the load fails."""
    number, name = tempfile.mkstemp(prefix="millrace-load-", suffix=".log")
    os.close(number)
    log = Path(name)
    try:
        yield log
    except BaseException:
        if log.exists() and log.stat().st_size:
            say(f"millrace: what Spark said is in {log}")
        else:
            log.unlink(missing_ok=True)
        raise
    log.unlink(missing_ok=True)
