"""The replica-fetcher: fetches every partition that this box follows from its leader on another
box.

One process per box. The metadata image names the leaders, the log-writers' partition tables name
the followed partitions. Batches arrive by Fetch from the leaders' acceptors, are received into the
arena, checked there, and offered to the log-writers unchanged. The process owns nothing on a disk:
after a crash, its next incarnation asks the log-writers for their log end offsets and continues. On
a box without other boxes it has no arena and no rings. Weak spot: one process for all disks, so a
catch-up of many partitions is bounded by one core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.cluster.metadata_image import ImageFollower, MetadataImage
from appliance.ipc.request_link import ControllerLink
from appliance.runtime.agent import PARK_MS_MAX, QUIET_PARK_MS, ServiceContext

if TYPE_CHECKING:
    from services.replica_fetcher.replica_following import ReplicaFollowing


class ReplicaFetcherAgent:
    """The duty cycle."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._clock = context.clock
        self.image = MetadataImage.empty()
        self.image_follower = ImageFollower(context.layout, self, context.log)
        self._controller = ControllerLink(context.layout, context.poller, context.clock, self.image_follower.on_changed)
        self.following: ReplicaFollowing | None = None
        self._ready = False

    def set_image(self, image: MetadataImage) -> None:
        self.image = image
        if self.following is None and self._has_neighbours(image):
            from services.replica_fetcher.replica_following import ReplicaFollowing  # 3 MB that a single box does not need

            self.following = ReplicaFollowing(self._context)
        if self.following is not None:
            self.following.set_image(image)
        if not self._ready:
            self._ready = True
            self._context.notifier.ready()

    def _has_neighbours(self, image: MetadataImage) -> bool:
        """True if another box leads, or led, a partition that this box has."""
        own = self._context.box.broker_id
        return any(broker_id != own for broker_id in image.brokers) or any(
            partition.leader not in (own, -1) and partition.disk is not None for topic in image.topics.values() for partition in topic.partitions
        )

    def do_work(self) -> int:
        now_ns = self._clock.monotonic_ns()
        work = self._controller.do_work(now_ns)
        if self.image_follower.is_stale and self.image_follower.load() is not None:
            work += 1
        return work + self.following.do_work(now_ns) if self.following is not None else work

    def may_park(self) -> bool:
        return not self.image_follower.is_stale and (self.following is None or self.following.may_park())

    def unpark(self) -> None:
        if self.following is not None:
            self.following.unpark()

    def park_ms(self) -> int:
        if self.following is not None:
            return self.following.park_ms()
        return QUIET_PARK_MS if self._controller.connected else PARK_MS_MAX

    def begin_stop(self) -> None:
        pass

    def stopped(self) -> bool:
        return True

    def close(self) -> None:
        self._controller.close()
        if self.following is not None:
            self.following.close()

    def status_line(self) -> str:
        following = self.following
        if following is None:
            return "no other box"
        return f"follows {following.followed_count} partitions of {following.leader_count} boxes"
