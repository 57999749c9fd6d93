"""What a second ingest process is worth: the load of `fluent_forward` on a box with one and on a box with two, in turns.

Two cores are all that this machine has, and generator, log-writers and everything else want theirs: two processes cannot have one each. So there are three
answers. One is records a second of both as the machine is. One is the same with a share of a core for each ingest process and no more (`cpu_share.py`): two of
them have twice the share of one, and time is left for all other processes. The last is what a record costs, in CPU seconds of the ingest processes, while one
works and while both do: whatever they take from each other (caches, locks of the kernel, smaller bursts) is in it. Weak spot: where cores are threads of
one core, two are slower than twice one, and the last figure says so, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from lab.running_box import RunningBox, start_box
from loadtest.benchmark import BenchmarkFailed, Figure, Run, Say
from loadtest.benchmarks.agent_push import FluentForward
from loadtest.benchmarks.http_push import EXPECTED_RECORDS_PER_SECOND, RECORD_BYTES, Pushed
from loadtest.benchmarks.syslog_tcp import PATIENCE_SECONDS, WARM_UP_SECONDS, await_books
from loadtest.cpu_share import cpu_share, missing_for_cpu_share
from loadtest.observation import Observation, Observer, role_of
from loadtest.topics import count_records


@dataclass(frozen=True)
class TwoIngests(FluentForward):
    name: ClassVar[str] = "two_ingests"
    title: ClassVar[str] = "The chunks of `fluent_forward` over 16 connections to a box with one ingest process and to a box with two, in turns."
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("one process", "records/s"),
        Figure("two processes", "records/s"),
        Figure("two to one, nothing kept apart", "times"),
        Figure("one process with a share of a core", "records/s"),
        Figure("two processes with a share of a core each", "records/s"),
        Figure("two to one, a share of a core each", "times", at_least=1.7),
        Figure("ingest CPU, one process", "µs a record"),
        Figure("ingest CPU, two processes", "µs a record"),
        Figure("two to one, by CPU a record", "times"),
        Figure("unexplained", "records", at_most=0),
    )
    short: ClassVar[dict[str, Any]] = {"seconds": 3, "turns": 1}

    seconds: int = 5
    connections: int = 16
    turns: int = 3
    share: float = 0.4

    @property
    def written_bytes(self) -> int:
        return 2 * (WARM_UP_SECONDS + 2 * self.turns * self.seconds) * EXPECTED_RECORDS_PER_SECOND * RECORD_BYTES

    def box_arguments(self, directory: Path) -> Mapping[str, Any]:
        return {**super().box_arguments(directory), "ingests": 2}

    def missing(self) -> str | None:
        return missing_for_cpu_share()

    def run(self, box: RunningBox, say: Say) -> Run:
        alone = start_box(box.directory.parent / "alone", **FluentForward.box_arguments(self, box.directory.parent))
        try:
            return self._compare(alone, box, say)
        finally:
            alone.stop()

    def _compare(self, alone: RunningBox, both: RunningBox, say: Say) -> Run:
        boxes = (alone, both)
        acknowledged = [self._push(box, WARM_UP_SECONDS).records for box in boxes]
        rates: tuple[list[float], list[float]] = ([], [])
        costs: tuple[list[float], list[float]] = ([], [])
        shares: tuple[list[float], list[float]] = ([], [])
        observations: list[Observation] = []
        for turn in range(self.turns):
            for place, box in enumerate(boxes):
                say(f"turn {turn + 1}: {box.box.ingests} ingest process(es), {self.seconds} s as the machine is")
                pushed, observation = self._observed(box)
                observations.append(observation)
                rates[place].append(pushed.records / pushed.seconds)
                costs[place].append(observation.role("ingest") * 1e6 / pushed.records)
                acknowledged[place] += pushed.records
            for place, box in enumerate(boxes):
                say(f"turn {turn + 1}: {box.box.ingests} ingest process(es), {self.seconds} s with {self.share:g} of a core each")
                with cpu_share([pid for name, pid in box.pids().items() if role_of(name) == "ingest"], self.share):
                    pushed, observation = self._observed(box)
                shares[place].append(pushed.records / pushed.seconds)
                used = observation.role("ingest") / observation.seconds
                say(f"    {shares[place][-1]:,.0f} records/s; ingest used {used:.2f} cores; {observation.what_limits()}")
                acknowledged[place] += pushed.records
        unexplained = sum(self._unexplained(box, records) for box, records in zip(boxes, acknowledged, strict=True))
        one, two = (median(values) for values in rates)
        share_of_one, share_of_two = (median(values) for values in shares)
        cost_of_one, cost_of_two = (median(values) for values in costs)
        figures = {
            "one process": one,
            "two processes": two,
            "two to one, nothing kept apart": two / one,
            "one process with a share of a core": share_of_one,
            "two processes with a share of a core each": share_of_two,
            "two to one, a share of a core each": share_of_two / share_of_one,
            "ingest CPU, one process": cost_of_one,
            "ingest CPU, two processes": cost_of_two,
            "two to one, by CPU a record": 2 * cost_of_one / cost_of_two,
            "unexplained": unexplained,
        }
        busy = ", ".join(f"{name} {share:.2f}" for name, share in observations[-1].shares().items())
        return Run(figures, observations[-1], [f"cores in use while two worked: {busy}; while one did: {observations[-2].what_limits()}"])

    def _observed(self, box: RunningBox) -> tuple[Pushed, Observation]:
        observer = Observer(box.pids())
        pushed = self._push(box, self.seconds)
        return pushed, observer.finish({"generator": pushed.cpu_seconds})

    def _unexplained(self, box: RunningBox, acknowledged: int) -> int:
        ledger = await_books(box, lambda ledger: ledger.balances, PATIENCE_SECONDS, "every record is accounted for").ledger
        if not all(box.counters(f"ingest@{index}").values.get("ingest.connections_accepted", 0) for index in range(box.box.ingests)):
            raise BenchmarkFailed("an ingest process had no connection")
        return abs(acknowledged - ledger.stored) + abs(count_records(box, box.box.text("ingest.syslog.topic")) - ledger.stored)
