"""Syslog as UDP datagrams at an even pace, and the counts compared.

sent = received + dropped by the kernel, received = stored + counted, and the log holds what is stored. Weak spot: a line that loopback itself loses
would be waited for in vain; none has been.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from appliance.senders.accounting import KERNEL_DROPS_COUNTER, Ledger
from appliance.senders.listener import SYSLOG_UDP
from lab.running_box import RunningBox
from loadtest.benchmark import Benchmark, BenchmarkFailed, Figure, Run, Say
from loadtest.benchmarks.syslog_tcp import LOOK_SECONDS, PATIENCE_SECONDS, RECORD_BYTES, read_books
from loadtest.generators.compiler import compile_generator, missing_for_c
from loadtest.load_generator import LoadGenerator
from loadtest.observation import Observer
from loadtest.topics import count_records

WARM_UP_SECONDS = 1.0


class Sent(NamedTuple):
    """One run of the sender, and the counts when they were settled. `seconds` runs from its first line to the last one stored."""

    lines: int
    late_us: int
    seconds: float
    cpu_seconds: float
    ledger: Ledger
    dropped: int


@dataclass(frozen=True)
class SyslogUdp(Benchmark):
    name: ClassVar[str] = "syslog_udp"
    title: ClassVar[str] = "RFC 5424 lines of 300 B from 16 hosts as UDP datagrams, evenly paced a little above the target; the time runs until all are stored."
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("stored", "lines/s", at_least=80_000),
        Figure("unexplained", "lines", at_most=0),
        Figure("dropped by the kernel", "lines"),
        Figure("counted, not stored", "lines"),
        Figure("ingest CPU", "µs a line"),
        Figure("log-writers CPU", "µs a line"),
        Figure("sender CPU", "µs a line"),
    )
    short: ClassVar[dict[str, Any]] = {"seconds": 3.0}

    rate: float = 85_000.0
    seconds: float = 10.0
    line_bytes: int = 300
    hosts: int = 16
    tick_us: int = 500

    @property
    def written_bytes(self) -> int:
        return int((WARM_UP_SECONDS + self.seconds) * self.rate * RECORD_BYTES)

    def missing(self) -> str | None:
        return missing_for_c()

    def run(self, box: RunningBox, say: Say) -> Run:
        program = compile_generator("syslog_udp_sender", box.directory)
        warm_up = self._send(program, box, WARM_UP_SECONDS)
        say(f"{self.rate:,.0f} lines/s for {self.seconds:g} s")
        observer = Observer(box.pids())
        sent = self._send(program, box, self.seconds)
        observation = observer.finish({"sender": sent.cpu_seconds})
        in_log = count_records(box, box.box.text("ingest.syslog.topic"))
        stored, counted = sent.ledger.stored - warm_up.ledger.stored, sent.ledger.counted - warm_up.ledger.counted
        never_received = warm_up.lines + sent.lines - sent.ledger.received - sent.dropped
        per_line = 1e6 / max(1, stored)
        figures = {
            "stored": stored / sent.seconds,
            "unexplained": abs(never_received) + abs(sent.ledger.in_flight) + abs(in_log - sent.ledger.stored),
            "dropped by the kernel": sent.dropped - warm_up.dropped,
            "counted, not stored": counted,
            "ingest CPU": observation.role("ingest") * per_line,
            "log-writers CPU": observation.role("log-writer") * per_line,
            "sender CPU": sent.cpu_seconds * 1e6 / sent.lines,
        }
        note = f"{sent.lines:,} lines, every {self.tick_us} µs what was due; the sender was late by {sent.late_us / 1000:.1f} ms at most"
        return Run(figures, observation, [note])

    def _send(self, program: Path, box: RunningBox, seconds: float) -> Sent:
        """Runs the sender and waits until each of its lines is stored, counted, or known to be dropped."""
        before, dropped_before = read_books(box), read_kernel_drops(box)
        numbers = [self.rate, seconds, self.line_bytes, self.hosts, self.tick_us]
        with LoadGenerator("sender", [str(program), box.syslog.host, str(box.syslog.port), *map(str, numbers)]) as generator:
            generator.await_ready()
            started = time.monotonic()
            generator.go()
            finished = generator.finish(seconds + PATIENCE_SECONDS)
        document = json.loads(finished.output.splitlines()[-1])
        lines: int = document["lines"]
        last_change, last = time.monotonic(), before
        while True:
            now, ledger, dropped = time.monotonic(), read_books(box), read_kernel_drops(box)
            if ledger != last:
                last_change, last = now, ledger
            if ledger.balances and ledger.received - before.received + dropped - dropped_before >= lines:
                return Sent(lines, document["late_us"], last_change - started, finished.cpu_seconds, ledger, dropped)
            if now - last_change > PATIENCE_SECONDS:
                sums = f"{ledger.received - before.received:,} received, {dropped - dropped_before:,} dropped by the kernel, {ledger.in_flight:,} in flight"
                raise BenchmarkFailed(f"{lines:,} lines were sent; {sums}; nothing has changed for {PATIENCE_SECONDS:g} s")
            time.sleep(LOOK_SECONDS)


def read_kernel_drops(box: RunningBox) -> int:
    return sum(box.counters(f"ingest@{index}").values.get(KERNEL_DROPS_COUNTER.format(listener=SYSLOG_UDP), 0) for index in range(box.box.ingests))
