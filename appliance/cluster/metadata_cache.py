"""An acceptor's view of its box: the metadata image (what should be) and the partition tables (what
is).

Produce and fetch find a partition by name or id in one dictionary look-up. The result, a
`LocalReplica`, names disk, row and row generation; each use reads the row itself again. So a change
of roles, of which a failover brings thousands, changes nothing here, and a new image only what
differs in it. A row on a disk where the image does not place its partition is no replica. Owned by
one acceptor, ingest or coordinator. Weak: when a row is added or removed, all rows of all tables
are indexed again (0.3 ms per 1,000).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from appliance.base.errors import ErrorCode
from appliance.base.model import NO_LEADER_EPOCH, LeaderEpoch, Offset, Position, ProducerId
from appliance.cluster.metadata_image import MetadataImage, TopicImage
from appliance.ipc.log_writer_proxy import LogWriterProxy
from appliance.ipc.proxies import LogWriterProxies
from appliance.protocol.leader_hints import CurrentLeader, NodeEndpoint
from appliance.shm.disk_tables import KnownRows
from appliance.shm.partition_table import (
    DISK_OFFLINE,
    DISK_ONLINE,
    PARTITION_AND_GENERATION,
    ROLE_AND_EPOCH,
    ROLE_LEADER,
    PartitionTableReader,
    Row,
    TornRow,
    row_of,
)


class Bound(NamedTuple):
    """Batches at and behind this are not for a read_committed consumer."""

    offset: Offset
    segment_base_offset: Offset
    position: Position
    segment_list_generation: int


class KnownAborted(NamedTuple):
    """All aborted transactions with records in [first_offset, end_offset), as long as these two are
    what the table says.
    """

    segment_list_generation: int
    aborted_end_offset: Offset
    first_offset: Offset
    end_offset: Offset
    transactions: Sequence[tuple[ProducerId, Offset, Offset]]
    """(producer id, first offset, offset of the marker)"""


CURSORS_MAX = 64
EPOCH_ENDS_MAX = 16
_HALF = (1 << 32) - 1
Cursor = tuple[Offset, Position, int, int]
"""(segment base offset, position, size of the batch there or 0, inode number of the file or 0): the
last two as in `Found`."""


class RowAddress(NamedTuple):
    """A row of a partition table; the generation shows whether the row is still the same
    partition's.
    """

    table: PartitionTableReader
    row: int
    row_generation: int


class LocalReplica:
    """Where a partition is on this box."""

    __slots__ = (
        "_epoch_ends", "_epoch_ends_under", "cursors", "disk", "is_compacted", "isr", "known_aborted", "max_message_bytes", "partition", "proxy",
        "reads_resident", "replicas", "row", "row_generation", "seen", "segment_list_generation", "settled_epoch", "stable_bound", "table", "topic",
        "topic_id",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        partition: int,
        proxy: LogWriterProxy,
        address: RowAddress,
        max_message_bytes: int = 0,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.disk = proxy.disk
        self.proxy = proxy
        self.table, self.row, self.row_generation = address
        self.max_message_bytes = max_message_bytes
        self.is_compacted = False
        """cleanup.policy has compact: records must have keys"""
        self.replicas: tuple[int, ...] = ()
        """The boxes to which the partition is assigned, from the image."""
        self.isr: tuple[int, ...] = ()
        """The in-sync replicas, from the image: late by a moment."""
        self.settled_epoch = NO_LEADER_EPOCH
        """The leader epoch under which the high watermark was seen to have reached that epoch's
        start offset.
        """
        self.segment_list_generation = -1
        """The row's value when `cursors` were stored: their positions are invalid after the segment
        was compacted.
        """
        self.seen: tuple[Any, ...] = ()
        """The row when it was last read whole."""
        self.cursors: OrderedDict[Offset, Cursor] = OrderedDict()
        """fetch offset → a position where a batch begins"""
        self.reads_resident = False
        """The last read below the log end came from the page cache: probably the next one does too,
        so a look-up for it may read ahead.
        """
        self.stable_bound: Bound | None = None
        self.known_aborted: KnownAborted | None = None
        self._epoch_ends: dict[LeaderEpoch, tuple[LeaderEpoch, Offset]] = {}
        self._epoch_ends_under = NO_LEADER_EPOCH

    def read_words(self) -> tuple[Any, ...]:
        """Return the row's words, read whole.

        If the log-writer was interrupted while it wrote the row, return the previous words: the
        log-writer checks role and epoch again, and an older high watermark is still true. Raises
        TornRow if the row was never read whole.
        """
        try:
            self.seen = words = self.table.read_words(self.row)
        except TornRow:
            words = self.seen
            if not words:
                raise
        return words

    def read_row(self) -> Row:
        """Return `read_words` with names."""
        return row_of(self.read_words())

    def leads_on(self, leader_epoch: LeaderEpoch, words: tuple[Any, ...]) -> bool:
        """Whether the row `words` led under `leader_epoch` and has led ever since: then its records
        of that time are unchanged.
        """
        role_and_epoch: int = words[ROLE_AND_EPOCH]
        if role_and_epoch >> 32 != ROLE_LEADER or words[PARTITION_AND_GENERATION] & _HALF != self.row_generation:
            return False
        return role_and_epoch & _HALF == leader_epoch or self.table.led_since(self.row) <= leader_epoch < role_and_epoch & _HALF

    def remember(self, offset: Offset, segment_base_offset: Offset, position: Position, first_batch_bytes: int = 0, inode: int = 0) -> None:
        cursors = self.cursors
        cursors[offset] = (segment_base_offset, position, first_batch_bytes, inode)
        if len(cursors) > CURSORS_MAX:
            cursors.popitem(last=False)

    def epoch_ends(self, leader_epoch: LeaderEpoch) -> dict[LeaderEpoch, tuple[LeaderEpoch, Offset]]:
        """Return what the log-reader answered about epochs before `leader_epoch`: requested epoch →
        (epoch, end offset).

        The answers stay valid while this broker leads under `leader_epoch`.
        """
        if self._epoch_ends_under != leader_epoch or len(self._epoch_ends) > EPOCH_ENDS_MAX:
            self._epoch_ends_under = leader_epoch
            self._epoch_ends.clear()
        return self._epoch_ends


class CacheChange(IntEnum):
    """The largest change that `refresh` found."""

    NOTHING = 0
    ROLES = 1
    """Leaders, followers or epochs, in existing rows."""
    PLACES = 2
    """The image, or which rows and disks exist."""


class MetadataCache:
    """The image and an index of all rows."""

    def __init__(self, broker_id: int, proxies: LogWriterProxies) -> None:
        self.broker_id = broker_id
        self.image = MetadataImage.empty()
        self._proxies = proxies
        self.by_name: dict[tuple[str, int], LocalReplica] = {}
        self._tables: dict[str, KnownRows] = {}
        self._disk_states: dict[str, int] = {}
        self._is_image_new = True
        self._must_place = True

    def set_image(self, image: MetadataImage) -> None:
        former, self.image = self.image, image
        self._is_image_new = True
        self._must_place = self._must_place or former.topics_by_id.keys() != image.topics_by_id.keys()
        for name, topic in image.topics.items():
            known = former.topics.get(name)
            if known is not topic and known != topic:
                self._take_topic(topic, known)

    def _take_topic(self, topic: TopicImage, former: TopicImage | None) -> None:
        """Apply a topic's changes to its existing replicas."""
        has_same_config = former is not None and former.config == topic.config
        known = former.partitions if former is not None else ()
        for number, partition in enumerate(topic.partitions):
            if has_same_config and number < len(known) and (known[number] is partition or known[number] == partition):
                continue
            if number >= len(known) or (known[number].disk, known[number].moving_to) != (partition.disk, partition.moving_to):
                self._must_place = True
            placement = self.by_name.get((topic.name, number))
            if placement is not None:
                self._configure(placement, topic)

    def refresh(self) -> CacheChange:
        """Apply a new image and changed tables; return the largest change found."""
        change = CacheChange.NOTHING
        tables, by_disk = self._tables, self._proxies.by_disk
        if not tables.keys() <= by_disk.keys():
            for disk in tables.keys() - by_disk.keys():
                del tables[disk]
            self._must_place = True
        for disk, proxy in by_disk.items():  # in each turn: a produce of 1 MB takes two
            known, table = tables.get(disk), proxy.table
            if known is not None and known.table is not table:
                known = None
                del tables[disk]
                self._must_place = True
            if known is None and table is not None:
                known = tables[disk] = KnownRows(table)
                self._must_place = True
            if known is not None and known.is_old:
                change = CacheChange.ROLES
                disk_state = known.table.disk_state
                self._must_place = known.look() or self._must_place or self._disk_states.get(disk) != disk_state
                self._disk_states[disk] = disk_state
        if self._must_place or self._is_image_new:
            change = CacheChange.PLACES
        if self._must_place:
            self._must_place = False
            self._place()
        self._is_image_new = False
        return change

    def _place(self) -> None:
        previous = self.by_name
        topics_by_id = self.image.topics_by_id
        fresh: dict[tuple[str, int], LocalReplica] = {}
        for disk, known in self._tables.items():
            table, proxy = known.table, self._proxies.by_disk[disk]
            for index, (row_key, row_generation) in enumerate(zip(known.keys, known.row_generations, strict=True)):
                topic = topics_by_id.get(row_key[0]) if row_key is not None else None
                if topic is None or row_key is None:
                    continue
                partition = row_key[1]
                if partition < len(topic.partitions) and not topic.partitions[partition].may_lie_on(disk):
                    continue  # an orphan, of a disk that was added with old logs
                key = (topic.name, partition)
                placement = previous.get(key)
                if placement is None or placement.table is not table or placement.row != index or placement.row_generation != row_generation:
                    placement = LocalReplica(topic.name, topic.topic_id, partition, proxy, RowAddress(table, index, row_generation))
                    self._configure(placement, topic)
                fresh[key] = placement
        self.by_name = fresh

    def _configure(self, placement: LocalReplica, topic: TopicImage) -> None:
        placement.max_message_bytes = topic.max_message_bytes
        placement.is_compacted = "compact" in topic.config.get("cleanup.policy", "")
        if placement.partition < len(topic.partitions):
            placement.replicas, placement.isr = topic.partitions[placement.partition][2:4]

    def placement(self, topic: str, partition: int) -> LocalReplica | None:
        """Return the replica of a partition that this box serves, or None."""
        found = self.by_name.get((topic, partition))
        if found is None or not found.proxy.serving or found.proxy.is_hung or found.proxy.table is not found.table:
            return None
        return found

    def rows(self) -> set[tuple[str, int, int]]:
        """Return (disk, row, row generation) of each partition on this box.

        Disks that are offline are left out: an open segment on one would keep its file system from
        being unmounted.
        """
        offline = {disk for disk, proxy in self._proxies.by_disk.items() if proxy.table is not None and proxy.table.disk_state == DISK_OFFLINE}
        return {(placement.disk, placement.row, placement.row_generation) for placement in self.by_name.values() if placement.disk not in offline}

    def why_absent(self, topic: str, partition: int) -> ErrorCode:
        """Return the error for a partition without a replica here. The image shows whether it
        exists, the table whether its disk works.
        """
        topic_image = self.image.topics.get(topic)
        if topic_image is None or not 0 <= partition < len(topic_image.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        partition_image = topic_image.partitions[partition]
        if partition_image.disk is None or partition_image.moving_to is not None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER  # on another box, or being handed over to another disk
        proxy = self._proxies.by_disk.get(partition_image.disk)
        if proxy is None or proxy.table is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if proxy.table.disk_state == DISK_ONLINE and partition_image.leader != self.broker_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER  # the client must ask the leader
        # The disk is dead, or it has no such row: the log is missing, or the row is a moment behind the image.
        return ErrorCode.KAFKA_STORAGE_ERROR

    def leader_hint(self, topic: str, partition: int) -> CurrentLeader:
        """Return the leader according to the image, for a client that asked the wrong box."""
        topic_image = self.image.topics.get(topic)
        if topic_image is None or not 0 <= partition < len(topic_image.partitions):
            return CurrentLeader(-1, NO_LEADER_EPOCH)
        partition_image = topic_image.partitions[partition]
        return CurrentLeader(partition_image.leader, partition_image.leader_epoch)

    def endpoints(self, leaders: Iterable[CurrentLeader], listener: str) -> list[NodeEndpoint]:
        """Return the addresses of those leaders that are alive, for clients of a listener."""
        brokers = self.image.brokers_at(listener)
        return [
            NodeEndpoint(node.id, node.host, node.port, node.rack) for each in dict.fromkeys(leader[0] for leader in leaders) if (node := brokers.get(each))
        ]
