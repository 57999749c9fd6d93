"""Positions of followers, from their fetches, and the ISR changes that leaders propose.

An acceptor reports each fetch of a follower (PROGRESS); `ReplicationState` decides. The high
watermark goes into the row; proposals go to the box's controller over the socket of its channel,
which answers with the command ISR. Without a controller, proposals wait. Weak spot: all led
partitions are checked in one turn a second (more often if followers may lag for less than eight
seconds), some µs each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from appliance.base.errors import StorageFailed
from appliance.ipc.channel import SinkChannel
from appliance.ipc.descriptors import LEADER_EPOCH, ROW, ROW_GENERATION, progress_of
from appliance.shm.partition_table import ROLE_LEADER
from services.log_writer.log_writer_appends import AppendParts
from services.log_writer.replicas.replica import Replica

TICK_NS = 1_000_000_000
TICKS_IN_LAG = 8
"""Ticks within the allowed lag. With fewer, `ReplicationState.tick` assumes that the process slept
and does not know which followers lagged."""
PROPOSALS_MAX = 500
"""In one frame."""


class ReplicaProgress:
    """`may_send()`: whether the controller is connected; `send(proposals)`: to it.

    A lost one is repeated.
    """

    def __init__(self, parts: AppendParts, may_send: Callable[[], bool], send: Callable[[list[dict[str, Any]]], object], lag_ns: int) -> None:
        """`lag_ns`: replica.lag.time.max.ms."""
        self._partitions, self._completions, _, _, self._trouble, self._clock, counters = parts
        self._may_send = may_send
        self._send = send
        self._proposing: dict[Replica, None] = {}
        self._tick_ns = min(TICK_NS, lag_ns // TICKS_IN_LAG)
        self._next_tick_ns = 0
        self._taken = counters.counter("log_writer.progress")
        self._dropped = counters.counter("log_writer.progress_dropped")
        self._proposals = counters.counter("log_writer.isr_wishes")

    def take(self, channel: SinkChannel, entry: tuple[Any, ...]) -> None:
        """Handle PROGRESS.

        It is dropped if row generation or leader epoch differ, or for an unknown replica.
        """
        self._completions.answer(channel, entry, 0)
        replica = self._partitions.by_row.get(entry[ROW])
        progress = None if replica is None else replica.progress
        if (
            replica is None
            or progress is None
            or replica.role != ROLE_LEADER
            or entry[ROW_GENERATION] != replica.row_generation
            or entry[LEADER_EPOCH] != replica.leader_epoch
        ):
            self._dropped.add()
            return
        self._taken.add()
        dropped = progress.dropped
        if progress.on_progress(*progress_of(entry)):
            self._go_on(replica)
        self._dropped.add(progress.dropped - dropped)

    def turn(self, now_ns: int) -> None:
        """Check all followers for lag, after this turn's fetches were handled."""
        if now_ns < self._next_tick_ns or self._trouble.offline:
            return
        self._next_tick_ns = now_ns + self._tick_ns
        for replica in list(self._partitions.by_row.values()):
            if replica.progress is not None and replica.role == ROLE_LEADER:
                replica.progress.log_start_offset = replica.log.log_start_offset
                if replica.progress.tick(now_ns):
                    self._go_on(replica)

    def _go_on(self, replica: Replica) -> None:
        try:
            if replica.apply_progress():
                self._completions.rows_moved = True
        except StorageFailed as failure:
            self._trouble.on_failure(failure)
        self._proposing[replica] = None

    def report_isr_proposals(self) -> None:
        """At the end of a turn: what is due of them."""
        if not self._proposing or not self._may_send():
            return
        now_ns = self._clock.monotonic_ns()
        proposing, self._proposing = self._proposing, {}
        proposals = []
        for replica in proposing:
            if self._partitions.by_row.get(replica.row) is not replica or replica.role != ROLE_LEADER or replica.progress is None:
                continue
            proposal = replica.progress.take_proposal(now_ns)
            if proposal is not None:
                name = replica.topic_partition
                identity = {"topic": name.topic, "partition": name.partition, "topic_id": str(replica.topic_id)}
                epochs = {"leader_epoch": proposal.leader_epoch, "partition_epoch": proposal.partition_epoch}
                added = {str(broker_id): epoch for broker_id, epoch in proposal.broker_epochs.items()}
                proposals.append({**identity, **epochs, "change": proposal.number, "isr": list(proposal.isr), "broker_epochs": added})
        self._proposals.add(len(proposals))
        for first in range(0, len(proposals), PROPOSALS_MAX):
            self._send(proposals[first : first + PROPOSALS_MAX])
