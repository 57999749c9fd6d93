"""A backfill of more than fits into memory must not push out of the page cache what is read at the tail.

The box is a second one, in a control group whose memory, page cache included, is a third of what is stored. Old records lie on one disk, those of the tail
on the other: what that disk's log-reader and the acceptor read from a disk was read for the tail consumer, and must be nothing.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lab.running_box import RunningBox, start_box
from loadtest.benchmark import Benchmark, BenchmarkFailed, Figure, Run, Say
from loadtest.benchmarks.cold_backfill import Backfill, disk_read_bytes, measure_tail, resident_percent, segments_of, sync_file
from loadtest.generators.compiler import missing_for_librdkafka
from loadtest.librdkafka import LibrdkafkaClient, fill_topic
from loadtest.memory_limit import inside, memory_limit, missing_for_memory_limit
from loadtest.observation import Observer
from loadtest.topics import make_topic

GOOD, TAIL, OLD = "good", "tail", "old"
VALUE_BYTES = 1024
SEGMENT_BYTES = 256 << 20


@dataclass(frozen=True)
class TailStays(Benchmark):
    name: ClassVar[str] = "tail_stays"
    title: ClassVar[str] = "A box with 1 GB of memory, page cache included: a consumer reads 3 GB of old records while others produce and consume."
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("tail resident", "%", at_least=100),
        Figure("read for the tail", "MB", at_most=0),
        Figure("cold reads for the tail", "", at_most=0),
        Figure("backfill", "MB/s"),
        Figure("read for the backfill", "MB"),
        Figure("tail p99 alone", "µs"),
        Figure("tail p99 beside", "µs"),
        Figure("stored to memory", ""),
    )
    short: ClassVar[dict[str, Any]] = {"seconds": 5.0}

    seconds: float = 15.0
    rate: float = 100.0
    records: int = 3_000_000
    memory_bytes: int = 1_000_000_000

    @property
    def written_bytes(self) -> int:
        return self.memory_bytes

    def missing(self) -> str | None:
        return missing_for_librdkafka() or missing_for_memory_limit()

    def run(self, box: RunningBox, say: Say) -> Run:
        directory = Path(tempfile.mkdtemp(prefix="limited-", dir=box.directory))
        try:
            with memory_limit(self.memory_bytes) as group:
                with inside(group):
                    limited = start_box(directory / "box")
                try:
                    return self._measure(limited, say)
                finally:
                    limited.stop()
        finally:
            shutil.rmtree(directory)

    def _measure(self, box: RunningBox, say: Say) -> Run:
        client = LibrdkafkaClient(box.directory)
        for topic in (GOOD, TAIL, OLD):
            make_topic(box, topic, 1, {"segment.bytes": str(SEGMENT_BYTES)})
        tail_disk, old_disk = (next(disk.name for disk in box.disks if (disk / f"{topic}-0").exists()) for topic in (TAIL, OLD))
        if tail_disk == old_disk:
            raise BenchmarkFailed("the tail and the old records are on one disk: their reads cannot be distinguished")
        fill_topic(client, box, OLD, 1, self.records, VALUE_BYTES)
        old, tail = segments_of(box, OLD), segments_of(box, TAIL)
        for path in old:
            sync_file(path)
        stored = sum(path.stat().st_size for path in old)
        say(f"{stored / 1e9:.1f} GB are stored, {resident_percent(old):.0f} % of them are in memory")
        alone = measure_tail(box, GOOD, TAIL, self.rate, self.seconds)
        of_tail = ("acceptor@0", f"log-reader@{tail_disk}")
        before = {name: disk_read_bytes(box, name) for name in box.pids()}
        observer = Observer(box.pids())
        backfill = Backfill(client.consumer(box, OLD, 1, self.records, VALUE_BYTES, {"group.id": "old", "check.crcs": "true"}), VALUE_BYTES)
        backfill.start()
        try:
            beside = measure_tail(box, GOOD, TAIL, self.rate, self.seconds)
        finally:
            backfill.stop()
        observation = observer.finish({"paced producer": beside.produce.cpu_seconds})
        read = {name: disk_read_bytes(box, name) - bytes_before for name, bytes_before in before.items()}
        figures = {
            "tail resident": resident_percent(tail),
            "read for the tail": sum(read[name] for name in of_tail) / 1e6,
            "cold reads for the tail": float(box.counters(f"log-reader@{tail_disk}").values["log_reader.reads"]),
            "backfill": backfill.mb_per_s(),
            "read for the backfill": read[f"log-reader@{old_disk}"] / 1e6,
            "tail p99 alone": float(alone.tail_p99_us),
            "tail p99 beside": float(beside.tail_p99_us),
            "stored to memory": stored / self.memory_bytes,
        }
        return Run(figures, observation, [f"{tail_disk} has the tail, {old_disk} the old records"])
