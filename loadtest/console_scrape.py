"""How long a scrape of /metrics takes on a box with many partitions, and what a look costs the console: `python -m loadtest.console_scrape [PARTITIONS]`.

No box is started: tables, counters and an image are made as the processes of a box with two disks would make them, and the console's own code reads them.
Nothing is asserted; figures of a quiet machine stand in services/console/README.md. Weak spot: the HTTP server's own part (0.5 ms) is not in it.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

from appliance.base.clock import SystemClock
from lab.pretended_box import PretendedBox
from lab.scratch_layout import scratch_layout
from services.console.box_sample import BoxReader
from services.console.watch import BoxMonitor

PARTITIONS = 2_000
PARTITIONS_A_TOPIC = 20
COUNTERS_A_PROCESS = 100
HISTOGRAMS_A_PROCESS = 6
ROUNDS = 30


def fill(pretended: PretendedBox) -> None:
    """As many counters and histograms in each process as a busy one has."""
    for counters in pretended.counters.values():
        for index in range(COUNTERS_A_PROCESS):
            counters.counter(f'fetch.topic_bytes{{topic="topic-{index}"}}').add(index)
        for index in range(HISTOGRAMS_A_PROCESS):
            counters.histogram(f'log_reader.answer_us{{kind="{index}"}}').record(1_000_000 * index)


def measure(work: Callable[[], object], before: Callable[[], object]) -> str:
    """Milliseconds; `before` is not timed."""
    took = []
    for _ in range(ROUNDS):
        before()
        began = time.perf_counter()
        work()
        took.append((time.perf_counter() - began) * 1e3)
    return f"median {statistics.median(took):.1f} ms, fastest {min(took):.1f}, slowest of {ROUNDS} {max(took):.1f}"


def main() -> int:
    partitions = int(sys.argv[1]) if len(sys.argv) > 1 else PARTITIONS
    with scratch_layout() as layout:
        clock = SystemClock()
        pretended = PretendedBox(layout, clock, topics={f"topic-{number}": PARTITIONS_A_TOPIC for number in range(-(-partitions // PARTITIONS_A_TOPIC))})
        fill(pretended)
        reader = BoxReader(layout, pretended.box, clock)
        watch = BoxMonitor(reader, clock, "benchmark", lambda _event: None)
        text = watch.metrics().decode()
        series = sum(not line.startswith("#") for line in text.splitlines())
        print(f"{len(pretended.rows)} partitions: {series} series, {len(text) >> 10} KiB")

        def append_everywhere() -> None:
            for topic, partition in pretended.rows:
                pretended.append(topic, partition, 7, 700)

        def nothing() -> None: ...

        for name, work, before in (
            ("scrape, nothing moved", watch.metrics, nothing),
            ("scrape, every partition moved", watch.metrics, append_everywhere),
            ("look, nothing moved", reader.read, nothing),
            ("look, every partition moved", reader.read, append_everywhere),
            ("the page's document", lambda: watch.overview(0), nothing),
        ):
            print(f"  {name}: {measure(work, before)}")
        reader.close()
        pretended.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
