"""Positions of followers, from their fetches, and the ISR changes that leaders propose.

An acceptor reports each fetch of a follower (PROGRESS); `ReplicationState` decides. The high watermark
goes into the row; proposals go to the box's controller over the socket of its channel, which answers with
the command ISR. Without a controller, proposals wait. Weak spot: all led partitions are checked in one
turn a second (more often if followers may lag for less than eight seconds), some µs each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from appliance.base.clock import Clock
from appliance.base.errors import StorageFailed
from appliance.ipc.channel import SinkChannel
from appliance.ipc.descriptors import progress_of
from appliance.shm.counters import Counters
from appliance.shm.partition_table import ROLE_LEADER
from services.log_writer.background.disk_trouble import DiskTrouble
from services.log_writer.completions import Completions
from services.log_writer.replicas.replica import Replica
from services.log_writer.replicas.replicas_of_disk import Replicas

TICK_NS = 1_000_000_000
TICKS_IN_LAG = 8
"""Ticks within the allowed lag. With fewer, `ReplicationState.tick` assumes that the process slept and
does not know which followers lagged."""
WISHES_MAX = 500
"""In one frame."""


class ReplicaProgress:
    """`may_send()`: whether the controller is connected; `send(proposals)`: to it. A lost one is repeated."""

    def __init__(
        self,
        partitions: Replicas,
        completions: Completions,
        trouble: DiskTrouble,
        clock: Clock,
        counters: Counters,
        may_send: Callable[[], bool],
        send: Callable[[list[dict[str, Any]]], object],
        lag_ns: int,
    ) -> None:
        """`lag_ns`: replica.lag.time.max.ms."""
        self._partitions = partitions
        self._completions = completions
        self._trouble = trouble
        self._clock = clock
        self._may_send = may_send
        self._send = send
        self._wishing: dict[Replica, None] = {}
        self._tick_ns = min(TICK_NS, lag_ns // TICKS_IN_LAG)
        self._next_tick_ns = 0
        self._taken = counters.counter("log_writer.progress")
        self._dropped = counters.counter("log_writer.progress_dropped")
        self._wishes = counters.counter("log_writer.isr_wishes")

    def take(self, channel: SinkChannel, entry: tuple[Any, ...]) -> None:
        """Handle PROGRESS. It is dropped if row generation or leader epoch differ, or for an unknown replica."""
        self._completions.answer(channel, entry, 0)
        hosted = self._partitions.by_row.get(entry[3])
        progress = None if hosted is None else hosted.progress
        if hosted is None or progress is None or hosted.role != ROLE_LEADER or entry[4] != hosted.row_generation or entry[5] != hosted.leader_epoch:
            self._dropped.add()
            return
        self._taken.add()
        dropped = progress.dropped
        if progress.on_progress(*progress_of(entry)):
            self._go_on(hosted)
        self._dropped.add(progress.dropped - dropped)

    def turn(self, now_ns: int) -> None:
        """Check all followers for lag, after this turn's fetches were handled."""
        if now_ns < self._next_tick_ns or self._trouble.offline:
            return
        self._next_tick_ns = now_ns + self._tick_ns
        for hosted in list(self._partitions.by_row.values()):
            if hosted.progress is not None and hosted.role == ROLE_LEADER:
                hosted.progress.log_start_offset = hosted.log.log_start_offset
                if hosted.progress.tick(now_ns):
                    self._go_on(hosted)

    def _go_on(self, hosted: Replica) -> None:
        try:
            if hosted.apply_progress():
                self._completions.rows_moved = True
        except StorageFailed as failure:
            self._trouble.on_failure(failure)
        self._wishing[hosted] = None

    def report_isr_proposals(self) -> None:
        """At the end of a turn: what is due of them."""
        if not self._wishing or not self._may_send():
            return
        now_ns = self._clock.monotonic_ns()
        wishing, self._wishing = self._wishing, {}
        wishes = []
        for hosted in wishing:
            if self._partitions.by_row.get(hosted.row) is not hosted or hosted.role != ROLE_LEADER or hosted.progress is None:
                continue
            wish = hosted.progress.take_wish(now_ns)
            if wish is not None:
                name = hosted.topic_partition
                identity = {"topic": name.topic, "partition": name.partition, "topic_id": str(hosted.topic_id)}
                epochs = {"leader_epoch": wish.leader_epoch, "partition_epoch": wish.partition_epoch}
                added = {str(replica): epoch for replica, epoch in wish.broker_epochs.items()}
                wishes.append({**identity, **epochs, "change": wish.number, "isr": list(wish.isr), "broker_epochs": added})
        self._wishes.add(len(wishes))
        for first in range(0, len(wishes), WISHES_MAX):
            self._send(wishes[first : first + WISHES_MAX])
