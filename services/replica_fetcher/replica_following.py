"""All followed partitions of this box: the log-writers that append them, a `LeaderFetcher` per
leader, and the arena between them.

Which partitions these are: rows of the log-writers' tables with the follower role whose leader
epoch the image has, too. Owned by the replica-fetcher, which creates it when the cluster has other
boxes. Weak spot: all fetchers share one arena; responses that a hung disk holds leave less for the
others.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from appliance.client.peer_stream import peer_context
from appliance.cluster.metadata_image import MetadataImage
from appliance.cluster.replication_throttle import ReplicationThrottle
from appliance.ipc.box_disks import BoxDisks, DiskHealth
from appliance.ipc.descriptors import Completion
from appliance.ipc.log_writer_proxy import LogWriterProxy
from appliance.ipc.proxies import LogWriterProxies
from appliance.ipc.source import Source
from appliance.runtime.agent import PARK_MS_MAX, ServiceContext
from appliance.shm.disk_tables import KnownRows
from appliance.shm.partition_table import ROLE_FOLLOWER, PartitionTableReader
from services.replica_fetcher.leader_fetcher import LeaderFetcher
from services.replica_fetcher.replica_counters import FetcherResources, ReplicaCounters, replica_settings
from services.replica_fetcher.replica_partition import FollowedPartition, FollowedRow, LogOrder
from services.replica_fetcher.replica_repairs import RepairCopy, ReplicaRepairs
from services.replica_fetcher.replica_session import Key

# ---- rows of the log-writers' tables


SCAN_PAUSE_NS = 5_000_000
"""Roles change in bursts; a burst causes a few scans, not one per row."""
_HALF = (1 << 32) - 1


class ReplicaRows:
    """Finds the followed rows. `image` is the newest; `is_leaving()`: the box is about to stop."""

    def __init__(self, broker_id: int, proxies: LogWriterProxies, is_leaving: Callable[[], bool]) -> None:
        self.image = MetadataImage.empty()
        self.is_settled = True
        """True if every partition that the image makes a follower has its role in the table."""
        self._broker_id = broker_id
        self._proxies = proxies
        self._is_leaving = is_leaving
        self._is_image_new = True
        self._tables: dict[str, KnownRows] = {}
        self._found: dict[Key, FollowedRow] = {}
        self._wanted = 0
        self._scanned_ns = 0

    def set_image(self, image: MetadataImage) -> None:
        self.image = image
        self._is_image_new = True

    def look(self, now_ns: int) -> dict[Key, FollowedRow] | None:
        """Return all rows to follow, or None if nothing may have changed since the last call.

        An unchanged row is the same object.
        """
        changed = [(disk, proxy.table) for disk, proxy in self._proxies.by_disk.items() if self._has_changed(disk, proxy.table)]
        if not (changed or self._is_image_new or self._tables.keys() - self._proxies.by_disk.keys()) or now_ns < self._scanned_ns + SCAN_PAUSE_NS:
            return None
        self._scanned_ns = now_ns
        for disk, table in changed:
            if table is None:
                del self._tables[disk]
                continue
            known = self._tables.get(disk)
            if known is None or known.table is not table:
                known = self._tables[disk] = KnownRows(table)
            known.look()
        self._tables = {disk: known for disk, known in self._tables.items() if disk in self._proxies.by_disk}
        if self._is_image_new:
            self._is_image_new = False
            self._wanted = self._count_wanted()
        is_leaving = self._is_leaving()
        found: dict[Key, FollowedRow] = {}
        for disk, known in self._tables.items():
            self._collect(found, self._proxies.by_disk[disk], known, is_leaving)
        self._found = found
        self.is_settled = self._wanted == len(found) or is_leaving
        return found

    def _has_changed(self, disk: str, table: PartitionTableReader | None) -> bool:
        known = self._tables.get(disk)
        if known is None or table is None:
            return known is not None or table is not None
        return known.table is not table or known.is_old

    def _collect(self, found: dict[Key, FollowedRow], proxy: LogWriterProxy, known: KnownRows, is_leaving: bool) -> None:
        topics, own, table = self.image.topics_by_id, self._broker_id, known.table.shared.name
        for index, (key, role_and_epoch) in enumerate(zip(known.keys, known.table.roles_and_epochs(), strict=False)):  # rows may have been added since
            if role_and_epoch >> 32 != ROLE_FOLLOWER or key is None:
                continue
            topic = topics.get(key[0])
            if topic is None or key[1] >= len(topic.partitions):
                continue
            wanted = topic.partitions[key[1]]
            if wanted.leader_epoch != role_and_epoch & _HALF or wanted.leader < 0 or wanted.leader == own or (is_leaving and own not in wanted.isr):
                continue
            row_generation = known.row_generations[index]
            former = self._found.get(key)
            if former is not None and former.identity == (table, index, row_generation, wanted.leader, wanted.leader_epoch) and former.proxy is proxy:
                found[key] = former
            else:
                found[key] = FollowedRow(topic.name, key[1], proxy, table, index, row_generation, wanted.leader, wanted.leader_epoch)

    def _count_wanted(self) -> int:
        """How many partitions of the image this box should follow."""
        own = self._broker_id
        return sum(
            partition.disk is not None and partition.leader not in (own, -1) and own in partition.replicas
            for topic in self.image.topics.values()
            for partition in topic.partitions
        )


SETTLING_MS = 5
"""The longest wait while rows are behind the image: their changes ring no doorbell here."""
SETTLING_NS = 10_000_000_000
"""Rows that are behind for longer wait for something else, for example a disk."""
RETRY_NS = 1_000_000_000
LOOK_PAUSE_NS_MAX = 20_000_000
"""The longest pause between two scans of the rows; it is three times as long as the last scan took,
so that a burst leaves time for fetches."""


class ReplicaFollowing:
    """`do_work` is one turn of the agent."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._clock = context.clock
        box, counters = context.box, context.counters
        self._broker_id = box.broker_id
        self.source = Source(context.layout, context.process_name, context.incarnation, box.replica_arena_bytes, box.integer("channel.ring.entries"))
        disks = [disk.name for disk in box.disks]
        self._proxies = LogWriterProxies(
            self.source, disks, context.poller, counters, self._on_completion, self._on_lost, self._on_disk_news, self._on_disk_news
        )
        self._health = DiskHealth(self._proxies.by_disk.values(), box.integer("log.disk.deadline.ms"), self._on_hung, self._on_disk_news, self._on_disk_news)
        self._box_disks = BoxDisks(context.layout, box)
        arena = self.source.arena
        self._counters = ReplicaCounters(counters)
        tls, settings = peer_context(box, context.log), replica_settings(box, arena.size_bytes)
        self._resources = FetcherResources(box.broker_id, settings, arena, context.poller, self._clock, self._counters, context.log, tls)
        self._rows = ReplicaRows(box.broker_id, self._proxies, partial(os.path.exists, context.layout.stopping_file))
        self._followed: dict[Key, FollowedPartition] = {}
        self._fetchers: dict[int, LeaderFetcher] = {}
        self._throttle = ReplicationThrottle(is_follower=True)
        self._repairs = ReplicaRepairs(context.layout, self._proxies, self._resources)
        self._changed_ns = 0
        self._look_ns = 0
        self._retry_ns = 0

    def set_image(self, image: MetadataImage) -> None:
        self._rows.set_image(image)
        self._repairs.image = image
        self._throttle.set_image(image, self._broker_id)
        self._changed_ns = self._clock.monotonic_ns()
        for fetcher in self._fetchers.values():
            self._set_brokers(fetcher)

    def _set_brokers(self, fetcher: LeaderFetcher) -> None:
        brokers = self._rows.image.brokers
        own = brokers.get(self._broker_id)
        fetcher.set_brokers(brokers.get(fetcher.leader_id), -1 if own is None else own.epoch)

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
        for fetcher in self._fetchers.values():
            work += fetcher.do_work(now_ns)
        work += self._repairs.do_work(now_ns)
        if now_ns >= self._retry_ns:
            self._retry_ns = now_ns + RETRY_NS
            for fetcher in self._fetchers.values():
                fetcher.retry_stopped(now_ns)
            self._counters.stalled.set(sum(fetcher.stalled for fetcher in self._fetchers.values()))
        self._proxies.flush()
        return work

    def _follow(self, found: dict[Key, FollowedRow], now_ns: int) -> int:
        changes = 0
        for key, followed in list(self._followed.items()):
            place = found.get(key)
            if place is not followed.place and (place is None or place.identity != followed.place.identity):
                del self._followed[key]
                self._fetchers[followed.place.leader_id].unfollow(followed)
                changes += 1
        for key, place in found.items():
            if key not in self._followed:
                fetcher = self._fetcher_of(place.leader_id)
                self._followed[key] = followed = FollowedPartition(key, place, fetcher, self._resources.settings.backoff_ms, now_ns)
                fetcher.follow(followed, now_ns)
                changes += 1
        for leader_id, fetcher in list(self._fetchers.items()):
            if not fetcher.partitions:
                fetcher.close()
                del self._fetchers[leader_id]
        self._counters.partitions.set(len(self._followed))
        return changes

    def _fetcher_of(self, leader_id: int) -> LeaderFetcher:
        fetcher = self._fetchers.get(leader_id)
        if fetcher is None:
            fetcher = self._fetchers[leader_id] = LeaderFetcher(leader_id, self._resources, self._throttle)
            self._set_brokers(fetcher)
        return fetcher

    # --- waiting

    def may_park(self) -> bool:
        self.source.doorbell.prepare_to_sleep()
        if self._proxies.has_completions():
            self.source.doorbell.wake()
            return False
        return True

    def unpark(self) -> None:
        self.source.doorbell.wake()

    def park_ms(self) -> int:
        now_ns = self._clock.monotonic_ns()
        wait_ms = PARK_MS_MAX
        if not self._rows.is_settled and now_ns < self._changed_ns + SETTLING_NS:
            wait_ms = SETTLING_MS
        for wake_ns in (self._repairs.wake_ns(), *(fetcher.wake_ns() for fetcher in self._fetchers.values())):
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
        """The log-writer of a detached disk may still read the memory of this order, so it is not
        freed.
        """
        order.end(None)

    def _on_disk_news(self, disk: str) -> None:
        for fetcher in self._fetchers.values():
            fetcher.on_disk_changed(disk)

    def _on_hung(self, disk: str, operation: str) -> None:
        self._context.log.warning(f"disk {disk} hangs ({operation}): fetching for its partitions continues when it answers", disk=disk)
        self._on_disk_news(disk)

    # --- status

    @property
    def followed_count(self) -> int:
        return len(self._followed)

    @property
    def leader_count(self) -> int:
        return sum(bool(fetcher.partitions) for fetcher in self._fetchers.values())

    def close(self) -> None:
        self._repairs.close()
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._proxies.close()
        self.source.close()
