"""`millrace stream` as a process: killed, it and its JVM, in the middle of micro-batches; started again, it has every row once."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from appliance.runtime.spawning import die_with_parent
from lab.committed_reads import read_committed
from lab.minute_records import MinuteRecords, counted, make_topic, rows_below
from lab.running_box import ROOT, RunningBox, environment, eventually
from lab.spark_session import why_no_spark

pytestmark = [pytest.mark.own_zookeeper, pytest.mark.system, pytest.mark.skipif(bool(why_no_spark()), reason=why_no_spark())]

MILLRACE = [sys.executable, "-P", "-c", "from appliance.command.main import main; main()"]
SECONDS = 180.0
"""Not enforced: another Spark may start beside each of its three, on a machine that has two
processors.
"""
KILLS = 2 if os.environ.get("MILLRACE_DEEP") is None else 20
MINUTES_OPEN = 4
"""The newest minutes wait for late records: two of --late, one of slack, and their own."""


class StreamProcess:
    """One run of the command."""

    def __init__(self, box: RunningBox, out: Path, *options: str) -> None:
        self.out = out
        self._said = open(out.parent / "said", "ab")
        command = [*MILLRACE, "stream", "log", "--to", str(out), "--every", "1 second", "--bootstrap", box.bootstrap, *options]
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment() | {"TMPDIR": str(out.parent)}, stdin=subprocess.DEVNULL,
                                        stdout=self._said, stderr=self._said, preexec_fn=partial(die_with_parent, os.getpid()))  # fmt: skip

    def said(self) -> str:
        return (self.out.parent / "said").read_text(errors="replace")

    def jvm(self) -> psutil.Process:
        (java,) = (child for child in psutil.Process(self.process.pid).children() if child.name() == "java")
        return java

    def await_batch_under_way(self, after: int) -> None:
        """Until Spark has begun a micro-batch beyond number `after`."""
        offsets = self.out / "_millrace/checkpoint/offsets"
        eventually(lambda: self._alive() and newest(offsets) > after, f"a micro-batch after {after}: {self.said()}", SECONDS)

    def _alive(self) -> bool:
        assert self.process.poll() is None, self.said()
        return True

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        self._said.close()
        return code


def newest(directory: Path) -> int:
    return max((int(file.name) for file in directory.iterdir() if file.name.isdigit()), default=-1) if directory.exists() else -1


@pytest.mark.spark  # three of its own, one after the other
def test_killed_in_the_middle_driver_and_jvm_by_turns_it_has_every_minute_once(box: RunningBox, tmp_path: Path) -> None:
    # Three runs may take longer than a test has; every wait here has its own end.
    faulthandler.cancel_dump_traceback_later()
    make_topic(box, "log")
    make_topic(box, "minutes", 1)
    records = MinuteRecords(box, "log")
    out = tmp_path / "work/out"
    out.parent.mkdir()
    records.send(0, 6)
    stream = StreamProcess(box, out, "--to-topic", "minutes")
    minute = 6
    for kill in range(KILLS):
        begun = newest(out / "_millrace/checkpoint/offsets")
        if kill:  # what the run before left is done again first
            eventually(lambda: rows_below(out / "minutes"), f"rows: {stream.said()}", SECONDS)
        records.send(minute, minute + 3)
        minute += 3
        stream.await_batch_under_way(begun)
        if kill % 2:
            stream.jvm().kill()
        else:
            assert stream.end(signal.SIGKILL) == -signal.SIGKILL
            stream = StreamProcess(box, out, "--to-topic", "minutes")
    records.send(minute, minute + 3)
    minute += 3
    expected = records.of_closed(minute - MINUTES_OPEN)
    eventually(lambda: counted(rows_below(out / "minutes")) == expected, f"all minutes: {stream.said()}", SECONDS)
    assert stream.end(signal.SIGTERM) == 0
    rows = rows_below(out / "minutes")
    assert counted(rows) == expected
    written = [json.loads(value or b"") for _, value in read_committed(box.bootstrap, "minutes")[0]]
    assert len(written) == len(rows) + len(rows_below(out / "hosts"))
    assert sorted((row["minute"], row["host"], row["records"]) for row in written if row["table"] == "minutes") == sorted(
        (row["minute"].strftime("%Y-%m-%dT%H:%M:%S.000Z"), row["host"], row["records"]) for row in rows  # type: ignore[attr-defined]
    )  # fmt: skip
    said = stream.said()
    assert said.count("Spark's JVM has ended (signal 9); starting another") == KILLS // 2
    assert "Traceback" not in said
    # A topic of the same name is another one; that needs no Spark, nor does an absent topic.
    admin = AdminClient({"bootstrap.servers": box.bootstrap})
    admin.delete_topics(["log"])["log"].result(60)
    missing = refused(box, tmp_path / "none", "log-of-nobody")
    assert "there is no topic 'log-of-nobody'" in missing
    assert not (tmp_path / "none").exists()
    eventually(lambda: "log" not in admin.list_topics(timeout=30).topics, "topic log is gone")
    make_topic(box, "log")
    assert "earlier topic log, which was deleted and made anew" in refused(box, out, "log", "--to-topic", "minutes")


def refused(box: RunningBox, out: Path, *arguments: str) -> str:
    """What the command says when it fails at once."""
    command = [*MILLRACE, "stream", *arguments, "--to", str(out), "--bootstrap", box.bootstrap]
    answer = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert (answer.returncode, "Spark starts" in answer.stderr, "Traceback" in answer.stderr) == (1, False, False), answer.stderr
    return answer.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["log", "--to", "OUT", "--late", "soon"], "--late soon: write '30 seconds', '2 minutes' or '1 hour'"),
        (["log", "--to", "OUT", "--job", "nowhere:f"], "--job nowhere:f: No module named 'nowhere'"),
        (["log", "--to", "OUT", "--spark", "x"], "--spark x: write --spark spark.NAME=VALUE"),
        (["log", "--to", "OUT", "--source", "subscribePattern=.*"], "--source subscribePattern: name the topics as arguments"),
        (["log", "--to", "OUT", "--to-topic", "log"], "--to-topic log is read by the job"),
        (["log", "--to", __file__], "is a file; name a directory"),
    ],
)
def test_what_cannot_be_meant_is_said_before_spark_starts(tmp_path: Path, arguments: list[str], problem: str) -> None:
    words = [str(tmp_path / "out") if word == "OUT" else word for word in arguments]
    answer = subprocess.run(
        [*MILLRACE, "stream", *words, "--bootstrap", "127.0.0.1:1"], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert problem in answer.stderr
    assert answer.returncode in (1, 2)
    assert "Traceback" not in answer.stderr
