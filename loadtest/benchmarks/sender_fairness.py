"""Whether one sender whose requests open to a thousand times their size delays the others of its ingest."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lab.running_box import RunningBox
from loadtest.benchmark import Benchmark, BenchmarkFailed, Figure, Run, Say
from loadtest.load_generator import LoadGenerator
from loadtest.observation import Observer

GENERATOR = Path(__file__).parent.parent / "generators" / "small_senders.py"
LEAD_SECONDS = 2.0
BYTES_A_SECOND = 20_000_000
"""For the warm memory only."""


@dataclass(frozen=True)
class SenderFairness(Benchmark):
    name: ClassVar[str] = "sender_fairness"
    title: ClassVar[str] = "1,000 senders of small HTTP requests at a steady rate, alone and beside one whose bodies of 300 B open to 99,000 records."
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("p99 alone", "µs"),
        Figure("p99 beside", "µs"),
        Figure("p99 beside / alone", "", at_most=2),
        Figure("p50 alone", "µs"),
        Figure("p50 beside", "µs"),
        Figure("longest beside", "µs"),
        Figure("bombs", "1/s"),
    )
    short: ClassVar[dict[str, Any]] = {"seconds": 3.0}

    seconds: float = 10.0
    senders: int = 1_000
    rate: float = 500.0

    @property
    def written_bytes(self) -> int:
        return int((self.seconds + LEAD_SECONDS) * BYTES_A_SECOND)

    def run(self, box: RunningBox, say: Say) -> Run:
        small = [str(self.senders), str(self.rate)]
        self._generate(box, *small, "2")
        alone, _ = self._generate(box, *small, str(self.seconds))
        say("the same beside the bombs")
        arguments = [sys.executable, str(GENERATOR), box.ingest.host, str(box.ingest.port), "bombs", str(self.seconds + LEAD_SECONDS)]
        with LoadGenerator("bombs", arguments) as bombs:
            observer = Observer(box.pids())
            beside, cpu_seconds = self._generate(box, *small, str(self.seconds))
            finished = bombs.finish(60.0)
        observation = observer.finish({"bombs": finished.cpu_seconds, "small senders": cpu_seconds})
        bombed = json.loads(finished.output)
        if alone["refused"] or beside["refused"]:
            raise BenchmarkFailed(f"{alone['refused']} and {beside['refused']} small requests were refused or not answered")
        figures = {
            "p99 alone": alone["p99_us"],
            "p99 beside": beside["p99_us"],
            "p99 beside / alone": beside["p99_us"] / alone["p99_us"],
            "p50 alone": alone["p50_us"],
            "p50 beside": beside["p50_us"],
            "longest beside": beside["max_us"],
            "bombs": bombed["requests"] / (self.seconds + LEAD_SECONDS),
        }
        return Run(figures, observation, [f"{beside['requests']:,} small requests; {bombed['refused']} of {bombed['requests']} bombs refused"])

    def _generate(self, box: RunningBox, *words: str) -> tuple[dict[str, Any], float]:
        with LoadGenerator("small senders", [sys.executable, str(GENERATOR), box.ingest.host, str(box.ingest.port), *words]) as generator:
            finished = generator.finish(self.seconds + 60.0)
        if not finished.output.strip():
            raise BenchmarkFailed(f"the generator did not finish:\n{finished.messages}")
        return json.loads(finished.output), finished.cpu_seconds
