"""What a consumer that reads old records from the disk does to those who produce and consume now: nothing, if all is well."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from appliance.storage.page_cache import Cachestat, FileMap, pages_of
from lab.running_box import RunningBox
from loadtest.benchmark import Benchmark, BenchmarkFailed, Figure, Run, Say
from loadtest.benchmarks.paced import Paced, produce_at_a_pace
from loadtest.generators.compiler import missing_for_librdkafka
from loadtest.librdkafka import LibrdkafkaClient, fill_topic, read_report
from loadtest.load_generator import LoadGenerator
from loadtest.observation import Observer
from loadtest.topics import make_topic

PROGRAM = Path(__file__).parent.parent / "generators" / "end_to_end.py"
GOOD, TAIL, OLD = "good", "tail", "old"
VALUE_BYTES = 1024
CONNECTIONS = 4
PATIENCE_SECONDS = 120.0
SETTLE_SECONDS = 5.0
"""After gigabytes were written: a virtual disk goes on with them for a while, and the measured clients wait for it (seen: a p99 of 120 ms, alone)."""
SEGMENT_BYTES = 256 << 20
"""Of old records: most are read from closed segments, as in a log that has grown for a while."""


class Measured(NamedTuple):
    """Latencies of those who produce and consume now; megabytes a second of the reader of old records meanwhile."""

    produce: Paced
    tail_p99_us: int
    old_mb_per_s: float


@dataclass(frozen=True)
class ColdBackfill(Benchmark):
    name: ClassVar[str] = "cold_backfill"
    title: ClassVar[str] = "100 small produces a second and a consumer at the tail, alone and beside a consumer that reads old records from the disk."
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("produce p99 ratio", "", at_most=2),
        Figure("tail p99 ratio", "", at_most=2),
        Figure("produce p99 cold to hot", "", at_most=2),
        Figure("tail p99 cold to hot", "", at_most=2),
        Figure("produce p99 alone", "µs"),
        Figure("produce p99 beside cold", "µs"),
        Figure("produce p99 beside hot", "µs"),
        Figure("tail p99 alone", "µs"),
        Figure("tail p99 beside cold", "µs"),
        Figure("tail p99 beside hot", "µs"),
        Figure("cold backfill", "MB/s"),
        Figure("hot backfill", "MB/s"),
        Figure("tail resident", "%", at_least=100),
        Figure("old resident", "%", at_most=1),
        Figure("read by acceptors", "MB", at_most=0),
    )
    short: ClassVar[dict[str, Any]] = {"seconds": 5.0, "records": 200_000}

    seconds: float = 12.0
    rate: float = 100.0
    records: int = 2_000_000
    partitions: int = 2

    @property
    def written_bytes(self) -> int:
        return self.records * VALUE_BYTES

    def missing(self) -> str | None:
        return missing_for_librdkafka()

    def run(self, box: RunningBox, say: Say) -> Run:
        client = LibrdkafkaClient(box.directory)
        for topic in (GOOD, TAIL):
            make_topic(box, topic, 1)
        make_topic(box, OLD, self.partitions, {"segment.bytes": str(SEGMENT_BYTES)})
        fill_topic(client, box, OLD, self.partitions, self.records, VALUE_BYTES)
        produce_at_a_pace(box, GOOD, CONNECTIONS, 1000.0, 2.0)
        old, new = segments_of(box, OLD), [*segments_of(box, GOOD), *segments_of(box, TAIL)]
        for path in old:
            sync_file(path)
        os.sync()
        time.sleep(SETTLE_SECONDS)
        backfill = client.consumer(box, OLD, self.partitions, self.records, VALUE_BYTES, {"group.id": "old", "check.crcs": "true"})
        alone = measure_tail(box, GOOD, TAIL, self.rate, self.seconds)
        say(f"alone: produce p99 {alone.produce.p99_us} µs, tail p99 {alone.tail_p99_us} µs")
        hot = self._beside(box, backfill)
        say(f"beside hot: {hot.old_mb_per_s:.0f} MB/s, produce p99 {hot.produce.p99_us} µs, tail p99 {hot.tail_p99_us} µs")
        for path in old:
            _drop(path)
        if resident_percent(old) > 1:
            raise BenchmarkFailed("the file system keeps its pages: nothing can be made cold here")
        read_before = _read_by_acceptors(box)
        observer = Observer(box.pids())
        cold = self._beside(box, backfill)
        observation = observer.finish({"paced producer": cold.produce.cpu_seconds})
        figures = {
            "produce p99 ratio": cold.produce.p99_us / alone.produce.p99_us,
            "tail p99 ratio": cold.tail_p99_us / alone.tail_p99_us,
            "produce p99 cold to hot": cold.produce.p99_us / hot.produce.p99_us,
            "tail p99 cold to hot": cold.tail_p99_us / hot.tail_p99_us,
            "produce p99 alone": alone.produce.p99_us,
            "produce p99 beside cold": cold.produce.p99_us,
            "produce p99 beside hot": hot.produce.p99_us,
            "tail p99 alone": alone.tail_p99_us,
            "tail p99 beside cold": cold.tail_p99_us,
            "tail p99 beside hot": hot.tail_p99_us,
            "cold backfill": cold.old_mb_per_s,
            "hot backfill": hot.old_mb_per_s,
            "tail resident": resident_percent(new),
            "old resident": resident_percent(old),
            "read by acceptors": (_read_by_acceptors(box) - read_before) / 1e6,
        }
        counted = {name: value for name, value in box.counters("acceptor@0").values.items() if name.startswith("fetch.cold")}
        say(f"acceptor@0: {counted}")
        return Run(figures, observation, [f"acceptor@0: {counted}"])

    def _beside(self, box: RunningBox, command: list[str]) -> Measured:
        """Measure while one backfill follows the other."""
        backfill = Backfill(command, VALUE_BYTES)
        backfill.start()
        try:
            measured = measure_tail(box, GOOD, TAIL, self.rate, self.seconds)
        finally:
            backfill.stop()
        return measured._replace(old_mb_per_s=backfill.mb_per_s())


def measure_tail(box: RunningBox, good: str, tail: str, rate: float, seconds: float) -> Measured:
    """Produces to `good`, and to and from `tail`, at a pace."""
    arguments = [sys.executable, str(PROGRAM), box.bootstrap, tail, str(rate), str(seconds)]
    with LoadGenerator("tail", arguments) as generator:
        generator.await_ready()
        generator.go()
        produce = produce_at_a_pace(box, good, CONNECTIONS, rate, seconds)
        document = json.loads(generator.finish(seconds + PATIENCE_SECONDS).output.splitlines()[-1])
    return Measured(produce, document["p99_us"], 0.0)


class Backfill(threading.Thread):
    """Reads all old records, again and again until it is stopped; then the last reading goes to its end."""

    def __init__(self, command: list[str], value_bytes: int) -> None:
        super().__init__(daemon=True)
        self._command = command
        self._value_bytes = value_bytes
        self._stopping = threading.Event()
        self._records = 0
        self._seconds = 0.0
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                with LoadGenerator("backfill", self._command) as generator:
                    generator.await_ready()
                    generator.go()
                    report = read_report(generator)
                self._records += report.records
                self._seconds += report.seconds
        except BaseException as failure:  # reported by the thread that waits
            self._failure = failure

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def mb_per_s(self) -> float:
        if self._failure is not None:
            raise BenchmarkFailed(f"the backfill: {self._failure}")
        return self._records * self._value_bytes / self._seconds / 1e6


def segments_of(box: RunningBox, topic: str) -> list[Path]:
    return sorted(file for disk in box.disks for file in disk.glob(f"{topic}-*/*.log"))


def _drop(path: Path) -> None:
    """Write back what is dirty and have the kernel forget it."""
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    os.close(descriptor)


def resident_percent(paths: list[Path]) -> float:
    total = resident = 0
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes:
            # mincore does not count a folio that is not whole yet, as the one at the end of a file that grows.
            pages = Cachestat().pages(descriptor, 0, size_bytes)
            resident += pages if pages >= 0 else FileMap(descriptor).resident_pages(0, size_bytes)
            total += pages_of(0, size_bytes)
        os.close(descriptor)
    return 100 * resident / max(total, 1)


def disk_read_bytes(box: RunningBox, process: str) -> int:
    """What the kernel read from disks for it."""
    lines = Path(f"/proc/{box.pid(process)}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))


def _read_by_acceptors(box: RunningBox) -> int:
    return sum(disk_read_bytes(box, name) for name in box.pids() if name.startswith("acceptor"))
