"""Fetches of followers: whether a replica may follow, what its log-writer learns, and throttles.

A follower that requests an offset has everything before it. That is sent to the leader's log-writer
(PROGRESS) and moves the high watermark: once for each partition and fetch, and only if the follower's log does
not diverge from ours. A sleeping partition of a session is not reported: its follower is at the log end, and
counts as caught up until the next append. Followers that are not in sync get throttled partitions no faster
than `leader.replication.throttled.rate`: while the throttle is closed they get nothing of them, and are
answered when it opens. Owned by one acceptor. `inter_broker.py` decides which connections may fetch as a
follower. Weak spot: the rate is per acceptor; a box has one for four cores.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from appliance.base.errors import ErrorCode
from appliance.base.model import LeaderEpoch
from appliance.cluster.metadata_cache import LocalReplica
from appliance.cluster.metadata_image import MetadataImage
from appliance.cluster.replication_throttle import ReplicationThrottle
from appliance.ipc.descriptors import Progress, progress_descriptor
from appliance.ipc.log_reader_proxy import LogReaderProxy
from appliance.protocol.fetch import FetchPartition, FetchPartitionResult
from appliance.shm.counters import Counters
from services.acceptor.fetch.pending_fetch import PendingFetch, Target


class ReportedProgress:
    """Stands for each PROGRESS descriptor in flight: no request waits for it."""

    def on_completion(self, entry: tuple[Any, ...]) -> None:
        pass

    def on_lost(self) -> None:
        pass

    def on_hung(self) -> None:
        pass


PROGRESS_TOLD = ReportedProgress()


class FollowerFetches:
    """Of one acceptor."""

    def __init__(self, counters: Counters) -> None:
        self._reported = counters.counter("fetch.follower_progress")
        self._unassigned = counters.counter("fetch.unassigned_followers")
        self._damages = counters.counter("fetch.follower_damages")
        self._throttle = ReplicationThrottle(is_follower=False)

    def set_image(self, image: MetadataImage, broker_id: int) -> None:
        self._throttle.set_image(image, broker_id)

    def piece_bytes(self, pending: PendingFetch, wanted: FetchPartition, placement: LocalReplica, most: int, now_ns: int) -> int:
        """Return how many bytes a follower may get now. 0: the throttle is closed; the fetch waits until it opens."""
        throttle = self._throttle
        if (placement.topic_id, wanted.partition) not in throttle.replicas or pending.request.replica_id in placement.isr:
            return most
        if not throttle.is_open(now_ns):
            pending.deadline_ns = min(pending.deadline_ns, throttle.opens_ns)
            return 0
        return throttle.piece_bytes(most)

    def count_sent(self, image: MetadataImage, replica_id: int, results: Iterable[FetchPartitionResult], now_ns: int) -> None:
        """Charge the throttle with the records of a response."""
        throttle = self._throttle
        if not throttle.replicas:
            return
        for result in results:
            topic = image.topics.get(result.topic)
            if result.records is None or topic is None or (topic.topic_id, result.partition) not in throttle.replicas:
                continue
            if replica_id not in topic.partitions[result.partition].isr:
                throttle.record(result.records.size_bytes, now_ns)  # type: ignore[union-attr]

    def problem(self, pending: PendingFetch, wanted: FetchPartition, placement: LocalReplica) -> ErrorCode | None:
        """Refuse a replica that is not assigned, as far as the image knows. A new one retries."""
        if pending.request.replica_id in placement.replicas:
            return None
        self._unassigned.add()
        return ErrorCode.UNKNOWN_LEADER_EPOCH if wanted.current_leader_epoch >= 0 else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def report(
        self,
        pending: PendingFetch,
        target: Target,
        wanted: FetchPartition,
        placement: LocalReplica,
        leader_epoch: LeaderEpoch,
        reader: LogReaderProxy,
    ) -> None:
        """Send the follower's offset to the log-writer: its log equals ours up to there.

        If the follower received a damaged batch, the disk's log-reader checks it.
        """
        if target in pending.progressed:
            return
        pending.progressed.add(target)
        if wanted.damaged_offset >= 0:
            self._damages.add()
            reader.have_checked(placement.topic, placement.partition, wanted.damaged_offset)
        request = pending.request
        progress = Progress(request.replica_id, wanted.fetch_offset, pending.received_ns, request.replica_epoch, wanted.log_start_offset)
        descriptor = progress_descriptor(placement.row, placement.row_generation, leader_epoch, progress)
        if placement.proxy.offer_or_queue(descriptor, 0, PROGRESS_TOLD):
            self._reported.add()
