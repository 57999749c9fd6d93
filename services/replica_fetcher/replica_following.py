"""All that this box follows: the log-writers that append it, a lane for each leader, and the arena between them.

Owned by the replica-fetcher, which makes it when the cluster has other boxes. Weak spot: the arena is one for all lanes; answers that a hung disk holds leave
less to the others.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from appliance.cluster.metadata_image import MetadataImage
from appliance.cluster.replication_throttle import ReplicationThrottle
from appliance.ipc.box_disks import BoxDisks
from appliance.ipc.descriptors import Completion
from appliance.ipc.disk_health import DiskHealth
from appliance.ipc.proxies import LogWriterProxies
from appliance.ipc.source import Source
from appliance.runtime.agent import PARK_MS_MAX, ServiceContext
from services.replica_fetcher.leader_fetcher import LeaderFetcher
from services.replica_fetcher.replica_counters import ReplicaCounters, replica_settings
from services.replica_fetcher.replica_partition import FollowedPartition, FollowedRow, LogOrder
from services.replica_fetcher.replica_repair import RepairCopy
from services.replica_fetcher.replica_repairs import ReplicaRepairs
from services.replica_fetcher.replica_rows import ReplicaRows
from services.replica_fetcher.replica_session import Key

SETTLING_MS = 5
"""How long a wait may be while rows are still behind the image: their changes ring no doorbell here."""
SETTLING_NS = 10_000_000_000
"""Rows that are behind for longer wait for something else: a disk, say."""
RETRY_NS = 1_000_000_000
LOOK_PAUSE_NS_MAX = 20_000_000
"""Between two looks at the rows is three times as long as one took, and no longer than this: in a burst of roles there is other work, too."""


class ReplicaFollowing:
    """`do_work` is a turn of the agent's."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._clock = context.clock
        box, counters = context.box, context.counters
        self._broker_id = box.broker_id
        self._source = Source(context.layout, context.process_name, context.incarnation, box.replica_arena_bytes, box.integer("channel.ring.entries"))
        disks = [disk.name for disk in box.disks]
        self._proxies = LogWriterProxies(
            self._source, disks, context.poller, counters, self._on_completion, self._on_lost, self._on_disk_news, self._on_disk_news
        )
        self._health = DiskHealth(self._proxies.by_disk.values(), box.integer("log.disk.deadline.ms"), self._on_hung, self._on_disk_news)
        self._box_disks = BoxDisks(context.layout, box)
        self._settings = replica_settings(box, self._source.arena.size_bytes)
        self._counters = ReplicaCounters(counters)
        self._rows = ReplicaRows(box.broker_id, self._proxies, partial(os.path.exists, context.layout.stopping_file))
        self._followed: dict[Key, FollowedPartition] = {}
        self._lanes: dict[int, LeaderFetcher] = {}
        self._throttle = ReplicationThrottle(is_follower=True)
        self._repairs = ReplicaRepairs(
            context.layout, box.broker_id, self._proxies, self._source.arena, self._settings, context.poller, self._clock, counters, context.log
        )
        self._changed_ns = 0
        self._look_ns = 0
        self._retry_ns = 0

    def set_image(self, image: MetadataImage) -> None:
        self._rows.set_image(image)
        self._repairs.image = image
        self._throttle.set_image(image, self._broker_id)
        self._changed_ns = self._clock.monotonic_ns()
        for lane in self._lanes.values():
            self._set_brokers(lane)

    def _set_brokers(self, lane: LeaderFetcher) -> None:
        brokers = self._rows.image.brokers
        own = brokers.get(self._broker_id)
        lane.set_brokers(brokers.get(lane.leader_id), -1 if own is None else own.epoch)

    # --- a turn

    def do_work(self, now_ns: int) -> int:
        work = self._proxies.do_work(now_ns)
        work += self._health.look(now_ns)
        self._proxies.follow(self._box_disks.look(now_ns), self._on_detached)
        if now_ns >= self._look_ns:
            found = self._rows.look(now_ns)
            if found is not None:
                work += self._follow(found, now_ns)
                self._look_ns = now_ns + min(LOOK_PAUSE_NS_MAX, 3 * (self._clock.monotonic_ns() - now_ns))
        for lane in self._lanes.values():
            work += lane.do_work(now_ns)
        work += self._repairs.do_work(now_ns)
        if now_ns >= self._retry_ns:
            self._retry_ns = now_ns + RETRY_NS
            for lane in self._lanes.values():
                lane.retry_stopped(now_ns)
            self._counters.stalled.set(sum(lane.stalled for lane in self._lanes.values()))
        self._proxies.flush()
        return work

    def _follow(self, found: dict[Key, FollowedRow], now_ns: int) -> int:
        changes = 0
        for key, followed in list(self._followed.items()):
            place = found.get(key)
            if place is not followed.place and (place is None or place.identity != followed.place.identity):
                del self._followed[key]
                self._lanes[followed.place.leader_id].unfollow(followed)
                changes += 1
        for key, place in found.items():
            if key not in self._followed:
                lane = self._lane(place.leader_id)
                self._followed[key] = followed = FollowedPartition(key, place, lane, self._settings.backoff_ms, now_ns)
                lane.follow(followed, now_ns)
                changes += 1
        for leader_id, lane in list(self._lanes.items()):
            if not lane.partitions:
                lane.close()
                del self._lanes[leader_id]
        self._counters.partitions.set(len(self._followed))
        return changes

    def _lane(self, leader_id: int) -> LeaderFetcher:
        lane = self._lanes.get(leader_id)
        if lane is None:
            context = self._context
            lane = self._lanes[leader_id] = LeaderFetcher(
                leader_id, self._broker_id, self._settings, self._source.arena, context.poller, self._clock, self._counters, context.log, self._throttle
            )
            self._set_brokers(lane)
        return lane

    # --- waiting

    def may_park(self) -> bool:
        self._source.doorbell.prepare_to_sleep()
        if self._proxies.has_completions():
            self._source.doorbell.wake()
            return False
        return True

    def unpark(self) -> None:
        self._source.doorbell.wake()

    def park_ms(self) -> int:
        now_ns = self._clock.monotonic_ns()
        wait_ms = PARK_MS_MAX
        if not self._rows.is_settled and now_ns < self._changed_ns + SETTLING_NS:
            wait_ms = SETTLING_MS
        for wake_ns in (self._repairs.wake_ns(), *(lane.wake_ns() for lane in self._lanes.values())):
            if wake_ns:
                wait_ms = min(wait_ms, -(-(wake_ns - now_ns) // 1_000_000))
        return max(0, wait_ms)

    # --- log-writers

    def _on_completion(self, order: LogOrder | RepairCopy, entry: tuple[Any, ...]) -> None:
        order.release()
        order.end(Completion(*entry))

    def _on_lost(self, order: LogOrder | RepairCopy) -> None:
        order.release()
        order.end(None)

    def _on_detached(self, order: LogOrder | RepairCopy) -> None:
        """The process that has it may still read its memory."""
        order.end(None)

    def _on_disk_news(self, disk: str) -> None:
        for lane in self._lanes.values():
            lane.on_disk_changed(disk)

    def _on_hung(self, disk: str, operation: str) -> None:
        self._context.log.warning(f"disk {disk} hangs ({operation}): what it follows is fetched when it answers", disk=disk)
        self._on_disk_news(disk)

    # --- for people

    @property
    def followed_count(self) -> int:
        return len(self._followed)

    @property
    def leader_count(self) -> int:
        return sum(bool(lane.partitions) for lane in self._lanes.values())

    def close(self) -> None:
        self._repairs.close()
        for lane in self._lanes.values():
            lane.close()
        self._proxies.close()
        self._source.close()
