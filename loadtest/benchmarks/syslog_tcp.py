"""Syslog over TCP from loggen until every line is stored, and the counts compared: sent = received = stored + counted, and the log holds what is stored.

Weak spot: all lines of loggen name the same host, which is the key, so one partition and one log-writer get them all.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from appliance.senders.accounting import Ledger, add_ledgers, read_ledger
from lab.running_box import Address, RunningBox
from loadtest.benchmark import Benchmark, BenchmarkFailed, Figure, Run, Say
from loadtest.load_generator import LoadGenerator
from loadtest.observation import Observer
from loadtest.topics import count_records

RATE = 10_000_000
"""Lines a second and connection that loggen aims at: more than it can, so it sends what TCP lets it."""
COUNT = re.compile(r"count=(\d+)")
WARM_UP_SECONDS = 1
PATIENCE_SECONDS = 60.0
LOOK_SECONDS = 0.01
RECORD_BYTES = 530
"""What a line of 300 B takes in the log: JSON, key and headers."""
EXPECTED_LINES_PER_SECOND = 250_000
FRAMINGS: dict[str, list[str]] = {"octets": ["--syslog-proto"], "lines": []}
"""RFC 5424 with octet counts, or what loggen calls RFC 3164 with line ends."""


class Sent(NamedTuple):
    """One run of loggen, and the box's counts when they were settled. `seconds` runs from the first line received to the last one stored."""

    lines: int
    seconds: float
    cpu_seconds: float
    ledger: Ledger


@dataclass(frozen=True)
class SyslogTcp(Benchmark):
    name: ClassVar[str] = "syslog_tcp"
    title: ClassVar[str] = "loggen sends RFC 5424 lines of 300 B over 4 TCP connections as fast as TCP lets it; the time runs until all are stored."
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("stored per ingest", "lines/s", at_least=80_000),
        Figure("unexplained", "lines", at_most=0),
        Figure("counted, not stored", "lines"),
        Figure("ingest CPU", "µs a line"),
        Figure("log-writers CPU", "µs a line"),
        Figure("loggen CPU", "µs a line"),
    )
    short: ClassVar[dict[str, Any]] = {"seconds": 3}
    plugin: ClassVar[list[str]] = ["--inet", "--stream"]
    """How loggen connects."""

    seconds: int = 10
    line_bytes: int = 300
    connections: int = 4
    framing: str = "octets"

    @property
    def written_bytes(self) -> int:
        return (WARM_UP_SECONDS + self.seconds) * EXPECTED_LINES_PER_SECOND * RECORD_BYTES

    def address(self, box: RunningBox) -> Address:
        return box.syslog

    def missing(self) -> str | None:
        if self.framing not in FRAMINGS:
            return f"framing is one of {', '.join(FRAMINGS)}"
        return None if shutil.which("loggen") else "there is no loggen (Debian's syslog-ng-core); `./install.sh test` unpacks it under .venv/peers"

    def run(self, box: RunningBox, say: Say) -> Run:
        warm_up = self._send(box, WARM_UP_SECONDS)
        say(f"loggen sends for {self.seconds} s")
        observer = Observer(box.pids())
        sent = self._send(box, self.seconds)
        observation = observer.finish({"loggen": sent.cpu_seconds})
        stored = sent.ledger.stored - warm_up.ledger.stored
        counted = sent.ledger.counted - warm_up.ledger.counted
        in_log = count_records(box, box.box.text("ingest.syslog.topic"))
        if sent.ledger.received != warm_up.lines + sent.lines:
            say(f"loggen says it sent {warm_up.lines + sent.lines:,} lines, {sent.ledger.received:,} were received")
        if in_log != sent.ledger.stored:
            say(f"{sent.ledger.stored:,} lines count as stored, the log holds {in_log:,}")
        per_line = 1e6 / max(1, sent.lines)
        figures = {
            "stored per ingest": stored / sent.seconds / box.box.ingests,
            "unexplained": abs(sent.lines - stored - counted) + abs(in_log - sent.ledger.stored),
            "counted, not stored": counted,
            "ingest CPU": observation.role("ingest") * per_line,
            "log-writers CPU": observation.role("log-writer") * per_line,
            "loggen CPU": sent.cpu_seconds * per_line,
        }
        return Run(figures, observation, [f"{sent.lines:,} lines in {sent.seconds:.1f} s; {box.box.ingests} ingest process(es)"])

    def _send(self, box: RunningBox, seconds: int) -> Sent:
        """Runs loggen and waits until each of its lines is stored or counted."""
        arguments = ["loggen", *self.plugin, f"--size={self.line_bytes}", f"--rate={RATE}", f"--interval={seconds}", "--quiet"]
        arguments += [f"--active-connections={self.connections}", *FRAMINGS[self.framing], *str(self.address(box)).rsplit(":", 1)]
        before = read_books(box)
        with LoadGenerator("loggen", arguments) as generator:
            # loggen takes half a second before its first line.
            started = await_books(box, lambda ledger: ledger.received > before.received, 10.0, "the first line is received").at
            finished = generator.finish(seconds + PATIENCE_SECONDS)
        found = COUNT.search(finished.output + finished.messages)
        if found is None:
            raise BenchmarkFailed(f"loggen does not say how many lines it sent:\n{finished.output}{finished.messages}")
        lines = int(found[1])
        settled = await_books(
            box, lambda ledger: ledger.balances and ledger.received >= before.received + lines, PATIENCE_SECONDS, "every line is accounted for"
        )
        return Sent(lines, settled.at - started, finished.cpu_seconds, settled.ledger)


class Books(NamedTuple):
    """The ledger of all ingest processes together, and when it was read."""

    at: float
    ledger: Ledger


def read_books(box: RunningBox) -> Ledger:
    return add_ledgers(read_ledger(box.counters(f"ingest@{index}").values) for index in range(box.box.ingests))


def await_books(box: RunningBox, condition: Callable[[Ledger], bool], seconds: float, what: str) -> Books:
    """The first reading of the counts that satisfies `condition`. Raises BenchmarkFailed with the last look."""
    deadline = time.monotonic() + seconds
    while True:
        books = Books(time.monotonic(), read_books(box))
        if condition(books.ledger):
            return books
        if books.at > deadline:
            raise BenchmarkFailed(f"not within {seconds:g} s: {what}; {books.ledger}, {books.ledger.in_flight:,} lines in flight")
        time.sleep(LOOK_SECONDS)
