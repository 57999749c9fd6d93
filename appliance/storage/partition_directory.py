"""Names of partition directories: `TOPIC-PARTITION`, and `TOPIC-PARTITION.UUID-SUFFIX`.

A directory is renamed before anything in it is touched: a rename is atomic, so a crash leaves either a
partition or a directory that is not served.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from appliance.base.model import TopicId, TopicPartition, topic_name_problem

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
FUTURE_SUFFIX = "-future"
_LONGEST_NAME = 255
_LEAVING = re.compile(r"(.+)-([0-9]+)\.[0-9a-f]{32}-(delete|stray|future)\Z")


def parse_partition_name(name: str) -> TopicPartition | None:
    """The partition whose plain directory is called `name`; None for any other name."""
    topic, dash, partition = name.rpartition("-")
    if not dash or not partition.isascii() or not partition.isdigit() or topic_name_problem(topic) is not None:
        return None
    if str(int(partition)) != partition:
        return None
    return TopicPartition(topic, int(partition))


def is_leaving(name: str) -> bool:
    """Whether `name` is a `-delete`, `-stray` or `-future` directory."""
    return _LEAVING.match(name) is not None


def leaving_name(topic_partition: TopicPartition, unique: str, suffix: str) -> str:
    """`TOPIC-P.UNIQUE-SUFFIX`, the topic cut so that a file system takes it. `unique` has 32 hex digits."""
    rest = f"-{topic_partition.partition}.{unique}{suffix}"
    return topic_partition.topic[: _LONGEST_NAME - len(rest)] + rest


class PartitionDirectory(NamedTuple):
    """A partition that a log directory holds."""

    topic_partition: TopicPartition
    path: str
    topic_id: TopicId | None
