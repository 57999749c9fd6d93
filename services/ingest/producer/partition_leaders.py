"""Leaders of partitions, their memory budgets, dead disks, blocked partitions.

Owned by one ingest agent. A location is a disk of this box or another box. A location above its
budget blocks its own partitions and no others. Lines of a partition on a dead disk go to the next
live partition, unless it has a replica on another box: then its leader moves within seconds, and
its lines wait for that.

A disk is dead if it is offline, hung, or without a log-writer for 10 s. A slow disk is not dead: it
serves, and its senders slow down. A log-writer that has just died is not dead either: it restarts
within a second, and its lines keep their order by waiting. A dead disk stays dead until its
log-writer reports otherwise, because the next log-writer on a failed disk starts offline.

Weak: "dead" is this box's view. Lines that a dead disk may have written are stored again elsewhere.
A recovery that takes longer than `AWAY_NS` counts as a death; lines bypass that disk until it
serves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from appliance.base.logging import Logger
from appliance.base.model import NO_LEADER
from appliance.cluster.metadata_image import PartitionImage, TopicImage
from appliance.ipc.proxies import LogWriterProxies
from appliance.shm.counters import Counters
from appliance.shm.partition_table import DISK_OFFLINE
from services.ingest.records.partitioner import next_live_partition

AWAY_NS = 10_000_000_000


class DeadDisks:
    """The dead disks of this box; refreshed every turn (0.3 µs a disk). Only `refresh` and `forget`
    change `dead`."""

    def __init__(self, proxies: LogWriterProxies, counters: Counters, log: Logger) -> None:
        self._proxies = proxies
        self._log = log
        self._away_since_ns: dict[str, int] = {}
        self._dead_count = counters.gauge("ingest.dead_disks")
        self.dead: frozenset[str] = frozenset()

    def refresh(self, now_ns: int) -> bool:
        """Update `dead`; return True if a disk died or returned."""
        dead = set(self.dead)
        for disk, proxy in self._proxies.by_disk.items():
            table = proxy.table
            if table is None:
                if now_ns - self._away_since_ns.setdefault(disk, now_ns) >= AWAY_NS:
                    dead.add(disk)
                continue
            self._away_since_ns.pop(disk, None)
            if table.disk_state == DISK_OFFLINE or proxy.is_hung:
                dead.add(disk)
            else:
                dead.discard(disk)
        if dead == self.dead:
            return False
        self._log_changes(dead - self.dead, self.dead - dead)
        self.dead = frozenset(dead)
        self._dead_count.set(len(dead))
        return True

    def forget(self, disk: str) -> None:
        """The disk was removed from the box."""
        self._away_since_ns.pop(disk, None)
        self.dead -= {disk}
        self._dead_count.set(len(self.dead))

    def _log_changes(self, died: set[str], returned: frozenset[str]) -> None:
        for disk in sorted(died):
            message = f"disk {disk} takes no lines: it is offline, hung or without a log-writer"
            self._log.warning(f"{message}; lines of its partitions go to the next live ones", disk=disk)
        for disk in sorted(returned):
            self._log.notice(f"disk {disk} takes lines again", disk=disk)


UNBLOCK_SHARE = 0.75
"""A blocked location takes lines again below this share of its budget, so that senders are not
stopped and started with every batch."""
Key = tuple[str, int]
LeaderLocation = str
"""Whose budget is charged: a disk's name, "box N" for a remote leader, "" without a leader."""


class PartitionLeaders:
    """Leaders, budgets and blocked partitions. `blocked` and `dead` by topic; `on_changed(topic)`
    is called when they change."""

    def __init__(self, broker_id: int, budget_bytes: int, counters: Counters, can_spool: Callable[[Key], bool], on_changed: Callable[[str], None]) -> None:
        self._broker_id = broker_id
        self._budget_bytes = budget_bytes
        self._can_spool = can_spool
        """True if a partition above its budget may continue because its batches go to the spool."""
        self._on_changed = on_changed
        self._partitions: dict[str, Sequence[PartitionImage]] = {}
        self.topic_ids: dict[str, bytes] = {}
        self._dead_disks: frozenset[str] = frozenset()
        self._charged: dict[LeaderLocation, int] = {}
        self._over_budget: set[LeaderLocation] = set()
        self.dead: dict[str, frozenset[int]] = {}
        """Partitions whose lines go to the next live one."""
        self.blocked: dict[str, frozenset[int]] = {}
        self._blockings = counters.counter("ingest.disk_over_budget")
        self._led = counters.gauge("ingest.partitions_led")

    # -- what is where

    def set_topic(self, topic: str, image: TopicImage | None) -> None:
        """Set a topic from the metadata image; None if it was deleted."""
        if image is not None and image.partitions:
            self._partitions[topic] = image.partitions
            self.topic_ids[topic] = image.topic_id
        else:
            self._partitions.pop(topic, None)
            self.topic_ids.pop(topic, None)
        self._led.set(sum(image.leader == self._broker_id for images in self._partitions.values() for image in images))

    def set_dead_disks(self, disks: frozenset[str]) -> None:
        self._dead_disks = disks

    def refresh(self) -> None:
        """Recompute which partitions are dead and blocked."""
        for topic, images in self._partitions.items():
            dead = frozenset(number for number, image in enumerate(images) if self._is_dead(image))
            self.dead[topic] = dead if len(dead) < len(images) else frozenset()  # all are dead: lines wait, as for a slow disk
        for topic in [topic for topic in self.dead if topic not in self._partitions]:
            del self.dead[topic]
        self.update_blocked()

    def _is_dead(self, image: PartitionImage) -> bool:
        return image.disk in self._dead_disks and len(image.replicas) < 2 and image.leader in (NO_LEADER, self._broker_id)

    def leader_and_location(self, key: Key) -> tuple[int, LeaderLocation]:
        """Return the leader and the location that is charged."""
        topic, partition = key
        images = self._partitions.get(topic, ())
        if partition >= len(images):
            return NO_LEADER, ""
        image = images[partition]
        if image.leader not in (NO_LEADER, self._broker_id):
            return image.leader, f"box {image.leader}"
        return image.leader, image.disk or ""

    def partition_count(self, topic: str) -> int:
        return len(self._partitions.get(topic, ()))

    def live_partition(self, key: Key) -> int:
        """Return the partition that takes this one's batches."""
        topic, partition = key
        count = self.partition_count(topic)
        if not count:
            return partition
        return next_live_partition(partition % count, count, self.dead.get(topic, frozenset()))

    # -- what is charged

    def move_charge(self, old: LeaderLocation, new: LeaderLocation, charge: int) -> None:
        """Charge to `new` what is charged to `old`; `update_blocked` applies it."""
        self._charged[old] = self._charged.get(old, 0) - charge
        self._charged[new] = self._charged.get(new, 0) + charge

    def charge(self, location: LeaderLocation, charge: int) -> None:
        charged = self._charged[location] = self._charged.get(location, 0) + charge
        if charged >= self._budget_bytes and location not in self._over_budget:
            self._blockings.add()
            self.update_blocked()

    def discharge(self, location: LeaderLocation, charge: int) -> None:
        charged = self._charged[location] = self._charged[location] - charge
        if location in self._over_budget and charged <= self._budget_bytes * UNBLOCK_SHARE:
            self.update_blocked()

    def is_over(self, location: LeaderLocation) -> bool:
        return location in self._over_budget

    @property
    def has_any_over(self) -> bool:
        return bool(self._over_budget)

    def update_blocked(self) -> None:
        for location, charged in self._charged.items():
            if charged >= self._budget_bytes:
                self._over_budget.add(location)
            elif charged <= self._budget_bytes * UNBLOCK_SHARE:
                self._over_budget.discard(location)
        for topic, images in self._partitions.items():
            self.blocked[topic] = frozenset(partition for partition in range(len(images)) if self._is_blocked((topic, self.live_partition((topic, partition)))))
            self._on_changed(topic)

    def _is_blocked(self, key: Key) -> bool:
        return bool(self._over_budget) and self.leader_and_location(key)[1] in self._over_budget and not self._can_spool(key)
