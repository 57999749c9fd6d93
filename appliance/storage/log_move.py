"""A copy of a log that is being moved to another disk: open, align, fill and complete it.

Runs in the mover (`services/log_writer/mover/agent.py`), which alone writes the `-future` directory.
The copy has the batches and the segments of its source, byte for byte, so that its indexes are the
same too.

`align` comes first, whatever happened to either side. It removes what a power cut may have damaged in
the copy (everything above its recovery point), then what the source does not have: by leader epoch,
because equal offsets of two epochs hold different records. A copy that compaction has overtaken, or
that ends below the start of its source, starts over. `complete` is written last, when everything else
is durable; it is removed before the copy continues.

Order of the steps of a move (→), what a crash in one leaves, and what repairs it:

* begin (target): `-future` directory → `partition.metadata` → `move.json`, each durable → log
  directory synced. A crash leaves a directory with some of it. Repair: the repeated command;
  without a record the next start removes it.
* copy (mover): source's row read → its leader epochs → copy truncated by them → batches appended,
  segment by segment as in the source → every 64 MiB: flush round → `move.json` with the recovery
  point, durable. A crash leaves more than the recovery point says, or torn. Repair: the next mover
  truncates the copy at the recovery point, then by leader epoch. It starts over if the source's
  cleaner checkpoint changed, or the source begins above the copy's end.
* finish (mover; the source is frozen): copied to the source's log end → segments below its log
  start removed → leader epochs and producer snapshot taken over → log closed, all of it synced →
  `complete` in `move.json`, durable. A crash leaves a copy that is complete or not. Repair, if not
  complete: the hand-over restarts. Complete: it stays so until a mover sees that the source leads
  again, and takes that back before it touches anything else.
* commit (source, frozen at that log end): rename to `-delete` → log directory synced → row removed.
  A crash leaves one name or the other: the source has it, or the complete copy is the log. Repair:
  the controller, by what exists. An incarnation that is not frozen refuses.
* promote (target): checkpoint lines of an earlier log of that name removed, durable → rename
  `-future` → plain → log directory synced → opened, row → in a thread: three checkpoints durable →
  `move.json` unlinked, directory synced. A crash leaves a complete `-future`; or a plain directory
  with `move.json`. Repair: promoted again; `complete` holds beside the checkpoints (the larger of
  each) until the record is removed.
* cancel (target): `-future` renamed to `-delete` → log directory synced → removed in slices. A
  crash leaves one name or the other. Repair: the repeated command; `delete_some` continues.

Weak spot: of more than `RECENT_PRODUCERS_MAX` producers the others keep their last batch only, as
after any clean stop; so do all, if the target's log-writer dies right after the promotion.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from appliance.base.clock import Clock
from appliance.base.errors import DiskFull, StorageFailed
from appliance.base.model import FIRST_OFFSET, NO_OFFSET, Offset, TopicId
from appliance.storage import file_io
from appliance.storage.log import Log
from appliance.storage.log_config import LogConfig
from appliance.storage.move_record import Complete, MoveRecord, read_move, write_move
from appliance.storage.move_source import MoveSource, SourceChanged, SourceState
from appliance.storage.recovery import Unclean
from appliance.storage.removed_segments import DepartingFiles
from appliance.storage.retention import FreeSpaceReserve
from appliance.storage.segment_files import LOG_SUFFIX, segment_path

FLUSH_BYTES = 64 << 20
"""Copied before it is synced and written down: what a power cut costs the copy."""
FLUSH_SEGMENTS = 32
MARGIN_BYTES = 8 << 20
"""Left free besides the reserve of the disk, so that the copy does not make retention delete for
it."""
RECENT_PRODUCERS_MAX = 1000
"""Producers whose last five batches are copied: those that wrote last; some 200 KB at most."""
_DELETE_SLICE_BYTES = 32 << 20
_LARGEST = (1 << 31) - 1


class LogMove:
    """One copy.

    Methods raise `StorageFailed` (`DiskFull`) for the copy's disk, `SourceFailed` and
    `SourceChanged` for the source.
    """

    def __init__(self, path: str, source_path: str, topic_id: TopicId, config: Mapping[str, str], clock: Clock, reserve: FreeSpaceReserve) -> None:
        self.path = path
        self.source = MoveSource(source_path)
        self._topic_id = topic_id
        self._config = LogConfig.from_topic_config(config)._replace(
            segment_bytes=_LARGEST, segment_ms=1 << 62, segment_index_bytes=_LARGEST, cleanup_policy="compact"
        )
        """Where a segment ends is the source's business; and gaps end no log here."""
        self._clock = clock
        self._reserve = reserve
        try:
            record = read_move(path)
        except OSError as error:
            raise file_io.storage_failure(f"read the record of the move in {path}", error) from error
        except ValueError as problem:
            raise StorageFailed(f"{path}: {problem}") from None
        if record is None:
            raise StorageFailed(f"{path} has no record of a move")
        self.record: MoveRecord = record
        self._log: Log | None = None
        self._incarnation = -1
        """Of the source's owner, since the copy was brought in line with it."""
        self._unflushed_bytes = 0
        self._new_segments = 0

    @property
    def log(self) -> Log:
        """The open copy. Raises `StorageFailed` before `align`."""
        if self._log is None:
            raise StorageFailed(f"the copy in {self.path} is not open")
        return self._log

    @property
    def log_end_offset(self) -> Offset:
        """The log end offset of the copy, -1 before it is open."""
        return self.record.complete.log_end_offset if self.record.complete else NO_OFFSET if self._log is None else self._log.log_end_offset

    @property
    def size_bytes(self) -> int:
        """The bytes of the copy, -1 before it is open."""
        return -1 if self._log is None else self._log.size_bytes

    # -- in line with the source

    def align(self, state: SourceState) -> None:
        """Remove from the copy what the source does not have.

        Due first, and after each restart of the source's log-writer: it may have lost or truncated
        what was copied.
        """
        if self._incarnation == state.incarnation:
            return
        if self._log is None:
            self._open()
        cleaned_offset = self.source.cleaned_offset(self.record.topic_partition)
        first = self.source.first_segment(state)
        if cleaned_offset != self.record.source_cleaned_offset:
            self._start_over(first)
            self._write(self.record._replace(source_cleaned_offset=cleaned_offset, recovery_point=self.log.recovery_point))
        else:
            self._cut(state)
            if self.log.log_end_offset < first or (not self.log.size_bytes and self.log.log_end_offset > state.log_end_offset):
                self._start_over(first)
        self.source.seek(self.log.log_end_offset, state)
        self._incarnation = state.incarnation

    def _open(self) -> None:
        """The statement that it is complete is taken back before anything else."""
        complete = self.record.complete
        if complete is not None:
            self._write(self.record._replace(complete=None, recovery_point=complete.log_end_offset))
        recovery_point = self.record.recovery_point
        self._log = log = Log.open(self.path, self.record.topic_partition, self._topic_id, self._config, self._clock, Unclean(recovery_point))
        if log.log_end_offset < recovery_point:
            self._start_over(FIRST_OFFSET)  # what was synced is not there: nothing of it is believed
        else:
            log.truncate_to(recovery_point)

    def _cut(self, state: SourceState) -> None:
        """To where the histories of both part."""
        log, epochs = self.log, self.source.epochs()
        while log.size_bytes:
            latest = log.leader_epochs.latest
            if latest < 0:
                log.truncate_to(state.log_end_offset)
                return
            leader_epoch, end_offset = epochs.end_offset_for(latest, state.log_end_offset)
            if leader_epoch == latest:
                log.truncate_to(end_offset)
                return
            before = log.log_end_offset
            if leader_epoch >= 0:
                log.truncate_to(min(end_offset, log.leader_epochs.end_offset_for(leader_epoch, before)[1]))
            if leader_epoch < 0 or log.log_end_offset >= before or log.leader_epochs.latest >= latest:
                log.truncate_fully_and_start_at(log.segment_base_offsets[0])

    def _start_over(self, offset: Offset) -> None:
        log = self.log
        if log.size_bytes or log.log_end_offset != offset:
            log.truncate_fully_and_start_at(offset)
        producers = self.source.producers(offset)
        if producers is not None:  # of what retention took at the source
            log.take_over(log.leader_epochs.entries, producers)
        if self.record.recovery_point > offset:
            self._write(self.record._replace(recovery_point=offset))

    # -- copying

    def copy_some(self, state: SourceState, is_current: Callable[[], bool] = lambda: True) -> int:
        """Copy the next piece; return its bytes, 0 if the copy ends where the source does. Call
        `align` first.

        `is_current`: whether `state` is of the newest incarnation of the source's log-writer. It is
        called after the piece was read: a new incarnation may truncate the log and append other
        batches, but its table exists before it does so.
        """
        log = self.log
        while True:
            piece = self.source.read(state)
            if piece is None or (not piece.batches and log.active_base_offset == piece.segment_base_offset):
                if log.log_end_offset != state.log_end_offset:
                    self._incarnation = -1
                    raise SourceChanged(f"{self.source.directory} ends at {log.log_end_offset} on its disk, and {state.log_end_offset} was said")
                return 0
            try:
                if piece.starts_segment and log.active_base_offset != piece.segment_base_offset:
                    log.begin_segment(piece.segment_base_offset)
                    self._new_segments += 1
                if not piece.batches:
                    continue
                self._require_current(is_current)
                self._require_room(piece.size_bytes)
                log.append_as_follower(piece.batches)
            except ValueError as problem:
                self._incarnation = -1
                raise SourceChanged(str(problem)) from problem
            except (StorageFailed, SourceChanged):
                self._incarnation = -1  # what was read is not in the copy
                raise
            self._unflushed_bytes += piece.size_bytes
            if self._unflushed_bytes > FLUSH_BYTES or self._new_segments > FLUSH_SEGMENTS:
                self.flush(state)
            return piece.size_bytes

    def _require_current(self, is_current: Callable[[], bool]) -> None:
        if not is_current():
            self._incarnation = -1
            raise SourceChanged(f"{self.source.directory} has another owner now")

    def _require_room(self, size_bytes: int) -> None:
        try:
            space = file_io.space(self.path)
        except OSError as error:
            raise file_io.storage_failure(f"ask for the free space of {self.path}", error) from error
        missing = self._reserve.reserve_bytes(space.total_bytes) + min(MARGIN_BYTES, space.total_bytes // 50) + size_bytes - space.free_bytes
        if missing > 0:
            raise DiskFull(f"the disk of {self.path} has too little space for the log: {missing} bytes are missing, besides its reserve")

    def flush(self, state: SourceState) -> None:
        """Sync what was copied, record how far that is, drop its pages, and remove segments that
        the source no longer has.
        """
        log = self.log
        first = log.recovery_point
        log.flush()
        if log.recovery_point != self.record.recovery_point:
            self._write(self.record._replace(recovery_point=log.recovery_point))
        try:
            for base, end in zip(log.segment_base_offsets, [*log.segment_base_offsets[1:], log.log_end_offset], strict=True):
                if end > first:
                    file_io.forget_pages(segment_path(self.path, base, LOG_SUFFIX))
        except OSError:
            pass  # the kernel forgets them itself, when it must
        self._unflushed_bytes = self._new_segments = 0
        self._forget_below(state.log_start_offset)

    @property
    def is_flushed(self) -> bool:
        """Whether everything that was copied is synced and recorded."""
        return not self._unflushed_bytes and not self._new_segments

    def _forget_below(self, offset: Offset) -> None:
        """Segments that lie wholly below: retention at the source took them."""
        log = self.log
        offset = min(offset, log.log_end_offset)
        removed = log.advance_log_start_offset(offset) if offset > log.log_start_offset else None
        if removed is None:
            return
        departing = DepartingFiles()
        try:
            departing.add(removed.rename(), 0)
            while departing:
                departing.remove_some(0, _DELETE_SLICE_BYTES)
            log.truncate_epochs_from_start()
        except OSError as error:
            raise file_io.storage_failure(f"remove old segments of {self.path}", error) from error
        finally:
            removed.close()

    # -- the end

    def complete(self, state: SourceState, wanted: Complete, is_current: Callable[[], bool] = lambda: True) -> None:
        """Complete a copy that ends at `wanted`: take over the state that batches do not contain,
        make everything durable, then write the record. `is_current` as in `copy_some`.
        """
        log = self.log
        if log.log_end_offset != wanted.log_end_offset:
            raise SourceChanged(f"the copy ends at {log.log_end_offset}, not at {wanted.log_end_offset}")
        self._forget_below(wanted.log_start_offset)
        epochs, producers = self.source.epochs().entries, self.source.producers(wanted.log_end_offset)
        if self.source.cleaned_offset(self.record.topic_partition) != self.record.source_cleaned_offset:
            self._incarnation = -1
            raise SourceChanged(f"{self.source.directory} was compacted while it was copied")
        self._require_current(is_current)
        recent = log.producers.recent(RECENT_PRODUCERS_MAX)
        log.take_over(epochs, producers)
        log.close()
        self._log = None
        self._incarnation = -1
        self._write(self.record._replace(recovery_point=wanted.log_end_offset, complete=wanted, recent_batches=recent))

    def _write(self, record: MoveRecord) -> None:
        try:
            write_move(self.path, record)
        except OSError as error:
            raise file_io.storage_failure(f"write the record of the move in {self.path}", error) from error
        self.record = record

    def is_here(self) -> bool:
        """Return whether the copy's directory exists."""
        return os.path.isdir(self.path)

    def close(self) -> None:
        """Close all files and write nothing, as a death would."""
        self.source.close()
        if self._log is not None:
            self._log.abandon()
            self._log = None
