"""Completions of a log-writer: those of one turn, and those that wait for a flush.

They are sent after the rows are stored, in one burst for each source: a source that receives one
may read the row. Sources that watch rows are woken even if the turn completed nothing for them.
"""

from __future__ import annotations

from typing import Any

from appliance.base.errors import ErrorCode
from appliance.base.model import NO_OFFSET, LeaderEpoch, Offset
from appliance.ipc.channel import ChannelBroken, SinkChannel
from appliance.ipc.channel_acceptor import ChannelAcceptor
from appliance.ipc.descriptors import COMMITTED_FLAG, KIND, ROW, TOKEN, VALUE_A, DescriptorKind
from appliance.shm.counters import Counters
from appliance.shm.partition_table import ROLE_FOLLOWER, ROLE_LEADER
from services.log_writer.replicas.replica import Replica


class Completions:
    """Entries by source, in order."""

    def __init__(self, counters: Counters) -> None:
        self.by_channel: dict[SinkChannel, list[tuple[Any, ...]]] = {}
        self.rows_moved = False
        self.refused = counters.counter("log_writer.refused")

    def answer(self, channel: SinkChannel, entry: tuple[Any, ...], code: int, base_offset: Offset = NO_OFFSET, guard: int = 0) -> None:
        """Answer a descriptor with a code alone; with a `guard` it is no refusal."""
        if code and not guard:
            self.refused.add()
        completion = (entry[KIND], 0, code, entry[ROW], entry[TOKEN], base_offset, -1, -1, -1, -1, entry[VALUE_A] & 0xFFFFFFFF, guard)
        self.by_channel.setdefault(channel, []).append(completion)

    def add(self, channel: SinkChannel, completion: tuple[Any, ...]) -> None:
        self.by_channel.setdefault(channel, []).append(completion)

    def forget(self, channel: SinkChannel) -> None:
        self.by_channel.pop(channel, None)

    def publish(self, door: ChannelAcceptor) -> None:
        """Send the completions, then ring sources that received one or that watch rows.

        The rows are stored already.
        """
        completions, self.by_channel = self.by_channel, {}
        for channel, entries in completions.items():
            try:
                channel.complete(entries)
            except ChannelBroken as broken:
                door.refuse(broken)
        if self.rows_moved:
            self.rows_moved = False
            for channel in door.channels:
                if channel not in completions and channel.watches_rows():
                    channel.ring()


def told_of_log(
    entry: tuple[Any, ...], code: ErrorCode, base_offset: Offset, log_start_offset: Offset, log_end_offset: Offset, leader_epoch: LeaderEpoch
) -> tuple[Any, ...]:
    """The completion of a REPLICA_APPEND or a TRUNCATE: how the log is now."""
    return (entry[KIND], 0, code, entry[ROW], entry[TOKEN], base_offset, -1, log_start_offset, log_end_offset, leader_epoch, 0, 0)


CompletionsBySource = dict[SinkChannel, list[tuple[Any, ...]]]
_KIND, _ROW, _TOKEN, _END_OFFSET, _LEADER_EPOCH, _RECORDS = 0, 3, 4, 8, 9, 10
"""Places in a completion."""
_REPLICA_APPEND = int(DescriptorKind.REPLICA_APPEND)


class HeldAcknowledgements:
    """Completions that wait until what they acknowledge survives a power cut.

    By partition, then by source, in the order of their appends. A completion is held from the
    append on and released when its log is durable up to its end offset: one sync serves every batch
    that was appended before it began. The answer to a duplicate is held like any other, because the
    first answer may not be durable yet. A follower's append is held, too: the next fetch offset of
    its replica-fetcher shows the leader that everything before is durable here. Each held
    completion is answered: if it can no longer be promised, with an error that clients retry. If
    the log-writer dies, its sources answer (`ipc/proxies.py`). Weak spot: a held completion keeps
    its arena slot, so a disk that syncs slowly fills its sources' budgets.
    """

    def __init__(self) -> None:
        self._held: dict[Replica, CompletionsBySource] = {}

    def __len__(self) -> int:
        """How many partitions have some."""
        return len(self._held)

    def of(self, replica: Replica) -> CompletionsBySource:
        """Where completions of this partition are put."""
        return self._held.setdefault(replica, {})

    def release(self, replica: Replica, durable_offset: Offset, released: CompletionsBySource) -> None:
        """Move what is durable to `released`.

        Where the partition is not led any more as it was, nothing is promised.
        """
        waiting = self._held.pop(replica, {})
        for channel, completions in waiting.items():
            kept = []
            for completion in completions:
                if not _is_as_it_was(replica, completion):
                    released.setdefault(channel, []).append(_refusal(completion, ErrorCode.NOT_LEADER_OR_FOLLOWER))
                elif completion[_END_OFFSET] <= durable_offset:
                    flags = COMMITTED_FLAG if replica.progress is None or completion[_END_OFFSET] <= replica.high_watermark else 0
                    released.setdefault(channel, []).append((completion[0], flags, *completion[2:]))
                else:
                    kept.append(completion)
            if kept:
                self._held.setdefault(replica, {})[channel] = kept

    def fail(self, replica: Replica, code: ErrorCode, released: CompletionsBySource) -> int:
        """The partition is gone or its disk failed: every completion becomes this error; how many
        there were.
        """
        count = 0
        for channel, completions in self._held.pop(replica, {}).items():
            count += len(completions)
            released.setdefault(channel, []).extend(_refusal(completion, code) for completion in completions)
        return count

    def fail_all(self, code: ErrorCode, released: CompletionsBySource) -> int:
        return sum(self.fail(replica, code, released) for replica in list(self._held))

    def drop_source(self, channel: SinkChannel) -> None:
        """Drop the completions of a source that is gone."""
        for replica, completions in list(self._held.items()):
            completions.pop(channel, None)
            if not completions:
                del self._held[replica]


def _is_as_it_was(replica: Replica, completion: tuple[Any, ...]) -> bool:
    """Whether the partition is still led, or followed, as when the completion was made."""
    if completion[_KIND] == _REPLICA_APPEND:
        return replica.role == ROLE_FOLLOWER
    return (replica.role == ROLE_LEADER or replica.is_frozen) and bool(completion[_LEADER_EPOCH] == replica.leader_epoch)


def _refusal(completion: tuple[Any, ...], code: ErrorCode) -> tuple[Any, ...]:
    return (completion[0], 0, code, completion[_ROW], completion[_TOKEN], -1, -1, -1, -1, -1, completion[_RECORDS], 0)
