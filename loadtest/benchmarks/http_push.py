"""Records by HTTP, each request acknowledged when its records are stored: Elasticsearch's `_bulk`, Loki's push, Splunk's collector.

Four connections with one request of 500 records under way on each. The counts are compared afterwards: acknowledged = received = stored, and the log holds
what is stored. Weak spot: the generator and the box share the machine, and its requests are made beforehand.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from lab.running_box import Address, RunningBox
from loadtest.benchmark import Benchmark, BenchmarkFailed, Figure, Run, Say
from loadtest.benchmarks.syslog_tcp import PATIENCE_SECONDS, WARM_UP_SECONDS, await_books
from loadtest.load_generator import LoadGenerator
from loadtest.observation import Observer
from loadtest.topics import count_records

GENERATOR = Path(__file__).parent.parent / "generators" / "http_pusher.py"
RECORD_BYTES = 600
EXPECTED_RECORDS_PER_SECOND = 120_000


class Pushed(NamedTuple):
    """What the generator said."""

    records: int
    seconds: float
    cpu_seconds: float


def figures_of(at_least: float | None = None) -> tuple[Figure, ...]:
    return (
        Figure("acknowledged per ingest", "records/s", at_least),
        Figure("unexplained", "records", at_most=0),
        Figure("ingest CPU", "µs a record"),
        Figure("log-writers CPU", "µs a record"),
        Figure("generator CPU", "µs a record"),
    )


@dataclass(frozen=True)
class HttpPush(Benchmark):
    figures: ClassVar[tuple[Figure, ...]] = figures_of()
    short: ClassVar[dict[str, Any]] = {"seconds": 3}
    form: ClassVar[str]
    generator: ClassVar[Path] = GENERATOR

    seconds: int = 10
    connections: int = 4
    records_a_request: int = 500

    @property
    def written_bytes(self) -> int:
        return (WARM_UP_SECONDS + self.seconds) * EXPECTED_RECORDS_PER_SECOND * RECORD_BYTES

    def address(self, box: RunningBox) -> Address:
        return box.ingest

    def run(self, box: RunningBox, say: Say) -> Run:
        warm_up = self._push(box, WARM_UP_SECONDS)
        say(f"{self.form}: requests for {self.seconds} s")
        observer = Observer(box.pids())
        pushed = self._push(box, self.seconds)
        observation = observer.finish({"generator": pushed.cpu_seconds})
        acknowledged = warm_up.records + pushed.records
        ledger = await_books(box, lambda ledger: ledger.balances, PATIENCE_SECONDS, "every record is accounted for").ledger
        in_log = count_records(box, box.box.text("ingest.syslog.topic"))
        if not acknowledged == ledger.received == ledger.stored == in_log:
            say(f"{acknowledged:,} acknowledged, {ledger.received:,} received, {ledger.stored:,} stored, {in_log:,} in the log")
        per_record = 1e6 / max(1, pushed.records)
        figures = {
            "acknowledged per ingest": pushed.records / pushed.seconds / box.box.ingests,
            "unexplained": abs(acknowledged - ledger.stored) + abs(ledger.received - ledger.stored) + abs(in_log - ledger.stored),
            "ingest CPU": observation.role("ingest") * per_record,
            "log-writers CPU": observation.role("log-writer") * per_record,
            "generator CPU": pushed.cpu_seconds * per_record,
        }
        return Run(figures, observation, [f"{pushed.records:,} records in {pushed.seconds:.1f} s; {box.box.ingests} ingest process(es)"])

    def _push(self, box: RunningBox, seconds: int) -> Pushed:
        host, port = self.address(box)
        numbers = [seconds, self.connections, self.records_a_request]
        arguments = [sys.executable, str(self.generator), host, str(port), self.form, *map(str, numbers)]
        with LoadGenerator(self.generator.stem, arguments) as generator:
            finished = generator.finish(seconds + PATIENCE_SECONDS)
        if not finished.output.strip():
            raise BenchmarkFailed(f"the generator did not finish:\n{finished.messages}")
        said = json.loads(finished.output)
        return Pushed(said["records"], said["seconds"], finished.cpu_seconds)


@dataclass(frozen=True)
class ElasticsearchBulk(HttpPush):
    name: ClassVar[str] = "elasticsearch_bulk"
    title: ClassVar[str] = "_bulk requests of 500 documents of 240 B over 4 connections, each answered when its documents are stored."
    figures: ClassVar[tuple[Figure, ...]] = figures_of(60_000)
    form: ClassVar[str] = "bulk"


@dataclass(frozen=True)
class LokiPush(HttpPush):
    name: ClassVar[str] = "loki_push"
    title: ClassVar[str] = "Loki pushes (JSON) of 500 lines of 90 B in 10 streams over 4 connections, each answered when its lines are stored."
    form: ClassVar[str] = "loki"


@dataclass(frozen=True)
class SplunkHec(HttpPush):
    name: ClassVar[str] = "splunk_hec"
    title: ClassVar[str] = "Requests to Splunk's collector of 500 events of 160 B over 4 connections, each answered when its events are stored."
    form: ClassVar[str] = "hec"
