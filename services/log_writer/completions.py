"""Completions of one turn of a log-writer: collected, and sent in one burst for each source.

They are sent after the rows are stored: a source that receives one may read the row. Sources that watch
rows are woken even if the turn completed nothing for them.
"""

from __future__ import annotations

from typing import Any

from appliance.base.errors import ErrorCode
from appliance.ipc.channel import SinkChannel
from appliance.ipc.channel_acceptor import ChannelAcceptor
from appliance.shm.counters import Counters


class Completions:
    """Entries by source, in order."""

    def __init__(self, counters: Counters) -> None:
        self.by_channel: dict[SinkChannel, list[tuple[Any, ...]]] = {}
        self.rows_moved = False
        self.refused = counters.counter("log_writer.refused")

    def answer(self, channel: SinkChannel, entry: tuple[Any, ...], code: int, base_offset: int = -1, guard: int = 0) -> None:
        """Answer a descriptor with a code alone; with a `guard` it is no refusal."""
        if code and not guard:
            self.refused.add()
        completion = (entry[0], 0, code, entry[3], entry[9], base_offset, -1, -1, -1, -1, entry[10] & 0xFFFFFFFF, guard)
        self.by_channel.setdefault(channel, []).append(completion)

    def add(self, channel: SinkChannel, completion: tuple[Any, ...]) -> None:
        self.by_channel.setdefault(channel, []).append(completion)

    def forget(self, channel: SinkChannel) -> None:
        self.by_channel.pop(channel, None)

    def publish(self, door: ChannelAcceptor) -> None:
        """Send the completions, then ring sources that received one or that watch rows. The rows are
        stored already."""
        completions, self.by_channel = self.by_channel, {}
        for channel, entries in completions.items():
            channel.completions.offer_all(entries)
            channel.ring()
        if self.rows_moved:
            self.rows_moved = False
            for channel in door.channels:
                if channel not in completions and channel.watches_rows():
                    channel.ring()


def told_of_log(entry: tuple[Any, ...], code: ErrorCode, base_offset: int, log_start_offset: int, log_end_offset: int, leader_epoch: int) -> tuple[Any, ...]:
    """The completion of a REPLICA_APPEND or a TRUNCATE: how the log is now."""
    return (entry[0], 0, code, entry[3], entry[9], base_offset, -1, log_start_offset, log_end_offset, leader_epoch, 0, 0)
