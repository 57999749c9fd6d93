"""Topics as the image wants them beside what the partition tables say is applied; pure.

Weak spot: counts only what lies on this box's disks, led or followed, and of a log with several segments the table knows only the active one's size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from appliance.cluster.metadata_image import MetadataImage, PartitionImage
from appliance.shm.partition_table import ROLE_FOLLOWER, ROLE_LEADER, ROLE_OFFLINE, Row


class TopicStatus(NamedTuple):
    """One topic. `bytes` is at least what its logs occupy here; `bytes_are_whole` says whether it is all. `problems`: partition → words."""

    name: str
    partitions: int
    records: int
    bytes: int
    bytes_are_whole: bool
    problems: dict[str, str]


DISK_TROUBLES = {"hung": "hangs", "full": "is full: read only"}
"""States of a disk in which its table looks well: a hung one's is of the moment before."""


def describe_topics(
    image: MetadataImage, rows: Iterable[tuple[str, Row]], broker_id: int, disk_states: Mapping[str, str] = MappingProxyType({})
) -> list[TopicStatus]:
    """Every topic of the image, by name."""
    by_partition = {(row.topic_id, row.partition): row for _, row in rows}
    described = []
    for name, topic in sorted(image.topics.items()):
        here = [by_partition.get((bytes(topic.topic_id), partition)) for partition in range(len(topic.partitions))]
        known = [row for row in here if row is not None]
        problems = {}
        for partition, (wanted, row) in enumerate(zip(topic.partitions, here, strict=True)):
            if problem := partition_problem(wanted, row, broker_id):
                problems[str(partition)] = problem
            elif broker_id in wanted.replicas and (trouble := DISK_TROUBLES.get(disk_states.get(wanted.disk or "", ""))):
                problems[str(partition)] = f"disk {wanted.disk} {trouble}"
        described.append(
            TopicStatus(
                name,
                len(topic.partitions),
                sum(max(row.high_watermark - row.log_start_offset, 0) for row in known),
                sum(row.active_position for row in known),
                all(row.active_base_offset <= row.log_start_offset for row in known),
                problems,
            )
        )
    return described


def partition_problem(wanted: PartitionImage, row: Row | None, broker_id: int) -> str | None:
    """What an operator should know about a partition, or None: the image says what should be, the row what is."""
    if wanted.leader < 0:
        return "no leader"
    if len(wanted.isr) < len(wanted.replicas):
        return f"under-replicated: {len(wanted.isr)} of {len(wanted.replicas)} replicas in sync"
    if broker_id not in wanted.replicas:
        return None
    if row is None:
        return f"not open on disk {wanted.disk}" if wanted.disk else "on no disk of this box"
    if row.role == ROLE_OFFLINE:
        return f"disk {wanted.disk} is offline"
    if wanted.leader == broker_id and (row.role != ROLE_LEADER or row.leader_epoch < wanted.leader_epoch):
        return "leadership not yet taken up"
    if wanted.leader != broker_id and (row.role != ROLE_FOLLOWER or row.leader_epoch < wanted.leader_epoch):
        return f"does not follow broker {wanted.leader} yet"
    return None
