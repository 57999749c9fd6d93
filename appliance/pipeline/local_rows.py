"""Find the box of this machine that has a partition of a cluster: its row in a partition table, and its directory.

Reads runtime directories and shared memory only. A box with an external ZooKeeper learns its cluster's id from ZooKeeper: its
state directory has it then, meta.properties of its disks only from its next start on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from appliance.base.layout import BoxLayout
from appliance.base.model import TopicId
from appliance.base.settings import Box
from appliance.runtime.identity import read_joined_cluster
from appliance.runtime.running_boxes import boxes_with
from appliance.shm.disk_tables import attach_table
from appliance.shm.mapping import WORD_BYTES, LayoutMismatch, is_held
from appliance.shm.partition_table import (
    DISK_FULL,
    DISK_ONLINE,
    PARTITION_AND_GENERATION,
    ROLE_FOLLOWER,
    ROLE_LEADER,
    ROW_WORDS,
    ROWS_POSITION,
    ROWS_USED_WORD,
    TOPIC_ID_HIGH,
    TOPIC_ID_LOW,
    PartitionTableReader,
    Row,
    TornRow,
    topic_id_words,
)
from appliance.storage import file_io
from appliance.storage.directory_identity import META_PROPERTIES, MetaProperties


class LocalRow(NamedTuple):
    """A row, its table (to read it again), and the partition's directory."""

    topic_id: TopicId
    directory: str
    table: PartitionTableReader
    row_index: int
    row: Row

    def read(self) -> Row:
        """Read the row again. Raises `TornRow`, also if the row now belongs to another partition."""
        row = self.table.read(self.row_index)
        if row.row_generation != self.row.row_generation or row.role not in (ROLE_LEADER, ROLE_FOLLOWER):
            raise TornRow(f"{self.directory} is not served here any more")
        return row

    @property
    def aborted_end(self) -> int:
        return self.table.aborted_end(self.row_index)


def find_local_row(cluster_id: str, data_directory: str | None, topic: str, topic_id: TopicId, partition: int) -> LocalRow | str:
    """Return the partition on the first box that serves it, or why there is none. The caller closes its table."""
    reason = f"no running box of this machine has the directory {data_directory}" if data_directory else "this user sees no running box on this machine"
    found_box = False
    for known in boxes_with(data_directory):
        layout, box = known.layout, Box.from_document(known.box)
        if _cluster_id(box) != cluster_id:
            reason = reason if found_box else f"the box {layout.runtime_directory} belongs to another cluster"
            continue
        found_box = True
        found = find_row_in_box(layout, box, topic, topic_id, partition)
        if isinstance(found, LocalRow):
            return found
        reason = found
    return reason


def find_row_in_box(layout: BoxLayout, box: Box, topic: str, topic_id: TopicId, partition: int) -> LocalRow | str:
    """Return the partition on one of the disks of this box, or why there is none. The caller closes its table."""
    reason = f"the box {layout.runtime_directory} does not serve it at the moment"
    for disk in box.disks:
        try:
            table = attach_table(layout, disk.name)
        except (LayoutMismatch, OSError) as error:
            reason = str(error)
            continue
        found = None if table is None else _row(table, topic_id, partition)
        if table is not None and found is not None:
            return LocalRow(topic_id, f"{disk.path}/{topic}-{partition}", table, *found)
        if table is not None:
            table.close()
    return reason


def _cluster_id(box: Box) -> str | None:
    if box.cluster_id or not box.disks:
        return box.cluster_id
    try:
        joined = read_joined_cluster(box.state_directory)
    except (OSError, ValueError):
        joined = None
    if joined:
        return joined
    try:
        return MetaProperties.decode(file_io.read_file(f"{box.disks[0].path}/{META_PROPERTIES}")).cluster_id
    except (OSError, ValueError):
        return None


def _row(table: PartitionTableReader, topic_id: TopicId, partition: int) -> tuple[int, Row] | None:
    """Return index and row of a served partition; all rows are compared at once."""
    if not is_held(table.shared.name) or table.disk_state not in (DISK_ONLINE, DISK_FULL) or table.is_suspect:
        return None
    high, low = topic_id_words(topic_id)
    used = table.words[ROWS_USED_WORD]
    first = ROWS_POSITION // WORD_BYTES
    rows = np.array(table.words[first : first + used * ROW_WORDS], np.uint64).reshape(used, ROW_WORDS)
    is_here = (rows[:, TOPIC_ID_HIGH] == high) & (rows[:, TOPIC_ID_LOW] == low) & (rows[:, PARTITION_AND_GENERATION] >> np.uint64(32) == partition)
    for index in np.flatnonzero(is_here):
        try:
            row = table.read(int(index))
        except TornRow:
            continue
        if row.row_generation and row.topic_id == topic_id and row.partition == partition and row.role in (ROLE_LEADER, ROLE_FOLLOWER):
            return int(index), row
    return None
