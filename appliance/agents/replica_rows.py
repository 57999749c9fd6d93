"""Which rows of this box's partition tables follow, and whom: the rows say what is applied, the image who leads.

A partition is followed while its row is a follower's under the leader epoch that the image has; as long as the two differ, one of them is a moment behind, and
nothing is fetched. Owned by the replica-fetcher. Weak spot: a look costs 5 µs a row, of every disk whose table changed and of all when the image did.
"""

from __future__ import annotations

from appliance.agents.replica_partition import FollowedRow
from appliance.agents.replica_session import Key
from appliance.base.model import TopicId
from appliance.ipc.proxies import LogWriterProxies, LogWriterProxy
from appliance.metadata.metadata_image import MetadataImage
from appliance.shm.partition_table import ROLE_FOLLOWER, Row

SCAN_PAUSE_NS = 5_000_000
"""Roles change in bursts; a burst is looked at a few times, not for each row."""


class ReplicaRows:
    """`image` is the newest."""

    def __init__(self, broker_id: int, proxies: LogWriterProxies) -> None:
        self.image = MetadataImage.empty()
        self.is_settled = True
        """Every row that the image wants to follow does."""
        self._broker_id = broker_id
        self._proxies = proxies
        self._seen: dict[str, tuple[str, int]] = {}
        self._followers: dict[str, list[tuple[int, Row]]] = {}
        self._scanned_ns = 0

    def set_image(self, image: MetadataImage) -> None:
        self.image = image
        self._seen = {}

    def look(self, now_ns: int) -> dict[Key, FollowedRow] | None:
        """All that is to be followed, if anything may have changed since the last look."""
        tables = {disk: (proxy.table.shared.name, proxy.table.generation) for disk, proxy in self._proxies.by_disk.items() if proxy.table is not None}
        if tables == self._seen or now_ns < self._scanned_ns + SCAN_PAUSE_NS:
            return None
        self._scanned_ns = now_ns
        found: dict[Key, FollowedRow] = {}
        for disk, proxy in self._proxies.by_disk.items():
            table = proxy.table
            if table is None:
                self._followers.pop(disk, None)
                continue
            if self._seen.get(disk) != tables[disk]:
                self._followers[disk] = [(index, row) for index, row in table.rows() if row.role == ROLE_FOLLOWER]
                if table.torn_rows:
                    del tables[disk]  # its writer was interrupted in a row: look again
            for index, row in self._followers.get(disk, ()):
                self._add(found, proxy, table.shared.name, index, row)
        self._seen = tables
        self.is_settled = self._count_wanted() == len(found)
        return found

    def _add(self, found: dict[Key, FollowedRow], proxy: LogWriterProxy, table: str, index: int, row: Row) -> None:
        topic_id = TopicId(row.topic_id)
        topic = self.image.topics_by_id.get(topic_id)
        if topic is None or row.partition >= len(topic.partitions):
            return
        wanted = topic.partitions[row.partition]
        if wanted.leader_epoch != row.leader_epoch or wanted.leader < 0 or wanted.leader == self._broker_id:
            return
        found[topic_id, row.partition] = FollowedRow(topic.name, row.partition, proxy, table, index, row.row_generation, wanted.leader, wanted.leader_epoch)

    def _count_wanted(self) -> int:
        """How many partitions of the image this box should follow."""
        own = self._broker_id
        return sum(
            partition.disk is not None and partition.leader not in (own, -1) and own in partition.replicas
            for topic in self.image.topics.values()
            for partition in topic.partitions
        )
