"""RELP: lines acknowledged per second, each when it is stored; and the counts compared: acknowledged = stored, and the log holds it.

Weak spot: the clients are ours (`generators/relp_sender.py`); a real rsyslog would take its share of the cores, and not keep its windows full.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lab.running_box import RunningBox, listener
from loadtest.benchmark import Benchmark, Figure, Run, Say
from loadtest.benchmarks.syslog_tcp import PATIENCE_SECONDS, RECORD_BYTES, await_books, read_books
from loadtest.load_generator import Finished, LoadGenerator
from loadtest.observation import Observer
from loadtest.topics import count_records

PROGRAM = Path(__file__).parent.parent / "generators" / "relp_sender.py"
LISTENER = "relp"
WARM_UP_SECONDS = 1
EXPECTED_LINES_PER_SECOND = 150_000


@dataclass(frozen=True)
class Relp(Benchmark):
    name: ClassVar[str] = "relp"
    title: ClassVar[str] = "RFC 5424 lines of 300 B over 4 RELP connections with windows of 1,024: a line is answered when it is stored."
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("acknowledged", "lines/s", at_least=60_000),
        Figure("unexplained", "lines", at_most=0),
        Figure("slowest window", "ms"),
        Figure("ingest CPU", "µs a line"),
        Figure("log-writers CPU", "µs a line"),
        Figure("sender CPU", "µs a line"),
    )
    short: ClassVar[dict[str, Any]] = {"seconds": 3}

    seconds: int = 10
    line_bytes: int = 300
    connections: int = 4
    window: int = 1024

    @property
    def written_bytes(self) -> int:
        return (WARM_UP_SECONDS + self.seconds) * EXPECTED_LINES_PER_SECOND * RECORD_BYTES

    def box_arguments(self, directory: Path) -> Mapping[str, Any]:
        return {"senders": {"listener": [listener(LISTENER, "relp")]}}

    def run(self, box: RunningBox, say: Say) -> Run:
        self._send(box, WARM_UP_SECONDS)
        warm_up = read_books(box)
        say(f"windows are kept full for {self.seconds} s")
        observer = Observer(box.pids())
        finished = self._send(box, self.seconds)
        observation = observer.finish({"sender": finished.cpu_seconds})
        told = json.loads(finished.output.splitlines()[-1])
        lines: int = told["lines"]
        ledger = await_books(box, lambda ledger: ledger.balances, PATIENCE_SECONDS, "every line is accounted for").ledger
        in_log = count_records(box, box.box.text("ingest.syslog.topic"))
        per_line = 1e6 / max(1, lines)
        figures = {
            "acknowledged": lines / told["seconds"],
            "unexplained": abs(lines - (ledger.stored - warm_up.stored)) + abs(in_log - ledger.stored),
            "slowest window": told["slowest_ms"],
            "ingest CPU": observation.role("ingest") * per_line,
            "log-writers CPU": observation.role("log-writer") * per_line,
            "sender CPU": finished.cpu_seconds * per_line,
        }
        return Run(figures, observation, [f"{lines:,} lines in {told['seconds']:.1f} s; {box.box.ingests} ingest process(es)"])

    def _send(self, box: RunningBox, seconds: int) -> Finished:
        host, port = box.sender(LISTENER)
        numbers = [self.connections, self.window, self.line_bytes, seconds]
        with LoadGenerator("sender", [sys.executable, str(PROGRAM), host, str(port), *map(str, numbers)]) as generator:
            generator.await_ready()
            generator.go()
            return generator.finish(seconds + PATIENCE_SECONDS)
