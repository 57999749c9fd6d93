"""Compaction in the real log-writer, stepped by hand, with real runs: what is due, what is swapped in, and what happens when something is in the way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.base.layout import BoxLayout
from appliance.base.model import TopicPartition
from appliance.shm.partition_table import DISK_ONLINE, PartitionTableReader, Row
from appliance.storage import checkpoints
from appliance.storage.cleaner import run_cleaning
from appliance.storage.cleaning_plan import CleaningJob, RunReport
from lab.running_box import eventually
from services.log_writer.agent import SLICE_PARK_MS
from services.log_writer.background import cleaning_rounds
from services.log_writer.replicas.replica import Replica
from tests.support.real_log_writer import TOPIC_ID, RealLogWriter
from tests.unit.storage.compaction_support import keyed, stored_pairs

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.usefixtures("no_waiting_for_the_disk")]

SETTINGS = {"log.cleaner.backoff.ms": 1000, "log.flush.offset.checkpoint.interval.ms": 100, "log.disk.reserve.bytes": 0}
CONFIG = {"segment.bytes": "1000", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "file.delete.delay.ms": "0"}


class CompactedPartition:
    """A log-writer that leads one compacted partition."""

    def __init__(self, layout: BoxLayout, path: Path, incarnation: int = 1, **settings: Any) -> None:
        self.path = path / "d0" / "t-0"
        self.writer = RealLogWriter(layout, path / "d0", incarnation, SETTINGS | settings)
        self.writer.recover()

    def fill(self, batches: int = 40, **config: str) -> CompactedPartition:
        controller = self.writer.source("controller")
        self.writer.create(controller, 0)
        self.writer.lead(controller, 0)
        controller.flush()
        while len(self.writer.answers) < 2:
            self.writer.turn()
        self.configure(**config)
        return self.append(batches)

    def configure(self, **config: str) -> None:
        self.writer.agent.partitions.configure(self.hosted, CONFIG | {name.replace("_", "."): value for name, value in config.items()})

    def append(self, batches: int) -> CompactedPartition:
        source = self.writer.sources.get("acceptor@0") or self.writer.source("acceptor@0")
        for number in range(batches):
            self.writer.produce(source, 0, bytes(keyed((b"k%d" % (number % 3), b"%d " % number + b"v" * 300), timestamp_ms=self.writer.clock.wall_ms())))
            self.writer.turn()
        return self

    @property
    def hosted(self) -> Replica:
        hosted = self.writer.agent.partitions.find(TOPIC_ID, 0)
        assert hosted is not None
        return hosted

    @property
    def row(self) -> Row:
        return PartitionTableReader(self.writer.agent.table.shared).read(self.hosted.row)

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Seconds go by until it is so: runs are real processes."""

        def look() -> Any:
            self.writer.seconds(1)
            return condition()

        return eventually(look, what)

    def count(self, name: str) -> int:
        return self.writer.counters.counter(f"cleaner.{name}").value

    def rest(self) -> None:
        """Several looks that find nothing, and nothing under way."""
        self.until(lambda: self.count("running") == 0, "nothing is under way")
        runs = self.count("runs")
        for _ in range(8):
            self.writer.seconds(1)
            self.writer.agent.cleaning.task.join()
        assert self.count("runs") == runs


def test_a_dirty_log_is_compacted_its_row_is_updated_and_the_next_incarnation_continues(layout: BoxLayout, tmp_path: Path) -> None:
    life = CompactedPartition(layout, tmp_path).fill()
    before = life.hosted.log.segment_list_generation
    life.until(lambda: life.count("swapped_segments") > 5 and life.count("running") == 0, "the log is compacted")
    life.rest()
    pairs = stored_pairs(life.path)
    assert {key: value[:2] for _, key, value in pairs if value} == {b"k0": b"39", b"k1": b"37", b"k2": b"38"} and len(pairs) < 10
    generation = life.hosted.log.segment_list_generation
    assert generation > before and life.row.segment_list_generation == 1 + (life.hosted.row_generation << 24) + generation
    assert not [name for name in os.listdir(life.path) if name.endswith((".cleaned", ".swap"))]
    life.until(lambda: not [name for name in os.listdir(life.path) if name.endswith(".deleted")], "old files are removed")
    clean_to = checkpoints.read_offsets(str(tmp_path / "d0" / checkpoints.CLEANED))
    assert clean_to == {TopicPartition("t", 0): life.hosted.log.active_base_offset}
    life.writer.stop()
    life = CompactedPartition(layout, tmp_path, 2)
    life.configure()
    life.rest()
    assert life.count("runs") == 0 or stored_pairs(life.path) == pairs
    life.writer.stop()


def test_segments_that_wait_to_be_swapped_in_do_not_wait_for_a_sleeping_loop(layout: BoxLayout, tmp_path: Path) -> None:
    life = CompactedPartition(layout, tmp_path).fill()

    def waits() -> bool:
        life.writer.clock.advance_ms(100)
        life.writer.turn()
        return life.writer.agent.cleaning.has_swaps

    eventually(waits, "a compacted segment waits")
    assert life.writer.agent.park_ms() <= SLICE_PARK_MS
    life.until(lambda: life.count("running") == 0 and not life.writer.agent.cleaning.has_swaps, "the run is over")
    # Retention and flushes are slices too, and look at the partition on their own rounds: the loop sleeps once they are done.
    life.until(lambda: life.writer.agent.park_ms() > SLICE_PARK_MS, "nothing is left to do but to sleep")
    life.writer.stop()


def test_a_log_that_cannot_be_compacted_is_skipped_reported_and_affects_no_other(layout: BoxLayout, tmp_path: Path) -> None:
    life = CompactedPartition(layout, tmp_path, **{"log.cleaner.enable": True}).fill()
    path = life.path / f"{life.hosted.log.segment_base_offsets[2]:020d}.log"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    life.until(lambda: life.count("uncleanable_logs"), "the log is given up")
    life.rest()
    assert life.count("failures") == 1 and life.count("runs") == 1
    assert "log t-0 is not compacted any more" in life.writer.said and "checksum" in life.writer.said
    assert "1 logs cannot be compacted" in life.writer.agent.status_line() and life.writer.disk_state == DISK_ONLINE
    life.append(1)
    assert life.writer.codes("produce")[-1] == 0
    life.writer.stop()


def test_a_run_that_is_killed_is_tried_again_and_not_for_ever(layout: BoxLayout, tmp_path: Path) -> None:
    life = CompactedPartition(layout, tmp_path).fill()
    for killed in range(3):
        run = life.until(lambda: life.writer.agent.cleaning.run, "a run is under way")
        os.kill(run.process.pid, signal.SIGKILL)
        life.until(lambda: life.count("failures") == killed + 1, "its death is noticed")  # noqa: B023
        assert not [name for name in os.listdir(life.path) if name.endswith(".swap")]
    assert life.count("uncleanable_logs") == 1
    life.rest()
    life.writer.stop()


def test_a_stop_ends_the_run_that_is_under_way(layout: BoxLayout, tmp_path: Path) -> None:
    life = CompactedPartition(layout, tmp_path).fill()
    pid = life.until(lambda: life.writer.agent.cleaning.run, "a run is under way").process.pid
    life.writer.stop()
    assert not Path(f"/proc/{pid}").exists()
    life = CompactedPartition(layout, tmp_path, 2)
    assert {value[:2] for _, _, value in stored_pairs(life.path) if value} >= {b"37", b"38", b"39"}
    life.writer.stop()


class PausedRun:
    """In the place of a run's process: it works when the test says so, and is heard at the next look."""

    def __init__(self, job: CleaningJob, _disk: str) -> None:
        self.job = job
        self.status: int | None = None
        self._said: list[RunReport] = []

    def work(self) -> None:
        run_cleaning(self.job, self._said.append)
        self.status = 0

    def poll(self) -> list[RunReport]:
        said, self._said = self._said, []
        return said

    def close(self) -> None:
        pass


def _delete_first_segment(life: CompactedPartition) -> None:
    """As retention does, to the end."""
    bases = life.hosted.log.segment_base_offsets
    life.writer.agent.retention.advance_start(life.hosted, bases[1], ("time",), 0)
    life.until(lambda: not (life.path / f"{bases[0]:020d}.log").exists(), "its files are gone")


def _values(life: CompactedPartition) -> dict[bytes, list[bytes]]:
    """What closed segments hold of each key, oldest first."""
    found: dict[bytes, list[bytes]] = {}
    for offset, key, value in stored_pairs(life.path):
        if offset < life.hosted.log.active_base_offset and key is not None and value is not None:
            found.setdefault(key, []).append(value)
    return found


def test_a_run_whose_segments_retention_takes_away_is_tried_again(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(cleaning_rounds, "CleaningProcess", PausedRun)
        life = CompactedPartition(layout, tmp_path).fill(cleanup_policy="compact,delete")
        run: PausedRun = life.until(lambda: life.writer.agent.cleaning.run, "a run is under way").process
        _delete_first_segment(life)
        run.work()
        life.until(lambda: "retention was faster" in life.writer.said, "its failure is heard")
    assert life.count("uncleanable_logs") == life.count("failures") == 0
    life.until(lambda: life.count("swapped_segments") and life.count("running") == 0, "the log is compacted")
    life.writer.stop()


def test_what_a_run_could_not_put_in_place_is_compacted_by_the_next(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it counted as clean, the values in it would never meet the newer ones again, and a deletion that goes would bring them back."""
    with monkeypatch.context() as patch:
        patch.setattr(cleaning_rounds, "CleaningProcess", PausedRun)
        life = CompactedPartition(layout, tmp_path).fill(cleanup_policy="compact,delete", segment_bytes="1000")
        life.configure(cleanup_policy="compact,delete", segment_bytes="4000")
        run: PausedRun = life.until(lambda: life.writer.agent.cleaning.run, "a run is under way").process
        run.work()
        _delete_first_segment(life)
        life.until(lambda: life.count("running") == 0 or life.writer.agent.cleaning.run.process is not run, "the run is over")
    life.until(lambda: all(len(values) == 1 for values in _values(life).values()), "no key is there twice")
    life.writer.stop()


def test_a_log_that_is_cut_under_a_run_and_grows_again_keeps_what_it_holds_now(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its new segments have the old ones' names; the output of the run is discarded."""
    with monkeypatch.context() as patch:
        patch.setattr(cleaning_rounds, "CleaningProcess", PausedRun)
        life = CompactedPartition(layout, tmp_path).fill()
        run: PausedRun = life.until(lambda: life.writer.agent.cleaning.run, "a run is under way").process
        run.work()
        bases = life.hosted.log.segment_base_offsets
        life.hosted.log.truncate_to(bases[1])
        life.writer.agent.cleaning.on_truncated(life.hosted)
        assert life.hosted.on_truncated(), "in this test the cut is below the high watermark"
        life.hosted.log.append_as_leader([memoryview(bytearray(keyed((b"new", b"%d" % number + b"w" * 300)))) for number in range(40)], 0, 1)
        assert life.hosted.log.segment_base_offsets[:3] == bases[:3]
        life.hosted.publish_append(0)
        life.until(lambda: life.count("running") == 0 or life.writer.agent.cleaning.run.process is not run, "the run is over")
        assert life.count("swapped_segments") == 0
    life.append(3)  # through the ring, so that it is flushed
    life.until(lambda: life.count("swapped_segments") and life.count("running") == 0, "the log is compacted")
    life.until(lambda: all(len(values) == 1 for values in _values(life).values()), "no key is there twice")
    assert b"new" in _values(life)
    life.writer.stop()


def test_a_topic_that_is_deleted_while_it_is_compacted_affects_no_other(layout: BoxLayout, tmp_path: Path) -> None:
    life = CompactedPartition(layout, tmp_path).fill()
    life.until(lambda: life.writer.agent.cleaning.run, "a run is under way")
    life.writer.agent.partitions.delete(TopicPartition("t", 0), TOPIC_ID)
    life.until(lambda: life.count("running") == 0, "the run is ended")
    life.writer.seconds(3)
    assert life.writer.disk_state == DISK_ONLINE and life.count("uncleanable_logs") == 0
    life.writer.stop()


def test_records_wait_for_their_least_lag(layout: BoxLayout, tmp_path: Path) -> None:
    life = CompactedPartition(layout, tmp_path).fill(min_compaction_lag_ms="1000000")
    life.rest()
    assert life.count("runs") == 0
    life.writer.clock.advance_ms(1_000_000)
    life.until(lambda: life.count("swapped_segments") and life.count("running") == 0, "the log is compacted")
    life.writer.stop()
