"""The five-line query of docs/read.md on ten million syslog records, in a Python of its own: from its start to its answer."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any, ClassVar

from lab.first_query import first_query
from lab.running_box import ROOT, RunningBox
from loadtest.benchmark import Benchmark, BenchmarkFailed, Figure, Run, Say
from loadtest.observation import Observer
from loadtest.syslog_batches import fill_with_syslog
from loadtest.topics import count_records, make_topic

TOPIC = "syslog-of-the-query"
SECONDS_MAX = 300


@dataclass(frozen=True)
class SparkQuery(Benchmark):
    name: ClassVar[str] = "spark_query"
    title: ClassVar[str] = "The five-line query of docs/read.md (errors by minute and host) on syslog records of 4 partitions, Spark local[*]; with its start."
    figures: ClassVar[tuple[Figure, ...]] = (Figure("from start to answer", "s", at_most=60.0), Figure("records", "/s"))
    short: ClassVar[dict[str, Any]] = {"records": 1_000_000}

    records: int = 10_000_000
    partitions: int = 4

    @property
    def written_bytes(self) -> int:
        return self.records * 330

    def missing(self) -> str | None:
        from lab.spark_session import why_no_spark

        return why_no_spark() or None

    def run(self, box: RunningBox, say: Say) -> Run:
        make_topic(box, TOPIC, self.partitions)
        say(f"writing {self.records:,} syslog records")
        fill_with_syslog(box, TOPIC, self.partitions, self.records, int(time.time() * 1000) - 3_600_000)
        if (stored := count_records(box, TOPIC)) != self.records:
            raise BenchmarkFailed(f"{self.records:,} records were acknowledged, the logs hold {stored:,}")
        program = first_query().replace('"syslog"', f'"{TOPIC}"')
        observer = Observer(box.pids())
        environment = {**os.environ, "MILLRACE_DATA": str(box.disks[0]), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
        started = time.monotonic()
        answer = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
        seconds = time.monotonic() - started
        observation = observer.finish({})
        if answer.returncode or "|host" not in answer.stdout:
            raise BenchmarkFailed(f"the query failed: {answer.stdout[-500:]} {answer.stderr[-1500:]}")
        return Run({"from start to answer": seconds, "records": self.records / seconds}, observation, [])
