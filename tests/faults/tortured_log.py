"""One partition on one log directory, handled as the agents of a log-writer handle it, and a memory of what must be in it.

Every action does its steps in the order that the docstrings of `appliance/storage` state; any file call in it may fail. Afterwards the
partition is opened again in one of four ways (closed cleanly, process killed, power cut, or nothing at all and the process continues), and
`verify` checks everything that its files can show.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from appliance.base.clock import ManualClock
from appliance.base.errors import StorageFailed
from appliance.base.model import TopicId, TopicPartition
from appliance.records.batch import LEADER_EPOCH_AT, MAGIC_AT, TRANSACTIONAL_FLAG, BatchHeader, read_batch_header
from appliance.records.control_batch import EndTransactionMarker, build_end_transaction_batch, read_end_transaction_marker
from appliance.records.record import iterate_records
from appliance.storage import file_io, recovery
from appliance.storage.append_plan import RefusedBatch
from appliance.storage.checkpoints import CLEANED, HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from appliance.storage.log import Log
from appliance.storage.log_config import LogConfig
from appliance.storage.log_directory import TOGETHER_MIN, LogDirectory, close_logs
from appliance.storage.producer_state import ProducerState
from appliance.storage.recovery import CLEAN, Recovery, SameBoot, Unclean
from appliance.storage.removed_segments import DepartingFiles
from appliance.storage.verification import NeedsVerification
from tests.support.volatile_files import VolatileFiles
from tests.unit.storage.compaction_support import Pair, job_of, keyed, plan_of, reports_of, with_producer
from tests.unit.storage.storage_support import NOW_MS

NAME = TopicPartition("torture", 0)
TOPIC_ID = TopicId(bytes(range(16)))
LIMIT = 1 << 20


class Stored(NamedTuple):
    """A batch as it lies in a file."""

    header: BatchHeader
    raw: bytes

    @classmethod
    def of(cls, raw: bytes) -> Stored:
        return cls(read_batch_header(raw), raw)

    def pairs(self) -> dict[int, Pair]:
        if self.header.is_control:
            return {}
        return {record.offset: (record.key, record.value) for record in iterate_records(self.raw, LIMIT)}


class Memory:
    """What was done to the log, and so what must be in it."""

    def __init__(self) -> None:
        self.history: list[Stored] = []
        """Every batch that is in the log, or was until retention or compaction took it."""
        self.in_doubt: list[Stored] = []
        """What may be behind it: an action that would have put or left it there, or taken it away, was not finished."""
        self.refused: set[bytes] = set()
        """Batches of appends that failed: cut off again, but a power cut may undo that."""
        self.durable_end = 0
        """Below it a power cut takes nothing."""
        self.log_start = 0
        self.durable_start = 0
        """The log start offset that a client received, and what surely was written."""
        self.producers_durable_end = 0
        """What producers wrote below it is known after a power cut: segments that went left it in a snapshot."""
        self.compacted_below = 0
        self.may_be_empty = False
        """The log was to start over somewhere."""
        self.lost: set[int] = set()
        """Offsets of a compacted log that a power cut took from between others: there a hole does not end the log."""

    @property
    def end_offset(self) -> int:
        return self.history[-1].header.last_offset + 1 if self.history else 0

    def copy(self) -> Memory:
        other = Memory()
        other.__dict__.update(self.__dict__, history=list(self.history), in_doubt=list(self.in_doubt), lost=set(self.lost), refused=set(self.refused))
        return other


class Row(NamedTuple):
    """What the table says when the process dies."""

    end_offset: int
    base_offset: int
    position: int
    log_start_offset: int


class TorturedLog:
    """Make one with `create`, or `open_as` on a copy of another's directory."""

    def __init__(self, path: Path, config: LogConfig, chance: random.Random, volatile: VolatileFiles | None = None) -> None:
        self.path = path / str(NAME)
        self.config = config
        self.memory = Memory()
        self.clock = ManualClock(NOW_MS)
        self.leader_epoch = 0
        self.serial = 0
        self.sequences: dict[int, int] = {}
        self.open_transactions: set[int] = set()
        self.row = Row(0, 0, 0, 0)
        self.first_dirty = 0
        self.damaged_index = False
        self.directory: LogDirectory | None = None
        self.log: Log | None = None
        self._top = path
        self.chance = chance
        self.volatile = volatile

    # -- opening

    def create(self) -> None:
        self._open_directory()
        assert self.directory is not None
        self.directory.create_partition(NAME.topic, NAME.partition, TOPIC_ID)
        self._open_log(CLEAN)

    def _open_directory(self) -> LogDirectory:
        self.directory = LogDirectory.open(str(self._top), 1, "cluster", self.clock, "00000000-0000-0000-0000-000000000001")
        return self.directory

    def _open_log(self, recovery: Recovery, log_start_offset: int = 0) -> None:
        self.log = Log.open(str(self.path), NAME, TOPIC_ID, self.config, self.clock, recovery, log_start_offset)
        self.publish()

    def open_as(self, how: str) -> None:
        """Open the directory as the next process does after the last one was `killed` or the `power` went; "clean": as the directory says."""
        directory = self._open_directory()
        assert not directory.problems, directory.problems
        saved, start = directory.checkpoints.lines[RECOVERY_POINTS].get(NAME, 0), directory.checkpoints.lines[LOG_START_OFFSETS].get(NAME, 0)
        row = self.row
        if directory.was_clean:
            recovery: Recovery = CLEAN
        elif how == "power":
            recovery = Unclean(saved)
        else:
            recovery, start = SameBoot(row.end_offset, row.base_offset, row.position, saved), max(start, row.log_start_offset)
        self._open_log(recovery, start)
        if self.opened.recovery_point < saved:  # as a log-writer does before it serves
            self._save_recovery_point()
        self.first_dirty = directory.checkpoints.lines[CLEANED].get(NAME, 0)
        if how == "power":
            self.leader_epoch += 1

    def publish(self) -> None:
        log = self.opened
        self.row = Row(log.log_end_offset, log.active_base_offset, log.active_position, log.log_start_offset)

    @property
    def opened(self) -> Log:
        assert self.log is not None
        return self.log

    @property
    def _directory(self) -> LogDirectory:
        assert self.directory is not None
        return self.directory

    def abandon(self) -> None:
        """The process is gone."""
        if self.log is not None:
            self.log.abandon()
            self.log = None
        if self.directory is not None:
            self.directory.abandon()
            self.directory = None

    # -- what the agents do; StorageFailed and OSError come through

    def append(self, sizes: list[int], producer_id: int = -1, keys: int = 0, records: int = 1, late_ms: int = 0) -> None:
        """One append of batches with values of these sizes; with `keys` there are so many keys, and every fifth record is a tombstone."""
        batches = []
        sequence = self.sequences.get(producer_id, 0)
        for size in sizes:
            pairs: list[Pair] = []
            for _ in range(records):
                self.serial += 1
                key = b"k%d" % self.chance.randrange(keys) if keys else None
                pairs.append((key, None if keys and self.serial % 5 == 0 else b"%d " % self.serial + b"x" * size))
            producer = (producer_id, 0, sequence) if producer_id >= 0 else None
            sequence += records
            batches.append(keyed(*pairs, timestamp_ms=NOW_MS + self.serial - late_ms, producer=producer))
        end_offset = self.opened.log_end_offset
        self._carry_out(batches, lambda: self.opened.append_as_leader(batches, self.leader_epoch, self.clock.wall_ms()))
        if producer_id >= 0:
            self.sequences[producer_id] = sequence
        assert self.opened.log_end_offset == end_offset + len(sizes) * records

    def append_transaction(self, producer_id: int, size: int, marker: str) -> None:
        """Data of a transaction and, unless `marker` is empty, its "commit" or "abort": as a follower and as a leader, in turns."""
        self.serial += 1
        sequence = self.sequences.get(producer_id, 0)
        raw = bytes(keyed((b"k0", b"%d " % self.serial + b"t" * size), timestamp_ms=NOW_MS + self.serial))
        batches = [with_producer(raw, (producer_id, 0, sequence), TRANSACTIONAL_FLAG)]
        if marker:
            batches.append(memoryview(build_end_transaction_batch(producer_id, 0, EndTransactionMarker(marker == "commit", 3), NOW_MS + self.serial)))
        offset = self.opened.log_end_offset
        epoch = max(self.leader_epoch, self.opened.leader_epochs.latest)
        for number, batch in enumerate(batches):
            batch[:8] = (offset + number).to_bytes(8, "big")
            batch[LEADER_EPOCH_AT:MAGIC_AT] = epoch.to_bytes(4, "big")
        if self.serial % 2:
            self._carry_out(batches, lambda: self.opened.append_as_follower(batches))
        else:
            self.opened.verifications.is_enabled = False
            self._carry_out(batches, lambda: self._lead(batches, epoch))
            assert self.opened.log_end_offset == offset + len(batches)
        self.leader_epoch = epoch
        self.sequences[producer_id] = sequence + 1
        (self.open_transactions.discard if marker else self.open_transactions.add)(producer_id)

    def _lead(self, batches: list[memoryview], epoch: int) -> None:
        results = self.opened.append_as_leader(batches, epoch, self.clock.wall_ms())
        assert not any(isinstance(result, RefusedBatch | NeedsVerification) for result in results), results

    def _carry_out(self, batches: list[memoryview], append: Callable[[], object]) -> None:
        memory = self.memory
        try:
            append()
        except StorageFailed:
            refused = [Stored.of(bytes(batch)) for batch in batches]
            if self.opened.failed:
                memory.in_doubt = refused
            memory.refused |= {batch.raw for batch in refused}
            raise
        memory.history += [Stored.of(bytes(batch)) for batch in batches]
        self.publish()

    def new_epoch(self) -> None:
        self.leader_epoch += 1
        self.opened.assign_leader_epoch(self.leader_epoch)

    def roll(self) -> None:
        self.opened.roll()
        self.publish()

    def flush(self) -> None:
        """A flush round and its checkpoints."""
        log = self.opened
        log.flush()
        self._save_recovery_point()
        self._directory.checkpoints.save(HIGH_WATERMARKS, lambda: {NAME: log.log_end_offset})

    def _save_recovery_point(self) -> None:
        point = self.opened.recovery_point
        self._directory.checkpoints.save(RECOVERY_POINTS, lambda: {NAME: point})
        self.memory.durable_end = max(self.memory.durable_end, point)

    def flush_batches(self) -> None:
        """What a topic with flush.messages=1 does before it acknowledges."""
        self.opened.flush_batches()
        self.memory.durable_end = max(self.memory.durable_end, self.opened.durable_offset)

    def retain(self, offset: int, budget_bytes: int = 256) -> None:
        """The log begins at `offset` from now on (at the log end: nothing stays)."""
        log, memory = self.opened, self.memory
        offset = max(log.log_start_offset, min(offset, log.log_end_offset))
        if offset == log.log_end_offset:
            self.roll()
        removed = log.advance_log_start_offset(offset)
        memory.log_start = offset
        self.publish()
        try:
            self._directory.checkpoints.save(LOG_START_OFFSETS, lambda: {NAME: offset})
            memory.durable_start = offset
            if removed is not None:
                memory.producers_durable_end = log.segment_base_offsets[0]
            paths = removed.rename() if removed is not None else []
        finally:
            if removed is not None:
                removed.close()
        log.forget_removed(offset)
        log.truncate_epochs_from_start()
        departing = DepartingFiles()
        departing.add(paths, 0)
        while departing:
            departing.remove_some(1, budget_bytes)

    def truncate(self, offset: int) -> None:
        """As a follower whose leader has another history from `offset` on. The checkpoint follows before anything is appended."""
        log, memory = self.opened, self.memory
        if offset >= log.log_end_offset:
            return
        offset = max(offset, log.log_start_offset, memory.compacted_below)  # what is compacted is known to all replicas
        if offset >= log.log_end_offset:
            return
        keep = [batch for batch in memory.history if batch.header.last_offset < offset]
        memory.history, memory.in_doubt = keep, memory.history[len(keep) :]
        end = memory.end_offset
        if end < max(log.log_start_offset, memory.compacted_below):  # the batch that holds it would go, too
            memory.history, memory.in_doubt = keep + memory.in_doubt, []
            return
        memory.durable_end = min(memory.durable_end, end)
        memory.producers_durable_end = min(memory.producers_durable_end, end)
        memory.compacted_below = min(memory.compacted_below, end)
        memory.lost = {lost for lost in memory.lost if lost < end}
        log.truncate_to(offset)
        memory.in_doubt = []
        self.publish()
        self._after_truncation()

    def start_over(self, offset: int) -> None:
        log, memory = self.opened, self.memory
        memory.history, memory.in_doubt, memory.may_be_empty, memory.lost = [], memory.history, True, set()
        memory.durable_end = memory.producers_durable_end = memory.compacted_below = 0
        memory.log_start = max(memory.log_start, offset)
        log.truncate_fully_and_start_at(offset)
        memory.in_doubt = []
        self.publish()
        self._after_truncation()
        self._directory.checkpoints.save(LOG_START_OFFSETS, lambda: {NAME: offset})
        memory.durable_start = offset
        memory.may_be_empty = False

    def _after_truncation(self) -> None:
        self._directory.checkpoints.save(RECOVERY_POINTS, lambda: {NAME: self.opened.recovery_point})
        if self.first_dirty > self.opened.log_end_offset:
            self._directory.checkpoints.save(CLEANED, lambda: {NAME: 0})
            self.first_dirty = 0
        self.leader_epoch += 1
        self.sequences.clear()
        self.open_transactions.clear()
        self._forget_producers()

    def _forget_producers(self) -> None:
        """Sequences go on from what the log knows."""
        for producer_id in range(1, 10):
            entry = self.opened.producers.entry(producer_id)
            if entry is not None:
                self.sequences[producer_id] = entry.last_sequence + 1
                if entry.transaction_first_offset >= 0:
                    self.open_transactions.add(producer_id)

    def compact(self, buffer_bytes: int = 1 << 16, later_ms: int = 0) -> None:
        """A whole run, swapped in."""
        log, memory = self.opened, self.memory
        self.clock.advance_ms(later_ms)
        self.flush()
        plan = plan_of(log, max(self.first_dirty, log.log_start_offset), self.clock.wall_ms(), log.producers.last_stable_offset(log.log_end_offset))
        if plan is None:
            return
        memory.compacted_below = max(memory.compacted_below, plan.end_offset)
        reports = reports_of(job_of(log, plan, self.clock.wall_ms(), buffer_bytes))
        replaced: list[str] = []
        for report in reports:
            if report.group is not None and report.group.is_changed:
                assert log.can_replace(report.group.bases)
                replaced += log.replace_segments(report.group.bases, report.group.size_bytes)
                self.publish()
        for name in file_io.listdir(str(self.path)):
            if name.endswith(".cleaned"):
                file_io.unlink_if_there(f"{self.path}/{name}")
        if replaced:
            file_io.fsync_directory(str(self.path))
        if reports[-1].kind != "done":
            raise StorageFailed(reports[-1].reason)
        self._directory.checkpoints.save(CLEANED, lambda: {NAME: reports[-1].end_offset})
        self.first_dirty = reports[-1].end_offset
        departing = DepartingFiles()
        departing.add(replaced, 0)
        while departing:
            departing.remove_some(1, 256)

    def rebuild_index(self, number: int = 0) -> None:
        """What the log-writer does about a finding of the scrubber."""
        bases = self.opened.segment_base_offsets
        if number + 1 < len(bases):
            problem = recovery.rebuild_beside(str(self.path), bases[number], self.config.index_interval_bytes, self.clock.wall_ms())
            assert problem is None, problem
            recovery.put_in_place(str(self.path), bases[number])
            self.damaged_index = False

    def damage_index(self, number: int = 0) -> None:
        """As a failing disk does it: without a system call."""
        bases = self.opened.segment_base_offsets
        if number + 1 < len(bases):
            (self.path / f"{bases[number]:020d}.index").write_bytes(b"\0" * 24)
            self.damaged_index = True

    def repeat_checkpoint(self) -> None:
        """After a truncation the checkpoint must be written before the next append."""
        if self._directory.checkpoints.lines[RECOVERY_POINTS].get(NAME, 0) > self.opened.recovery_point:
            self._save_recovery_point()

    def delete(self) -> None:
        self.opened.abandon()
        self._directory.mark_deleted(NAME)
        while self._directory.is_deleting:
            self._directory.delete_some(200)

    def delete_rest(self) -> None:
        """What the next start does when the partition is gone."""
        directory = self._open_directory()
        while directory.is_deleting:
            directory.delete_some(200)

    # -- ends of an incarnation

    def close(self, together_min: int = TOGETHER_MIN) -> None:
        """Cleanly, with everything that says so."""
        log, directory = self.opened, self._directory
        close_logs(directory, [log], together_min)
        self.memory.durable_end = max(self.memory.durable_end, log.recovery_point)
        starts = {NAME: log.log_start_offset} if log.log_start_offset else {}
        directory.checkpoints.save(RECOVERY_POINTS, lambda: {NAME: log.recovery_point})
        directory.checkpoints.save(HIGH_WATERMARKS, lambda: {NAME: log.log_end_offset})
        directory.checkpoints.save(LOG_START_OFFSETS, lambda: starts)
        directory.close_clean()
        self.memory.durable_start = log.log_start_offset
        self.log = self.directory = None

    def reopen(self, how: str) -> None:
        """End this incarnation (how it ends: "clean", "killed", "power") and begin the next, which
        must open.
        """
        if how == "clean":
            self.close()
        self.abandon()
        if how == "power":
            assert self.volatile is not None
            self.volatile.cut(self.chance)
        self.open_as(how)
        self.settle(how)

    def settle(self, how: str) -> None:
        """Adopt what the new incarnation found, after it was compared with what must be there."""
        memory, log = self.memory, self.opened
        stored = stored_batches(self.path)
        start = memory.durable_start if how == "power" else max(memory.durable_start, self.row.log_start_offset)
        assert log.log_start_offset >= start or memory.may_be_empty, (log.log_start_offset, start)
        assert log.log_start_offset <= max(memory.log_start, log.segment_base_offsets[0]), (log.log_start_offset, memory.log_start)
        floor = memory.durable_end if how == "power" else memory.end_offset
        if how == "power":
            self._take_back_refused(stored)
        if self.config.is_compacted:
            self._settle_compacted(stored, floor)
        else:
            self._settle_plain(stored, floor)
        if how == "power" and not stored:
            self._forget_what_was_lost_below_the_start()
        memory.in_doubt, memory.may_be_empty = [], False
        memory.log_start = log.log_start_offset
        memory.durable_end = min(memory.durable_end, log.log_end_offset)
        self.sequences, self.open_transactions = {}, set()
        self._forget_producers()
        self.publish()

    def _take_back_refused(self, stored: list[Stored]) -> None:
        """A failed append was cut off; where a power cut undid that, it is there after all, in place of what was not durable."""
        memory = self.memory
        known = {batch.raw for batch in memory.history + memory.in_doubt}
        back = [batch for batch in stored if batch.raw in memory.refused and batch.raw not in known]
        if back and back == stored[-len(back) :]:
            memory.history = [batch for batch in memory.history if batch.header.last_offset < back[0].header.base_offset]
            memory.in_doubt = back

    def _settle_plain(self, stored: list[Stored], floor: int) -> None:
        memory, log = self.memory, self.opened
        whole = memory.history + memory.in_doubt
        assert log.log_end_offset >= floor, f"the log ends at {log.log_end_offset}, it must reach {floor}"
        if stored:
            start = next((number for number, batch in enumerate(whole) if batch.header.base_offset == stored[0].header.base_offset), None)
            assert start is not None, f"batch {stored[0].header.base_offset} was never appended"
            for batch, wanted in zip(stored, whole[start:], strict=False):
                assert batch.raw == wanted.raw, f"batch {batch.header.base_offset} is not what was appended at {wanted.header.base_offset}"
            assert len(stored) <= len(whole) - start
            assert stored[0].header.base_offset <= log.log_start_offset or not start
            assert log.log_end_offset == stored[-1].header.last_offset + 1
            memory.history = whole[: start + len(stored)]
        else:
            memory.history = [batch for batch in whole if batch.header.last_offset < log.log_end_offset]
            assert not memory.history or memory.may_be_empty or log.log_start_offset >= memory.end_offset, "a log lost everything"

    def _forget_what_was_lost_below_the_start(self) -> None:
        """Truncate the history to a prefix with the log's producers, which includes at least all durable batches.

        If batches below the log start offset were not durable, a power cut may have lost their end. The files
        do not show that; the producer state does.
        """
        memory, log = self.memory, self.opened
        floor = max(memory.durable_end, memory.producers_durable_end)
        least = sum(batch.header.last_offset < floor for batch in memory.history)
        for count in range(len(memory.history), least - 1, -1):
            if producers_of(memory.history[:count]) == known_producers(log):
                memory.history = memory.history[:count]
                return
        raise AssertionError(f"the producers {known_producers(log)} are of no beginning of the log at or above {floor}")

    def _settle_compacted(self, stored: list[Stored], floor: int) -> None:
        """In a compacted log a power cut may leave a hole in what was not durable; whatever is in one counts as never written."""
        memory, log = self.memory, self.opened
        assert log.log_end_offset >= min(floor, memory.end_offset)
        offsets = {batch.header.base_offset for batch in stored}
        whole = memory.history + memory.in_doubt
        kept_from = max(floor, memory.compacted_below, log.segment_base_offsets[0])
        lost = [batch for batch in whole if batch.header.base_offset >= kept_from and batch.header.base_offset not in offsets]
        memory.lost |= {offset for batch in lost for offset in batch.pairs()}
        memory.history = [batch for batch in whole if batch.header.last_offset < log.log_end_offset and batch not in lost]


def stored_batches(path: Path) -> list[Stored]:
    """Every batch of the segments, in order; each segment must end with a whole one."""
    found = []
    for name in sorted(name for name in os.listdir(path) if name.endswith(".log")):
        content = (path / name).read_bytes()
        position = 0
        while position < len(content):
            header = read_batch_header(content, position)
            assert 61 <= header.size_bytes <= len(content) - position, f"{name} does not end with a whole batch"
            found.append(Stored(header, content[position : position + header.size_bytes]))
            position += header.size_bytes
    return found


def producers_of(stored: list[Stored]) -> dict[int, tuple[int, int, int]]:
    """(last sequence, epoch, first offset of the open transaction) of every producer, as these batches have it."""
    state = ProducerState()
    for batch in stored:
        state.replay(batch.header, read_end_transaction_marker(batch.raw) if batch.header.is_control else None)
    return _facts(state)


def known_producers(log: Log) -> dict[int, tuple[int, int, int]]:
    """The same, as the log has it."""
    return _facts(log.producers)


def _facts(state: ProducerState) -> dict[int, tuple[int, int, int]]:
    entries = {producer_id: state.entry(producer_id) for producer_id in range(1, 10)}
    return {
        producer_id: (entry.last_sequence, entry.producer_epoch, entry.transaction_first_offset) for producer_id, entry in entries.items() if entry is not None
    }
