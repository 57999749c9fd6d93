"""What a hung disk, and one that is a hundred times too slow, do to producers that do not write to it; and how soon those that do get an error.

A box of its own on two loop devices, one of them on a drive that can be slowed and stopped (`lab/loop_disks.py`). Its own clients produce all the
time, before, during and after, so that what is compared differs in the fault alone.
"""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from appliance.records.builder import BatchBuilder
from lab.loop_disks import LoopDisk, loop_disks, why_not
from lab.raw_client import RawClient
from lab.running_box import RunningBox, start_box
from loadtest.benchmark import Benchmark, BenchmarkFailed, Figure, Run, Say
from loadtest.benchmarks.paced import Paced, produce_at_a_pace
from loadtest.observation import Observer
from loadtest.topics import make_topic

TOPICS = ("one", "two")
KAFKA_STORAGE_ERROR = 56
RETRIABLE = frozenset({0, 6, KAFKA_STORAGE_ERROR})
PAUSE_SECONDS = 0.02
PATIENCE_SECONDS = 30.0


class Victim:
    """A client of the disk that is hurt, one request after the other; the codes of its answers, and when each came."""

    def __init__(self, box: RunningBox, topic: str, batch: bytes) -> None:
        self._client = RawClient(box.kafka)
        self._topic, self._batch = topic, batch
        self._is_over = threading.Event()
        self.codes: list[tuple[float, int]] = []
        """(when the answer came, error code)"""
        self._thread = threading.Thread(target=self._produce, daemon=True)
        self._thread.start()

    def _produce(self) -> None:
        while not self._is_over.wait(PAUSE_SECONDS):
            code = self._client.produce(self._topic, 0, self._batch).error_code
            self.codes.append((time.monotonic(), code))

    def seconds_until(self, is_error: bool, since: float) -> float:
        """How long after `since` the first answer of this kind came."""
        while time.monotonic() < since + PATIENCE_SECONDS:
            for at, code in self.codes:
                if at > since and bool(code) == is_error:
                    return at - since
            time.sleep(0.01)
        raise BenchmarkFailed(f"no {'error' if is_error else 'success'} within {PATIENCE_SECONDS:g} s")

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(PATIENCE_SECONDS)
        self._client.close()
        if strange := {code for _, code in self.codes} - RETRIABLE:
            raise BenchmarkFailed(f"clients of the hurt disk received {strange}")


@dataclass(frozen=True)
class DiskFaults(Benchmark):
    name: ClassVar[str] = "disk_faults"
    title: ClassVar[str] = (
        "100 small produces a second to one disk, while another one hangs (frozen), then is a hundred times slower; both have clients all the time."
    )
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("p99 ratio, hung", "", at_most=2),
        Figure("p99 ratio, slow", "", at_most=2),
        Figure("first error after", "s", at_most=5),
        Figure("served again after", "s"),
        Figure("p99 before", "µs"),
        Figure("p99 hung", "µs"),
        Figure("p99 slow", "µs"),
        Figure("p99 after", "µs"),
        Figure("p50 before", "µs"),
        Figure("longest hung", "µs"),
        Figure("longest slow", "µs"),
    )
    short: ClassVar[dict[str, Any]] = {"seconds": 4.0}

    seconds: float = 12.0
    rate: float = 100.0
    slow_seconds: float = 0.1
    """A call of the slow drive takes so much longer: a hundred times what a disk takes for a write."""

    def missing(self) -> str | None:
        return why_not(needs_fuse=True) or None

    def run(self, box: RunningBox, say: Say) -> Run:
        with tempfile.TemporaryDirectory(prefix="disk-faults-", dir=box.directory) as scratch, loop_disks(Path(scratch)) as make:
            hurt, well = make("hurt", is_faulty=True, mib=256), make("well", mib=256)
            own = start_box(Path(scratch) / "box", data=[hurt.path / "log" / "hurt", well.path / "log" / "well"])
            try:
                return self._measure(own, hurt, say)
            finally:
                hurt.thaw()
                hurt.drive("ok")
                own.stop()

    def _measure(self, box: RunningBox, disk: LoopDisk, say: Say) -> Run:
        for topic in TOPICS:
            make_topic(box, topic, 1)
        theirs, ours = sorted(TOPICS, key=lambda topic: not (box.disks[0] / f"{topic}-0").is_dir())
        if (box.disks[0] / f"{ours}-0").is_dir():
            raise BenchmarkFailed("both topics lie on the disk that is hurt")
        produce_at_a_pace(box, ours, 1, 1000.0, 2.0)
        pids = box.pids()
        builder = BatchBuilder()
        builder.append(1_700_000_000_000, None, bytes(300))
        victim = Victim(box, theirs, builder.build())
        observer = Observer({name: pid for name, pid in pids.items() if "@hurt" not in name})  # whose log-writer does not live through it
        cpu_seconds = 0.0

        def measured(words: str) -> Paced:
            nonlocal cpu_seconds
            say(words)
            paced = produce_at_a_pace(box, ours, 1, self.rate, self.seconds)
            cpu_seconds += paced.cpu_seconds
            return paced

        try:
            before = measured("both disks are well")
            disk.freeze()
            frozen_at = time.monotonic()
            hung = measured("one disk hangs")
            first_error = victim.seconds_until(True, frozen_at)
            disk.thaw()
            back = victim.seconds_until(False, time.monotonic())
            disk.drive(f"slow {self.slow_seconds}")
            slow = measured("one disk is slow")
            disk.drive("ok")
            victim.seconds_until(False, time.monotonic())
            after = measured("both disks are well again")
        finally:
            disk.thaw()
            disk.drive("ok")
            victim.stop()
        changed = [name for name, pid in box.pids().items() if "@hurt" not in name and pids[name] != pid]
        if changed:
            raise BenchmarkFailed(f"{', '.join(changed)} did not live through the faults of another disk")
        figures = {
            "p99 ratio, hung": hung.p99_us / before.p99_us,
            "p99 ratio, slow": slow.p99_us / before.p99_us,
            "first error after": first_error,
            "served again after": back,
            "p99 before": before.p99_us,
            "p99 hung": hung.p99_us,
            "p99 slow": slow.p99_us,
            "p99 after": after.p99_us,
            "p50 before": before.p50_us,
            "longest hung": hung.max_us,
            "longest slow": slow.max_us,
        }
        notes = [f"clients of the hurt disk had {sum(1 for _, code in victim.codes if code):,} errors of {len(victim.codes):,} answers, all of them retriable"]
        return Run(figures, observer.finish({"paced producer": cpu_seconds}), notes)
