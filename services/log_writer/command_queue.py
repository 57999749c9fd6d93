"""What a log-writer does after the appends of a turn: commands, moves, truncations, DeleteRecords.

From the first such entry on, everything that a source offered waits here in order, and the source is not
polled before it is done: an append behind a command must see its effect. A few milliseconds a turn are
spent on it, because creating a thousand partitions must not make producers wait. Weak spot: an entry
that was started is finished, even beyond that time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from appliance.base.clock import Clock
from appliance.base.errors import DiskFull, ErrorCode, StorageFailed
from appliance.ipc.channel import SinkChannel
from appliance.ipc.descriptors import DescriptorKind
from appliance.ipc.producer_entries import pack_producers
from appliance.shm.partition_table import APPEND_SINCE_WORD, FENCE_WORD, ROLE_LEADER
from services.log_writer.background.disk_trouble import DiskTrouble
from services.log_writer.background.retention_rounds import RetentionRounds
from services.log_writer.completions import Completions
from services.log_writer.log_writer_appends import LogWriterAppends
from services.log_writer.log_writer_commands import LogWriterCommands
from services.log_writer.moves.outgoing_moves import MoveAnswer
from services.log_writer.moves.partition_moves import MOVE_KINDS, PartitionMoves
from services.log_writer.replicas.awaited_deletions import Deletion
from services.log_writer.replicas.replicas_of_disk import Replicas

WORK_NS = 10_000_000
"""Time for it in one turn."""
_DELETE_RECORDS = int(DescriptorKind.DELETE_RECORDS)
_DESCRIBE_PRODUCERS = int(DescriptorKind.DESCRIBE_PRODUCERS)
_BEGIN_VERIFICATION = int(DescriptorKind.BEGIN_VERIFICATION)
Entry = tuple[Any, ...]


class CommandQueue:
    """`carry_out_other(channel, entry)` does what waits here only for its order: appends and the like, True if it was one of them."""

    def __init__(
        self,
        partitions: Replicas,
        completions: Completions,
        trouble: DiskTrouble,
        clock: Clock,
        commands: LogWriterCommands,
        moves: PartitionMoves,
        retention: RetentionRounds,
        appends: LogWriterAppends,
        carry_out_other: Callable[[SinkChannel, Entry], bool],
    ) -> None:
        self.by_source: dict[SinkChannel, deque[Entry]] = {}
        self.owes_commands = False
        """The controller was refused something for want of space: it asks again when it is let in anew."""
        self._partitions = partitions
        self._completions = completions
        self._trouble = trouble
        self._clock = clock
        self._words = partitions.table.shared.words
        self._commands = commands
        self._moves = moves
        self._retention = retention
        self._appends = appends
        self._carry_out_other = carry_out_other

    def carry_out(self) -> int:
        """Of every source in turn, until all is done or the time is over."""
        done = 0
        deadline_ns = self._clock.monotonic_ns() + WORK_NS
        while self.by_source:
            for channel, entries in list(self.by_source.items()):
                self._one(channel, entries.popleft())
                if not entries:
                    del self.by_source[channel]
                done += 1
                if self._clock.monotonic_ns() >= deadline_ns:
                    return done
        return done

    def _one(self, channel: SinkChannel, entry: Entry) -> None:
        if self._carry_out_other(channel, entry):
            return
        if entry[0] == _DELETE_RECORDS:
            self._delete_records(channel, entry)
        elif entry[0] in MOVE_KINDS:
            self._move(channel, entry)
        elif entry[0] == _DESCRIBE_PRODUCERS:
            self._describe_producers(channel, entry)
        elif entry[0] == _BEGIN_VERIFICATION:
            self._appends.begin_verification(channel, entry)
        else:
            self._command(channel, entry)

    def _command(self, channel: SinkChannel, entry: Entry) -> None:
        if self._trouble.offline:
            self._completions.answer(channel, entry, ErrorCode.KAFKA_STORAGE_ERROR)
            return
        document = bytes(channel.slice(entry[8], entry[7]))
        self._words[APPEND_SINCE_WORD] = self._clock.monotonic_ns()
        try:
            code = self._commands.carry_out(entry[0], document)
        except StorageFailed as failure:
            self._trouble.on_failure(failure)
            self.owes_commands = self.owes_commands or isinstance(failure, DiskFull)
            code = ErrorCode.KAFKA_STORAGE_ERROR
        self._words[APPEND_SINCE_WORD] = 0
        self._completions.rows_moved = True
        self._completions.answer(channel, entry, ErrorCode.KAFKA_STORAGE_ERROR if self._words[FENCE_WORD] else code)

    def _move(self, channel: SinkChannel, entry: Entry) -> None:
        """Carry out a command about a move between disks. The answer to a freeze has the log's end, its
        high watermark as base offset, and its start."""
        if self._trouble.offline:
            self._completions.answer(channel, entry, ErrorCode.KAFKA_STORAGE_ERROR)
            return
        document = bytes(channel.slice(entry[8], entry[7]))
        self._words[APPEND_SINCE_WORD] = self._clock.monotonic_ns()
        try:
            answer = self._moves.carry_out(entry[0], document, (channel, entry))
        except StorageFailed as failure:
            self._trouble.on_failure(failure)
            answer = MoveAnswer(ErrorCode.KAFKA_STORAGE_ERROR)
        self._words[APPEND_SINCE_WORD] = 0
        self._completions.rows_moved = True
        if self._words[FENCE_WORD]:
            answer = MoveAnswer(ErrorCode.KAFKA_STORAGE_ERROR)
        if answer is None:
            return
        if answer.code or answer.log_end_offset < 0:
            self._completions.answer(channel, entry, answer.code)
            return
        completion = (entry[0], 0, 0, entry[3], entry[9], answer.high_watermark, -1, answer.log_start_offset, answer.log_end_offset, -1, 0, 0)
        self._completions.add(channel, completion)

    def _delete_records(self, channel: SinkChannel, entry: Entry) -> None:
        """Let a log begin at the offset in `value_a`; `AwaitedDeletions` answers. A full disk does it too, as soon as it can write that down."""
        hosted = self._partitions.by_row.get(entry[3])
        offline, is_full = self._trouble.offline, self._trouble.is_full
        code = 0 if is_full and hosted is not None and not offline else self._appends.refusal(hosted, entry)
        try:
            if not code and hosted is not None and (hosted.is_frozen or hosted.role != ROLE_LEADER):
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            if not code and hosted is not None:
                wanted = Deletion(channel, entry, hosted.high_watermark if entry[10] == -1 else entry[10])
                code = self._retention.delete_records(hosted, entry[10], wanted)
                self._completions.rows_moved = True
        except StorageFailed as failure:
            self._trouble.on_failure(failure)
            code = ErrorCode.KAFKA_STORAGE_ERROR
        if code:
            self._completions.answer(channel, entry, code)

    def _describe_producers(self, channel: SinkChannel, entry: Entry) -> None:
        """Write the producers of a partition into the source's slot, as many as fit; the completion has
        their number."""
        hosted = self._partitions.by_row.get(entry[3])
        if hosted is None or entry[4] != hosted.row_generation or hosted.role != ROLE_LEADER:
            code = ErrorCode.KAFKA_STORAGE_ERROR if self._trouble.offline else ErrorCode.NOT_LEADER_OR_FOLLOWER
            self._completions.answer(channel, entry, code)
            return
        memory = channel.slice(entry[8], entry[7])
        producers = hosted.log.producers.snapshot()
        memory[:] = pack_producers(producers, len(memory))
        completion = (entry[0], 0, 0, entry[3], entry[9], -1, -1, -1, hosted.log.log_end_offset, hosted.leader_epoch, len(producers), 0)
        self._completions.add(channel, completion)
