"""What hostile clients do to a good one: 10,000 idle connections, slow senders, readers that never read, liars that come again and again."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lab.running_box import RunningBox
from loadtest.benchmark import Benchmark, Figure, Run, Say
from loadtest.benchmarks.paced import produce_at_a_pace
from loadtest.load_generator import LoadGenerator
from loadtest.memory import MB, process_memory
from loadtest.observation import Observer
from loadtest.topics import make_topic

PROGRAM = Path(__file__).parent.parent / "generators" / "attackers.py"
TOPIC = "good"
ACCEPTOR = "acceptor@0"
DESCRIPTORS_SPARE = 2_000


@dataclass(frozen=True)
class Hostile(Benchmark):
    name: ClassVar[str] = "hostile"
    title: ClassVar[str] = "A client with 100 small produces a second, alone and among hostile ones, and what those make the acceptor hold."
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("p99 ratio", "", at_most=2),
        Figure("p99 alone", "µs"),
        Figure("p99 attacked", "µs"),
        Figure("p50 alone", "µs"),
        Figure("p50 attacked", "µs"),
        Figure("longest attacked", "µs"),
        Figure("acceptor PSS alone", "MB"),
        Figure("acceptor PSS attacked", "MB"),
    )
    short: ClassVar[dict[str, Any]] = {"seconds": 5.0, "idle": 1000}

    seconds: float = 20.0
    rate: float = 100.0
    connections: int = 4
    idle: int = 9_000
    senders: int = 200
    readers: int = 50
    liars: int = 1

    def missing(self) -> str | None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        wanted = self.idle + self.senders + self.readers + DESCRIPTORS_SPARE
        return None if hard == resource.RLIM_INFINITY or hard >= wanted else f"it needs {wanted} descriptors, the limit is {hard} (ulimit -Hn)"

    def run(self, box: RunningBox, say: Say) -> Run:
        make_topic(box, TOPIC, 1)
        produce_at_a_pace(box, TOPIC, self.connections, 1000.0, 2.0)
        alone = produce_at_a_pace(box, TOPIC, self.connections, self.rate, self.seconds)
        pids = box.pids()
        before = process_memory(pids[ACCEPTOR]).total
        numbers = [self.idle, self.senders, self.readers, self.liars]
        arguments = [sys.executable, str(PROGRAM), box.kafka.host, str(box.kafka.port), TOPIC, *map(str, numbers)]
        with LoadGenerator("attackers", arguments) as attackers:
            attackers.await_ready(120.0)
            say("the attackers are there")
            attackers.go()
            observer = Observer(pids)
            attacked = produce_at_a_pace(box, TOPIC, self.connections, self.rate, self.seconds)
            after = process_memory(pids[ACCEPTOR]).total
            observation = observer.finish({"paced producer": attacked.cpu_seconds})
            attackers.go()
            finished = attackers.finish(60.0)
        figures = {
            "p99 ratio": attacked.p99_us / alone.p99_us,
            "p99 alone": alone.p99_us,
            "p99 attacked": attacked.p99_us,
            "p50 alone": alone.p50_us,
            "p50 attacked": attacked.p50_us,
            "longest attacked": attacked.max_us,
            "acceptor PSS alone": before / MB,
            "acceptor PSS attacked": after / MB,
        }
        closed = {label: count for label, count in box.counters(ACCEPTOR).values.items() if label.startswith("acceptor.closed{") and count}
        words = ", ".join(f"{label.split(chr(34))[1]} {count}" for label, count in sorted(closed.items(), key=lambda item: -item[1]))
        return Run(figures, observation, [f"closed connections: {words}", f"attackers used {finished.cpu_seconds:.1f} CPU seconds in all"])
