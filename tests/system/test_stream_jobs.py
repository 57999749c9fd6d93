"""Streaming jobs in the harness, on a real box: what comes out, into files and a topic; a failure at every step; a job of the user's own."""

from __future__ import annotations

import ast
import json
import socket
import textwrap
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from appliance.pipeline.problems import StreamProblem
from appliance.pipeline.stream_directory import StreamDirectory
from appliance.pipeline.stream_job import StreamJob, built_in_job, load_job
from appliance.pipeline.stream_runner import BatchReport, StreamOptions, StreamRun, failure_text
from lab.committed_reads import read_committed
from lab.first_query import first_query
from lab.minute_records import HOSTS, MinuteRecords, counted, make_topic, rows_below
from lab.running_box import ROOT, RunningBox, eventually

pytestmark = [pytest.mark.own_zookeeper, pytest.mark.system]

NOTEBOOK = ROOT / "appliance/pipeline/notebook.ipynb"


class Stopped(Exception):
    """A test stops a job here."""


class FailingDirectory(StreamDirectory):
    """Fails once, at the given step."""

    failing = ""

    def _maybe_fail(self, step: str) -> None:
        if self.failing == step:
            self.failing = ""
            raise Stopped(step)

    def publish(self, number: int, parts: Any, state: Mapping[str, Any]) -> Any:
        self._maybe_fail("before the commit")
        commit = super().publish(number, parts, state)
        self._maybe_fail("before the topic")
        return commit

    def _place(self, commit: Any) -> None:
        self._maybe_fail("between commit and rename")
        super()._place(commit)


class Jobs:
    """Runs a job until all there is has been done; a new run each time."""

    def __init__(self, spark: SparkSession, box: RunningBox, place: Path) -> None:
        self._spark = spark
        self._servers = {"kafka.bootstrap.servers": box.bootstrap}
        self._place = place
        self._lives = 0
        self.reports: list[BatchReport] = []

    def run(self, job: StreamJob, topic: str, to_topic: str | None = None, failing: str = "", on_sent: Callable[[StreamRun], None] | None = None) -> None:
        self._lives += 1
        directory = FailingDirectory(str(self._place), f"life{self._lives}")
        directory.failing = failing
        directory.open({"job": job.name, "topics": [topic]})
        try:
            source = {**self._servers, "startingOffsets": "earliest"}
            options = StreamOptions((topic,), to_topic, once=True, source=source, sink=self._servers)
            run = StreamRun(options, job, directory, self.reports.append, print)
            if on_sent is not None:
                on_sent(run)
            run.run_on(self._spark)
        finally:
            directory.close()


def test_minutes_of_a_log_are_in_files_and_in_a_topic_once_although_every_step_failed_once(spark: SparkSession, shared_box: RunningBox, tmp_path: Path) -> None:
    make_topic(shared_box, "log")
    make_topic(shared_box, "log-minutes", 1)
    records = MinuteRecords(shared_box, "log")
    jobs = Jobs(spark, shared_box, tmp_path / "out")
    job = built_in_job("2 minutes", 4)
    minute = 0
    for failing in ("before the commit", "between commit and rename", "before the topic", "after the topic"):
        end_minute = minute + 4 if minute else 6  # the newest four are not over yet
        records.send(minute, end_minute, hosts=HOSTS[:2] if minute else HOSTS)
        minute = end_minute

        def fail_after_the_topic(run: StreamRun, failing: str = failing) -> None:
            send = run._send

            def failing_send(*arguments: Any) -> None:
                send(*arguments)
                raise Stopped("after the topic")

            if failing == "after the topic":
                run._send = failing_send  # type: ignore[method-assign]

        # Each run first repairs what the one before it left.
        with pytest.raises(Exception, match="Stopped"):
            jobs.run(job, "log", "log-minutes", failing, fail_after_the_topic)
    records.send(minute, minute + 1)
    jobs.run(job, "log", "log-minutes")
    rows = rows_below(tmp_path / "out/minutes")
    assert counted(rows) == records.of_closed(minute - 3)
    assert all(row["errors"] == 2 and row["error_rate"] == 0.1 and row["info"] == 18 and row["clock_off"] == 0 for row in rows)
    assert all([app["count"] for app in row["apps"]] == [7, 7, 6] and row["messages"] == [{"template": "request * took * ms", "count": 20}] for row in rows)  # type: ignore[attr-defined]
    events = [(row["host"], row["event"]) for row in rows_below(tmp_path / "out/hosts")]
    assert sorted(events) == [("db1", "new"), ("db1", "silent"), ("web1", "new"), ("web2", "new")]
    written = [json.loads(value or b"") for _, value in read_committed(shared_box.bootstrap, "log-minutes")[0]]
    assert sorted((row["minute"], row["host"], row["records"]) for row in written if row["table"] == "minutes") == sorted(
        (row["minute"].strftime("%Y-%m-%dT%H:%M:%S.000Z"), row["host"], row["records"]) for row in rows  # type: ignore[attr-defined]
    )  # fmt: skip
    assert sorted((row["host"], row["event"]) for row in written if row["table"] == "hosts") == sorted(events)
    assert {(row["table"], row["date"]) for row in written} == {("minutes", "2024-11-22"), ("hosts", "2024-11-22")}
    picture, worst, hosts = run_notebook(tmp_path / "out")
    assert picture._repr_svg_().startswith("<svg") and all(f">{host}</text>" in picture for host in HOSTS)
    assert len(worst) == 10 and set(worst.errors) == {2} and set(worst.message) == {"request * took * ms"}
    assert sorted(zip(hosts.host, hosts.event, strict=True)) == sorted(events)


def run_notebook(table: Path) -> tuple[Any, ...]:
    """What its cells show, of this table."""
    cells = [cell["source"] for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}
    shown = []
    for lines in cells:
        *before, last = ast.parse("".join(lines).replace('"minutes-of-syslog"', repr(str(table)))).body
        if isinstance(last, ast.Expr):
            exec(compile(ast.Module(before, []), NOTEBOOK, "exec"), names)
            shown.append(eval(compile(ast.Expression(last.value), NOTEBOOK, "eval"), names))
        else:
            exec(compile(ast.Module([*before, last], []), NOTEBOOK, "exec"), names)
    return tuple(shown)


def test_a_job_of_the_users_own_runs_in_the_same_harness(spark: SparkSession, shared_box: RunningBox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_jobs_of_a_test.py").write_text(textwrap.dedent("""
        from pyspark.sql.functions import udf

        def shout(value):
            return value.decode().upper()

        def loud(records):
            return records.select("offset", udf(shout, "string")("value").alias("text"))

        def no_stream(records):
            return records.sparkSession.range(3)
    """))  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    make_topic(shared_box, "words", 2)
    MinuteRecords(shared_box, "words").send(0, 1, each=5)
    jobs = Jobs(spark, shared_box, tmp_path / "out")
    for _ in range(2):
        jobs.run(load_job("my_jobs_of_a_test:loud"), "words")
    rows = rows_below(tmp_path / "out/loud")
    assert len(rows) == 15
    assert all('"HOST": ' in str(row["text"]) for row in rows)
    assert sum(report.records for report in jobs.reports) == 15
    with pytest.raises(StreamProblem, match="not the DataFrame of a stream"):
        Jobs(spark, shared_box, tmp_path / "other").run(load_job("my_jobs_of_a_test:no_stream"), "words")
    for name, problem in (
        ("my_jobs_of_a_test", "write MODULE:FUNCTION"),
        ("my_jobs_of_a_test:none", "has no function none"),
        ("no_such_module:f", "No module named"),
    ):
        with pytest.raises(StreamProblem, match=problem):
            load_job(name)


def test_the_first_query_of_the_documents_counts_the_errors_of_a_box(spark: SparkSession, shared_box: RunningBox, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"<{8 + severity}>1 2026-11-22T12:00:0{number}Z web1 nginx - - - request {number}" for number, severity in enumerate((6, 3, 2, 4, 3))]
    with socket.create_connection(shared_box.syslog) as sender:
        for line in lines:
            sender.sendall(f"{len(line)} {line}".encode())
    eventually(lambda: sum(len(found) for found in read_committed(shared_box.bootstrap, "syslog").values()) == len(lines), "the lines are stored")
    exec(first_query().replace('.option("subscribe"', f'.option("kafka.bootstrap.servers", "{shared_box.bootstrap}").option("subscribe"'), {})
    table = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [[cell.strip() for cell in row] for row in table] == [["minute", "host", "count"], ["2026-11-22 12:00:00", "web1", "3"]]


def test_an_unknown_topic_is_one_line(spark: SparkSession, shared_box: RunningBox, tmp_path: Path) -> None:
    said = ""
    with suppress(Exception):
        try:
            Jobs(spark, shared_box, tmp_path / "out").run(built_in_job("2 minutes", 5), "no-such-topic")
        except Exception as error:
            said = failure_text(error)
            raise
    assert "no-such-topic" in said
    assert "\n" not in said
