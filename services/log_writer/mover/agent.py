"""The mover: copies one log from another disk of the box to a `-future` directory of its own disk.

A child of the target disk's log-writer (`services/log_writer/mover/__main__.py`), so that neither
log-writer waits for the other disk. It follows the source, throttled, until FINISH names the offset
at which the source ends; then it completes the copy and reports that. If the source leads again
after all, it removes the completion and continues; otherwise a complete copy is not touched. A
failure is reported with its reason, and ends it: the log-writer starts another mover later, which
continues. Weak spot: a copy that is caught up occupies the disk's only mover until it is handed
over.
"""

from __future__ import annotations

import select
import socket
from typing import Protocol

from appliance.base.clock import Clock
from appliance.base.errors import StorageFailed
from appliance.base.layout import BoxLayout
from appliance.base.model import NO_OFFSET, TopicId
from appliance.runtime.scheduling import take_ordinary_io
from appliance.shm.mapping import LayoutMismatch, SharedObjectAbsent, list_names
from appliance.shm.partition_table import DISK_OFFLINE, ROLE_FOLLOWER, ROLE_LEADER, ROLE_OFFLINE, PartitionTableReader, Row, TornRow
from appliance.storage.log_move import LogMove
from appliance.storage.move_record import COMPLETE, FAILED, FINISH, PACKET_BYTES_MAX, PROGRESS, Complete, MoveCommand, MoveJob, MoveSaid
from appliance.storage.move_source import SourceChanged, SourceFailed, SourceState
from appliance.storage.retention import FreeSpaceReserve

CAUGHT_UP_BYTES = 1 << 20
"""A copy that lacks no more than this is caught up: the rest takes no time."""
TELL_NS = 250_000_000
FLUSH_NS = 1_000_000_000
"""A copy that is caught up is synced so often, so that little is left to sync when it is completed.
"""
IDLE_MS = 50
CHANGES_MAX = 40
"""Times in a row that the source is not what it was said to be, before that counts as damage."""
ABSENT_NS_MAX = 10_000_000_000
"""A source that is not served for so long lets other moves go first."""


class SourceRows(Protocol):
    """Where the mover hears what the source's owner says."""

    def look(self, anew: bool = False) -> SourceState | None: ...


class LogMover:
    """One job. Step it until it has ended."""

    def __init__(self, job: MoveJob, channel: socket.socket, rows: SourceRows, clock: Clock) -> None:
        self._channel = channel
        channel.setblocking(False)
        self._rows = rows
        self._clock = clock
        self._bytes_per_second = max(1, job.bytes_per_second)
        self._finish: Complete | None = None
        self._take_finish(job.finish)
        self._move = LogMove(
            job.path, job.source_path, TopicId.from_text(job.topic_id), job.config, clock, FreeSpaceReserve(job.reserve_bytes, job.reserve_percent)
        )
        self._source_disk = job.source_disk
        self._partition = self._move.record.topic_partition
        self._may_copy_ns = 0
        self._next_tell_ns = 0
        self._next_flush_ns = 0
        self._is_caught_up = False
        self._changes = 0
        self._absent_ns = 0
        self._has_said_complete = False
        self._copied_bytes = 0
        self._measured = (clock.monotonic_ns(), 0)

    def step(self) -> bool:
        """Take orders, do one piece. True: it has ended, and has said how."""
        try:
            return self._listen() or self._do()
        except (StorageFailed, SourceFailed) as failure:
            self._say(MoveSaid(FAILED, reason=str(failure)))
            return True

    def _do(self) -> bool:
        state = self._rows.look()
        if self._rests(state):
            self._wait(IDLE_MS)
            return False
        if state is None:
            self._wait_for_source()
            return False
        self._absent_ns = 0
        finish = self._finish
        try:
            copied = self._copy(state)
            if copied:
                self._changes = 0
            elif finish is not None and self._complete(finish):
                return False
        except SourceChanged as problem:
            self._changes += 1
            if self._changes > CHANGES_MAX:
                raise SourceFailed(f"{self._partition} cannot be copied from disk {self._source_disk}: {problem}") from problem
            self._wait(IDLE_MS)
            return False
        self._keep_up(state, copied)
        return False

    def _rests(self, state: SourceState | None) -> bool:
        """Whether the copy is complete, and the source has not led again since."""
        complete = self._move.record.complete
        if complete is None:
            return False
        if self._finish in (None, complete):
            if self._finish is not None and not self._has_said_complete:
                self._has_said_complete = True
                self._say(MoveSaid(COMPLETE, True, complete.log_end_offset, -1, complete.log_end_offset, 0))
            if state is None or not state.is_led:
                return True
            self._finish = None
        self._has_said_complete = False
        return False

    def _wait_for_source(self) -> None:
        now_ns = self._clock.monotonic_ns()
        self._absent_ns = self._absent_ns or now_ns
        reason = f"disk {self._source_disk} does not serve it now"
        if now_ns - self._absent_ns > ABSENT_NS_MAX:
            raise SourceFailed(reason)
        self._tell(None, reason)
        self._wait(IDLE_MS)

    def _copy(self, state: SourceState) -> int:
        """The next piece, if the throttle lets it pass; what is to be completed is not throttled."""
        self._move.align(state)
        now_ns = self._clock.monotonic_ns()
        if self._finish is None and now_ns < self._may_copy_ns:
            return 0
        copied = self._move.copy_some(state, lambda: self._is_current(state))
        self._may_copy_ns = max(now_ns, self._may_copy_ns) + copied * 1_000_000_000 // self._bytes_per_second
        self._copied_bytes += copied
        return copied

    def _complete(self, finish: Complete) -> bool:
        """Complete the copy if it and the source both end at `finish`.

        The source's incarnation is read again: it must be the frozen one, and the one that the copy
        is aligned with.
        """
        state = self._rows.look(anew=True)
        if state is None or state.is_led or state.log_end_offset != finish.log_end_offset:
            return False
        self._move.align(state)
        if self._move.log_end_offset != finish.log_end_offset:
            return False
        self._move.complete(state, finish, lambda: self._is_current(state))
        return True

    def _is_current(self, state: SourceState) -> bool:
        newest = self._rows.look(anew=True)
        return newest is not None and newest.incarnation == state.incarnation

    def _keep_up(self, state: SourceState, copied: int) -> None:
        now_ns = self._clock.monotonic_ns()
        if not copied and not self._move.is_flushed and now_ns >= self._next_flush_ns:
            self._next_flush_ns = now_ns + FLUSH_NS
            self._move.flush(state)
        self._tell(state)
        if not copied:
            wait_ms = (self._may_copy_ns - now_ns) // 1_000_000 if self._finish is None else 0
            self._wait(max(1, min(IDLE_MS, wait_ms)) if wait_ms > 0 else IDLE_MS if self._finish is None else 2)

    # -- the log-writer

    def _listen(self) -> bool:
        """Take orders; return True if the log-writer has closed the channel."""
        while True:
            try:
                packet = self._channel.recv(PACKET_BYTES_MAX)
            except BlockingIOError:
                return False
            except ConnectionResetError:
                return True
            if not packet:
                return True
            order = MoveCommand.decode(packet)
            if order.kind == FINISH:
                self._take_finish(order.finish)
            else:
                self._bytes_per_second = max(1, order.bytes_per_second)
                self._may_copy_ns = 0

    def _take_finish(self, finish: Complete | None) -> None:
        self._finish = finish
        if finish is not None:
            take_ordinary_io()

    def _tell(self, state: SourceState | None, reason: str = "") -> None:
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._next_tell_ns:
            return
        self._next_tell_ns = now_ns + TELL_NS
        move = self._move
        lag_bytes = -1
        if state is not None:
            try:
                lag_bytes = move.source.lag_bytes()
            except SourceChanged:
                pass  # it is looked at anew anyway
        self._is_caught_up = 0 <= lag_bytes <= CAUGHT_UP_BYTES
        began_ns, began_bytes = self._measured
        elapsed_ns = now_ns - began_ns
        rate = (self._copied_bytes - began_bytes) * 1_000_000_000 // elapsed_ns if elapsed_ns > 0 else 0
        if elapsed_ns > 2_000_000_000:
            self._measured = (now_ns, self._copied_bytes)
        source_end = NO_OFFSET if state is None else state.log_end_offset
        try:
            self._channel.send(MoveSaid(PROGRESS, self._is_caught_up, move.log_end_offset, move.size_bytes, source_end, lag_bytes, rate, reason).encode())
        except (BlockingIOError, ConnectionError):
            pass  # the next report replaces it

    def _say(self, said: MoveSaid) -> None:
        """What must be heard."""
        self._channel.setblocking(True)
        try:
            self._channel.send(said.encode())
        except ConnectionError:
            pass  # the log-writer has died
        self._channel.setblocking(False)

    def _wait(self, timeout_ms: int) -> None:
        """An order ends it."""
        poll = select.poll()  # select knows no descriptor above 1,023
        poll.register(self._channel, select.POLLIN)
        poll.poll(timeout_ms)

    def close(self) -> None:
        self._move.close()


LOOK_AGAIN_NS = 200_000_000


class MovingSource:
    """The partition that is being moved, as the row of the other disk's log-writer describes it.

    A mover is not notified when that log-writer dies and starts again, so it looks for the newest
    table now and then. The table of a dead incarnation is as good as a live one: what it says was
    appended stays. If the partition follows, batches may be truncated; then every change of its
    segments, and every leader epoch, counts as another incarnation. Weak spot: while a log-writer
    starts, its rows appear one by one, and until then nothing is known."""

    def __init__(self, layout: BoxLayout, disk: str, topic_id: TopicId, partition: int, clock: Clock) -> None:
        self._prefix = layout.shared_memory_name("table", disk) + "."
        self._topic_id = topic_id
        self._partition = partition
        self._clock = clock
        self._table: PartitionTableReader | None = None
        self._life = -1
        self._index = -1
        self._scanned = -1
        self._look_again_ns = 0

    def look(self, anew: bool = False) -> SourceState | None:
        """Return the state of the source. `anew`: look for a newer incarnation now."""
        now_ns = self._clock.monotonic_ns()
        if anew or now_ns >= self._look_again_ns:
            self._look_again_ns = now_ns + LOOK_AGAIN_NS
            self._attach_newest()
        table = self._table
        if table is None or table.disk_state == DISK_OFFLINE or table.is_suspect:
            return None
        row = self._row(table)
        if row is None or row.role == ROLE_OFFLINE:
            return None
        is_followed = row.role == ROLE_FOLLOWER
        life = (self._life << 32 | row.leader_epoch + 1) << 64
        if is_followed:  # what was appended may be cut off again, and then the segment list is another one
            life |= row.segment_list_generation
        return SourceState(life, row.log_start_offset, row.log_end_offset, row.active_base_offset, is_followed or row.role == ROLE_LEADER)

    def _attach_newest(self) -> None:
        lives = [int(name[len(self._prefix) :], 16) for name in list_names(self._prefix) if "." not in name[len(self._prefix) :]]
        newest = max(lives, default=-1)
        if newest == self._life and self._table is not None:
            return
        self.close()
        if newest < 0:
            return
        try:
            self._table = PartitionTableReader.attach(f"{self._prefix}{newest:x}")
        except (SharedObjectAbsent, LayoutMismatch):
            return
        self._life = newest

    def _row(self, table: PartitionTableReader) -> Row | None:
        if self._index >= 0:
            try:
                row = table.read(self._index)
            except TornRow:
                return None
            if self._is_ours(row):
                return row
            self._index = -1
        generation = table.generation
        if generation == self._scanned:
            return None
        for index, row in table.rows():
            if self._is_ours(row):
                self._index = index
                return row
        if not table.torn_rows:
            self._scanned = generation
        return None

    def _is_ours(self, row: Row) -> bool:
        return row.topic_id == self._topic_id and row.partition == self._partition and row.row_generation > 0

    def close(self) -> None:
        if self._table is not None:
            self._table.close()
        self._table = None
        self._life = self._index = self._scanned = -1
