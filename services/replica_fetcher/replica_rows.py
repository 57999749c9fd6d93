"""Which rows of this box's partition tables follow, and whom: the rows say what is applied, the image who leads.

A partition is followed while its row is a follower's under the leader epoch that the image has; as long as the two differ, one of them is a moment behind, and
nothing is fetched. A box that is about to stop follows only where it is in sync: out of a set for good, it would only be waited for, and let in nowhere.
Owned by the replica-fetcher. Weak spot: a look costs 1 µs a row that follows, of all disks.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.cluster.metadata_image import MetadataImage
from appliance.ipc.log_writer_proxy import LogWriterProxy
from appliance.ipc.proxies import LogWriterProxies
from appliance.shm.known_rows import KnownRows
from appliance.shm.partition_table import ROLE_FOLLOWER, PartitionTableReader
from services.replica_fetcher.replica_partition import FollowedRow
from services.replica_fetcher.replica_session import Key

SCAN_PAUSE_NS = 5_000_000
"""Roles change in bursts; a burst is looked at a few times, not for each row."""
_HALF = (1 << 32) - 1


class ReplicaRows:
    """`image` is the newest. `is_leaving()`: the box is about to stop."""

    def __init__(self, broker_id: int, proxies: LogWriterProxies, is_leaving: Callable[[], bool]) -> None:
        self.image = MetadataImage.empty()
        self.is_settled = True
        """Every row that the image wants to follow does."""
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
        """All that is to be followed, if anything may have changed since the last look. What has not changed is the same object."""
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
        for index, (key, role_and_epoch) in enumerate(zip(known.keys, known.table.roles_and_epochs(), strict=False)):  # rows may have come since
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
