"""How long a syslog line takes from its sender's socket to a consumer that waits at the tail, at a steady rate."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lab.running_box import RunningBox
from loadtest.benchmark import Benchmark, Figure, Run, Say
from loadtest.load_generator import LoadGenerator
from loadtest.observation import Observer

PROGRAM = Path(__file__).parent.parent / "generators" / "syslog_end_to_end.py"
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class SyslogLatency(Benchmark):
    name: ClassVar[str] = "syslog_latency"
    title: ClassVar[str] = (
        "10,000 syslog lines of 230 B a second over one TCP connection, read by librdkafka at the tail; from the moment a line is due to its poll."
    )
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("p50", "ms"),
        Figure("p99", "ms", at_most=50),
        Figure("longest", "ms"),
        Figure("ingest CPU", "% of a core"),
    )
    short: ClassVar[dict[str, Any]] = {"seconds": 3.0}

    seconds: float = 15.0
    rate: float = 10_000.0

    def run(self, box: RunningBox, say: Say) -> Run:
        topic = box.box.text("ingest.syslog.topic")
        words = [box.bootstrap, topic, box.syslog.host, str(box.syslog.port), str(self.rate), str(self.seconds)]
        with LoadGenerator("sender and consumer", [sys.executable, str(PROGRAM), *words]) as generator:
            generator.await_ready()
            say(f"{self.rate:,.0f} lines a second for {self.seconds:g} s")
            observer = Observer(box.pids())
            generator.go()
            finished = generator.finish(self.seconds + PATIENCE_SECONDS)
            observation = observer.finish({"sender and consumer": finished.cpu_seconds})
        told = json.loads(finished.output.splitlines()[-1])
        figures = {
            "p50": told["p50_us"] / 1000,
            "p99": told["p99_us"] / 1000,
            "longest": told["max_us"] / 1000,
            "ingest CPU": observation.role("ingest") * 100 / observation.seconds,
        }
        return Run(figures, observation, [f"{told['lines']:,} lines, each read once"])
